"""The Markdown verdict of a Study: what was found, in tables a person reads from the top."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinchpoint.core.records import Law, Study
from pinchpoint.core.settings import show_settings
from pinchpoint.core.units import show_bytes, show_seconds, show_size
from pinchpoint.reporting.figures import ratio, theory, tradeoff

TITLES = {
    "peak": "Peak against size",
    "per_point": "Bytes a point",
    "ratio": "Training against inference",
    "breakdown": "What the peak is made of",
    "theory": "Theory against measured",
    "tradeoff": "Time against memory",
    "cards": "What each card holds",
    "modules": "Bytes by module",
}


def verdict(study: Study, *, figures: Sequence[str] = ()) -> str:
    """The whole page. figures: names of the PNG files beside it."""
    parts = [
        f"# Study of {_cell(study.target)}",
        _answer(study),
        _laws(study),
        _boundary(study),
        _theory(study),
        _ratios(study),
        _tradeoff(study),
        _cards(study),
        _failures(study),
        _section("Notes", "\n".join(f"- {_cell(note)}" for note in study.notes)),
        _section("Figures", "\n\n".join(_figure(name) for name in figures)),
        _made(study),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(study: Study) -> str:
    counts = {s: sum(p.status == s for p in study.points) for s in ("ok", "oom", "failed", "timeout")}
    ran = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    fixed = f" Settings: {_cell(show_settings(study.settings))}." if study.settings else ""
    head = f"Axis **{_cell(study.axis)}**, on **{study.on}**: {len(study.points)} points ({ran}).{fixed} "
    if study.passed:
        return head + "The axis gate **passed**: memory grows (or stays flat) as claimed."
    return head + "The axis gate **failed**:\n\n" + "\n".join(f"- {_cell(reason)}" for reason in study.gate)


def _laws(study: Study) -> str:
    rows = [
        [
            law.variant,
            law.mode,
            f"{law.slope_bytes_per_point:,.1f}",
            f"{law.slope_low:,.1f} to {law.slope_high:,.1f}",
            show_bytes(law.intercept_bytes),
            _exponent(law),
            ", ".join(show_size(round(b)) for b in law.breaks) or "-",
            "-" if law.holdout_error is None else f"{100 * law.holdout_error:.2f} %",
            f"{100 * law.residual:.2f} %",
        ]
        for law in study.laws
    ]
    header = [
        "variant",
        "mode",
        "B/point",
        "95 %",
        "intercept",
        "exponent",
        "breaks",
        "holdout error",
        "largest residual",
    ]
    words = (
        "Slope and intercept are of the allocated peak, from the last segment where there are breaks. The exponent is that of"
        " (peak - intercept). Holdout: the largest size, predicted from the others."
    )
    return _section("Laws", f"{_table(header, rows)}\n\n{words}" if rows else "")


def _exponent(law: Law) -> str:
    if law.exponent is None:
        return "-"
    if law.exponent_low is None or law.exponent_high is None:
        return f"{law.exponent:.3f}"
    return f"{law.exponent:.3f} [{law.exponent_low:.3f}, {law.exponent_high:.3f}]"


def _boundary(study: Study) -> str:
    rows = [
        [b["variant"], b["mode"], f"{b['fits']:,}", f"{b['fails']:,}", str(b.get("runs", "-"))]
        for b in study.boundary
    ]
    return _section(
        "Where memory ends", _table(["variant", "mode", "fits", "does not fit", "runs"], rows) if rows else ""
    )


def _theory(study: Study) -> str:
    rows = [
        [
            variant,
            mode,
            str(len(pairs)),
            f"{100 * max(abs(e) for _, e in pairs):.2f} %",
            f"{100 * pairs[-1][1]:+.2f} %",
        ]
        for (variant, mode), pairs in theory.compared(study).items()
    ]
    header = ["variant", "mode", "points", "largest error", "error at the largest size"]
    return _section("Theory against measured", _table(header, rows) if rows else "")


def _ratios(study: Study) -> str:
    rows = [
        [variant, f"{both[-1][1]:.2f}", show_size(both[-1][0])]
        for variant, both in ratio.ratios(study).items()
    ]
    return _section(
        "Training against inference", _table(["variant", "train / infer", "at size"], rows) if rows else ""
    )


def _tradeoff(study: Study) -> str:
    rows = []
    for mode, points in tradeoff.choices(study).items():
        base = points[0]
        for p in points:
            times = f"{(p.time_s or 0) / (base.time_s or 1):.2f}"
            peaks = f"{(p.peak_allocated_bytes or 0) / (base.peak_allocated_bytes or 1):.2f}"
            rows.append(
                [
                    mode,
                    show_size(p.size),
                    p.variant,
                    show_seconds(p.time_s),
                    times,
                    show_bytes(p.peak_allocated_bytes),
                    peaks,
                ]
            )
    header = ["mode", "size", "variant", "time", "x baseline", "peak allocated", "x baseline"]
    return _section("Time against memory", _table(header, rows) if rows else "")


def _cards(study: Study) -> str:
    """Largest sizes, a row a card and a column a line of the study."""
    lines = list(dict.fromkeys((row["variant"], row["mode"]) for row in study.cards))
    found = {(row["card"], row["variant"], row["mode"]): row for row in study.cards}
    rows = [
        [name, show_bytes(memory), *(_size(found.get((name, *line))) for line in lines)]
        for name, memory in dict.fromkeys((row["card"], row["memory_bytes"]) for row in study.cards)
    ]
    words = (
        "Largest size, with its 95 % interval, that leaves 10 % of the card in reserve; * beyond the sizes studied;"
        " - no growth was shown, so no size is too large as far as these sizes tell."
    )
    header = ["card", "memory", *(f"{variant} {mode}" for variant, mode in lines)]
    return _section("Cards", f"{_table(header, rows)}\n\n{words}" if rows else "")


def _size(row: dict[str, Any] | None) -> str:
    if row is None or row["size"] is None:
        return "-"
    if row["size"] == 0:
        return "none fits"
    low, high = row["low"] or 0, row["high"]
    interval = f" [{low:,}, {high:,}]" if high is not None else f" [{low:,}, -]"
    return f"{row['size']:,}{interval}" + ("*" if row["extrapolated"] else "")


def _failures(study: Study) -> str:
    rows = [[p.variant, p.mode, f"{p.size:,}", p.status, p.reason] for p in study.points if p.status != "ok"]
    return _section(
        "Points without a result",
        _table(["variant", "mode", "size", "status", "reason"], rows) if rows else "",
    )


def _made(study: Study) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in study.machine.get("versions", {}).items())
    where = study.machine.get("gpu") or study.machine.get("platform", "")
    timed = f", median of {study.repeats} timed runs a point" if study.repeats else ""
    state = "" if study.complete else ", not finished"
    return f"---\n\n{study.created}, {where}, {versions}; seed {study.seed}{timed}; took {show_seconds(study.took_s)}{state}."


def _figure(name: str) -> str:
    return f"![{TITLES.get(name.removesuffix('.png'), name)}]({name})"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Text that cannot break out of a table or become markup."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
