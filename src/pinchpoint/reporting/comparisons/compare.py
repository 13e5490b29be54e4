"""`compare`: what changed between two records of the same kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Check, Checkpointing, Forecast, Plan, Record, Study, Trace, Verdict, load
from pinchpoint.reporting.comparisons.comparison import Comparison
from pinchpoint.reporting.comparisons.decisions import compare_checkpointing, compare_plans, compare_verdicts
from pinchpoint.reporting.comparisons.forecasts import compare_forecasts
from pinchpoint.reporting.comparisons.runs import compare_checks, compare_traces
from pinchpoint.reporting.comparisons.studies import compare_studies
from pinchpoint.reporting.record_reader import check_record

_COMPARERS: dict[type[Record], Callable[[Any, Any], Comparison]] = {
    Forecast: compare_forecasts,
    Plan: compare_plans,
    Checkpointing: compare_checkpointing,
    Study: compare_studies,
    Verdict: compare_verdicts,
    Trace: compare_traces,
    Check: compare_checks,
}


def compare(before: Record | str | Path, after: Record | str | Path) -> Comparison:
    """Compare two records of the same kind (objects or JSON paths): peaks, lines, modules, cards.

    The result prints as Markdown with `to_markdown()`, and `failures(max_growth=0.05, card="rtx4090")` lists
    what exceeds a limit.
    """
    first, second = (_read(source, name) for source, name in ((before, "before"), (after, "after")))
    if first.kind != second.kind:
        raise BadInput(
            f"Cannot compare a {first.kind} with a {second.kind}.",
            hint="Give two records of the same kind, such as two forecasts of the same script.",
        )
    if type(first) not in _COMPARERS:
        raise BadInput(
            f"Two records of the kind {first.kind} cannot be compared.",
            hint=f"Give two records of one of these kinds: {', '.join(kind.kind for kind in _COMPARERS)}.",
        )
    return _COMPARERS[type(first)](first, second)


def _read(source: Record | str | Path, name: str) -> Record:
    record = source if isinstance(source, Record) else load(source)
    check_record(record, f"The record {name}" if isinstance(source, Record) else str(source))
    return record
