"""What the pages on wave functions say, measured: the faults are found, and methods are compared in full
precision.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")
pytest.importorskip("folx", reason="the forward Laplacian is folx's")

from pinchpoint.systems.vmc.data.system import system_of

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"


@pytest.fixture
def claims() -> ModuleType:
    return importlib.import_module("claims")


def test_the_earlier_codes_faults_are_found_and_ours_has_none(claims: ModuleType) -> None:
    told: list[dict[str, Any]] = []
    claims.faults(told.append)
    found = {row["claim"]: row["found"] for row in told}
    assert found["jit over a callable argument"].startswith("TypeError")
    assert found["the option jax_enable_x64x"].startswith("AttributeError")
    assert "(2, 3)" in found["the Hessian's flat diagonal"]
    changes = {
        name: float(text.rpartition(" ")[2]) for name, text in found.items() if name.startswith("|psi|")
    }
    ours, original = (
        next(value for name, value in changes.items() if name.endswith(who)) for who in ("ours", "original")
    )
    assert ours < 1e-4 < 1e-2 < original


def test_methods_agree_in_float64_to_its_last_digits(claims: ModuleType) -> None:
    assert claims.distance(system_of("He"), "report-cpu", "loop", walkers=2) < 1e-11
