"""Memory of this process and of this machine."""

from __future__ import annotations

import platform
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


FREED = """
import sys
from pinchpoint.core.host_memory import resident_bytes, return_freed_memory
if sys.argv[1] == "returned":
    assert return_freed_memory()
bytearray(30 << 20)  # from here on, malloc would keep blocks of up to 30 MiB
start, blocks = resident_bytes(), [bytearray(b"x" * (8 << 20)) for _ in range(20)]
above = [b"x" * 100_000 for _ in range(20)]  # on the heap, which therefore does not shrink
blocks.clear()
print(resident_bytes() - start)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has such a setting")
def test_freed_blocks_are_given_back_to_the_system() -> None:
    kept, returned = (
        int(
            subprocess.run(
                [sys.executable, "-c", FREED, way], capture_output=True, text=True, check=True
            ).stdout
        )
        for way in ("kept", "returned")
    )
    assert kept > 24 << 20
    assert returned < 8 << 20
