"""`compare_studies`: two studies by growth law, by the peak and time at common sizes, and by card."""

from __future__ import annotations

from pinchpoint.core.records import Point, Study
from pinchpoint.core.units import show_size
from pinchpoint.reporting.comparisons.comparison import Change, Changes, Comparison, show_growth
from pinchpoint.reporting.comparisons.conditions import differing_conditions
from pinchpoint.reporting.record_reader import number, word


def compare_studies(before: Study, after: Study) -> Comparison:
    peaks = _points(before, after, "bytes")
    grown = max(
        (row for row in peaks if row.growth is not None), key=lambda row: row.growth or 0.0, default=None
    )
    laws = _laws(before, after)
    tables = (
        Changes("Growth laws", "series", laws, note=f"Bytes of the peak per {after.unit}."),
        Changes("Peak at the sizes of both studies", "run", peaks),
        Changes("Step time at the sizes of both studies", "run", _points(before, after, "seconds")),
        Changes(
            f"Largest {after.axis} per card",
            "card",
            _cards(before, after),
            note="By the laws; see each study.",
        ),
    )
    return Comparison(
        kind="study",
        before=before,
        after=after,
        conclusion=tuple(_conclusion(before, after, laws, grown)),
        tables=tuple(table for table in tables if table.rows),
        growth=grown.growth if grown else None,
        growth_of=f"peak of {grown.name}" if grown else "",
        notes=tuple(differing_conditions(before, after, ("target", "axis", "on", "repeats"))),
    )


def _conclusion(before: Study, after: Study, laws: tuple[Change, ...], grown: Change | None) -> list[str]:
    sentences = []
    if before.passed != after.passed:
        sentences.append(f"The size check {'passes now' if after.passed else 'no longer passes'}.")
    changed = [law for law in laws if law.growth]
    if changed:
        largest = max(changed, key=lambda law: abs(law.growth or 0.0))
        old, new, _, percent = largest.cells()
        sentences.append(
            f"The peak of {largest.name} grows by {new} per {after.unit}, {old} before ({percent})."
        )
    elif laws:
        sentences.append("The growth laws are the same.")
    if grown and grown.growth:
        direction = "highest growth" if grown.growth > 0 else "smallest saving"
        sentences.append(
            f"At a common size, the {direction} is {show_growth(grown.growth)}, for {grown.name}."
        )
    return sentences or ["The two studies have no size and no law in common."]


def _laws(before: Study, after: Study) -> tuple[Change, ...]:
    first, second = (
        {(law.variant, law.mode): law.slope_bytes_per_point for law in study.laws}
        for study in (before, after)
    )
    return tuple(
        Change(
            f"{variant}, {mode}", first.get((variant, mode)), second.get((variant, mode)), "bytes per point"
        )
        for variant, mode in dict.fromkeys([*first, *second])
    )


def _points(before: Study, after: Study, unit: str) -> tuple[Change, ...]:
    def value(point: Point) -> float | None:
        return point.peak_allocated_bytes if unit == "bytes" else point.time_s

    first = {(p.variant, p.mode, p.size): value(p) for p in before.points if p.status == "ok"}
    rows = []
    for point in after.points:
        old = first.get((point.variant, point.mode, point.size))
        if point.status == "ok" and old is not None and (new := value(point)) is not None:
            name = f"{point.variant}, {point.mode}, {show_size(point.size)}"
            rows.append(Change(name, old, new, "bytes" if unit == "bytes" else "seconds"))
    return tuple(rows)


def _cards(before: Study, after: Study) -> tuple[Change, ...]:
    def sizes(study: Study) -> dict[str, float | None]:
        return {
            f"{word(item, 'card')}, {word(item, 'variant')}, {word(item, 'mode')}": number(item, "size")
            for item in study.cards
        }

    first, second = sizes(before), sizes(after)
    return tuple(Change(name, first[name], second[name], "size") for name in first if name in second)
