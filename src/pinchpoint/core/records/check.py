"""`Check`: what check produces. What to change in a script, ranked, and what the safe changes gained."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pinchpoint.core import machine as _machine
from pinchpoint.core.records.base import Record, now
from pinchpoint.core.records.results import Forecast
from pinchpoint.core.records.trace import Trace
from pinchpoint.core.units import show_bytes, show_count, show_seconds

# measured: it has a cost. counted: it happened, but its cost on this device is not known. ran: the line ran,
# and nothing was measured. not seen: nothing is known. did not run: the line never ran.
Seen = Literal["measured", "counted", "ran", "not seen", "did not run"]

# cost: it has a measured cost, a share of the step, or a number of bytes. correctness: results may be wrong,
# or a call is unsafe or deprecated. source: it is in the source, and nothing was measured.
Group = Literal["cost", "correctness", "source"]
_GROUPS: dict[Group, str] = {
    "cost": "with a measured cost",
    "correctness": "about correctness",
    "source": "without a measured cost",
}


@dataclass(frozen=True)
class Advice:
    """One thing to change: what it is, where, what it costs, and how to fix it."""

    what: str  # a sentence
    hint: str
    seen: Seen
    file: str = ""
    line: int = 0
    code: str = ""
    rule: str = ""  # PP101; empty for what only the profile found
    name: str = ""  # sync-in-loop; the kind of a problem of the profile
    evidence: tuple[str, ...] = ()  # what the profile saw here, as sentences
    cost_s: float | None = None  # host seconds per step; of the whole run if it has no steps
    share: float | None = None  # of the time of the steps, or of the run
    bytes: int | None = None  # predicted for this line at the peak, or measured
    diff: str = ""  # the fix, if scan can write it
    is_safe: bool = False  # whether the fix keeps all results, so that --apply makes it

    @property
    def group(self) -> Group:
        """What it is about; the groups are ranked in this order."""
        if self.rule.startswith("PP5") or self.name == "no gradient":
            return "correctness"
        is_known = any(value is not None for value in (self.cost_s, self.share, self.bytes))
        return "cost" if is_known else "source"


@dataclass(frozen=True)
class Gain:
    """What --apply changed, or what --against names, and the times of a step before and after, in turn."""

    fixed: int
    files: tuple[str, ...]
    diff: str
    verdict: Literal["faster", "slower", "no measurable change", "too few pairs", "not compared", "undone"]
    reason: str
    fixes: tuple[Advice, ...] = ()  # what was fixed
    timed: str = "step"  # or "run", if the script has no steps
    before_s: tuple[float, ...] = ()  # the mean step of each block, or the median step of each run
    after_s: tuple[float, ...] = ()
    speedup: float | None = None  # median of before / after over the pairs; below 1 it is a slow-down
    speedup_low: float | None = None  # its 95 % interval
    speedup_high: float | None = None
    pairs_of_starts: tuple[int, ...] = ()  # of blocks: how many pairs each start of both versions gave
    block_steps: int = 0  # timed steps of a block; 0 if whole runs were compared
    against: str = ""  # the script of --against
    note: str = ""  # why whole runs were compared


@dataclass(frozen=True)
class Check(Record):
    """What to change in a script, ranked by measured cost. See docs/toolkit/check.md."""

    kind: ClassVar[str] = "check"
    target: str
    advice: tuple[Advice, ...]
    files: tuple[str, ...]  # that were scanned
    trace: Trace | None  # None if the script left no profile; see `error`
    forecast: Forecast | None  # None if there is none; a note says why
    gain: Gain | None = None  # with --apply or --against
    error: str = ""  # why the script failed
    exit_code: int = 0  # of the script
    settings: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def conclusion(self) -> str:
        """The answer in a sentence or two; if there is nothing to change, with the evidence for that."""
        if self.advice:
            counts = Counter(advice.group for advice in self.advice)
            parts = [f"{counts[group]:,} {text}" for group, text in _GROUPS.items() if counts[group]]
            return f"{show_count(len(self.advice), 'thing')} to change: {', '.join(parts)}."
        fixed = self.gain is not None and bool(self.gain.fixes)
        begin = f"Nothing {'else ' if fixed else ''}worth changing was found."
        files = show_count(len(self.files), "file")
        if self.trace is None or self.error:
            return f"{begin} The scan of {files} found nothing, but the script did not run to its end."
        if self.trace.steps < 2:
            return f"{begin} The scan of {files} found nothing, but no loop of steps was observed."
        phases = sorted(self.trace.phases, key=lambda phase: -phase.share)
        shares = ", ".join(f"{phase.name} {phase.share:.0%}" for phase in phases if phase.share >= 0.005)
        return (
            f"{begin} The scan of {files} found nothing, and in {show_count(self.trace.steps, 'step')} there "
            "was no needless wait, copy, compilation, cleanup, or rebuilt object"
            f"{f'. The steps spend their time on: {shares}' if shares else ''}."
        )

    def summary(self) -> list[tuple[str, str]]:
        rows = [("target", self.target)]
        if self.trace is not None:
            rows += self.trace.summary()[1:]
        if self.forecast is not None:
            peak = show_bytes(self.forecast.peak_allocated_bytes)
            if self.forecast.low_bytes is not None:
                low, high = show_bytes(self.forecast.low_bytes), show_bytes(self.forecast.high_bytes)
                peak = f"{peak} [{low} to {high}]"
            rows.append(("predicted peak", f"{peak} allocated, on {self.forecast.card}"))
        rows.append(("scanned", show_count(len(self.files), "file")))
        if self.gain is not None:
            if self.gain.against:
                rows.append(("compared with", self.gain.against))
            else:
                rows.append(("fixed", show_count(self.gain.fixed, "place")))
            if self.gain.speedup is not None:
                rows.append((f"{self.gain.timed} time", show_gain(self.gain)))
                rows.append(("measured in", show_pairs(self.gain)))
        return rows


def show_pairs(gain: Gain) -> str:
    """`10 pairs of blocks of 8 steps, 2 starts of each version`, or `6 pairs of runs`."""
    pairs = show_count(len(gain.before_s), "pair")
    if not gain.block_steps:
        return f"{pairs} of runs"
    starts = show_count(len(gain.pairs_of_starts), "start")
    return f"{pairs} of blocks of {show_count(gain.block_steps, 'step')}, {starts} of each version"


def show_gain(gain: Gain) -> str:
    """`12.0 ms before, 10.1 ms after: speed-up 1.19 [1.12 to 1.25]`; times are medians of all pairs."""
    before, after = statistics.median(gain.before_s), statistics.median(gain.after_s)
    return (
        f"{show_seconds(before)} before, {show_seconds(after)} after: speed-up {gain.speedup:.2f} "
        f"[{gain.speedup_low:.2f} to {gain.speedup_high:.2f}]"
    )
