"""The claims about wave functions: faults are reproduced, and methods are compared in full precision."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("jax", reason="needs JAX")
pytest.importorskip("folx", reason="needs folx")

from pinchpoint.systems.vmc.data.system import system_of

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"


@pytest.fixture
def claims() -> ModuleType:
    return importlib.import_module("claims")


def test_the_faults_of_the_report_are_reproduced_and_ours_has_none(claims: ModuleType) -> None:
    rows: list[dict[str, Any]] = []
    claims.faults(rows.append)
    findings = {row["claim"]: row["found"] for row in rows}
    assert findings["jit over a callable argument"].startswith("TypeError")
    assert findings["the option jax_enable_x64x"].startswith("AttributeError")
    assert "(2, 3)" in findings["the Hessian's flat diagonal"]
    changes = {
        name: float(text.rpartition(" ")[2]) for name, text in findings.items() if name.startswith("|psi|")
    }
    ours, original = (
        next(value for name, value in changes.items() if name.endswith(who)) for who in ("ours", "original")
    )
    assert ours < 1e-4 < 1e-2 < original


def test_methods_agree_in_float64_to_the_last_digits(claims: ModuleType) -> None:
    assert claims.distance(system_of("He"), "report-cpu", "loop", walkers=2) < 1e-11
