"""Conditions that had one answer only in the turns that were run are also tried the other way."""

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
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(rows=64):
    optimizer.zero_grad()
    loss = model(torch.zeros(rows, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
LARGE = 65536 * 1024 * 4


@pytest.fixture
def of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(tmp_path)

    def predict_text(text: str) -> Forecast:
        Path("train.py").write_text(START + text, encoding="utf-8")
        return predict("train.py")

    return predict_text


def tried(forecast: Forecast) -> str:
    notes = [note for note in forecast.notes if "one answer only" in note]
    return notes[0].rpartition(": ")[2] if notes else ""


@pytest.mark.parametrize(
    "text",
    [
        """tau = 1.0
for step in range(20_000):
    rows = 65536 if tau < 0.5 else 64
    train(rows)
    tau = max(0.1, tau * 0.999)
""",
        """losses = []
while len(losses) < 10_000:
    losses.append(train())
    if len(losses) % 500 == 0: train(65536)
""",
        """for step in range(20_000):
    train()
    if random.random() < 0.0005: train(65536)
""",
        """class Run:
    def __init__(self): self.left = 5.0
    def end(self):
        self.left *= 0.9
        if self.left < 1: self.grow()
    def grow(self): self.rows = 65536
    rows = 64
run = Run()
for epoch in range(20):
    for step in range(100): train(run.rows)
    run.end()
""",
        """def part(tau):
    if tau < 0.5:
        train(65536)
tau = 1.0
for step in range(1000):
    train()
    part(tau)
    tau -= 1e-3
""",
        """tau = 1.0
for step in range(20_000):
    train()
    if step > 100 and tau < 0.5: train(65536)
    tau *= 0.999
""",
        """tau = 1.0
data = torch.utils.data.TensorDataset(torch.zeros(640))
for batch in torch.utils.data.DataLoader(data, batch_size=2):
    train()
    if tau < 0.5: train(65536)
    tau *= 0.999
""",
        """schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(100):
    train()
    schedule.step()
    if optimizer.param_groups[0]["lr"] < 1e-5: train(65536)
""",
        """schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for epoch in range(100):
    train()
    schedule.step()
    if schedule.last_epoch == 50: train(65536)
""",
    ],
    ids=["float", "len", "random", "attribute", "argument", "beside a counter", "loader", "rate", "schedule"],
)
def test_the_other_answer_raises_the_high_end(of_script: Predict, text: str) -> None:
    forecast = of_script(text)
    assert forecast.peak_allocated_bytes < LARGE
    assert (forecast.low_bytes or 0) <= forecast.peak_allocated_bytes
    assert (forecast.high_bytes or 0) > LARGE
    assert not forecast.reasons
    assert tried(forecast).startswith("train.py:")


@pytest.mark.parametrize(
    "text",
    [
        # What only prints, saves or ends the loop needs no memory.
        """best, bad = 1e9, 0
seen = []
for step in range(10_000):
    seen.append(train())
    if len(seen) % 100 == 0: print(seen[-1])
    if random.random() < 0.0001: break
""",
        # What is set once is a setting.
        """import os
rows = int(os.environ.get("ROWS", "64"))
for step in range(10_000):
    if rows > 100: train(65536)
    train(rows)
""",
        # Both answers were given.
        """big = False
for step in range(10_000):
    train(128 if big else 64)
    big = not big
""",
    ],
    ids=["printing", "setting", "both"],
)
def test_other_conditions_are_left_alone(of_script: Predict, text: str) -> None:
    forecast = of_script(text)
    assert tried(forecast) == ""
    assert (forecast.high_bytes or 0) < LARGE
    assert not forecast.reasons


def test_an_error_after_the_other_answer_is_a_reason(of_script: Predict) -> None:
    forecast = of_script("""tau, cache = 1.0, {}
for step in range(10_000):
    train()
    if tau < 0.5: train(cache["rows"])
    if tau < 0.4: train(65536)
    tau *= 0.999
""")
    assert (forecast.high_bytes or 0) > LARGE  # the condition after it was tried as well
    assert "the condition at train.py:15 had one answer only" in forecast.reasons[0]
    assert not any(forecast.fits.values())
