"""Samples as bytes: arrays and a JSON text that says the rest, with a sha256 of all of it; and 16-bit codes of densities.

Letters: P probes. A code is linear below `FLOOR` and logarithmic above: right to some 1e-4 of a value at every size.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common import sample_file

FLOOR = 2e-4  # e / A^3: well below it codes are spaced evenly, well above it their logarithms are
TOP_CODE = 65_535
TOP_SIGNED = 32_767


def encode(values: np.ndarray, top: float) -> np.ndarray:
    """(P,) uint16 of values in [0, top]."""
    return np.rint(TOP_CODE * np.log1p(values / FLOOR) / math.log1p(top / FLOOR)).astype(np.uint16)


def decode(codes: np.ndarray, top: float) -> np.ndarray:
    """(P,) float64 of what `encode` or `encode_signed` gave."""
    if codes.dtype == np.int16:
        return (
            np.sign(codes)
            * FLOOR
            * np.expm1(np.abs(codes.astype(np.float64)) * (math.log1p(top / FLOOR) / TOP_SIGNED))
        )
    return FLOOR * np.expm1(codes.astype(np.float64) * (math.log1p(top / FLOOR) / TOP_CODE))


def encode_signed(values: np.ndarray, top: float) -> np.ndarray:
    """(P,) int16 of values in [-top, top]: half as fine as `encode`."""
    if not top > 0:
        return np.zeros(len(values), np.int16)
    size = np.log1p(np.abs(values) / FLOOR) / math.log1p(top / FLOOR)
    return np.rint(np.sign(values) * TOP_SIGNED * size).astype(np.int16)


def opened(data: bytes, *, where: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the text of a file; BadInput names it where it is none, or not as it was written."""
    try:
        return sample_file.opened(data)
    except sample_file.FAILURES as error:
        raise no_sample(where, error) from error


def no_sample(where: str, error: Exception) -> BadInput:
    """The error for a file that cannot be read as a sample."""
    return BadInput(
        f"{where} is not a sample of a data set: {error}",
        hint="name a file made by `pinchpoint density data`",
    )
