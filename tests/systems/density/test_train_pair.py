"""Training a local network that corrects a trained one: the first is kept, and the pair is one model."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.common.training import logs  # noqa: E402
from pinchpoint.systems.common.training.training_loop import Report  # noqa: E402
from pinchpoint.systems.density.scores import evaluate_set  # noqa: E402
from pinchpoint.systems.density.train import train  # noqa: E402
from pinchpoint.systems.density.training.weights import export, load_weights  # noqa: E402

MODEL = {
    "mul": 16,
    "lmax": 1,
    "gaussians": 10,
    "hidden": 16,
    "head": 16,
    "interactions": 2,
    "train_knots": 64,
}
CHOICES: dict[str, Any] = {
    "device": "cpu",
    "steps": 20,
    "molecules": 2,
    "probes": 64,
    "checkpoint_every": 5,
    "validation": 2,
    "ema": 0.9,
}
PAIR = {**CHOICES, "model": {"local": 12}}


@pytest.fixture(scope="module")
def first(density_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("first") / "run"
    train(density_data, run, model=MODEL, **CHOICES)
    return run


def test_only_the_local_network_learns_and_a_stopped_run_goes_on_to_the_bit(
    density_data: Path, first: Path, tmp_path: Path
) -> None:
    def stop(report: Report) -> None:
        if report.stage == "train" and report.done == 7:
            os.kill(os.getpid(), signal.SIGINT)

    record = train(density_data, tmp_path / "whole", first=str(first), **PAIR)
    pair, before = load_weights(tmp_path / "whole"), load_weights(first)
    weights = pair.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in before.state_dict().items())
    assert pair.config.local == 12 and record.parameters > sum(p.numel() for p in before.parameters())
    assert before.domain is not None and pair.domain == before.domain
    losses = [row.loss for row in logs.read(tmp_path / "whole" / "log.csv")]
    assert sum(losses[-5:]) < sum(losses[:5])

    with pytest.raises(KeyboardInterrupt):
        train(density_data, tmp_path / "run", first=str(first), progress=stop, **PAIR)
    train(density_data, tmp_path / "run", resume=True)
    again = load_weights(tmp_path / "run").state_dict()
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    assert [row.loss for row in logs.read(tmp_path / "run" / "log.csv")] == losses

    exported = load_weights(export(tmp_path / "run", tmp_path / "pair.pt"))
    one, other = (evaluate_set(model, density_data, "test", device="cpu").nmae for model in (pair, exported))
    assert one == other != evaluate_set(before, density_data, "test", device="cpu").nmae


def test_chunks_do_not_change_what_a_local_network_learns(
    density_data: Path, first: Path, tmp_path: Path
) -> None:
    runs = {"whole": {}, "chunks": {"chunk": 16}}
    losses = []
    for name, how in runs.items():
        train(density_data, tmp_path / name, first=str(first), **PAIR, **how)
        losses.append([row.loss for row in logs.read(tmp_path / name / "log.csv")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    record = train(density_data, tmp_path / "budget", first=str(first), budget="4GiB", **PAIR)
    assert record.complete


def test_a_first_network_that_does_not_suit_is_refused_and_nothing_is_written(
    density_data: Path, first: Path, tmp_path: Path
) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"first": str(tmp_path / "none")}, "cannot be read from"),
        ({"first": str(first), "model": {"local": 0}}, "leaves nothing to train"),
        ({"first": str(first), "model": {"mul": 8}}, "--set mul cannot change the network of --first"),
        ({"first": str(first), "preset": "original"}, "--preset cannot change"),
    ]
    for choices, says in cases:
        with pytest.raises(BadInput, match=says) as caught:
            train(density_data, tmp_path / "run", **CHOICES | choices)
        assert caught.value.hint and not (tmp_path / "run").exists()


def test_a_run_without_a_checkpoint_is_resumed_from_its_first_network(
    density_data: Path, first: Path, tmp_path: Path
) -> None:
    train(density_data, tmp_path / "whole", first=str(first), **PAIR)
    train(density_data, tmp_path / "run", first=str(first), **PAIR)
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.unlink()
    (tmp_path / "run" / "log.csv").unlink()
    train(density_data, tmp_path / "run", resume=True)
    one, other = (load_weights(tmp_path / name).state_dict() for name in ("whole", "run"))
    assert all(torch.equal(one[name], other[name]) for name in one)
