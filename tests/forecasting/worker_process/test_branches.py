"""Branches and loops on device values: every way is run, the highest peak decides, unknown is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")

GIB = 2**30
BIG = 20_000 * 20_000 * 4  # bytes of the tensor that only one way of a branch creates
HEAD = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    y = model(torch.randn(1000, 256, device="cuda"))
    loss = y.square().mean()
"""
TAIL = """
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
Predict = Callable[[str], Forecast]


@pytest.fixture
def of_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Predict a training loop with these lines between its loss and its backward pass."""
    monkeypatch.chdir(tmp_path)

    def predict_body(body: str) -> Forecast:
        lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
        Path("train.py").write_text(HEAD + lines + TAIL, encoding="utf-8")
        return predict("train.py")

    return predict_body


@pytest.mark.parametrize(
    "question",
    [
        "(y > 0).any()",
        "bool((y > 0).sum() > 10)",
        "y.sum().item() > 100",
        "(y > 0).sum().item() > 10",
        "loss.item() < 0.5",
    ],
)
def test_both_ways_of_a_branch_are_in_the_interval(of_body: Predict, question: str) -> None:
    forecast = of_body(f"""
if {question}:
    loss = loss + torch.zeros(20_000, 20_000, device="cuda").mean()
""")
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.low_bytes < GIB < BIG < forecast.high_bytes < 1.2 * BIG + GIB
    assert any("train.py:8" in note for note in forecast.notes)
    assert forecast.fits["h200"] is True and not forecast.reasons


def test_only_the_high_end_decides_whether_a_branch_fits(of_body: Predict) -> None:
    forecast = of_body("""
if loss.item() > 3:
    loss = loss + torch.zeros(3 * 2**30, device="cuda").mean()
""")
    assert forecast.peak_allocated_bytes < GIB < 12 * GIB < (forecast.high_bytes or 0)
    assert forecast.fits["rtx3060"] is False and forecast.fits["a100-80"] is True


def test_a_branch_that_changes_nothing_leaves_the_forecast_exact(of_body: Predict) -> None:
    forecast = of_body("""
if loss.item() < 0.5:
    print("good")
""")
    assert forecast.low_bytes is None and forecast.fits["h200"] is True
    assert [note.partition(":")[0] for note in forecast.notes] == ["loops that train were ended early"]


@pytest.mark.parametrize(
    "check",
    [
        "torch.isnan(loss)",
        "not torch.isfinite(loss)",
        "torch.isinf(y).any()",
        "(y != y).any() or loss.item() > 1e6",
    ],
)
def test_a_way_that_raises_ends_the_run_and_counts_for_nothing(of_body: Predict, check: str) -> None:
    forecast = of_body(f"""
if {check}:
    raise RuntimeError("diverged")
""")
    assert forecast.low_bytes is None and not forecast.reasons and forecast.fits["h200"] is True


def test_a_loop_of_unknown_length_whose_memory_grows_makes_fits_unknown(of_body: Predict) -> None:
    forecast = of_body("""
while y.abs().max().item() > 1:
    y = torch.tanh(model(y))
loss = y.mean()
""")
    assert set(forecast.fits.values()) == {None}
    assert len(forecast.reasons) == 1 and "train.py:8" in forecast.reasons[0]


def test_a_loop_of_unknown_length_whose_memory_stays_is_exact(of_body: Predict) -> None:
    forecast = of_body("""
with torch.no_grad():
    while True:
        previous, y = y, torch.tanh(model(y))
        if (y - previous).norm() < 1e-5:
            break
loss = model(y).mean()
""")
    assert forecast.fits["h200"] is True and not forecast.reasons


def test_a_branch_that_data_decide_goes_the_way_of_the_data(of_body: Predict) -> None:
    forecast = of_body("""
labels = torch.arange(100).cuda()
if (labels > 98).any() and not (labels > 99).any():
    loss = loss + torch.zeros(20_000, 20_000, device="cuda").mean()
""")
    assert forecast.low_bytes is None and forecast.peak_allocated_bytes > BIG


def test_an_and_with_a_known_false_does_not_depend_on_the_other_side(of_body: Predict) -> None:
    forecast = of_body("""
never = torch.zeros(1000, 256, dtype=torch.bool, device="cuda")
if ((y > 0) & never).max() == 1:
    loss = loss + torch.zeros(20_000, 20_000, device="cuda").mean()
""")
    assert forecast.high_bytes is None and forecast.peak_allocated_bytes < GIB


def test_a_branch_of_which_one_way_cannot_run_makes_fits_unknown(of_body: Predict) -> None:
    forecast = of_body("""
if loss.item() > 3:
    torch.cuda.CUDAGraph()
""")
    assert set(forecast.fits.values()) == {None} and "train.py:8" in forecast.reasons[0]


