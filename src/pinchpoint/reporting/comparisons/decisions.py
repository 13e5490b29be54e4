"""Two plans, two checkpointing plans or two verdicts compared: the answer before and after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pinchpoint.core.records import Checkpointing, Plan, Verdict
from pinchpoint.core.units import show_bytes, show_size
from pinchpoint.reporting.comparisons.comparison import Change, Changes, Comparison
from pinchpoint.reporting.comparisons.conditions import differing_conditions
from pinchpoint.reporting.record_reader import number, word


def compare_plans(before: Plan, after: Plan) -> Comparison:
    sizes = [Change(f"largest {after.axis}", before.size, after.size, "size")]
    if before.chunk is not None or after.chunk is not None:
        sizes.append(Change("chunk", before.chunk, after.chunk, "size"))
    peak = Change("predicted total", before.peak_bytes, after.peak_bytes)
    tables = (
        Changes("Answer", "answer", (*sizes, peak)),
        Changes(
            f"Largest {after.axis} per variant", "variant", _rows(before.choices, after.choices, "variant")
        ),
        Changes(f"Largest {after.axis} per card", "card", _rows(before.cards, after.cards, "card")),
    )
    shown = [show_size(plan.size) if plan.size is not None else "unknown" for plan in (before, after)]
    verb = "stays" if before.size == after.size else "changes"
    change = shown[1] if verb == "stays" else f"from {shown[0]} to {shown[1]}"
    return Comparison(
        kind="plan",
        before=before,
        after=after,
        conclusion=(f"The largest {after.axis} that fits {verb} {change}.",),
        tables=tuple(table for table in tables if table.rows),
        growth=None,
        notes=tuple(
            differing_conditions(before, after, ("target", "mode", "budget_bytes", "variant", "axis"))
        ),
    )


def _rows(before: Iterable[dict[str, Any]], after: Iterable[dict[str, Any]], key: str) -> tuple[Change, ...]:
    first, second = ({word(item, key): number(item, "size") for item in items} for items in (before, after))
    names = dict.fromkeys([*first, *second])
    return tuple(Change(name or "-", first.get(name), second.get(name), "size") for name in names)


def compare_checkpointing(before: Checkpointing, after: Checkpointing) -> Comparison:
    rows = (
        Change("predicted total", before.peak_bytes, after.peak_bytes),
        Change("total without recomputation", before.before_bytes, after.before_bytes),
        Change("extra time per step, estimated", before.extra_s, after.extra_s, "seconds"),
        Change("modules to recompute", len(before.modules), len(after.modules), "size"),
    )
    answers = {True: "fits", False: "does not fit", None: "may or may not fit"}
    is_same = before.fits is after.fits
    budget = show_bytes(after.budget_bytes)
    text = f"It {answers[after.fits]} {budget}" + (
        ", as before." if is_same else f"; before: {answers[before.fits]}."
    )
    return Comparison(
        kind="checkpointing",
        before=before,
        after=after,
        conclusion=(text,),
        tables=(Changes("Answer", "answer", rows),),
        growth=rows[0].growth,
        growth_of=rows[0].name,
        notes=tuple(differing_conditions(before, after, ("target", "budget_bytes", "card"))),
    )


def compare_verdicts(before: Verdict, after: Verdict) -> Comparison:
    rows = [
        Change(f"peak of the variant ({after.peaks_are})", before.peak_after_bytes, after.peak_after_bytes),
        Change(
            f"peak of the baseline ({after.peaks_are})", before.peak_before_bytes, after.peak_before_bytes
        ),
        Change("step of the variant", before.variant_s, after.variant_s, "seconds"),
        Change("step of the baseline", before.baseline_s, after.baseline_s, "seconds"),
        Change("speed-up", before.speedup, after.speedup, "factor"),
    ]
    rows = [row for row in rows if row.before is not None or row.after is not None]
    peak = next((row for row in rows if row.name.startswith("peak of the variant")), None)
    if before.status == after.status:
        text = f"The verdict is the same: {after.status}."
    else:
        text = f"The verdict changes from {before.status} to {after.status}: {after.reason}."
    names = ("target", "mode", "size", "baseline", "variant", "device", "peaks_are", "repeats")
    return Comparison(
        kind="verdict",
        before=before,
        after=after,
        conclusion=(text,),
        tables=(Changes("Verdict", "quantity", tuple(rows)),) if rows else (),
        growth=peak.growth if peak else None,
        growth_of=peak.name if peak else "",
        notes=tuple(differing_conditions(before, after, names)),
    )
