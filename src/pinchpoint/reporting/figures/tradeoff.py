"""Time vs memory of each variant, at the largest size that all variants ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_seconds, show_size
from pinchpoint.reporting.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def choices(study: Study) -> dict[str, list[Point]]:
    """Return mode -> one timed point of each variant, all of the same size, baseline first."""
    lines = style.lines_of(study)
    by_mode = {}
    for mode in dict.fromkeys(mode for _, mode in lines):
        times = {
            variant: {
                p.size: p
                for p in lines.get((variant, mode), [])
                if p.status == "ok" and p.time_s and p.peak_allocated_bytes
            }
            for variant in style.variants_of(study)
        }
        times = {variant: points for variant, points in times.items() if points}
        common = set.intersection(*(set(points) for points in times.values())) if len(times) > 1 else set()
        if common:
            by_mode[mode] = [points[max(common)] for points in times.values()]
    return by_mode


def draw(study: Study) -> Figure | None:
    by_mode = choices(study)
    if not by_mode:
        return None
    figure, grid = style.canvas(columns=len(by_mode), width=5.2 * len(by_mode) + 1.0, height=4.2)
    for axes, (mode, points) in zip(grid[0], by_mode.items(), strict=True):
        _panel(axes, study, points)
        axes.set_title(f"{mode}, {style.drawable(study.axis)} {show_size(points[0].size)}", fontsize=10)
    grid[0][0].set_ylabel("peak allocated")
    figure.suptitle(
        f"Time vs memory per variant: {style.drawable(study.target)}",
        x=0.01,
        ha="left",
        fontsize=11.5,
        fontweight="bold",
    )
    return figure


def _panel(axes: Axes, study: Study, points: list[Point]) -> None:
    base = points[0]
    times = [t for p in points for t in (p.time_s, p.time_low_s, p.time_high_s) if t]
    for order, point in enumerate(points):
        assert point.time_s is not None
        assert point.peak_allocated_bytes is not None
        look = style.look(study, point.variant, "train")
        low, high = point.time_low_s or point.time_s, point.time_high_s or point.time_s
        axes.errorbar(
            point.time_s,
            point.peak_allocated_bytes,
            xerr=[[point.time_s - low], [high - point.time_s]],
            marker="o",
            markersize=8,
            color=look["color"],
            capsize=3,
        )
        label = style.drawable(point.variant)
        if point is not base:
            assert base.time_s is not None
            assert base.peak_allocated_bytes is not None
            times_slower = point.time_s / base.time_s
            times_larger = point.peak_allocated_bytes / base.peak_allocated_bytes
            label += f"\n{times_slower:.2f}× time, {times_larger:.2f}× peak"
        axes.annotate(
            label,
            (point.time_s, point.peak_allocated_bytes),
            xytext=(0, -9 if order % 2 else 9),
            textcoords="offset points",
            ha="center",
            va="top" if order % 2 else "bottom",  # labels of neighbours with the same peak do not overlap
            fontsize=8.5,
            color=look["color"],
        )
    peaks = [p.peak_allocated_bytes for p in points if p.peak_allocated_bytes]
    _time_axis(axes, times)
    axes.set_ylim(*style.spread(peaks, 0.3))
    style.byte_axis(axes, "")


def _time_axis(axes: Axes, times: list[float]) -> None:
    """Make a linear axis from zero if the times are similar, and a log axis if one is many times slower."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if max(times) < 8 * min(times):
        axes.set_xlim(0, 1.25 * max(times))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    else:
        axes.set_xscale("log")
        axes.set_xlim(*style.spread(times, 0.25))
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=20))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time per step (median, 95 % interval)")


def _tick(seconds: float) -> str:
    if seconds == 0:
        return "0"
    number, _, unit = show_seconds(seconds * (1 + 1e-12)).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"
