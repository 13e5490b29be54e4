"""The progress of a training run of any system, on a bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pinchpoint.console import printing, progress_bar

if TYPE_CHECKING:
    from pinchpoint.systems.common.training_loop import Report

Show = Callable[[progress_bar.Bar, Any, list[float]], None]


@contextmanager
def followed(label: str = "train", *, by: Show | None = None) -> Iterator[Callable[[Any], None]]:
    """`with followed() as watch: train(..., progress=watch)`: a bar of the reports of a run, each put on it by `by`.

    Stopped with Ctrl-C the process ends here where the run has said so already: it need not be said again.
    """
    put, seen, stages = by or show, [], set()
    try:
        with progress_bar.bar(label) as tell:

            def watch(report: Any) -> None:
                stages.add(report.stage)
                put(tell, report, seen)

            yield watch
    except KeyboardInterrupt as stop:
        if "stopped" in stages:
            raise SystemExit(130) from stop
        raise


def show(
    tell: progress_bar.Bar,
    report: Report,
    seen: list[float],
    *,
    form: str = ".1%",
    held: Callable[[float], str] | None = None,
) -> None:
    """One report on the bar. seen: errors on what is held back so far; the last stays in sight, as `held` words it."""
    row = report.row
    if report.stage == "stopped":
        where = (
            f"at step {report.done:,} of {report.total:,} with a checkpoint"
            if report.done
            else "before the first step"
        )
        printing.say(f"stopped {where}; go on with --resume")
        return
    if row is None:
        tell(report.stage, report.done, report.total, text=report.note)
        return
    text = f"loss {report.loss:.4f}  {progress_bar.show_memory(row.memory_bytes)}"
    if row.validation is not None:
        seen.append(row.validation)
    if seen:
        text += "  " + (f"held back {seen[-1]:{form}}" if held is None else held(seen[-1]))
    tell("steps", report.done, report.total, text=text, eta_s=report.eta_s)
