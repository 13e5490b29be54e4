"""Plots of a training run and of energies along a bond.

The energies of the first steps are far off, so the axis is limited to the later ones.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pinchpoint.core.files import write_bytes
from pinchpoint.core.units import show_count
from pinchpoint.reporting import palette
from pinchpoint.reporting.figures import style
from pinchpoint.systems.vmc.analysis.bond_curve import Minimum

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CHEMICAL_HA = 1.6e-3  # chemical accuracy: one kilocalorie per mole
_MOST_POINTS = 4000  # most points of a line; a page cannot resolve more
_LEAST = 1e-12  # smallest variance drawn, because zero has no logarithm
_LINE, _EXACT = (palette.LIGHT[role] for role in ("s1", "s2"))
_DASHES: Any = (0, (4, 2))
_DOTS: Any = {
    "color": style.MUTED,
    "alpha": 0.5,
    "marker": ".",
    "markersize": 2.8,
    "markeredgewidth": 0,
    "linestyle": "none",
}


def draw_convergence(
    path: Path, steps: Any, energies: Any, variances: Any, seconds: Any, *, exact_ha: float | None, title: str
) -> Path:
    """Draw the convergence of a training run to a PNG file. Arrays: (T,), one value per step."""
    with style.figure_style():
        return _save(convergence(steps, energies, variances, seconds, exact_ha=exact_ha, title=title), path)


def convergence(
    steps: Any, energies: Any, variances: Any, seconds: Any, *, exact_ha: float | None, title: str
) -> Figure:
    """Draw energy, its difference from the reference (if any), and variance: each step, and smoothed.

    The difference is in mHa, on a scale that is linear within chemical accuracy and logarithmic beyond. It
    keeps its sign, because an energy below the reference means that something is wrong. The lower axis shows
    steps, the upper one seconds.
    """
    steps, energies, variances, seconds = (
        np.asarray(values, np.float64) for values in (steps, energies, variances, seconds)
    )
    width = window(len(energies))
    mean = smooth(energies, width)
    part = slice(None, None, max(1, len(steps) // _MOST_POINTS))
    rows = 2 if exact_ha is None else 3
    figure, axes = style.canvas(rows=rows, width=style.WIDTH, height=1.0 + 2.4 * rows, sharex=True)
    top, below = axes[0][0], axes[-1][0]
    top.plot(steps[part], energies[part], **_DOTS, label="one step")
    top.plot(steps[part], mean[part], color=_LINE, label=f"mean of {show_count(width, 'step')}")
    top.set_ylim(*energy_limits(energies, mean, exact_ha))
    top.set_ylabel("energy, Ha")
    top.ticklabel_format(axis="y", useOffset=False)
    figure.suptitle(style.drawable(title), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    if exact_ha is not None:
        top.axhline(
            exact_ha,
            color=_EXACT,
            linestyle=_DASHES,
            linewidth=1.4,
            label=f"reference {exact_ha:.10g} Ha".replace("-", "−"),
        )
        _difference(axes[1][0], steps[part], 1e3 * (energies - exact_ha)[part], 1e3 * (mean - exact_ha)[part])
    style.legend(top, loc="upper right", markerscale=2.5)  # a dot is too small to be seen alone
    # A walker near a node or a nucleus makes the variance of a step large, so the median describes the
    # network better.
    usual = smooth(variances, width, by=np.median)
    below.plot(steps[part], np.maximum(variances, _LEAST)[part], **_DOTS)
    below.plot(
        steps[part],
        np.maximum(usual, _LEAST)[part],
        color=_LINE,
        label=f"median of {show_count(width, 'step')}",
    )
    style.legend(below, loc="upper right")
    below.set_yscale("log")
    below.set_ylabel("variance, Ha²")
    below.set_xlabel("step")
    below.set_xlim(0, steps[-1])
    _seconds_above(top, steps, seconds)
    return figure


def _difference(axes: Any, steps: np.ndarray, each_mha: np.ndarray, mean_mha: np.ndarray) -> None:
    """Draw the panel of the difference, which is too small to see in the panel of the energy."""
    near = 1e3 * CHEMICAL_HA
    axes.axhspan(
        -near, near, color=_EXACT, alpha=0.25, linewidth=0, label="within 1.6 mHa: chemical accuracy"
    )
    axes.plot(steps, each_mha, **_DOTS)
    axes.plot(steps, mean_mha, color=_LINE)
    axes.axhline(0.0, color=_EXACT, linestyle=_DASHES, linewidth=1.4)
    axes.set_yscale("symlog", linthresh=near, linscale=0.6)
    late = each_mha[len(each_mha) // 2 :]
    axes.set_ylim(min(-2 * near, 2 * np.percentile(late, 1)), max(2 * near, 1.5 * mean_mha.max()))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:+,g}".replace("-", "−") if value else "0")
    axes.set_ylabel("energy − reference, mHa")
    style.legend(axes, loc="upper right")


def _seconds_above(axes: Any, steps: np.ndarray, seconds: np.ndarray) -> None:
    """Add a second axis at the top, with round numbers of seconds at the steps that ended then."""
    from matplotlib.ticker import MaxNLocator

    ticks = [
        tick
        for tick in MaxNLocator(6, steps=[1, 2, 3, 5, 6, 10]).tick_values(0.0, seconds[-1])
        if tick <= seconds[-1]
    ]
    above = axes.secondary_xaxis("top")
    above.set_xticks(
        [float(np.interp(tick, seconds, steps)) for tick in ticks], [f"{tick:,g}" for tick in ticks]
    )
    above.set_xlabel("seconds of training")


def draw_scan(
    path: Path,
    bonds: Sequence[float],
    energies: Sequence[float],
    errors: Sequence[float],
    *,
    is_mixed: Sequence[bool],
    lowest: Minimum | None,
    reference: tuple[float, float] | None,
    title: str,
) -> Path:
    """Draw energies along a bond. is_mixed: for each point; reference: bond and energy of the known point."""
    with style.figure_style():
        figure, axes = style.canvas()
        (only,) = axes[0]
        points = np.array([bonds, energies, errors], float)
        good = np.asarray(is_mixed, bool)
        if good.any():
            _points(only, points[:, good], color=_LINE, label="energy ± standard error")
        if not good.all():
            label = "not mixed: error bar too small"
            _points(only, points[:, ~good], color=style.BAD, markerfacecolor="white", label=label)
        if lowest is None:
            only.plot(bonds, energies, color=style.MUTED, linestyle=":", linewidth=1.0, zorder=1)
        else:
            along = np.linspace(lowest.low, lowest.high, 200)
            label = f"Morse curve of {lowest.points} points"
            only.plot(along, lowest.energy_at(along), color=_LINE, linewidth=1.2, zorder=1, label=label)
            only.errorbar(
                lowest.bond,
                lowest.energy_ha,
                xerr=lowest.bond_error,
                yerr=lowest.energy_error_ha,
                marker="v",
                color=style.INK,
                linestyle="none",
                capsize=2,
                label=f"lowest at {lowest.bond:.3f} ± {lowest.bond_error:.3f} bohr",
            )
        if reference is not None:
            only.plot(
                *reference,
                marker="x",
                color=_EXACT,
                linestyle="none",
                markersize=9,
                label=f"reference {reference[1]:.6f} Ha".replace("-", "−"),
            )
        only.set_xlabel("bond, bohr")
        only.set_ylabel("energy, Ha")
        only.set_title(style.drawable(title))
        only.ticklabel_format(useOffset=False)
        style.legend(only)
        return _save(figure, path)


def _points(axes: Any, points: np.ndarray, **look: Any) -> None:
    """Draw points with their error bars. points: (3, K), bonds, energies and errors."""
    axes.errorbar(points[0], points[1], yerr=points[2], marker="o", linestyle="none", capsize=3, **look)


def window(steps: int) -> int:
    """Return the number of steps of the running mean, which is odd."""
    return max(1, min(101, steps // 10 - 1 + steps // 10 % 2))


def smooth(values: np.ndarray, width: int, *, by: Callable[[np.ndarray], Any] = np.mean) -> np.ndarray:
    """Return the mean of the `width` (odd) values around each value, (T,) -> (T,).

    At the start, it uses fewer values, as many before as after, so that a steep descent is not distorted. At
    the end, it uses the last `width` values, because a mean of fewer would be noisy.
    """
    half, end = width // 2, len(values)
    reach = [min(half, at) for at in range(end)]
    firsts = [max(0, min(at - far, end - width)) for at, far in enumerate(reach)]
    return np.array(
        [by(values[first : at + far + 1]) for at, (first, far) in enumerate(zip(firsts, reach, strict=True))]
    )


def energy_limits(energies: np.ndarray, mean: np.ndarray, exact_ha: float | None) -> tuple[float, float]:
    """Return limits of the axis that show the later half, the exact line, and some of the descent."""
    late = energies[len(energies) // 2 :]
    low, high = np.percentile(late, (1, 99))
    low, high = min(low, mean[-1]), max(high, mean[-1])
    if exact_ha is not None:
        low, high = min(low, exact_ha), max(high, exact_ha)
    room = max(high - low, 1e-6)
    return float(low - 0.3 * room), float(high + 1.5 * room)


def _save(figure: Any, path: Path) -> Path:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return write_bytes(path, data.getvalue())
