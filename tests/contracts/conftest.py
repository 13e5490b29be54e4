"""The package's modules, read once for all contracts."""

from __future__ import annotations

import pytest
from tests.contracts.source import Module, read_package


@pytest.fixture(scope="session")
def package() -> list[Module]:
    return read_package()
