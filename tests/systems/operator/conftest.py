"""A dataset of a few tiny bodies, and a model that trains on them in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the operator is torch's")


@pytest.fixture(scope="session", autouse=True)
def bodies_in_process() -> Iterator[None]:
    """Create bodies in this process: a worker process takes seconds to import torch.

    test_dataset tests the workers.
    """
    from pinchpoint.systems.common.data import dataset_folder
    from pinchpoint.systems.operator.data import workers

    run_workers = dataset_folder.run_workers

    def create(program: Any, orders: Any, *, jobs: int) -> Iterator[tuple[Any, bytes]]:
        if program is not workers.PROGRAM:
            return run_workers(program, orders, jobs=jobs)
        return ((order, workers.make(asdict(order))) for order in orders)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_folder, "run_workers", create)
        yield


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6 training and 3 test bodies with about 100 panels each."""
    from pinchpoint.systems.operator.data.dataset import make_dataset

    folder = tmp_path_factory.mktemp("operator") / "data"
    dataset = make_dataset(folder, kind="flow", train=6, test=3, panels=100, jobs=1)
    assert len(dataset.names("train")) >= 4 and dataset.names("test"), dataset.left_out()
    return folder


@pytest.fixture(scope="session")
def tiny_settings() -> dict[str, Any]:
    """Settings of a run that takes milliseconds per step."""
    model = {"lattice": (4, 2, 2), "mlp": (8,), "channels": 8, "width": 16, "depth": 1, "heads": 2}
    return {"model": model, "device": "cpu", "validation": 0}


@pytest.fixture
def tiny_model(tiny_settings: dict[str, Any]) -> dict[str, Any]:
    """A copy of the settings, which a test may change."""
    return deepcopy(tiny_settings)
