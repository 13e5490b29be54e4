"""Shared memory: a script has its own, and that of other processes does not change."""

from __future__ import annotations

import os
from multiprocessing import shared_memory

import pytest


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")
def test_segments_of_other_processes_are_copied_and_never_removed(run_sandboxed):
    theirs = shared_memory.SharedMemory(create=True, size=64, name=f"pinchpoint-test-{os.getpid()}")
    try:
        theirs.buf[:4] = b"data"
        source = """
            import os, sys
            from multiprocessing import shared_memory
            theirs = shared_memory.SharedMemory(sys.argv[1])
            print(bytes(theirs.buf[:4]))
            theirs.buf[:4] = b"harm"
            again = shared_memory.SharedMemory(sys.argv[1])
            print(bytes(again.buf[:4]))
            theirs.unlink()
            try: shared_memory.SharedMemory(sys.argv[1])
            except FileNotFoundError: print("removed")
            own = shared_memory.SharedMemory(create=True, size=32)
            own.buf[:1] = b"x"
            again = shared_memory.SharedMemory(own.name)
            print(bytes(again.buf[:1]))
            own.unlink()
            step()
        """
        end = run_sandboxed(source, theirs.name, steps=1, locked=True)
        assert (end.kind, end.fault) == ("stopped", None)
        assert end.output == ["b'data'", "b'harm'", "removed", "b'x'"]
        assert end.refused == []  # Python's resource tracker is not even tried
        assert bytes(theirs.buf[:4]) == b"data"
        assert theirs.name in os.listdir("/dev/shm")

    finally:
        theirs.close()
        theirs.unlink()
