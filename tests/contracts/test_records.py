"""The record keys other tools read: a key may be added, never renamed or dropped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinchpoint.core.records import BREAKDOWN, KINDS, Record

EVERY = {"kind", "schema", "target", "machine", "created"}
KEYS = {
    "forecast": {
        "mode",
        "size",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "workspace_bytes",
        "context_bytes",
        "total_bytes",
        "breakdown",
        "lines",
        "fits",
        "low_bytes",
        "high_bytes",
    },
    "plan": {"budget_bytes", "size", "chunk", "variant", "margin_bytes"},
    "checkpointing": {"budget_bytes", "modules", "fits", "peak_bytes", "extra_s", "how"},
    "study": {"axis", "points", "laws"},
    "verdict": {
        "baseline",
        "variant",
        "status",
        "worst_error",
        "where",
        "speedup",
        "speedup_low",
        "speedup_high",
        "peak_before_bytes",
        "peak_after_bytes",
        "reason",
    },
    "trace": {"framework", "device", "ended", "steps", "phases", "events", "problems", "timeline", "memory"},
    "check": {"advice", "files", "trace", "forecast", "gain", "error", "exit_code"},
}
LINE = {"file", "line", "bytes", "phase"}
POINT = {
    "size",
    "processed",
    "mode",
    "variant",
    "status",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "time_s",
    "theory_bytes",
}
LAW = {
    "mode",
    "variant",
    "slope_bytes_per_point",
    "slope_low",
    "slope_high",
    "intercept_bytes",
    "exponent",
    "holdout_error",
}
DOC = Path(__file__).parents[2] / "docs" / "reference" / "records.md"


@pytest.mark.parametrize("kind", KEYS)
def test_a_record_has_the_keys_of_the_contract(kind: str, samples: dict[str, Record]) -> None:
    data = json.loads(samples[kind].to_json())
    assert data["kind"] == kind
    assert data["schema"] == 1
    assert set(data) >= EVERY | KEYS[kind]


def test_parts_of_records_have_the_keys_of_the_contract(samples: dict[str, Record]) -> None:
    forecast, study = samples["forecast"].to_dict(), samples["study"].to_dict()
    assert set(forecast["lines"][0]) >= LINE
    assert set(forecast["breakdown"]) == set(BREAKDOWN)
    assert set(study["points"][0]) >= POINT
    assert set(study["laws"][0]) >= LAW


def test_the_breakdown_is_of_the_allocated_peak(samples: dict[str, Record]) -> None:
    data = samples["forecast"].to_dict()
    assert sum(data["breakdown"].values()) == data["peak_allocated_bytes"]
    assert data["total_bytes"] == data["peak_reserved_bytes"] + data["context_bytes"]


def test_the_document_names_every_key_of_every_kind(samples: dict[str, Record]) -> None:
    text = DOC.read_text(encoding="utf-8")
    for kind in KINDS:
        section = text.partition(f"## {kind}\n")[2].partition("\n## ")[0]
        missing = [key for key in samples[kind].to_dict() if key not in EVERY and f"`{key}`" not in section]
        assert missing == [], f"docs/reference/records.md says nothing of {kind}: {missing}"
