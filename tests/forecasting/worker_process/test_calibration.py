"""Counts that Python reads from the device determine tensor sizes as on a GPU; metrics change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.forecasting.predict import predict
from pinchpoint.forecasting.worker_process import calibration

POINTS = 400_000
TARGETS = """
import numpy as np
import torch

def target(count):
    def build(size, device):
        model = torch.nn.Linear(8, 1).to(device)
        x = torch.randn(size, 8, device=device)

        def step():
            scores = model(x)[:, 0]
            (scores.mean() + count(x, scores, device).sum()).backward()

        return step
    return build

plain = target(lambda x, s, device: x.repeat(1, 64))
float_item = target(lambda x, s, device: x[: int((s > -100).float().sum().item())].repeat(1, 64))
int_tensor = target(lambda x, s, device: x[: (s > -100).sum()].repeat(1, 64))
numpy_mask = target(
    lambda x, s, device: x[torch.from_numpy((s > -100).cpu().numpy().nonzero()[0]).to(device)].repeat(1, 64)
)
lists = target(
    lambda x, s, device: torch.cat([x.new_zeros(n, 512) for n in (s > -100).view(4, -1).sum(1).tolist()])
)

def metrics(x, s, device):
    predicted = (s > 0).cpu().numpy()
    right = int((s > 0).sum()) + sum((s > 0).long().tolist()[:3])
    right += np.bincount(predicted).max() + round(s.mean().item() * 100)
    print(f"{right:d}", np.mean(predicted == 1))
    return x.repeat(1, 64)

logged = target(metrics)
"""
PAIR = POINTS * 512 * 4
pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reads") / "reads.py"
    path.write_text(TARGETS)
    return path


def forecast(targets: Path, name: str) -> Forecast:
    with Forecaster(f"{targets}:{name}", card="h200") as forecaster:
        return forecaster.predict(size=POINTS)


@pytest.mark.parametrize(
    ("name", "copies"), [("float_item", 1), ("int_tensor", 1), ("numpy_mask", 1), ("lists", 2)]
)
def test_a_count_read_in_any_way_sizes_the_same_tensors_as_on_a_gpu(
    targets: Path, name: str, copies: int
) -> None:
    result = forecast(targets, name)
    assert result.low_bytes is not None and result.high_bytes is not None
    # One large tensor, or four and their concatenation; the rest is a few floats per point.
    assert result.peak_allocated_bytes == pytest.approx(copies * PAIR, rel=0.15)
    assert (
        result.low_bytes
        <= result.peak_allocated_bytes
        <= result.high_bytes
        < 1.2 * result.peak_allocated_bytes
    )
    (note,) = (note for note in result.notes if "ended early" not in note)
    assert "reads.py" in note and "2,048 and 16,384" in note


def test_metrics_are_not_calibrated_and_do_not_change_the_forecast(targets: Path) -> None:
    result, plain = forecast(targets, "logged"), forecast(targets, "plain")
    assert result.notes == () and result.low_bytes is None
    assert result.peak_allocated_bytes == pytest.approx(plain.peak_allocated_bytes, rel=0.03)


def test_only_the_value_of_a_number_that_was_read_can_be_irrelevant() -> None:
    def refuse(known: dict[str, object]) -> dict[str, object]:
        raise AssertionError("a mask's count is a size: there is nothing to guess")

    assert calibration.check_guesses("a.py:3:mask", refuse) == "a.py:3:mask"


def test_guesses_that_differ_or_fail_or_reach_another_count_require_calibration() -> None:
    assert (
        calibration.check_guesses("a.py:3:item", lambda known: {"blocks": str(known["guess"])})
        == "a.py:3:item"
    )
    assert calibration.check_guesses("a.py:3:int", lambda known: {"error": "TargetFailed"}) == "a.py:3:int"
    assert calibration.check_guesses("a.py:3:array", lambda known: {"needs": "a.py:9:mask"}) == "a.py:9:mask"


def test_a_high_end_that_cannot_be_run_does_not_make_more_cards_fit(targets: Path) -> None:
    with Forecaster(f"{targets}:plain", card="2700MiB") as forecaster:
        large, small = (forecaster.predict(size=size) for size in (POINTS, POINTS // 2))
    assert large.fits["2700MiB"]
    answers = {
        "mid": large.to_dict(),
        "low": small.to_dict(),
        "high": {"error": "BadInput", "what": "no such count", "hint": ""},
    }
    result = calibration.in_range(lambda known: answers[known["bound"]], {}, "counts depend on the data")
    down = large.peak_allocated_bytes - small.peak_allocated_bytes
    assert (result.low_bytes, result.high_bytes) == (
        small.peak_allocated_bytes,
        large.peak_allocated_bytes + down,
    )
    assert not result.fits["2700MiB"] and result.fits["h200"]
    assert any(
        "the step cannot be run with the highest counts: no such count" in note for note in result.notes
    )


def test_a_count_that_hardly_changes_the_peak_needs_no_real_run(targets: Path) -> None:
    with Forecaster(f"{targets}:plain") as forecaster:
        one, slightly, much = (
            forecaster.predict(size=size) for size in (POINTS, POINTS + POINTS // 500, 2 * POINTS)
        )

    def result(high: Forecast) -> Forecast | None:
        answers = {"low": one.to_dict(), "high": high.to_dict()}
        return calibration.whatever_the_counts(lambda known: answers[known["bound"]], "a.py:3:mask")

    assert result(much) is None
    forecast = result(slightly)
    assert forecast is not None and "a.py:3:mask" in forecast.notes[-1]
    ends = one.peak_allocated_bytes, slightly.peak_allocated_bytes
    assert forecast.low_bytes is not None and forecast.high_bytes is not None
    assert forecast.low_bytes < ends[0] < ends[1] < forecast.high_bytes < 1.01 * forecast.low_bytes
    assert forecast.peak_allocated_bytes == ends[1]


@pytest.mark.parametrize("count", ["y[y > 0].sum()", "torch.masked_select(y, y > 0).sum()"])
def test_a_mask_that_depends_on_a_large_weight_is_counted_in_the_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str
) -> None:
    # A host tensor of over 1,000,000 elements has no values in a forecast, but in the calibration it has.
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(f"""
import torch
model = torch.nn.Linear(2_000, 1_000).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    y = model(torch.randn(512, 2_000, device="cuda"))
    loss = {count}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""")
    result = predict("train.py")
    assert result.low_bytes is not None and result.high_bytes is not None
    (note,) = (note for note in result.notes if "ended early" not in note)
    assert "train.py:7" in note and "the script's first steps" in note
    assert result.fits["h200"] is True
