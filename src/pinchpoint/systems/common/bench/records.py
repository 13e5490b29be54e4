"""`Bench`: the record of `pinchpoint bench` for one system, with one comparison per case.

A ratio is the baseline's time divided by that of the row: above 1 the row is faster, below 1 it is slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pinchpoint.core.records import Record
from pinchpoint.core.units import show_bytes, show_seconds

# report: further code of the optimisation report, beside the baseline.
Role = Literal["baseline", "report", "variant", "peer"]
State = Literal["ok", "not installed", "out of memory", "failed"]


@dataclass(frozen=True)
class Agreement:
    """How the result of a row was compared, and with what outcome.

    difference: the largest relative difference, where values are compared. equal: None where the results are
    not comparable, such as those of another model.
    """

    how: str
    difference: float | None = None
    equal: bool | None = None


@dataclass(frozen=True)
class Floor:
    """The least time that a case can take: operations and bytes, divided by what the device can do."""

    seconds: float | None
    operations: float | None
    moved_bytes: int | None
    basis: str  # what is counted, and at which rate


@dataclass(frozen=True)
class Row:
    """One contender: its time, its peak, and whether it computes the same."""

    name: str
    role: Role
    state: State = "ok"
    reason: str = ""  # why there is no time
    seconds: float | None = None  # median, for the work of the whole case
    seconds_low: float | None = None  # 95 % interval of the median
    seconds_high: float | None = None
    runs: int = 0
    ratio: float | None = None  # baseline / this row; None for the baseline
    ratio_low: float | None = None  # 95 % interval
    ratio_high: float | None = None
    peak_allocated_bytes: int | None = None  # of a separate run; None where it cannot be known
    work: float = 1.0  # share of the case that one run does; times are divided by it
    agreement: Agreement | None = None
    note: str = ""
    extras: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One case on one machine. rows: empty if the case failed; `failure` then says why."""

    case: str
    title: str
    claim: str  # what the optimisation report says about it
    axis: str
    size: int
    settings: dict[str, str]
    rows: tuple[Row, ...]
    floor: Floor | None
    notes: tuple[str, ...]
    failure: str
    wall_s: float
    command: str
    machine: dict[str, Any]
    created: str

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    @property
    def baseline(self) -> Row:
        return self.rows[0]


@dataclass(frozen=True)
class Bench(Record):
    """All comparisons of one system on one device."""

    kind: ClassVar[str] = "bench"
    system: str
    device: str
    sizes: str  # tiny, small, or report
    comparisons: tuple[Comparison, ...] = ()

    def case(self, name: str) -> Comparison | None:
        return next((one for one in self.comparisons if one.case == name), None)

    def with_case(self, comparison: Comparison) -> Bench:
        """Return the record with a comparison added, or replaced by name."""
        others = tuple(one for one in self.comparisons if one.case != comparison.case)
        return replace(self, comparisons=(*others, comparison))

    def summary(self) -> list[tuple[str, str]]:
        lines = [("system", f"{self.system} on {self.device}, {self.sizes} sizes")]
        for one in self.comparisons:
            if one.failure:
                lines.append((one.case, f"failed: {one.failure}"))
            lines += [(f"{one.case}: {row.name}", describe_row(row)) for row in one.rows]
        return lines


def describe_row(row: Row) -> str:
    """Return a row as one line of text."""
    if row.state != "ok":
        return f"{row.state}{f': {row.reason}' if row.reason else ''}"
    parts = [show_time(row)]
    parts += [show_ratio(row)] if row.ratio is not None else []
    parts += [] if row.peak_allocated_bytes is None else [f"peak {show_bytes(row.peak_allocated_bytes)}"]
    parts += [] if row.agreement is None else [show_agreement(row.agreement)]
    return ", ".join(parts)


def show_time(row: Row) -> str:
    assert row.seconds is not None and row.seconds_low is not None and row.seconds_high is not None
    low, high = show_seconds(row.seconds_low), show_seconds(row.seconds_high)
    return f"{show_seconds(row.seconds)} [{low}, {high}]"


def show_ratio(row: Row) -> str:
    """Return the ratio with its interval, and whether it is a slow-down or not clearly different from 1."""
    if row.ratio is None or row.ratio_low is None or row.ratio_high is None:
        return "1"
    middle, low, high = (_digits(one) for one in (row.ratio, row.ratio_low, row.ratio_high))
    remark = " slower" if row.ratio_high < 1 else "" if row.ratio_low > 1 else " not clear"
    return f"{middle}x [{low}, {high}]{remark}"


def _digits(value: float) -> str:
    """Return three digits, without an exponent: a small ratio is a fraction."""
    if 0 < value < 0.01:
        return f"1/{1 / value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:#.3g}"


def show_agreement(agreement: Agreement) -> str:
    if agreement.equal is None:
        return agreement.how
    verdict = "equal" if agreement.equal else "NOT EQUAL"
    off = "" if agreement.difference is None else f" to {agreement.difference:.1e}"
    return f"{verdict}{off} ({agreement.how})"
