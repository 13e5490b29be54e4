"""Plans of what to recompute, with forecasts that follow a law, and one of a real script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput, DoesNotFit, TargetFailed
from pinchpoint.core.records import BREAKDOWN, Checkpointing, Forecast
from pinchpoint.core.units import GIB, MIB
from pinchpoint.forecasting.cards import card
from pinchpoint.planning.checkpointing.plan_checkpointing import RUNS, plan_checkpointing

CONTEXT = card("h200").context_high_bytes
BLOCK = 100 * MIB
FIXED = 1 * GIB
SCRIPT = """
import torch

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))

class Net(torch.nn.Module):
    def __init__(self, width=256, layers=8):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(3):
    net(torch.randn(131_072, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@dataclass
class Blocks:
    """A forecaster of eight equal blocks; each that is recomputed frees 100 MiB and takes 1 ms.

    overhead: what is needed for each byte alive. unknown: a reason why the peak may be higher. fails:
    modules that cannot be recomputed.
    """

    overhead: float = 1.1
    unknown: tuple[str, ...] = ()
    fails: str = "-"
    mode: str = "train"
    budget: int = 0
    asked: list[int] = field(default_factory=list)
    names: tuple[str, ...] = tuple(f"Net.blocks.{at}" for at in range(8))

    def predict(self, *, args: tuple[str, ...] = (), recompute: Mapping[str, bool] | None = None) -> Forecast:
        assert recompute is not None
        self.asked.append(len(recompute))
        if any(self.fails in name for name in recompute):
            raise TargetFailed("The script failed: CheckpointError.", hint="Run again.")
        alive = FIXED + BLOCK * (len(self.names) - len(recompute))
        needs = int(self.overhead * alive)
        recomputation: dict[str, Any] = {"device_s": 0.1, "host_s": 0.05}
        if not recompute:
            frees = dict.fromkeys(range(len(self.names)), BLOCK)
            recomputation |= {
                "modules": [
                    {
                        "name": name,
                        "class": "Odd" if self.fails in name else "Block",
                        "freed_bytes": BLOCK,
                        "device_s": 0.001,
                        "host_s": 0.002,
                        "is_layer": False,
                        "has_batch_norm": "norm" in name,
                        "keeps_products": False,
                    }
                    for name in self.names
                ],
                "rows": [(alive, frees), (FIXED, {})],
                "refused": {},
                "roots": {"Net": ["Net", "Module"]},
            }
        fits: bool | None = needs <= self.budget - CONTEXT
        return Forecast(
            target="train.py",
            framework="torch",
            method="fake tensors",
            mode=self.mode,
            size=None,
            variant=None,
            peak_allocated_bytes=alive,
            peak_reserved_bytes=needs,
            workspace_bytes=0,
            context_bytes=CONTEXT,
            total_bytes=needs + CONTEXT,
            breakdown={**dict.fromkeys(BREAKDOWN, 0), "activations": alive},
            lines=(),
            modules=(),
            timeline=(),
            fits={f"{self.budget}B": None if fits and self.unknown else fits},
            margin_bytes=MIB,
            card=f"{self.budget}B",
            steps=2,
            needs_bytes=needs,
            reasons=self.unknown,
            seen={"recomputation": recomputation},
        )


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import torch\n", encoding="utf-8")
    return "train.py"


@pytest.fixture
def plan(script: str) -> Callable[..., Checkpointing]:
    def plan(forecaster: Blocks, alive_bytes: int, **options: Any) -> Checkpointing:
        """A plan for a budget in which so many bytes alive fit."""
        forecaster.budget = int(forecaster.overhead * alive_bytes) + CONTEXT + 1
        return plan_checkpointing(script, budget=forecaster.budget, forecaster=forecaster, **options)

    return plan


@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_as_few_blocks_are_recomputed_as_fit(plan: Any, count: int) -> None:
    forecaster = Blocks()
    result = plan(forecaster, FIXED + (8 - count) * BLOCK)
    assert (len(result.modules), result.fits) == (count, True)
    assert result.modules[0].startswith("blocks.")
    assert result.extra_s == pytest.approx(0.001 * count)
    assert result.peak_bytes <= result.budget_bytes < result.before_bytes
    assert len(forecaster.asked) <= RUNS + 1


@pytest.mark.parametrize("overhead", [1.0, 1.3])
def test_the_choice_is_corrected_by_what_is_predicted(plan: Any, overhead: float) -> None:
    class Growing(Blocks):
        """Fragmentation grows with every block that is recomputed, which the profile does not know."""

        def predict(self, *, args: tuple[str, ...] = (), recompute: Any = None) -> Forecast:
            self.overhead = overhead * (1 + 0.01 * len(recompute))
            return super().predict(args=args, recompute=recompute)

    forecaster = Growing(overhead=overhead)
    result = plan(forecaster, FIXED + 4 * BLOCK)
    least = next(
        count
        for count in range(9)
        if int(overhead * (1 + 0.01 * count) * (FIXED + (8 - count) * BLOCK)) <= result.budget_bytes - CONTEXT
    )
    assert (len(result.modules), result.fits) == (least, True)


def test_a_script_that_fits_needs_nothing(plan: Any) -> None:
    forecaster = Blocks()
    result = plan(forecaster, FIXED + 8 * BLOCK)
    assert (result.modules, result.groups, result.how, result.fits) == ((), (), (), True)
    assert forecaster.asked == [0]
    assert "fits as it is" in result.notes[0]


def test_a_budget_that_nothing_reaches_names_the_smallest_peak(plan: Any) -> None:
    with pytest.raises(DoesNotFit, match=r"the smallest predicted peak is .*, with 8 modules") as error:
        plan(Blocks(), FIXED - BLOCK)
    assert "Give a budget of at least" in error.value.hint


def test_an_unknown_answer_keeps_its_reasons(plan: Any) -> None:
    result = plan(Blocks(unknown=("a loop may grow",)), FIXED + 4 * BLOCK)
    assert (result.fits, result.reasons, len(result.modules)) == (None, ("a loop may grow",), 4)


def test_modules_with_which_the_script_fails_are_left_out(plan: Any) -> None:
    names = tuple(f"Net.blocks.{at}" + (".odd" if at < 3 else "") for at in range(8))
    result = plan(Blocks(fails="odd", names=names), FIXED + 4 * BLOCK)
    assert result.fits is True and not any("odd" in name for name in result.modules)
    assert all("CheckpointError" in reason for reason in result.refused.values())
    assert set(result.refused) <= {name for name in names if "odd" in name}


def test_batch_norm_is_a_note(plan: Any) -> None:
    result = plan(Blocks(names=tuple(f"Net.norm.{at}" for at in range(8))), FIXED + 4 * BLOCK)
    assert any("running statistics twice" in note for note in result.notes)


def test_the_record_survives_json(plan: Any) -> None:
    result = plan(Blocks(), FIXED + 4 * BLOCK)
    assert Checkpointing.from_json(result.to_json()) == result


def test_a_script_that_does_not_train_is_refused(plan: Any) -> None:
    with pytest.raises(BadInput, match="does not train"):
        plan(Blocks(mode="infer"), FIXED)


def test_a_script_without_modules_is_refused(plan: Any) -> None:
    with pytest.raises(BadInput, match="has no module whose activations can be recomputed"):
        plan(Blocks(names=()), FIXED - BLOCK)


@pytest.mark.parametrize(
    ("budget", "error", "message"),
    [
        ("24", BadInput, "not a number of bytes"),
        ("many", BadInput, "no card 'many'"),
        (0, BadInput, "positive"),
        ("100MiB", DoesNotFit, "below the CUDA context"),
    ],
)
def test_a_bad_budget_is_refused(script: str, budget: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plan_checkpointing(script, budget=budget, forecaster=Blocks())


def test_what_is_not_a_torch_script_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("jax_train.py").write_text("import jax\nimport jax.numpy as jnp\n", encoding="utf-8")
    with pytest.raises(BadInput, match="is a JAX script"):
        plan_checkpointing("jax_train.py", budget="24GiB", forecaster=Blocks())
    with pytest.raises(BadInput, match="not a script"):
        plan_checkpointing("field", budget="24GiB", forecaster=Blocks())


@pytest.mark.usefixtures("quick_workers")
def test_a_real_script_fits_with_some_of_its_blocks(tmp_path: Path) -> None:
    """The peak of the plan is that of the script with the printed code in it."""
    pytest.importorskip("torch", reason="the script is torch's")
    from pinchpoint.forecasting.forecaster import Forecaster

    path = tmp_path / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    result = plan_checkpointing(str(path), budget="8GiB")
    assert result.fits is True and 0 < len(result.modules) < 8
    assert all(name.startswith("blocks.") for name in result.modules)
    assert 0 < result.extra_s < result.step_s
    code = result.how[0]["code"].replace("model", "net")
    changed = tmp_path / "changed.py"
    changed.write_text(SCRIPT.replace("optimizer =", f"{code}\noptimizer =", 1), encoding="utf-8")
    with Forecaster(str(changed), card=result.card) as forecaster:
        forecast = forecaster.predict()
    assert forecast.peak_allocated_bytes == result.peak_allocated_bytes
    assert forecast.fits[forecast.card] is True
