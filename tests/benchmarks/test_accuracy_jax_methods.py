"""The GPU check script runs without a GPU and names the columns that it could not fill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinchpoint.backends.jax import compat, measurement

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy" / "jax_methods.py"


@pytest.mark.skipif(
    measurement.has_cuda() or compat.cuda_plugin() is not None, reason="this machine can fill every column"
)
def test_without_gpu_and_plugin_the_walk_is_recorded_and_other_columns_have_a_reason(tmp_path):
    record = tmp_path / "record.json"
    command = [sys.executable, str(SCRIPT), str(record), "--only", "scan", "--jobs", "1"]
    process = subprocess.run(
        command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True, check=True
    )
    (row,) = json.loads(record.read_text())["rows"]
    assert row["case"] == "scan"
    # At least the sequence, its hidden states and their residuals, three arrays of 64 x 8192 x 512 floats.
    assert row["walk"] >= 3 * 64 * 8192 * 512 * 4
    assert "plugin is not installed" in row["topology_reason"]
    assert "plugin is not installed" in process.stdout
    assert "measured_untuned" not in row
