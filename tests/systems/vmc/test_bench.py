"""The command `bench vmc`: it imports JAX only to measure, and after the number of threads is set."""

from __future__ import annotations

import json
import os
import subprocess
import sys

# Imports of jax fail, and the number of LAPACK threads at the first one is printed.
CODE = """
import json, os, sys
from pinchpoint.cli.main import run

threads = []

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "jax":
            threads.append(os.environ.get("OPENBLAS_NUM_THREADS"))
            raise ModuleNotFoundError("No module named 'jax'", name="jax")

sys.meta_path.insert(0, Refuse())
code = run(sys.argv[1:])
print(json.dumps([code, threads]))
"""


def code_and_threads(*arguments: str) -> list[object]:
    """Return the exit code of a command without JAX, and the threads set at each attempt to import JAX."""
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    process = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(process.stdout.splitlines()[-1])


def test_the_help_does_not_import_jax() -> None:
    assert code_and_threads("bench", "vmc", "--help") == [0, []]


def test_one_thread_is_set_before_jax_is_imported() -> None:
    assert code_and_threads("bench", "vmc") == [3, ["1"]]
