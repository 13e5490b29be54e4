"""The Markdown summary of a Study, `verdict.md`: the result first, then tables, notes and figures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinchpoint.core.records import Law, Study
from pinchpoint.core.settings import show_settings
from pinchpoint.core.units import show_bytes, show_seconds, show_size
from pinchpoint.reporting.figures import ratio, theory, tradeoff

TITLES = {
    "peak": "Peak vs size",
    "per_point": "Bytes per point",
    "ratio": "Training vs inference",
    "breakdown": "Breakdown of the peak",
    "theory": "Theory vs measurement",
    "tradeoff": "Time vs memory",
    "cards": "Largest size per card",
    "modules": "Bytes per module",
}


def verdict(study: Study, *, figures: Sequence[str] = ()) -> str:
    """Return the whole page. figures: names of the PNG files beside it."""
    parts = [
        f"# Study of {_cell(study.target)}",
        _result(study),
        _laws(study),
        _boundary(study),
        _theory(study),
        _ratios(study),
        _tradeoff(study),
        _cards(study),
        _failures(study),
        _section("Notes", "\n".join(f"- {_cell(note)}" for note in study.notes)),
        _section("Figures", "\n\n".join(_figure(name) for name in figures)),
        _provenance(study),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _result(study: Study) -> str:
    counts = {s: sum(p.status == s for p in study.points) for s in ("ok", "oom", "failed", "timeout")}
    statuses = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    settings = f" Settings: {_cell(show_settings(study.settings))}." if study.settings else ""
    head = (
        f"The study ran **{study.on}** along the axis **{_cell(study.axis)}**:"
        f" {len(study.points)} runs ({statuses}).{settings} "
    )
    if study.passed:
        return head + "The size check **passed**: memory grows, or stays flat, as declared."
    return head + "The size check **failed**:\n\n" + "\n".join(f"- {_cell(reason)}" for reason in study.gate)


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
        f"B per {study.unit}",
        "95 %",
        "intercept",
        "exponent",
        "breaks",
        "holdout error",
        "largest residual",
    ]
    caption = (
        "Slope and intercept describe the allocated peak; for a law with breaks, those of its last segment."
        " The"
        " exponent is that of (peak - intercept). The holdout error is that of the largest size, predicted"
        " from"
        " the others."
    )
    return _section("Laws", f"{_table(header, rows)}\n\n{caption}" if rows else "")


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
        "Memory boundary", _table(["variant", "mode", "fits", "does not fit", "runs"], rows) if rows else ""
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
        for (variant, mode), pairs in theory.theory_errors(study).items()
    ]
    header = ["variant", "mode", "sizes", "largest error", "error at the largest size"]
    return _section("Theory vs measurement", _table(header, rows) if rows else "")


def _ratios(study: Study) -> str:
    rows = [
        [variant, f"{both[-1][1]:.2f}", show_size(both[-1][0])]
        for variant, both in ratio.ratios(study).items()
    ]
    return _section(
        "Training vs inference", _table(["variant", "train / infer", "at size"], rows) if rows else ""
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
    return _section("Time vs memory", _table(header, rows) if rows else "")


def _cards(study: Study) -> str:
    """The largest sizes, with one row per card and one column per line of the study."""
    lines = list(dict.fromkeys((row["variant"], row["mode"]) for row in study.cards))
    rows_by_line = {(row["card"], row["variant"], row["mode"]): row for row in study.cards}
    rows = [
        [name, show_bytes(memory), *(_size(rows_by_line.get((name, *line))) for line in lines)]
        for name, memory in dict.fromkeys((row["card"], row["memory_bytes"]) for row in study.cards)
    ]
    caption = (
        "Each cell is the largest size that leaves 10 % of the card free, with its 95 % interval. An"
        " asterisk (*)"
        " marks a size beyond those studied. A dash (-) means that the study shows no growth, so that no"
        " size is"
        " known to be too large."
    )
    header = ["card", "memory", *(f"{variant} {mode}" for variant, mode in lines)]
    return _section("Cards", f"{_table(header, rows)}\n\n{caption}" if rows else "")


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
        "Runs without result",
        _table(["variant", "mode", "size", "status", "reason"], rows) if rows else "",
    )


def _provenance(study: Study) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in study.machine.get("versions", {}).items())
    where = study.machine.get("gpu") or study.machine.get("platform", "")
    timing = f"; times are medians of {study.repeats} runs per size" if study.repeats else ""
    state = "" if study.complete else "; the study is not finished"
    return (
        f"---\n\n{study.created}, {where}, {versions}; seed {study.seed}{timing};"
        f" the study took {show_seconds(study.took_s)}{state}."
    )


def _figure(name: str) -> str:
    return f"![{TITLES.get(name.removesuffix('.png'), name)}]({name})"


def _section(title: str, body: str) -> str:
    return f"## {title}\n\n{body}" if body else ""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape text so that it cannot break out of a table or become markup."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")
