"""Pictures of a training and of energies along a bond.

The energies of the first steps lie far off: the axis is cut to what comes after them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import write_bytes
from pinchpoint.render import palette
from pinchpoint.render.figures import style

CHEMICAL_HA = 1.6e-3  # a kilocalorie per mole
_SHOWN = 4000  # points of a line at most: more than a page has columns of dots
_LINE, _FAINT, _EXACT = (palette.LIGHT[role] for role in ("s1", "idle", "s2"))


def draw_convergence(
    path: Path, steps: Any, energies: Any, variances: Any, *, exact_ha: float | None, title: str
) -> Path:  # fmt: skip
    """Energy of every step and its running mean above, the distance from the exact line and the variance below. All: (T,)."""
    steps, energies, variances = (np.asarray(values, np.float64) for values in (steps, energies, variances))
    mean = smoothed(energies, window(len(energies)))
    part = slice(None, None, max(1, len(steps) // _SHOWN))
    with style.applied():
        figure, axes = style.canvas(rows=2, width=style.WIDTH, height=6.4, sharex=True)
        top, below = axes[0][0], axes[1][0]
        top.plot(steps[part], energies[part], color=_FAINT, linewidth=0.8, label="a step")
        top.plot(steps[part], mean[part], color=_LINE, label=f"mean of {window(len(energies)):,} steps")
        if exact_ha is not None:
            top.axhline(exact_ha, color=_EXACT, linestyle=(0, (4, 2)), linewidth=1.4, label=f"reference {exact_ha:.6f} Ha")
        top.set_ylim(*energy_limits(energies, mean, exact_ha))
        top.set_ylabel("energy, Ha")
        top.set_title(style.drawable(title))
        style.legend(top, loc="upper right")
        below.plot(steps[part], np.maximum(variances[part], 1e-12), color=_FAINT, linewidth=0.8, label="variance, Ha²")
        if exact_ha is not None:
            off = np.abs(mean - exact_ha)
            below.plot(steps[part], np.maximum(off[part], 1e-7), color=_LINE, label="|mean − reference|, Ha")
            below.axhline(CHEMICAL_HA, color=_EXACT, linestyle=(0, (4, 2)), linewidth=1.4, label="1.6 mHa: chemical accuracy")
        below.set_yscale("log")
        below.set_xlabel("step")
        style.legend(below, loc="upper right")
        return _written(figure, path)


def draw_scan(
    path: Path, bonds: Sequence[float], energies: Sequence[float], errors: Sequence[float], *,
    lowest: tuple[float, float] | None, reference: tuple[float, float] | None, title: str,
) -> Path:  # fmt: skip
    """Energies along a bond. lowest: bond and energy of the minimum; reference: bond and energy of the known point."""
    with style.applied():
        figure, axes = style.canvas()
        (only,) = axes[0]
        only.errorbar(bonds, energies, yerr=errors, color=_LINE, marker="o", capsize=3, label="energy ± standard error")
        if lowest is not None:
            only.plot(*lowest, marker="v", color=style.INK, linestyle="none", label=f"lowest at {lowest[0]:.3f} bohr")
        if reference is not None:
            only.plot(
                *reference, marker="x", color=_EXACT, linestyle="none", markersize=9, label=f"reference {reference[1]:.6f} Ha"
            )
        only.set_xlabel("bond, bohr")
        only.set_ylabel("energy, Ha")
        only.set_title(style.drawable(title))
        only.ticklabel_format(useOffset=False)
        style.legend(only)
        return _written(figure, path)


def window(steps: int) -> int:
    """Steps of the running mean."""
    return max(1, min(100, steps // 10))


def smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """(T,) -> (T,): the mean of the last `width` values up to each, of fewer at the start."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return (total[ends] - total[starts]) / (ends - starts)


def energy_limits(energies: np.ndarray, mean: np.ndarray, exact_ha: float | None) -> tuple[float, float]:
    """Of the axis: the later half's scatter and the exact line, with some of the descent."""
    late = energies[len(energies) // 2 :]
    low, high = np.percentile(late, (1, 99))
    low, high = min(low, mean[-1]), max(high, mean[-1])
    if exact_ha is not None:
        low, high = min(low, exact_ha), max(high, exact_ha)
    room = max(high - low, 1e-6)
    return float(low - 0.3 * room), float(high + 1.5 * room)


def _written(figure: Any, path: Path) -> Path:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())
