"""Two traces or two checks compared: step times, memory, and what is worth changing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pinchpoint.core.records import Check, Trace
from pinchpoint.core.units import show_count, show_seconds
from pinchpoint.reporting.comparisons.comparison import Change, Changes, Comparison, show_growth
from pinchpoint.reporting.comparisons.conditions import differing_conditions
from pinchpoint.reporting.comparisons.forecasts import compare_forecasts
from pinchpoint.reporting.record_reader import number


def compare_traces(before: Trace, after: Trace) -> Comparison:
    tables = _trace_tables(before, after)
    peak = next((row for row in tables[0].rows if row.name == "peak allocated"), None)
    problems = [
        {f"{problem.what} ({_file(problem.file)})" for problem in t.problems} for t in (before, after)
    ]
    names = ("target", "device", "framework", "steps", "step_is", "light")
    return Comparison(
        kind="trace",
        before=before,
        after=after,
        conclusion=(_step_sentence(before, after), _count_sentence(problems)),
        tables=tables,
        growth=peak.growth if peak else None,
        growth_of="measured peak allocated" if peak else "",
        lists=_lists(problems),
        notes=(
            *differing_conditions(before, after, names),
            "Each run was timed once; `check --against` compares times in turn, with an interval.",
        ),
    )


def compare_checks(before: Check, after: Check) -> Comparison:
    advice = [
        {f"{each.rule} {each.name} ({_file(each.file)}): {each.what}" for each in c.advice}
        for c in (before, after)
    ]
    conclusion, notes = [_count_sentence(advice)], list(differing_conditions(before, after, ("target",)))
    tables: tuple[Changes, ...] = ()
    growth, growth_of, fits, cards = None, "", (), ()
    if before.forecast is not None and after.forecast is not None:
        forecasts = compare_forecasts(before.forecast, after.forecast)
        conclusion += forecasts.conclusion
        notes += [note for note in forecasts.notes if note not in notes]
        tables += forecasts.tables
        growth, growth_of = forecasts.growth, forecasts.growth_of
        fits, cards = forecasts.fits, forecasts.cards
    if before.trace is not None and after.trace is not None:
        conclusion.insert(0, _step_sentence(before.trace, after.trace))
        tables = (*_trace_tables(before.trace, after.trace), *tables)
    return Comparison(
        kind="check",
        before=before,
        after=after,
        conclusion=tuple(conclusion),
        tables=tables,
        growth=growth,
        growth_of=growth_of,
        cards=cards,
        fits=fits,
        lists=_lists(advice),
        notes=tuple(notes),
    )


def _trace_tables(before: Trace, after: Trace) -> tuple[Changes, ...]:
    rows = [
        Change("median step", before.step_times.get("median_s"), after.step_times.get("median_s"), "seconds"),
        Change("first step", before.first_step_s, after.first_step_s, "seconds"),
        Change("before the first step", before.setup_s, after.setup_s, "seconds"),
        Change("peak allocated", _memory(before, "allocated_bytes"), _memory(after, "allocated_bytes")),
        Change("peak reserved", _memory(before, "reserved_bytes"), _memory(after, "reserved_bytes")),
    ]
    first, second = (
        {phase.name: phase.host_s / max(trace.steps - 1, 1) for phase in trace.phases}
        for trace in (before, after)
    )
    phases = [
        Change(name, first.get(name), second.get(name), "seconds")
        for name in dict.fromkeys([*first, *second])
    ]
    tables = [
        Changes(
            "Run", "quantity", tuple(row for row in rows if row.before is not None or row.after is not None)
        ),
        Changes("Host time per step by phase", "phase", tuple(phases)),
    ]
    return tuple(table for table in tables if table.rows) or (Changes("Run", "quantity", ()),)


def _memory(trace: Trace, key: str) -> float | None:
    return number(trace.memory or {}, key)


def _step_sentence(before: Trace, after: Trace) -> str:
    old, new = (trace.step_times.get("median_s") for trace in (before, after))
    if not old or not new:
        return "The two runs have no steps to compare."
    return (
        f"The median step takes {show_seconds(new)}, {show_seconds(old)} before"
        f" ({show_growth(new / old - 1)}; {old / new:.2f}x)."
    )


def _count_sentence(pair: Sequence[set[str]]) -> str:
    gone, new = len(pair[0] - pair[1]), len(pair[1] - pair[0])
    left = show_count(len(pair[1]), "thing")
    return f"{left} worth changing: {gone:,} gone, {new:,} new."


def _lists(pair: Sequence[set[str]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    lists: Iterable[tuple[str, set[str]]] = (("New", pair[1] - pair[0]), ("Gone", pair[0] - pair[1]))
    return tuple((title, tuple(sorted(items))) for title, items in lists if items)


def _file(path: str) -> str:
    return path.rpartition("/")[2]
