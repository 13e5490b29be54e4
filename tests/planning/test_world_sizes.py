"""Plans for several world sizes, compared with laws of what each of them needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.ranks import Rank
from pinchpoint.core.records import BREAKDOWN, Forecast, Plan
from pinchpoint.core.units import GIB, MIB
from pinchpoint.forecasting import launch_command
from pinchpoint.forecasting.launch_command import Launch
from pinchpoint.planning import plan as plan_module
from pinchpoint.planning.plan import plan

CONTEXT = 512 * MIB
SCRIPTS = Path(__file__).parent.parent / "scripts"
VARY = "--batch-size {}"


@dataclass
class ShardedLaw:
    """A forecaster whose weights are shared by all ranks: `weights / world size + batch * MiB`."""

    weights: int
    extra: Callable[[Rank, int], int] = lambda rank, batch: 0
    asked: list[tuple[int, int, int]] = field(default_factory=list)

    def predict(self, *, args: tuple[str, ...], rank: Rank, **_: Any) -> Forecast:
        batch = int(args[-1])
        self.asked.append((rank.world_size, rank.rank, batch))
        live = self.weights // rank.world_size + batch * 100 * MIB + self.extra(rank, batch)
        return Forecast(
            target="train.py",
            framework="torch",
            method="fake tensors",
            mode="train",
            size=None,
            variant=None,
            peak_allocated_bytes=live,
            peak_reserved_bytes=live,
            workspace_bytes=0,
            context_bytes=CONTEXT,
            total_bytes=live + CONTEXT,
            breakdown={**dict.fromkeys(BREAKDOWN, 0), "weights": self.weights // rank.world_size},
            lines=(),
            modules=(),
            timeline=(),
            fits={},
            margin_bytes=0,
            needs_bytes=live,
            card="none",
            steps=2,
            world_size=rank.world_size,
            rank=rank.rank,
        )

    def runs(self, world_size: int) -> int:
        return sum(world == world_size for world, _, _ in self.asked)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def exact(weights: int, world_size: int, budget: int) -> int:
    return (budget - CONTEXT - weights // world_size) // (100 * MIB)


def test_every_world_size_has_its_largest_batch_and_later_ones_need_few_runs(script: str) -> None:
    law = ShardedLaw(160 * GIB)
    result = plan(script, budget="80GiB", vary=VARY, world_size="32,4,8", forecaster=law)
    assert [row["world_size"] for row in result.world_sizes] == [4, 8, 32]
    for row in result.world_sizes:
        limit = exact(160 * GIB, row["world_size"], 80 * GIB)
        assert row["size"] <= limit <= row["size"] * 1.01 + 1
        assert row["runs"] == law.runs(row["world_size"])
    assert law.runs(8) <= 3 and law.runs(32) <= 3
    assert (result.size, result.world_size) == (result.world_sizes[-1]["size"], 32)
    assert Plan.from_json(result.to_json()) == result


def test_a_larger_world_size_is_not_assumed_to_fit_more(script: str) -> None:
    law = ShardedLaw(0, lambda rank, batch: rank.world_size * GIB)
    result = plan(script, budget="24GiB", vary=VARY, world_size=[2, 8, 16], forecaster=law)
    sizes = [row["size"] for row in result.world_sizes]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
    assert result.world_size == 2


def test_a_size_has_the_smallest_world_size_that_fits_it(script: str) -> None:
    law = ShardedLaw(160 * GIB)
    result = plan(script, budget="24GiB", vary=VARY, world_size="4,8,16,32", size=16, forecaster=law)
    assert (result.size, result.world_size) == (16, 8)
    assert [row["size"] for row in result.world_sizes] == [None, 16, 16, 16]
    assert result.world_sizes[0]["why"] == "does not fit"
    assert [batch for _, _, batch in law.asked] == [16] * 4


def test_all_ranks_means_the_one_that_needs_most(script: str) -> None:
    law = ShardedLaw(0, lambda rank, batch: 4 * GIB * (rank.rank == rank.world_size - 1))
    one = plan(script, budget="24GiB", vary=VARY, world_size=8, forecaster=law)
    every = plan(script, budget="24GiB", vary=VARY, world_size=8, rank="all", forecaster=law)
    assert one.size is not None and every.size is not None and every.size < one.size - 30
    assert (one.world_sizes[0]["rank"], every.world_sizes[0]["rank"]) == (0, 7)


def test_a_world_size_with_which_the_script_fails_has_a_row_that_says_why(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mesh(ShardedLaw):
        def predict(self, *, args: tuple[str, ...], rank: Rank, **_: Any) -> Forecast:
            if rank.world_size % 4:
                raise TargetFailed("The mesh needs a multiple of 4.", hint="Use one.")
            return super().predict(args=args, rank=rank)

    result = plan(script, budget="24GiB", vary=VARY, world_size="6,8", forecaster=Mesh(GIB))
    assert [row["size"] is None for row in result.world_sizes] == [True, False]
    assert "The mesh needs a multiple of 4." in result.world_sizes[0]["why"]
    assert any(note.startswith("world size 6: ") for note in result.notes)
    with pytest.raises(TargetFailed, match="multiple of 4"):
        plan(script, budget="24GiB", vary=VARY, world_size="6,7", forecaster=Mesh(GIB))
    monkeypatch.setattr(plan_module, "plan", lambda *_, **__: result)
    assert run(["plan", "train.py", "--budget", "24GiB", "--world-size", "6,8", "--vary", VARY]) == 0
    shown = capsys.readouterr().out
    assert "failed" in shown and all(len(line) <= 80 for line in shown.splitlines())


def test_if_nothing_fits_the_table_says_so_and_the_exit_code_is_1(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = plan(script, budget="8GiB", vary=VARY, world_size="2,4", forecaster=ShardedLaw(160 * GIB))
    assert result.size is None and result.world_size is None
    assert {row["why"] for row in result.world_sizes} == {"does not fit"}
    monkeypatch.setattr(plan_module, "plan", lambda *_, **__: result)
    assert run(["plan", "train.py", "--budget", "8GiB", "--world-size", "2,4", "--vary", VARY]) == 1
    assert "none fits" in capsys.readouterr().out


def test_every_answer_so_far_is_reported(script: str) -> None:
    plans: list[Plan] = []
    law = ShardedLaw(GIB)
    plan(script, budget="8GiB", vary=VARY, world_size="2,4", forecaster=law, on_result=plans.append)
    assert [(len(one.world_sizes), one.complete) for one in plans] == [(1, False), (2, False)]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"world_size": 0}, "'0' is none"),
        ({"world_size": "8,many"}, "'many' is none"),
        ({"world_size": "8,,16"}, "'' is none"),
        ({"world_size": []}, "no world sizes"),
        ({"rank": "all"}, "without --world-size"),
        ({"world_size": 8, "cards": "all"}, "cannot be used with --world-size"),
    ],
)
def test_bad_input_is_refused_before_any_run(script: str, options: dict[str, Any], what: str) -> None:
    law = ShardedLaw(GIB)
    with pytest.raises(BadInput, match=what):
        plan(script, budget="8GiB", vary=VARY, forecaster=law, **options)
    assert not law.asked


def test_a_rank_beyond_one_of_the_world_sizes_concerns_only_that_row(script: str) -> None:
    law = ShardedLaw(GIB)
    result = plan(script, budget="8GiB", vary=VARY, world_size="2,8", rank=5, forecaster=law)
    assert "no rank 5 among 2" in result.world_sizes[0]["why"]
    assert result.world_sizes[1]["rank"] == 5


@pytest.mark.usefixtures("quick_workers")
def test_a_real_script_with_fsdp_needs_less_on_more_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the script uses torch")
    path = tmp_path / "fsdp.py"
    path.write_text(SCRIPT)
    result = plan(str(path), budget="3GiB", vary=VARY, world_size="2,8", size=1024)
    few, many = result.world_sizes
    assert few["size"] == many["size"] == 1024 and result.world_size == 2
    # The weights, gradients and two states of 2 ** 24 parameters are shared; the allocator rounds up.
    saved = 4 * 4 * 2**24 * (1 / 2 - 1 / 8)
    assert few["peak_bytes"] - many["peak_bytes"] == pytest.approx(saved, rel=0.25)


SCRIPT = """
import argparse, os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
args = parser.parse_args()
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Linear(4096, 4096).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.ones(args.batch_size, 4096, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_command_of_a_launcher_is_planned_for_its_number_of_processes(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(script, ("--epochs", "1"), 4, 4, {"X": "1"}, ("a note",))
    monkeypatch.setattr(launch_command, "read_launch", lambda *args, **options: launch)
    law = ShardedLaw(weights=16 * GIB)
    command = f"torchrun --nproc-per-node 4 {script}"
    result = plan(command, budget="8GiB", vary=VARY, forecaster=law)
    assert {world_size for world_size, _, _ in law.asked} == {4}
    assert (result.notes[-1], result.size) == ("a note", exact(16 * GIB, 4, 8 * GIB))
    with pytest.raises(BadInput, match="starts one number of processes"):
        plan(command, budget="8GiB", vary=VARY, world_size="4,8", forecaster=law)
