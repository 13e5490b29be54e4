"""The comparison of predicted and measured peaks, and whether the bars are met.

Bars: allocated within 1 % for 10 of 12 models (of n models: n * 10 / 12, rounded down) and within 5 % for
all; reserved within 10 % for all; and no case that ran out of memory at the boundary from which its forecast
says it fits (`needs_bytes`), or 2 % above. They are judged on the held-out models; development models, if
requested, have a separate table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from entries import MODELS, Set, key, names_in

GIB = 2**30
CAPS = {"1.00": "at the boundary", "1.02": "2 % above", "0.98": "2 % below"}
FIT_CAPS = ("1.00", "1.02")  # below the boundary a case may run or not: the forecast says nothing about it

TITLES: dict[Set, tuple[str, str]] = {
    "heldout": ("Held-out models", "No forecast code was tuned on these: the bars are judged on them."),
    "development": (
        "Development models",
        "The forecast was developed with these in view: they prove nothing about others.",
    ),
}


@dataclass(frozen=True)
class Row:
    """One model at one size. Errors are (predicted - measured) / measured, or None if one side is missing."""

    model: str
    size: int
    predicted: dict[str, Any]
    measured: dict[str, Any]

    @property
    def set(self) -> Set:
        return MODELS[self.model].set

    @property
    def usable(self) -> bool:
        return self.predicted.get("status") == "ok" and self.measured.get("status") == "ok"

    def error(self, name: str) -> float | None:
        if not self.usable or not self.predicted.get(name) or not self.measured.get(name):
            return None
        return self.predicted[name] / self.measured[name] - 1

    def ran_at(self, cap: str) -> bool | None:
        """Return whether the model ran with this share of the boundary from which the forecast says it fits.

        The result is None if this was not tried.
        """
        return self.measured.get(f"cap_{cap}", {}).get("ran")


@dataclass(frozen=True)
class Bar:
    name: str
    met: bool
    detail: str


def rows_of(predicted: dict[str, Any], measured: dict[str, Any], which: str) -> list[Row]:
    """Return every model and size of a set in the listed order; a case that was not run has an empty side."""
    return [
        Row(
            name,
            size,
            predicted["cases"].get(key(name, size), {}),
            measured["cases"].get(key(name, size), {}),
        )
        for name in names_in(which)
        for size in MODELS[name].sizes
    ]


def by_set(rows: list[Row]) -> dict[Set, list[Row]]:
    """Return the rows by set, held-out first; a set without rows is omitted."""
    parts: dict[Set, list[Row]] = {name: [row for row in rows if row.set == name] for name in TITLES}
    return {name: part for name, part in parts.items() if part}


def rows_to_judge(rows: list[Row]) -> list[Row]:
    """Return the held-out rows, or the development rows if there are no others."""
    return next(iter(by_set(rows).values()))


def worst_by_model(rows: list[Row], name: str) -> dict[str, float]:
    """Return the larger error of each model's two sizes; a size without a figure counts as infinite."""
    worst: dict[str, float] = {}
    for row in rows:
        error = row.error(name)
        worst[row.model] = max(worst.get(row.model, 0.0), math.inf if error is None else abs(error))
    return worst


def judge(rows: list[Row]) -> list[Bar]:
    allocated, reserved = (
        worst_by_model(rows, "peak_allocated_bytes"),
        worst_by_model(rows, "peak_reserved_bytes"),
    )
    close = [model for model, error in allocated.items() if error <= 0.01]
    need = len(allocated) * 10 // 12
    far, loose = (
        [m for m, e in errors.items() if e > bar] for errors, bar in ((allocated, 0.05), (reserved, 0.10))
    )
    # Both are required: a boundary that holds only with a margin, or only without one, is wrong.
    burst = [
        f"{row.model} at {row.size:,}" for row in rows if any(row.ran_at(cap) is not True for cap in FIT_CAPS)
    ]
    whole = [model for model, error in allocated.items() if error < math.inf]
    return [
        Bar(
            "at least 12 models, two sizes each",
            len(whole) >= 12,
            f"{len(whole)} of {len(allocated)} predicted and measured",
        ),
        Bar(
            "allocated within 1 % for 10 of 12",
            len(close) >= need,
            f"{len(close)} of {len(allocated)} models, {need} needed",
        ),
        Bar("allocated within 5 % for all", not far, ", ".join(far) or "all"),
        Bar("reserved within 10 % for all", not loose, ", ".join(loose) or "all"),
        Bar(
            "runs at the boundary where the forecast says it fits, and 2 % above",
            not burst,
            ", ".join(burst) or "all",
        ),
    ]


def gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.3f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.2f} %"


def outcome(ran: bool | None) -> str:
    return {True: "ran", False: "OOM", None: "-"}[ran]


def section(rows: list[Row]) -> list[str]:
    """Return the table of one set, worst allocated error first, followed by the bars and the models."""
    title, about = TITLES[rows[0].set]
    ordered = sorted(
        rows, key=lambda row: -abs(e) if (e := row.error("peak_allocated_bytes")) is not None else -math.inf
    )
    lines = [
        f"## {title}",
        about,
        "",
        "| model | size | allocated: predicted | measured | error | reserved: predicted | measured | error | "
        + " | ".join(CAPS.values())
        + " |",
        "|---|--:|--:|--:|--:|--:|--:|--:|" + "---|" * len(CAPS),
    ]
    for row in ordered:
        cells = [row.model, f"{row.size:,}"]
        for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
            cells += [gib(row.predicted.get(name)), gib(row.measured.get(name)), percent(row.error(name))]
        lines.append("| " + " | ".join([*cells, *(outcome(row.ran_at(cap)) for cap in CAPS)]) + " |")
    lines += ["", "| bar | met | |", "|---|---|---|"]
    lines += [f"| {bar.name} | {'pass' if bar.met else 'FAIL'} | {bar.detail} |" for bar in judge(rows)]
    lines += ["", *(f"- {name}: {MODELS[name].what}" for name in dict.fromkeys(row.model for row in rows))]
    for row in rows:
        for side, case in (("predicted", row.predicted), ("measured", row.measured)):
            if case.get("reason"):
                lines += ["", f"{row.model} at {row.size:,}, {side}: {case['reason']}"]
    return lines


def markdown(rows: list[Row], machine: dict[str, Any]) -> str:
    """Return a table for each set, the held-out models first."""
    versions = machine.get("versions", {})
    lines = [
        "# Predicted against measured",
        "",
        f"Measured on {machine.get('gpu') or 'no GPU'}, torch {versions.get('torch', '?')}; "
        "two training steps; GiB.",
    ]
    for part in by_set(rows).values():
        lines += ["", *section(part)]
    return "\n".join(lines) + "\n"
