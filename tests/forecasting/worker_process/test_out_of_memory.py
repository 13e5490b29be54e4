"""Scripts that catch the error of a full card adapt to the card that is modelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinchpoint.core.records import Forecast
from pinchpoint.core.units import GIB
from pinchpoint.forecasting.predict import predict

pytestmark = pytest.mark.usefixtures("quick_workers")
Predict = Callable[..., Forecast]
START = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(rows):
    optimizer.zero_grad()
    model(torch.zeros(rows, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
rows = 65_536
"""


@pytest.fixture
def of_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predict:
    monkeypatch.chdir(tmp_path)

    def predict_text(text: str) -> Forecast:
        Path("train.py").write_text(START + text, encoding="utf-8")
        return predict("train.py")

    return predict_text


DOUBLED = """
while True:
    try:
        train(rows)
        rows *= 2
    except torch.cuda.OutOfMemoryError:
        break
for step in range(1000):
    train(rows // 2)
"""
ASKED = """
def fits(rows):
    try:
        train(rows)
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return False
    return True
while fits(2 * rows):
    rows *= 2
for step in range(1000):
    train(rows)
"""


@pytest.mark.parametrize("text", [DOUBLED, ASKED], ids=["loop", "function"])
def test_the_peak_is_that_of_the_modelled_card(of_script: Predict, text: str) -> None:
    forecast = of_script(text)
    # Five tensors of rows x 1024 floats are alive: 80 GiB if rows is 2**22, and 160 GiB would be too many.
    assert 64 * GIB < forecast.peak_allocated_bytes < 140 * GIB
    assert forecast.total_bytes < 141 * GIB
    assert "runs out of memory at train.py:" in forecast.reasons[0] and "that of h200" in forecast.reasons[0]
    assert forecast.fits["rtx4090"] is None and forecast.fits["b200"] is None


def test_an_error_that_is_not_caught_is_not_raised(of_script: Predict) -> None:
    forecast = of_script("""
try:
    train(64)
except torch.cuda.OutOfMemoryError:
    print("even that is too much")
for step in range(1000):
    train(2**24)
""")
    assert forecast.peak_allocated_bytes > 160 * GIB and forecast.fits["h200"] is False
    assert not any("out of memory" in reason for reason in forecast.reasons)
