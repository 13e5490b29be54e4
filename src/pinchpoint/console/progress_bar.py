"""A progress bar for countable work: one updated line on a terminal, occasional lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pinchpoint.console import interrupts, printing
from pinchpoint.core.units import show_bytes

LINES = 20  # approximate limit on the lines per stage when piped
APART_S = 2.0  # the shortest time between two lines, except for the last one


class Bar(Protocol):
    """Shows the progress of a stage. text: short additional information. eta_s: remaining seconds."""

    def __call__(
        self, stage: str, done: int, total: int, *, text: str = "", eta_s: float | None = None
    ) -> None: ...


class AddedProgress:
    """Progress of work that is partly done already: only new items determine the remaining time.

    Call it with the number of finished items and the total; `there` is the number that existed before.
    """

    def __init__(self, tell: Bar, stage: str) -> None:
        self._tell, self._stage, self._start = tell, stage, time.perf_counter()
        self._first: int | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._first is None:
            self._first = done
        new, elapsed_s = done - self._first, time.perf_counter() - self._start
        self._tell(self._stage, done, total, eta_s=elapsed_s / new * (total - done) if new else None)

    @property
    def there(self) -> int:
        return self._first or 0


def show_left(seconds: float | None) -> str:
    """Remaining time as `1:05` or `2:03:10`: minutes and seconds, with hours if needed."""
    if seconds is None:
        return "-:--"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def show_memory(value: int) -> str:
    """Bytes with at most four digits, for a line of 80 columns."""
    number, unit = show_bytes(value).split()
    return (
        f"{float(number.replace(',', '')):.3g} {unit}"
        if float(number.replace(",", "")) < 1000
        else f"{number} {unit}"
    )


@contextmanager
def bar(label: str) -> Iterator[Bar]:
    """`with bar("train") as tell: tell("steps", 3, 100, text="loss 0.1", eta_s=12)`."""
    interrupts.begin_work()
    out, start = printing.stderr(), time.perf_counter()
    if not out.is_terminal:
        last: dict[str, tuple[int, float]] = {}

        def log(stage: str, done: int, total: int, *, text: str = "", eta_s: float | None = None) -> None:
            part, now = done * LINES // max(total, 1), time.perf_counter()
            before, at = last.get(stage, (-1, start if total else -APART_S))
            if total and done != total and (part == before or now < at + APART_S):
                return
            last[stage] = part, now
            left = f", {show_left(eta_s)} left" if eta_s is not None and done < total else ""
            count = f" {done:,}/{total:,}" if total else ""
            remark = f"  {text}" if text else ""
            printing.say(f"[{time.perf_counter() - start:6.1f} s] {label}: {stage}{count}{remark}{left}")

        yield log
        return
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=10),
        TextColumn("{task.fields[count]}", markup=False),
        TextColumn("{task.fields[text]}", markup=False),
        TextColumn("{task.fields[left]}", markup=False),
        console=out,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        task = progress.add_task(label, count="", text="", left="", total=None)

        def move(stage: str, done: int, total: int, *, text: str = "", eta_s: float | None = None) -> None:
            progress.update(
                task,
                description=stage,
                completed=done,
                total=total or None,
                text=text,
                count=f"{done:,}/{total:,}" if total else "",
                left=f"{show_left(eta_s)} left" if eta_s is not None else "",
            )

        yield move
