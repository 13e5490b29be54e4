"""Scripts of one rank of a parallel job: values and objects of other ranks, and processes they start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the fake run needs torch")

from pinchpoint import predict
from pinchpoint.core.records import Forecast

pytestmark = pytest.mark.usefixtures("quick_workers")

HEAD = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())
"""
TAIL = """
    model(torch.randn(n, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
Predict = Callable[..., Forecast]


@pytest.fixture
def of_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Predict a training loop of one of four ranks, with these lines before its step, which choose n."""
    monkeypatch.chdir(tmp_path)

    def predict_loop(body: str, **options: object) -> Forecast:
        lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
        text = f"{HEAD}for step in range(3):\n{lines}{TAIL}"
        Path("train.py").write_text(text, encoding="utf-8")
        return predict("train.py", world_size=4, **options)  # type: ignore[arg-type]

    return predict_loop


@pytest.mark.parametrize(
    "exchange",
    [
        "n = torch.tensor([64], device='cuda')\ndist.all_reduce(n, op=dist.ReduceOp.MAX)\nn = n.item()",
        "parts = [torch.zeros(1, dtype=torch.int64, device='cuda') for _ in range(4)]\n"
        "dist.all_gather(parts, torch.tensor([64], device='cuda'))\n"
        "n = max(part.item() for part in parts)",
        "own, others = torch.tensor([64], device='cuda'), torch.empty(4, dtype=torch.int64, device='cuda')\n"
        "dist.all_gather_into_tensor(others, own)\n"
        "n = max(others.tolist())",
        "own = torch.full((4,), 16, device='cuda')\n"
        "others = torch.empty_like(own)\n"
        "dist.all_to_all_single(others, own)\n"
        "n = sum(others.tolist())",
        "from torch.distributed._functional_collectives import all_to_all_single\n"
        "own = torch.full((4,), 16, device='cuda')\n"
        "n = sum(all_to_all_single(own, None, None, dist.group.WORLD).tolist())",
        "sent = [None] * 4\ndist.all_gather_object(sent, {'n': 64})\nn = max(one['n'] for one in sent)",
    ],
    ids=["reduced", "gathered", "gathered at once", "exchanged", "exchanged by a function", "objects"],
)
def test_a_size_that_other_ranks_decide_about_leaves_the_answer_open(of_loop: Predict, exchange: str) -> None:
    forecast = of_loop(exchange)
    assert set(forecast.fits.values()) == {None}
    assert "sizes depend on the numbers of other ranks at train.py:" in forecast.reasons[0]
    assert 64 * 256 * 4 <= forecast.breakdown["inputs"] < 65 * 256 * 4 + 4096  # with the number of this rank


def test_counts_that_experts_exchange_leave_the_answer_open(of_loop: Predict) -> None:
    """The counts of this rank depend on weights, so that those of others cannot be taken to be larger."""
    forecast = of_loop(
        "expert = model(torch.randn(64, 256, device='cuda')).argmax(1) % 4\n"
        "own = torch.bincount(expert, minlength=4)\n"
        "others = torch.empty_like(own)\n"
        "dist.all_to_all_single(others, own)\n"
        "n = sum(others.tolist())"
    )
    assert set(forecast.fits.values()) == {None}
    assert "counts may depend on the numbers of other ranks at train.py:" in forecast.reasons[0]


def test_a_size_that_another_rank_sends_leaves_the_answer_open(of_loop: Predict) -> None:
    forecast = of_loop(
        "n = torch.zeros(1, dtype=torch.int64, device='cuda')\ndist.recv(n, 0)\nn = n.item()", rank=1
    )
    assert not any(forecast.fits.values()) and forecast.reasons


def test_a_number_of_other_ranks_that_decides_about_no_size_is_noted(of_loop: Predict) -> None:
    forecast = of_loop(
        "stop = torch.zeros(1, dtype=torch.int64, device='cuda')\n"
        "dist.all_reduce(stop)\n"
        "if stop.item(): break\n"
        "n = 64"
    )
    assert forecast.fits["rtx4090"] and not forecast.reasons
    assert any("numbers at train.py:9 have this rank's own values" in note for note in forecast.notes)


def test_the_worst_of_all_ranks_is_one_that_the_script_names(of_loop: Predict) -> None:
    forecast = of_loop("n = 4096 if dist.get_rank() == 2 else 64", rank="all")
    assert forecast.rank == 2 and forecast.breakdown["inputs"] == 4096 * 256 * 4
    assert any("rank 2 needs most" in note and "the others" not in note for note in forecast.notes)


def test_an_object_that_only_another_rank_has_is_that_of_a_run_as_this_rank(of_loop: Predict) -> None:
    forecast = of_loop(
        "config = [{'n': 64} if dist.get_rank() == 0 else None]\n"
        "dist.broadcast_object_list(config, src=0)\n"
        "n = config[0]['n']",
        rank=3,
    )
    assert forecast.rank == 3 and forecast.fits["rtx4090"]
    assert forecast.breakdown["inputs"] == 64 * 256 * 4


def test_a_function_of_the_elastic_launcher_runs_as_the_asked_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "from torch.distributed.launcher.api import LaunchConfig, elastic_launch\n"
        "def train(n):\n"
        + "".join(f"    {line}\n" for line in HEAD.splitlines())
        + "    for step in range(3):\n"
        + "".join(f"    {line}\n" for line in TAIL.splitlines())
        + "elastic_launch(LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2), train)(64)\n",
        encoding="utf-8",
    )
    forecast = predict("train.py")
    assert (forecast.rank, forecast.world_size) == (0, 2)
    assert "the first of 2 spawned processes is predicted" in forecast.notes
