"""The progress bar of a training run, for every system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pinchpoint.console import printing, progress_bar

if TYPE_CHECKING:
    from pinchpoint.systems.common.training.training_loop import Report

Show = Callable[[progress_bar.Bar, Any, list[float]], None]


@contextmanager
def show_progress(label: str = "train", *, by: Show | None = None) -> Iterator[Callable[[Any], None]]:
    """`with show_progress() as watch: train(..., progress=watch)`: a bar that shows the reports of a run by
    `by`.

    After Ctrl-C the process ends here if the run has already said that it stopped.
    """
    show_report, errors, stages = by or show, [], set()
    try:
        with progress_bar.bar(label) as tell:

            def watch(report: Any) -> None:
                stages.add(report.stage)
                show_report(tell, report, errors)

            yield watch
    except KeyboardInterrupt as stop:
        if "stopped" in stages:
            raise SystemExit(130) from stop
        raise


def show(
    tell: progress_bar.Bar,
    report: Report,
    errors: list[float],
    *,
    form: str = ".1%",
    held: Callable[[float], str] | None = None,
) -> None:
    """Show one report on the bar. errors: the validation errors so far; the last one stays visible, formatted
    by `held`.
    """
    row = report.row
    if report.stage == "stopped":
        where = (
            f"at step {report.done:,} of {report.total:,} with a checkpoint"
            if report.done
            else "before the first step"
        )
        printing.say(f"stopped {where}; continue with --resume")
        return
    if row is None:
        tell(report.stage, report.done, report.total, text=report.note)
        return
    text = f"loss {report.loss:.4f}  {progress_bar.show_memory(row.memory_bytes)}"
    if row.validation is not None:
        errors.append(row.validation)
    if errors:
        text += "  " + (f"held back {errors[-1]:{form}}" if held is None else held(errors[-1]))
    tell("steps", report.done, report.total, text=text, eta_s=report.eta_s)
