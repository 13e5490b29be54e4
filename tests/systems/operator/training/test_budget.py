"""A budget chooses the chunk by the predicted peak of the training step."""

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
    """A process without resident memory: only the step's own bytes count."""
    monkeypatch.setattr(budget, "cpu_bytes", lambda tensor_bytes, resident: round(tensor_bytes))


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("memory", ["flat", "eager"])
def test_the_prediction_for_a_cpu_matches_the_memory_of_a_real_step(
    config: OperatorConfig, body: Any, memory: str
) -> None:
    settings = Settings(memory=memory)
    choice = chunk_for(config, settings, body[1], budget="1GiB", device="cpu", mode="train")

    def steps() -> None:
        stepper = Stepper(config, settings, "cpu")
        stepper.step([body], number=1)
        stepper.step([body], number=2)

    assert choice.predicted_bytes == pytest.approx(account(steps), rel=0.01)
    assert choice.chunk == (
        None if memory == "eager" else max(edges.count for edges in (*body[1].encoder, *body[1].decoder))
    )


def pretend(monkeypatch: pytest.MonkeyPatch, need: Any) -> list[int | None]:
    """Compute peaks by a formula instead of with fake tensors; return the list of requested chunks."""
    from contextlib import nullcontext

    tried_chunks: list[int | None] = []

    def peaks(chunk: int | None) -> tuple[int, int]:
        tried_chunks.append(chunk)
        return need(chunk), need(chunk)

    monkeypatch.setattr(budget, "_on_cpu", lambda *args: nullcontext(peaks))
    return tried_chunks


def test_the_largest_chunk_within_the_budget_is_chosen(
    monkeypatch: pytest.MonkeyPatch, config: OperatorConfig, body: Any
) -> None:
    most = max(edges.count for edges in (*body[1].encoder, *body[1].decoder))
    tried_chunks = pretend(monkeypatch, lambda chunk: 1_000_000 + 1_000 * chunk)
    fitting_chunk = (budget.MIN_CHUNK + most) // 2
    choice = chunk_for(
        config, Settings(), body[1], budget=1_000_000 + 1_000 * fitting_chunk, device="cpu", mode="train"
    )
    assert choice.chunk is not None
    assert 0.9 * fitting_chunk <= choice.chunk <= fitting_chunk
    assert choice.predicted_bytes <= choice.budget_bytes
    assert choice.chunk in tried_chunks and len(tried_chunks) <= 8


def test_a_budget_too_small_for_any_chunk_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, config: OperatorConfig, body: Any
) -> None:
    pretend(monkeypatch, lambda chunk: 64 * 2**20 + 1_000 * chunk)
    with pytest.raises(
        DoesNotFit, match=r"needs 64\.\d+ MiB in chunks of 256 edges, .*, but the budget is 50\.00 MiB"
    ) as excinfo:
        chunk_for(config, Settings(), body[1], budget="50MiB", device="cpu", mode="train")
    assert excinfo.value.exit_code == 1
    assert "Raise --budget by at least 14." in excinfo.value.hint


def test_the_error_for_eager_suggests_flat(
    monkeypatch: pytest.MonkeyPatch, config: OperatorConfig, body: Any
) -> None:
    pretend(monkeypatch, lambda chunk: 2**30)
    with pytest.raises(DoesNotFit) as excinfo:
        chunk_for(config, Settings(memory="eager"), body[1], budget="50MiB", device="cpu", mode="train")
    assert "--memory flat" in excinfo.value.hint


@pytest.mark.parametrize("text", ["many", "8", "0GiB"])
def test_an_invalid_budget_is_refused(config: OperatorConfig, body: Any, text: str) -> None:
    with pytest.raises(BadInput):
        chunk_for(config, Settings(), body[1], budget=text, device="cpu", mode="train")


@pytest.mark.slow
def test_for_a_card_the_whole_process_is_counted_and_fits_the_budget(
    config: OperatorConfig, body: Any
) -> None:
    choice = chunk_for(config, Settings(), body[1], budget="8GiB", device="cuda", mode="train")
    assert 400 * 2**20 < choice.predicted_bytes <= choice.budget_bytes, (
        "the CUDA context alone takes about 400 MiB"
    )


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_on_a_gpu_stays_within_what_was_predicted(
    tiny_data: Path, tiny_model: dict[str, Any], tmp_path: Path, precision: str
) -> None:
    choices = {**tiny_model, "device": "cuda", "steps": 40, "precision": precision}
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()  # by other tests of this process
    record = train(tiny_data, tmp_path / "run", budget="4GiB", **choices)
    assert record.predicted_bytes is not None
    assert torch.cuda.max_memory_reserved() - before <= record.predicted_bytes <= 4 * 2**30
    assert record.recorded_bodies
    assert train(tiny_data, tmp_path / "run", resume=True).step == 40
