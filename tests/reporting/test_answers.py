"""Every kind of record begins with an answer in plain words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinchpoint.core.records import KINDS, Checkpointing
from pinchpoint.reporting.answers import answer, explain_size_check


@pytest.fixture
def records(report_records: dict[str, Any]) -> dict[str, Any]:
    return report_records


def test_a_forecast_names_the_card_the_levers_and_the_largest_line(records: dict[str, Any]) -> None:
    forecast = replace(records["forecast"], card="rtx3050", total_bytes=9 * 2**30)
    result = answer(forecast)
    assert result.tone == "bad"
    assert result.text == (
        "It does not fit rtx3050: the predicted total is 9.00 GiB. The smallest card that fits is rtx3060."
    )
    assert [change.split(" saves")[0] for change in result.changes[:3]] == ["chunk", "checkpointing", "bf16"]
    assert result.changes[3] == "the line that holds most is fields/model.py:41, with 42% of the peak"


def test_an_unknown_fit_is_never_called_a_fit(records: dict[str, Any]) -> None:
    result = answer(replace(records["forecast"], fits={"h200": None}))
    assert result.tone == "warn" and result.text.startswith("It is unknown whether it fits h200")


def test_a_plan_says_what_to_use(records: dict[str, Any]) -> None:
    assert answer(records["plan"]).text == (
        "Use size 820M, the variant chunked, chunks of 65.536k: "
        "the predicted total is 22.90 GiB of 24.00 GiB."
    )
    unknown = replace(records["plan"], size=None, possible_size=64, reasons=("a count",), axis="batch size")
    result = answer(unknown)
    assert result.tone == "warn" and result.changes == ("a count",)
    assert result.text.startswith("It is unknown which batch size fits 24.00 GiB: 64 fits unless")
    assert answer(replace(unknown, possible_size=None)).tone == "bad"


def test_a_study_names_the_cheapest_variant_and_a_largest_size(records: dict[str, Any]) -> None:
    result = answer(records["study"])
    assert result.text == "Each point adds 3.59 KiB to the peak (eager, train); the size check passed."
    assert result.changes[0] == "train: chunked adds only 29 B per point, eager 3.59 KiB"
    assert (
        "train: about 793,000,000 points fit rtx4090 with chunked (95 %: at least 774,000,000)"
        in result.changes
    )
    failed = answer(records["gate"])
    assert failed.tone == "bad" and failed.changes == records["gate"].gate
    assert "as many points as requested" in explain_size_check(records["gate"])


def test_a_verdict_says_which_variant_to_use(records: dict[str, Any]) -> None:
    assert answer(records["verdict"]).text.startswith("Use chunked instead of eager: same values")
    assert answer(records["failed"]).text.startswith("Keep eager, dropped failed: output values")
    unsure = replace(records["verdict"], status="inconclusive", reason="no measurable change")
    assert answer(unsure).text == "It is open whether chunked is better: no measurable change."


def test_recomputed_modules_are_an_answer_with_their_price() -> None:
    record = Checkpointing(
        target="train.py",
        budget_bytes=24 * 2**30,
        card="rtx4090",
        modules=("a", "b"),
        groups=({"modules": "a-b", "freed_bytes": 2**30},),
        fits=True,
        peak_bytes=20 * 2**30,
        peak_allocated_bytes=19 * 2**30,
        before_bytes=30 * 2**30,
        margin_bytes=0,
        step_s=1.0,
        extra_s=0.25,
        how=(),
    )
    result = answer(record)
    assert result.text == (
        "Recompute 2 modules in the backward pass: the predicted total falls from 30.00 GiB to 20.00 GiB,"
        " and a step takes about 25% longer (estimated)."
    )
    assert result.changes == ("a-b frees 1.00 GiB",)
    assert "unknown whether that fits" in answer(replace(record, fits=None)).text
    assert answer(replace(record, modules=())).text.startswith("It fits 24.00 GiB as it is")
    assert answer(replace(record, fits=False)).text.startswith(
        "It does not fit 24.00 GiB, even with 2 modules"
    )


def test_every_kind_of_record_has_an_answer(samples: dict[str, Any]) -> None:
    answered = {record.kind for record in samples.values() if answer(record).text}
    assert answered >= set(KINDS) - {"checkpointing"}
