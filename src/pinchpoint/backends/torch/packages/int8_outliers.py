"""Products of LLM.int8 in bitsandbytes, whose memory depends on how many columns of the input have outliers.

Columns with a value beyond the threshold are multiplied in the precision of the input, and kept for the
backward pass. How many there are depends on the model and the data. Here one column is copied as a tensor,
and the others are a block of uncertain size: none at least, usually one column in 100, at most one in 4.
In trained language models, about one column in 1,000 has systematic outliers (Dettmers et al., 2022); a
column counts here as soon as one token of the batch has one, so these shares are a guess with some room.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import Span

_USUAL, _MOST = 0.01, 0.25  # of the columns
Kernel = Callable[..., Any]


def kernels(observer: Observer, package: Mapping[tuple[str, str], Kernel]) -> dict[str, Kernel]:
    """Kernels that replace those of the package on the device, by name.

    package: its own kernels, by name and device.
    """

    def quantise(A: torch.Tensor, threshold: float = 0.0) -> Any:
        if not threshold:
            return package["int8_vectorwise_quant", "cuda"](A, threshold)
        rows, columns = A.numel() // A.shape[-1], A.shape[-1]
        statistics = torch.empty(rows, device=A.device, dtype=torch.float32)
        out = torch.empty(A.shape, device=A.device, dtype=torch.int8)
        outliers = A.abs() >= threshold
        has_outlier = torch.empty(columns, device=A.device, dtype=torch.bool)  # whether each column has one
        column = torch.empty(1, device=A.device, dtype=torch.int64)
        del outliers, has_outlier
        share = f"{_USUAL:.0%} of the columns, and at most {_MOST:.0%}"
        observer.note(f"outliers of LLM.int8 depend on the data: {share}, are assumed to have one")
        return out, statistics, column

    def multiply(
        A: torch.Tensor, CA: torch.Tensor, CB: torch.Tensor, SCA: Any, SCB: Any, *args: Any, **kwargs: Any
    ) -> Any:
        run = _find(package, "int8_mixed_scaled_mm")
        columns = kwargs.get("outlier_cols", args[0] if args else None)
        if columns is None or not columns.numel():
            return run(A, CA, CB, SCA, SCB, *args, **kwargs)
        # The columns of the weights: as they are, in fp32, and in the precision of the input.
        weights = CB.shape[0] * (1 + 4 + A.element_size())
        block = _add(observer, weights, A.shape[-1])
        output, kept = run(A, CA, CB, SCA, SCB, *args, **kwargs)
        observer.ledger.free_temporary(block)
        block = _add(observer, A.shape[0] * A.element_size(), A.shape[-1])
        weakref.finalize(kept, observer.ledger.free_temporary, block)
        return output, kept

    return {"int8_vectorwise_quant": quantise, "int8_mixed_scaled_mm": multiply}


def _find(package: Mapping[tuple[str, str], Kernel], name: str) -> Kernel:
    return package.get((name, "cuda")) or package[name, "default"]


def _add(observer: Observer, column_bytes: int, columns: int) -> int:
    """Add what the columns beside the first one take."""
    usual, most = (max(round(share * columns) - 1, 0) * column_bytes for share in (_USUAL, _MOST))
    ledger = observer.ledger
    return ledger.add_temporary(
        Span(usual, 0, most), phase=ledger.phase or "forward", site=ledger.site(), op="int8 outliers"
    )
