"""Fixtures: a dataset of a few small rooms, and a network that trains on them within milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch")


@pytest.fixture(scope="session")
def tiny_rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of 5 training rooms and 2 test rooms of 1,000 points each."""
    from pinchpoint.systems.cloud.data.dataset import make_dataset

    folder = tmp_path_factory.mktemp("cloud") / "rooms"
    make_dataset(folder, train=5, test=2, points=1000, jobs=1)
    return folder


@pytest.fixture
def tiny_net() -> dict[str, Any]:
    """Return settings of a run whose steps take milliseconds."""
    model = {
        "cell": 0.4,
        "widths": (8, 12),
        "blocks": (1, 1),
        "attention": (0, 1),
        "heads": 2,
        "window": 32,
        "features": 8,
    }
    return {"model": model, "device": "cpu", "validation": 0, "points": 400}
