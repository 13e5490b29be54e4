"""The progress bar of a training run, for every system."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common.processes import is_first_process

if TYPE_CHECKING:
    from pinchpoint.systems.common.training.training_loop import Report

Show = Callable[[progress_bar.Bar, Any, list[float]], None]


@contextmanager
def show_progress(
    label: str = "train", *, by: Show | None = None, resume: bool = False
) -> Iterator[Callable[[Any], None]]:
    """`with show_progress() as watch: train(..., progress=watch)`: show the reports of a run on a bar.

    by: shows one report; `show` by default. resume: whether an existing run is continued. After Ctrl-C the
    process ends here if the run has already reported that it stopped.
    """
    show_report, errors, stages = by or show, [], set()
    try:
        with progress_bar.bar(label) as tell:

            def watch(report: Any) -> None:
                stages.add(report.stage)
                if report.stage == "finished":
                    printing.say(f"already finished at step {report.done:,}; add --steps N to train longer")
                else:
                    show_report(tell, report, errors)

            yield watch
    except KeyboardInterrupt as stop:
        if "stopped" in stages:
            raise SystemExit(130) from stop
        raise
    except SystemExit as stop:
        is_terminated = stop.code == 128 + signal.SIGTERM
        if is_terminated and is_first_process() and not stages & {"stopped", "train"}:
            printing.say(
                "Stopped before the next step; continue with --resume."
                if resume
                else "Stopped before the first step; nothing was written."
            )
        raise


def show(
    tell: progress_bar.Bar,
    report: Report,
    errors: list[float],
    *,
    form: str = ".1%",
    describe: Callable[[float], str] | None = None,
) -> None:
    """Show one report on the bar.

    errors: the validation errors so far. The last one stays visible, in the format `form` or as the text that
    `describe` returns.
    """
    row = report.row
    if report.stage == "stopped":
        say_stopped(report.done, report.total)
        return
    if report.stage == "note":
        printing.say(f"note: {report.note}")
        return
    if row is None:
        tell(report.stage, report.done, report.total, text=report.note)
        return
    text = f"loss {report.loss:.4f}  {progress_bar.show_memory(row.memory_bytes)}"
    if row.validation is not None:
        errors.append(row.validation)
    if errors:
        text += "  " + (f"held back {errors[-1]:{form}}" if describe is None else describe(errors[-1]))
    tell("steps", report.done, report.total, text=text, eta_s=report.eta_s)


def say_stopped(step: int, steps: int) -> None:
    """Say where a run stopped. step: 0 before the first step."""
    where = f"at step {step:,} of {steps:,} with a checkpoint" if step else "before the first step"
    printing.say(f"stopped {where}; continue with --resume")
