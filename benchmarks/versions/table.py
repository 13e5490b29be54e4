"""The page of the record: tests that passed, and allocated peaks, per version of torch."""

from __future__ import annotations

from typing import Any

MIB = 2**20


def page(record: dict[str, Any]) -> str:
    """The record as a Markdown page: one row per version, one column per step and card."""
    versions: dict[str, dict[str, Any]] = record["versions"]
    columns = list(
        dict.fromkeys(
            (name, card)
            for one in versions.values()
            for name, cards in one.get("cases", {}).items()
            for card in cards
        )
    )
    lines = [
        "# Forecasts by version of torch",
        "",
        "Allocated peaks in MiB of the steps in `benchmarks/versions/cases.py` with 32 examples, and how",
        f"many tests passed, failed, and were skipped. Created {record['created']}.",
        "",
        "| step | card | " + " | ".join(versions) + " |",
        "|---|---|" + "---|" * len(versions),
        "| tests | | " + " | ".join(_tests(one) for one in versions.values()) + " |",
    ]
    for name, card in columns:
        cells = [_cell(one.get("cases", {}).get(name, {}).get(card)) for one in versions.values()]
        lines.append(f"| {name.replace('_', ' ')} | {card} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _tests(one: dict[str, Any]) -> str:
    counts = one["tests"]
    return " / ".join(str(counts.get(word, 0)) for word in ("passed", "failed", "skipped"))


def _cell(answer: dict[str, Any] | None) -> str:
    if answer is None:
        return ""
    return "error" if "error" in answer else f"{answer['peak_allocated_bytes'] / MIB:.1f}"
