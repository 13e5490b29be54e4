"""The operations that `op_probe.py` measures, those most frequent in forecasts first."""

from __future__ import annotations

from collections.abc import Iterator

import op_arrays
import op_layers
import op_steps
from op_live import Case


def cases() -> Iterator[Case]:
    """Yield every operation, matrix products first, so that they are the first calls of the process."""
    for group in (
        op_layers.matrix_cases,
        op_layers.attention_cases,
        op_steps.optimizer_cases,
        op_layers.convolution_cases,
        op_layers.norm_cases,
        op_arrays.loss_cases,
        op_arrays.index_cases,
        op_layers.recurrent_cases,
        op_arrays.image_cases,
        op_steps.transfer_cases,
        op_arrays.pointwise_cases,
        op_arrays.geometry_cases,
    ):
        yield from group()
