"""Memory of this process and of this machine."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = "from pinchpoint.core.host_memory import peak_resident_bytes; print(peak_resident_bytes())"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a peak that begins with the program")
def test_the_peak_of_a_process_leaves_out_the_memory_of_the_one_that_started_it() -> None:
    """As for `train` from a notebook with large arrays."""
    array = bytearray(200 << 20)
    peak = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    assert 2 << 20 < int(peak) < len(array) // 2
