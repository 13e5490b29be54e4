"""The benchmark of parallel training: one rank of a job, predicted without a GPU and measured on one.

    python benchmarks/sharded/run.py predict -o predicted.json
    python benchmarks/sharded/run.py measure -o measured.json --predicted predicted.json
    python benchmarks/sharded/run.py table --predicted predicted.json --measured measured.json

A program is written for `torchrun` and NCCL. `measure` runs it as one process on one GPU, on torch's fake
process group, which sends nothing: every buffer of torch is allocated as in the real job, but NCCL has none.
DistributedDataParallel reads the results of its collectives, so its programs run as two processes over gloo
on the one GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))
sys.path.insert(0, str(HERE))

import bars  # noqa: E402
import cases  # noqa: E402
import suite  # noqa: E402

SUITE = suite.Suite(
    folder=HERE,
    record=suite.RESULTS / "sharded_h200.json",
    title="One rank of parallel training",
    judge=bars.judge,
    find=cases.find_cases,
)

if __name__ == "__main__":
    sys.exit(suite.main(SUITE, __doc__))
