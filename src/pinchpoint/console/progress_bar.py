"""A progress bar for work that is counted: on a terminal one line that moves, when piped a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pinchpoint.console import interrupts, printing
from pinchpoint.core.units import show_bytes

LINES = 20  # at most about so many lines of a stage when piped,
APART_S = 2.0  # and none sooner than this after the last, but for the end


class Bar(Protocol):
    """Tells how far a stage is. text: what else is worth a look, short; eta_s: seconds left."""

    def __call__(
        self, stage: str, done: int, total: int, *, text: str = "", eta_s: float | None = None
    ) -> None: ...


class AddedProgress:
    """`progress(made, wanted)` of things some of which are `there` already: the new ones tell how long the rest takes."""

    def __init__(self, tell: Bar, stage: str) -> None:
        self._tell, self._stage, self._start = tell, stage, time.perf_counter()
        self._first: int | None = None

    def __call__(self, made: int, wanted: int) -> None:
        if self._first is None:
            self._first = made
        new, spent = made - self._first, time.perf_counter() - self._start
        self._tell(self._stage, made, wanted, eta_s=spent / new * (wanted - made) if new else None)

    @property
    def there(self) -> int:
        return self._first or 0


def show_left(seconds: float | None) -> str:
    """`1:05` or `2:03:10`: minutes and seconds, hours where there are some."""
    if seconds is None:
        return "-:--"
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def show_memory(value: int) -> str:
    """Four digits at most, for a line of 80 columns."""
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
        said: dict[str, tuple[int, float]] = {}

        def log(stage: str, done: int, total: int, *, text: str = "", eta_s: float | None = None) -> None:
            part, now = done * LINES // max(total, 1), time.perf_counter()
            before, at = said.get(stage, (-1, start if total else -APART_S))
            if total and done != total and (part == before or now < at + APART_S):
                return
            said[stage] = part, now
            left = f", {show_left(eta_s)} left" if eta_s is not None and done < total else ""
            count = f" {done:,}/{total:,}" if total else ""
            printing.say(
                f"[{time.perf_counter() - start:6.1f} s] {label}: {stage}{count}{'  ' + text if text else ''}{left}"
            )

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
    ) as shown:
        task = shown.add_task(label, count="", text="", left="", total=None)

        def move(stage: str, done: int, total: int, *, text: str = "", eta_s: float | None = None) -> None:
            shown.update(
                task,
                description=stage,
                completed=done,
                total=total or None,
                text=text,
                count=f"{done:,}/{total:,}" if total else "",
                left=f"{show_left(eta_s)} left" if eta_s is not None else "",
            )

        yield move
