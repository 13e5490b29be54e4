"""The benchmark of public code: programs as the documentation of their libraries writes them.

python benchmarks/scripts/run.py predict -o predicted.json
python benchmarks/scripts/run.py measure -o measured.json --predicted predicted.json
python benchmarks/scripts/run.py table --predicted predicted.json --measured measured.json
"""

from __future__ import annotations

import sys
from pathlib import Path

import suite
import table

SUITE = suite.Suite(
    folder=Path(__file__).parent,
    record=suite.RESULTS / "scripts_h200.json",
    title="Programs as their libraries' documentation writes them",
    judge=table.judge,
)

if __name__ == "__main__":
    sys.exit(suite.main(SUITE, __doc__))
