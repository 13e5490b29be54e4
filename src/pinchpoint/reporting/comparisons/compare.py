"""`compare`: what changed between two records of the same kind."""

from __future__ import annotations

from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Forecast, Record, load
from pinchpoint.reporting.comparisons.comparison import Comparison
from pinchpoint.reporting.comparisons.forecasts import compare_forecasts
from pinchpoint.reporting.record_reader import check_record


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
    if isinstance(first, Forecast) and isinstance(second, Forecast):
        return compare_forecasts(first, second)
    raise BadInput(
        f"Records of the kind {first.kind} cannot be compared.", hint="Give two forecasts of the same target."
    )


def _read(source: Record | str | Path, name: str) -> Record:
    record = source if isinstance(source, Record) else load(source)
    check_record(record, f"The record {name}" if isinstance(source, Record) else str(source))
    return record