@pytest.mark.parametrize(
    "check",
    [
        "if not (y > -1e9).all(): raise ValueError('outside the support')",
        "if y.isnan().any() or (y > 1e9).any(): raise ValueError('diverged')",
        "if loss.item() > 1e9: raise ValueError('diverged')",
    ],
)
def test_a_check_that_raises_is_passed_as_in_a_run_that_works(of_body: Predict, check: str) -> None:
    forecast = of_body(check)
    assert not forecast.reasons and forecast.low_bytes is None and forecast.fits["h200"]


ADAPTIVE = """
def advance(y, t, dt):
    z = torch.tanh(model(y))
    if (z - y).norm() <= 1:
        return z, t + dt
    return y, t
t = torch.zeros((), device="cuda")
while t < 1:
    y, t = advance(y, t, 0.25 / (1 + y.norm()))
"""


def test_an_adaptive_solver_is_followed_for_a_few_steps_and_its_growth_is_stated(of_body: Predict) -> None:
    forecast = of_body(ADAPTIVE + "loss = y.mean()")
    assert set(forecast.fits.values()) == {None}
    (reason,) = [reason for reason in forecast.reasons if "memory grows by" in reason]
    assert "train.py:14" in reason
    # Every accepted step keeps its output (1,000 x 256 floats), and little else.
    grown_kib = float(reason.split("memory grows by ")[1].split()[0].replace(",", ""))
    assert 1_000 <= grown_kib < 2_100, reason


def test_an_adaptive_solver_without_gradients_does_not_grow(of_body: Predict) -> None:
    inner = "".join(f"    {line}\n" for line in ADAPTIVE.strip().splitlines())
    forecast = of_body(f"with torch.no_grad():\n{inner}loss = model(y).mean()")
    assert forecast.fits["h200"] is True and not forecast.reasons


def test_the_line_search_of_lbfgs_is_followed_and_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("""
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
x = torch.randn(1000, 256, device="cuda")
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
""")
    forecast = predict("train.py")
    assert forecast.fits["h200"] is True and not forecast.reasons


def test_the_script_s_random_numbers_are_the_same_in_every_run(of_body: Predict) -> None:
    """Runs with different guesses for the actions are compared: only the guesses may make a difference."""
    forecasts = [
        of_body("""
import random
import numpy
noise = torch.zeros(random.randrange(1_000_000), numpy.random.randint(1, 5), device="cuda")
actions = y.argmax(1).cpu().numpy()
""")
        for _ in range(2)
    ]
    expected = "loops that train", "the high end is for the largest numbers that may be drawn"
    assert all(note.startswith(expected) for forecast in forecasts for note in forecast.notes)
    assert forecasts[0].peak_allocated_bytes == forecasts[1].peak_allocated_bytes


SOLVER = """
import torch
class State:
    pass
class Solver:
    def solve(self, model, y, keep):
        y = model(y)
        self.rk_state = State()
        self.rk_state.t1 = y.mean()
        kept = []
        for part in range(3):
            next_t = y.sum()
            while next_t > self.rk_state.t1:
                y = torch.tanh(model(y))
                self.rk_state.t1 = y.max() + max(y.mean(), y.sum())
                kept = kept + [y] if keep else [y]
        return sum(part.mean() for part in kept)
"""


@pytest.mark.parametrize("keep", [False, True])
def test_an_adaptive_solver_fits_if_its_steps_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torchdiffeq/_impl").mkdir(parents=True)
    Path("torchdiffeq/_impl/solver.py").write_text(SOLVER)
    Path("train.py").write_text(f"""
import torch
from torchdiffeq._impl.solver import Solver
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(100):
    with torch.set_grad_enabled({keep}):
        loss = Solver().solve(model, torch.randn(100_000, 256, device="cuda"), {keep})
    (loss + model(torch.randn(1000, 256, device="cuda")).mean()).backward()
    optimizer.step()
""")
    forecast = predict("train.py")
    assert forecast.fits["h200"] is (None if keep else True)
    assert forecast.low_bytes is None or keep
    # Two tensors while `tanh` is computed, and the one that the turn before kept.
    steps = 3 * 100_000 * 256 * 4
    assert forecast.peak_allocated_bytes - forecast.workspace_bytes > steps
    assert any("grows" in reason for reason in forecast.reasons) == keep


@pytest.mark.parametrize("question", ["loss.item() < best", "loss < best"])
def test_a_way_that_cannot_work_does_not_lower_the_interval(of_body: Predict, question: str) -> None:
    """A script that saves its best weights saves some: it loads them, and what follows is certain."""
    forecast = of_body(f"""
best = float("inf") if step == 0 else best
if {question}:
    best = loss.item()
    torch.save(model.state_dict(), "best.pt")
if step == 4:
    model.load_state_dict(torch.load("best.pt"))
    torch.zeros(20_000, 20_000, device="cuda")
""")
    assert forecast.peak_allocated_bytes > BIG
    assert forecast.low_bytes is None or forecast.low_bytes > BIG
