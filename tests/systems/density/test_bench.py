"""The cases of `bench density`: forms that agree, those timed on a part, and files that read back."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="densities are torch's")

from pinchpoint.backends.base import backend  # noqa: E402
from pinchpoint.systems.common.bench.cases import Setup  # noqa: E402
from pinchpoint.systems.common.bench.records import Comparison  # noqa: E402
from pinchpoint.systems.common.bench.runner import compare  # noqa: E402
from pinchpoint.systems.density.bench import cases  # noqa: E402


def run(name: str) -> Comparison:
    case = next(case for case in cases() if case.name == name)
    return compare(case, Setup("cpu", "tiny", case.size["tiny"]), backend("torch"), repeats=1, limit_s=60.0)


def test_the_forms_agree_and_the_slow_ones_run_on_a_part_of_the_grid() -> None:
    pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")
    comparison = run("probes")
    original, full, scalar, painn = comparison.rows
    # Two chunks of 13 bricks of 8 probes.
    assert original.work == full.work == painn.work == pytest.approx(208 / 512) and scalar.work == 1.0
    assert full.agreement is not None and full.agreement.difference == 0.0
    assert scalar.agreement is not None and scalar.agreement.equal
    assert 0 < (scalar.agreement.difference or 0) < 1e-5
    assert painn.role == "peer" and painn.agreement is not None and painn.agreement.equal is None
    assert all(row.peak_allocated_bytes for row in comparison.rows)
    assert any("40.6% of the probes" in note for note in comparison.notes)


def test_the_baseline_without_e3nn_is_a_failed_case(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "e3nn", None)
    with pytest.raises(RuntimeError, match="e3nn"):
        run("probes")


def test_every_writer_writes_the_density() -> None:
    comparison = run("chgcar")
    states = {row.name: (row.state, row.agreement and row.agreement.equal) for row in comparison.rows}
    assert states["line by line"] == states["pinchpoint"] == ("ok", True)
    for peer in ("ASE", "pymatgen"):
        assert states[peer] in (("ok", True), ("not installed", None))
    assert all(row.peak_allocated_bytes is None for row in comparison.rows), "they run on the host"
