"""`Checkpointing`: what `plan --checkpointing` produces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records.base import Record, now
from pinchpoint.core.units import show_bytes, show_seconds


@dataclass(frozen=True)
class Checkpointing(Record):
    """The modules to recompute in the backward pass so that a script fits a budget at the least extra time.

    Peaks are predictions of the very run with these modules recomputed. Times are estimates from operation
    counts.
    """

    kind: ClassVar[str] = "checkpointing"
    target: str
    budget_bytes: int
    card: str  # whose context, workspace and speed are modelled
    modules: tuple[str, ...]  # names in the model; empty if the script fits as it is
    # the same in short: {"modules": "blocks.0-7", "class", "keeps", "count", "freed_bytes", "recompute_s"}
    groups: tuple[dict[str, Any], ...]
    fits: bool | None  # None if it cannot be known, for one of the `reasons`
    peak_bytes: int  # predicted total with these modules recomputed
    peak_allocated_bytes: int
    before_bytes: int  # predicted total without
    margin_bytes: int
    step_s: float  # of a step without recomputation, estimated
    extra_s: float  # that recomputation adds to a step, estimated
    how: tuple[dict[str, str], ...]  # ways to switch it on: {"title", "code"}
    keeping_products: tuple[str, ...] = ()  # those modules in which the results of products are kept
    low_bytes: int | None = None  # bounds of allocated, as in a forecast
    high_bytes: int | None = None
    # every fake run: {"modules" (their number), "total_bytes", "extra_s", "fits"}
    tried: tuple[dict[str, Any], ...] = ()
    refused: dict[str, str] = field(default_factory=dict)  # modules that cannot be recomputed, and why
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)  # empty: a script has none
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        share = self.extra_s / self.step_s if self.step_s else 0.0
        fits = {True: "yes", False: "no", None: "unknown"}[self.fits]
        is_freed = self.fits is not False and self.peak_bytes > self.budget_bytes
        rows = [
            ("target", self.target),
            ("budget", f"{show_bytes(self.budget_bytes)} ({self.card})"),
            ("peak without", show_bytes(self.before_bytes)),
            (
                "predicted peak",
                show_bytes(self.peak_bytes) + (" before cached blocks are freed" if is_freed else ""),
            ),
            ("fits", fits),
            ("margin", show_bytes(self.margin_bytes)),
        ]
        if self.low_bytes is not None:
            between = f"{show_bytes(self.low_bytes)} and {show_bytes(self.high_bytes)}"
            rows.insert(4, ("allocated between", between))
        if self.modules:
            extra = f"{show_seconds(self.extra_s)} per step, {share:.0%} more (estimated)"
            rows += [("recomputed", f"{len(self.modules)} modules"), ("extra time", extra)]
        return rows
