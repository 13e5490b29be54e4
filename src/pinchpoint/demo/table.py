"""The result of the demo: one row per system, from the messages of its stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pinchpoint.core.demo import Picture, Show
from pinchpoint.core.errors import PinchpointError, from_dict
from pinchpoint.core.records import Verdict, load
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.demo.stages import Message

# The system and its task share a column, because eight columns leave a task the width of one word.
COLUMNS = ("system: what was done", "baseline", "tuned", "ratio", "peak\nbefore", "peak\nafter", "verdict")
NUMBERS = COLUMNS[1:6]
NONE = "-"


@dataclass
class Outcome:
    """What the stages of one system have produced so far."""

    show: Show
    verdict: Verdict | None = None
    records: list[Path] = field(default_factory=list)
    picture: Picture | None = None
    errors: list[tuple[str, PinchpointError]] = field(default_factory=list)  # with the stage

    def add(self, message: Message) -> None:
        if "record" in message:
            path = Path(message["record"])
            self.records.append(path)
            record = load(path)
            self.verdict = record if isinstance(record, Verdict) else self.verdict
        if "picture" in message:
            parts = message["picture"]
            self.picture = Picture(Path(parts["path"]), parts["title"], parts["caption"])
        if "error" in message:
            self.errors.append((message["stage"], from_dict(message["error"])))

    @property
    def passed(self) -> bool:
        return not self.errors and self.verdict is not None and self.verdict.status != "fail"

    def row(self) -> tuple[str, ...]:
        """The cells of the table, in the order of `COLUMNS`."""
        verdict = self.verdict
        if verdict is None:
            return (_task(self.show), *[NONE] * 5, "failed")
        return (
            f"{_task(self.show)}; {verdict.baseline} -> {verdict.variant}",
            _seconds(verdict.baseline_s),
            _seconds(verdict.variant_s),
            NONE if verdict.speedup is None else f"{verdict.speedup:.3g}x",
            _peak(verdict.peak_before_bytes),
            _peak(verdict.peak_after_bytes),
            verdict.status,
        )


def skipped_row(show: Show) -> tuple[str, ...]:
    return (_task(show), *[NONE] * 5, "skipped")


def _task(show: Show) -> str:
    return f"{show.workload}: {show.task}"


def _seconds(value: float | None) -> str:
    return NONE if value is None else _three_digits(show_seconds(value))


def _peak(value: int | None) -> str:
    return NONE if value is None else _three_digits(show_bytes(value))


def _three_digits(quantity: str) -> str:
    number, unit = quantity.split()
    value = float(number.replace(",", ""))
    return f"{value:,.0f} {unit}" if value >= 1_000 else f"{value:.3g} {unit}"
