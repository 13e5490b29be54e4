"""SPRING in the space of the parameters, by numpy: slow, and another way than the one that is tested."""

from __future__ import annotations

import numpy as np


def spring_reference(
    rows: np.ndarray, energies: np.ndarray, previous: np.ndarray, momentum: float, damping: float
) -> np.ndarray:
    """The least squares SPRING solves: |O d - e|^2 + damping |d - momentum previous|^2.

    rows: (B, P) scores, not centred.
    """
    rows = centred(rows)
    wanted = (energies - energies.mean()) / np.sqrt(len(rows))
    left = rows.T @ rows + damping * np.eye(rows.shape[1])
    return np.linalg.solve(left, rows.T @ wanted + damping * momentum * previous)


def centred(rows: np.ndarray) -> np.ndarray:
    return (rows - rows.mean(axis=0)) / np.sqrt(len(rows))
