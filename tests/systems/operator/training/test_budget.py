"""A budget picks the chunk: by the peak of the very step that is trained, counted before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.measurement import account
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.systems.operator.data.dataset import open_dataset
from pinchpoint.systems.operator.data.loading import Supply
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.train import train
from pinchpoint.systems.operator.training import budget
from pinchpoint.systems.operator.training.budget import chunk_for
from pinchpoint.systems.operator.training.training_step import Stepper

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture
def config(tiny_data: Path, tiny_model: dict[str, Any]) -> OperatorConfig:
    data = open_dataset(tiny_data)
    return OperatorConfig.preset("small", low=data.low, high=data.high, in_features=7, **tiny_model["model"])


@pytest.fixture
def body(tiny_data: Path, config: OperatorConfig) -> Any:
    data = open_dataset(tiny_data)
    return Supply(data, config).get(data.names("train")[0])


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that holds nothing: what is left is the step's own."""
    monkeypatch.setattr(budget, "resident_bytes", lambda: 0)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("memory", ["flat", "eager"])
def test_what_is_predicted_for_a_cpu_is_what_a_real_step_holds(
    config: OperatorConfig, body: Any, memory: str
) -> None:
    told = Settings(memory=memory)
    found = chunk_for(config, told, body[1], budget="1GiB", device="cpu", mode="train")

    def steps() -> None:
        stepper = Stepper(config, told, "cpu")
        stepper.step([body], number=1)
        stepper.step([body], number=2)

    assert found.predicted_bytes == pytest.approx(account(steps), rel=0.01)
    assert found.chunk == (
        None if memory == "eager" else max(edges.count for edges in (*body[1].encoder, *body[1].decoder))
    )


def pretend(monkeypatch: pytest.MonkeyPatch, need: Any) -> list[int | None]:
    """Peaks by a formula instead of by fake tensors; what is asked for is noted."""
    from contextlib import nullcontext

    asked: list[int | None] = []

    def peaks(chunk: int | None) -> tuple[int, int]:
        asked.append(chunk)
        return need(chunk), need(chunk)

    monkeypatch.setattr(budget, "_on_cpu", lambda *args: nullcontext(peaks))
    return asked


def test_the_largest_chunk_within_the_budget_is_taken(
    monkeypatch: pytest.MonkeyPatch, config: OperatorConfig, body: Any
) -> None:
    most = max(edges.count for edges in (*body[1].encoder, *body[1].decoder))
    asked = pretend(monkeypatch, lambda chunk: 1_000_000 + 1_000 * chunk)
    wanted = (budget.MIN_CHUNK + most) // 2
    found = chunk_for(
        config, Settings(), body[1], budget=1_000_000 + 1_000 * wanted, device="cpu", mode="train"
    )
    assert found.chunk is not None
    assert 0.9 * wanted <= found.chunk <= wanted
    assert found.predicted_bytes <= found.budget_bytes
    assert found.chunk in asked and len(asked) <= 8


def test_a_budget_that_holds_no_chunk_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, config: OperatorConfig, body: Any
) -> None:
    pretend(monkeypatch, lambda chunk: 64 * 2**20 + 1_000 * chunk)
    with pytest.raises(
        DoesNotFit, match=r"needs 64\.\d+ MiB in chunks of 256 edges, .*, but the budget is 50\.00 MiB"
    ) as caught:
        chunk_for(config, Settings(), body[1], budget="50MiB", device="cpu", mode="train")
    assert caught.value.exit_code == 1
    assert "Raise --budget by at least 14." in caught.value.hint


def test_eager_that_does_not_fit_is_told_of_flat(
    monkeypatch: pytest.MonkeyPatch, config: OperatorConfig, body: Any
) -> None:
    pretend(monkeypatch, lambda chunk: 2**30)
    with pytest.raises(DoesNotFit) as caught:
        chunk_for(config, Settings(memory="eager"), body[1], budget="50MiB", device="cpu", mode="train")
    assert "--memory flat" in caught.value.hint


@pytest.mark.parametrize("text", ["many", "8", "0GiB"])
def test_what_is_no_budget_is_refused(config: OperatorConfig, body: Any, text: str) -> None:
    with pytest.raises(BadInput):
        chunk_for(config, Settings(), body[1], budget=text, device="cpu", mode="train")


@pytest.mark.slow
def test_for_a_card_the_whole_is_counted_and_the_budget_kept(config: OperatorConfig, body: Any) -> None:
    found = chunk_for(config, Settings(), body[1], budget="8GiB", device="cuda", mode="train")
    assert 400 * 2**20 < found.predicted_bytes <= found.budget_bytes, (
        "CUDA's context alone takes some 400 MiB"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_on_a_gpu_stays_within_what_was_predicted(
    tiny_data: Path, tiny_model: dict[str, Any], tmp_path: Path, precision: str
) -> None:
    choices = {**tiny_model, "device": "cuda", "steps": 12, "precision": precision}
    made = train(tiny_data, tmp_path / "run", budget="4GiB", **choices)
    assert made.predicted_bytes is not None
    assert torch.cuda.max_memory_reserved() <= made.predicted_bytes <= 4 * 2**30
    assert train(tiny_data, tmp_path / "run", resume=True).step == 12
