"""The progress of a training run of any system, on a bar."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pinchpoint.cli import bars, console

if TYPE_CHECKING:
    from pinchpoint.workloads.training.loop import Report


def show(
    tell: bars.Bar, report: Report, seen: list[float], *, form: str = ".1%", held: Callable[[float], str] | None = None
) -> None:
    """One report on the bar. seen: errors on what is held back so far; the last stays in sight, as `held` words it."""
    row = report.row
    if report.stage == "stopped":
        where = f"at step {report.done:,} of {report.total:,} with a checkpoint" if report.done else "before the first step"
        console.say(f"stopped {where}; go on with --resume")
        return
    if row is None:
        tell(report.stage, report.done, report.total, text=report.note)
        return
    text = f"loss {report.loss:.4f}  {bars.show_memory(row.memory_bytes)}"
    if row.validation is not None:
        seen.append(row.validation)
    if seen:
        text += "  " + (f"held back {seen[-1]:{form}}" if held is None else held(seen[-1]))
    tell("steps", report.done, report.total, text=text, eta_s=report.eta_s)
