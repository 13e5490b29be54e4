"""The table of public scripts: what it takes from the records of their checks."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from pinchpoint.core.records import Check, Record

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "checking"


@pytest.fixture(scope="module")
def public_scripts() -> ModuleType:
    return importlib.import_module("public_scripts")


def test_the_table_shows_cost_peaks_and_gain_of_each_record(
    public_scripts: ModuleType, samples: dict[str, Record], tmp_path: Path
) -> None:
    check = samples["check"]
    assert isinstance(check, Check) and check.trace is not None and check.gain is not None
    trace = replace(check.trace, step_times={"median_s": 0.25}, memory={"allocated_bytes": 3 * 2**30})
    check = replace(check, trace=trace, gain=replace(check.gain, block_steps=4, pairs_of_starts=(1,)))
    for name in public_scripts.SCRIPTS:
        check.save(tmp_path / f"{name}.json")
        (tmp_path / f"{name}.command").write_text(f"pinchpoint check {name}.py\n")
        (tmp_path / f"{name}.revision").write_text("abc As noted.\n")
    record = public_scripts.collect(tmp_path)
    assert record["machine"] == trace.machine
    row = record["scripts"]["gcn"]
    assert row["command"] == "pinchpoint check gcn.py"
    assert (row["revision"], row["revision_note"]) == ("abc", "As noted.")
    record = json.loads(json.dumps(record))
    row = public_scripts.table(record).splitlines()[3]
    assert row.startswith("| PyG `examples/gcn.py`, graph of the size of Cora | 250.00 ms | 3.00 GiB / ")
    assert "100.00 ms, 20.0%: `loss.item()` waits (`train.py:" in row
    assert "faster: 500.00 ms before, 400.00 ms after, 1.250 [1.200 to 1.300]; 1 pair of blocks of 4" in row


def test_the_docs_show_the_recorded_table(public_scripts: ModuleType) -> None:
    record = json.loads((ROOT / "benchmarks/results/public_scripts_h200.json").read_text(encoding="utf-8"))
    assert public_scripts.table(record) in (ROOT / "docs/toolkit/check.md").read_text(encoding="utf-8")
    assert all(row["command"] and row["revision"] for row in record["scripts"].values())
