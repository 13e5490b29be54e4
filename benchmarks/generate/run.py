"""The benchmark of text generation and smaller weights: caches of every kind, quantised layers.

python benchmarks/generate/run.py predict -o predicted.json
python benchmarks/generate/run.py measure -o measured.json --predicted predicted.json
python benchmarks/generate/run.py table --predicted predicted.json --measured measured.json
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import suite  # noqa: E402
import table  # noqa: E402

SUITE = suite.Suite(
    folder=HERE,
    record=suite.RESULTS / "generate_h200.json",
    title="Generation, caches and smaller weights",
    judge=partial(table.judge_within, allocated=0.02, reserved=0.10),
)

if __name__ == "__main__":
    sys.exit(suite.main(SUITE, __doc__))
