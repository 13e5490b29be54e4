"""A budget chooses the chunk by the predicted peak of a step of the field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pinchpoint.backends.torch.measurement import account
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.units import GIB, MIB
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.training import budget
from pinchpoint.systems.radiance.training.budget import build, chunk_for

pytestmark = pytest.mark.usefixtures("quick_workers", "remembered_peaks")
TINY = FieldConfig.preset("tiny")
STEP: dict[str, Any] = {"batch": 2, "rays": 64, "samples": 8}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without resident memory: only the step's own bytes count."""
    monkeypatch.setattr(budget, "resident_bytes", lambda: 0)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("memory", ["none", "checkpoint", "deferred"])
@pytest.mark.parametrize("form", ["eager", "folded"])
def test_the_prediction_for_a_cpu_matches_the_memory_of_a_real_step(memory: Any, form: Any) -> None:
    value = chunk_for(TINY, **STEP, budget="1GiB", device="cpu", memory=memory, form=form)
    settings = {
        "config": TINY.to_json(),
        "batch": "2",
        "samples": "8",
        "form": form,
        "precision": "fp32",
        "features": "no",
    }

    def steps() -> None:
        case = build(128, device="cpu", mode="train", variant=memory, seed=0, settings=settings)
        case.step()
        case.step()

    assert value.chunk is None and value.predicted_bytes == pytest.approx(account(steps), rel=0.02)


@pytest.mark.usefixtures("bare")
def test_a_smaller_budget_gets_a_smaller_chunk_that_fits() -> None:
    whole = chunk_for(TINY, **STEP, budget="1GiB", device="cpu").predicted_bytes
    tight = chunk_for(TINY, **STEP, budget=whole - 1, device="cpu")
    assert tight.chunk is not None and tight.chunk < 128 and tight.predicted_bytes < whole
    beside = chunk_for(TINY, **STEP, budget=whole + 1000, beside=lambda chunk: 1001, device="cpu")
    assert beside.chunk is not None, "memory besides the field counts"
    with pytest.raises(DoesNotFit, match="A step needs") as excinfo:
        chunk_for(TINY, **STEP, budget="10kB", device="cpu")
    assert "Raise --budget by at least" in excinfo.value.hint
    with pytest.raises(DoesNotFit) as excinfo:
        chunk_for(TINY, **STEP, budget=whole // 2, device="cpu", memory="none")
    assert "--set memory=checkpoint" in excinfo.value.hint
    assert (
        chunk_for(TINY, **STEP, budget=whole // 2, device="cpu", memory="none", mode="infer").predicted_bytes
        <= whole // 2
    )


@pytest.mark.usefixtures("bare")
def test_tighter_budgets_get_smaller_chunks_down_to_the_smallest() -> None:
    step: dict[str, Any] = {"batch": 2, "rays": 128, "samples": 4, "device": "cpu"}
    value = [chunk_for(TINY, **step, budget="1GiB")]
    for _ in range(3):
        value.append(chunk_for(TINY, **step, budget=value[-1].predicted_bytes - 1))
    with pytest.raises(DoesNotFit):
        chunk_for(TINY, **step, budget=value[-1].predicted_bytes - 1)
    chunks = [one.chunk or 256 for one in value]
    assert chunks == [256, 128, 86, 64], (
        "whole, and in 2, 3 and 4 parts; smaller chunks than 64 rays are not tried"
    )
    assert all(one.predicted_bytes <= one.budget_bytes for one in value)


def test_the_chunk_is_the_largest_for_a_linear_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def line(*_: Any) -> Iterator[Any]:
        yield lambda chunk: ((chunk or 8192) * MIB, (chunk or 8192) * MIB)

    monkeypatch.setattr(budget, "_on_card", line)
    value = chunk_for(TINY, batch=8, rays=1024, samples=64, budget="1GiB", device="cuda")
    assert value.chunk == 8 * 128, "eight parts; the CUDA context is zero here"
    value = chunk_for(TINY, batch=8, rays=1000, samples=64, budget="1GiB", device="cuda")
    assert value.chunk == 8 * 125


@pytest.mark.slow
def test_on_a_card_the_published_field_fits_into_one_gibibyte_with_checkpoints() -> None:
    config = FieldConfig.preset("graf")
    options: dict[str, Any] = {"batch": 8, "rays": 1024, "samples": 64, "device": "cuda", "precision": "bf16"}
    value = chunk_for(config, **options, budget="1GiB", counted="allocated")
    assert value.chunk is not None and value.chunk == 2736 and 0.8 * GIB < value.predicted_bytes <= GIB


def test_empty_steps_are_refused() -> None:
    for wrong in ({"batch": 0}, {"rays": 0}, {"samples": -1}):
        with pytest.raises(BadInput):
            chunk_for(TINY, **{**STEP, **wrong}, budget="1GiB", device="cpu")
