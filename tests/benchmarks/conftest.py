"""Imports for tests of benchmarks, whose scripts import their siblings by bare names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def sibling_scripts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make the scripts of a test module's FOLDER importable, and forget them afterwards.

    Scripts in different folders have the same names.
    """
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
