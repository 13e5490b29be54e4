"""A data set of a few tiny bodies and a model that learns from them in a blink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the operator is torch's")


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 bodies to train and 3 to test, of about 100 panels each."""
    from pinchpoint.systems.operator.data.dataset import make_dataset

    folder = tmp_path_factory.mktemp("operator") / "data"
    made = make_dataset(folder, kind="flow", train=6, test=3, panels=100, jobs=1)
    assert len(made.names("train")) >= 4 and made.names("test"), made.left_out()
    return folder


@pytest.fixture
def tiny_model() -> dict[str, Any]:
    """Choices of a run that takes milliseconds a step."""
    model = {"lattice": (4, 2, 2), "mlp": (8,), "channels": 8, "width": 16, "depth": 1, "heads": 2}
    return {"model": model, "device": "cpu", "validation": 0}
