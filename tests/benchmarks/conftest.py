"""Benchmarks are scripts that import their neighbours by bare names: found while a module's tests run, forgotten after."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def neighbours(request: pytest.FixtureRequest) -> Iterator[None]:
    """The scripts in a test module's FOLDER. Two folders may have a `compare.py`, and each is to get its own."""
    folder: Path | None = getattr(request.module, "FOLDER", None)
    if folder is None:
        yield
        return
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file).parent == folder:
            del sys.modules[name]
