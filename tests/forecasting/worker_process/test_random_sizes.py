"""The largest size that a loop may draw at random counts for the high end, also if it was not drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")
Predict = Callable[..., Forecast]
START = """
import random
import numpy as np
import torch
from random import randint
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sizes = [64] * 60 + [65_536] + [64]
rng = np.random.default_rng(0)
def train(rows=64):
    optimizer.zero_grad()
    loss = model(torch.zeros(rows, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
def pick():
    return random.Random(3).randint(0, 61)
"""
LARGE = 65_536 * 1024 * 4


@pytest.fixture
def of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(tmp_path)

    def predict_text(text: str) -> Forecast:
        Path("train.py").write_text(START + text, encoding="utf-8")
        return predict("train.py")

    return predict_text


@pytest.mark.parametrize(
    "size",
    [
        "sizes[randint(0, len(sizes) - 1)]",
        "sizes[pick()]",
        "sizes[rng.integers(62) // 1]",
        "sizes[torch.randint(1, len(sizes), (1,)).item()]",
        "sizes[int(random.random() * len(sizes))]",
        "int(np.array(sizes)[rng.integers(0, 62, size=1)[0]])",
        "int(rng.choice(sizes))",
        "random.choices([64, 65_536], [0.999, 0.001])[0]",
        "random.choice([(64, 1)] * 60 + [(65_536, 1)])[0]",
        "random.sample(sizes, 2)[1 - 1]",
        "(random.shuffle(sizes), sizes[0])[1]",
    ],
)
def test_the_largest_number_counts_for_the_high_end(of_script: Predict, size: str) -> None:
    forecast = of_script(f"for step in range(5000):\n    train({size})\n")
    assert forecast.high_bytes is not None and forecast.high_bytes > 2 * LARGE
    assert forecast.fits["h200"] and forecast.reasons == ()
    assert forecast.peak_allocated_bytes < 2 * LARGE


def test_an_index_in_a_name_is_followed(of_script: Predict) -> None:
    forecast = of_script("""
for step in range(5000):
    at = np.random.randint(0, len(sizes))
    rows = sizes[at]
    train(rows)
""")
    assert (forecast.high_bytes or 0) > 2 * LARGE and forecast.peak_allocated_bytes < LARGE
    assert any("largest numbers that may be drawn at train.py:19, train.py:20" in n for n in forecast.notes)


def test_offsets_seeds_and_rows_are_no_sizes(of_script: Predict) -> None:
    forecast = of_script("""
data, labels = torch.zeros(1000, 1024), list(range(1000))
for step in range(5000):
    torch.manual_seed(random.randint(0, 2**32))
    at = random.randint(0, 936)
    batch = data[at : at + 64].cuda()
    row, label = data[random.randrange(1000)], labels[random.randint(0, 999)]
    action = random.randrange(6) if random.random() < 0.5 else 0
    train()
""")
    assert forecast.fits["h200"] and forecast.reasons == ()
    assert forecast.high_bytes in (None, forecast.peak_allocated_bytes)


def test_a_choice_outside_the_loops_of_the_script_leaves_the_answer_open(of_script: Predict) -> None:
    forecast = of_script("rows = random.choice(sizes)\nfor step in range(5000):\n    train(rows)\n")
    assert forecast.fits["h200"] is None
    assert "the largest choice at train.py:17, 65,536, was not drawn" in forecast.reasons[0]
