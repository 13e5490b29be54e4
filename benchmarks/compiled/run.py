"""The benchmark of compiled programs: training with torch.compile, predicted without a GPU.

python benchmarks/compiled/run.py predict -o predicted.json --jobs 2 --timeout-s 400
python benchmarks/compiled/run.py measure -o measured.json --predicted predicted.json --timeout-s 200
python benchmarks/compiled/run.py table --predicted predicted.json --measured measured.json
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import suite  # noqa: E402
from table import Bar, Row  # noqa: E402

CLOSE, WIDEST = 0.03, 0.15  # of the measured peak


def judge(rows: list[Row]) -> list[Bar]:
    """The bar: close to the measured peak, or an interval around it that is not too wide."""
    missed = []
    for row in rows:
        if row.measured.get("status") != "ok" or row.predicted.get("reasons"):
            continue
        peak, error = row.measured["peak_allocated_bytes"], row.error()
        low, high = row.predicted.get("low_bytes"), row.predicted.get("high_bytes")
        is_inside = low is not None and low <= peak <= high and high - low <= WIDEST * peak
        if not is_inside and (error is None or abs(error) > CLOSE):
            missed.append(row.program.name)
    detail = f"missed by {', '.join(missed)}" if missed else "all programs with an answer"
    return [Bar("allocated within 3 %, or in an interval of at most 15 %", not missed, detail)]


SUITE = suite.Suite(
    folder=HERE,
    record=suite.RESULTS / "compiled_h200.json",
    title="Training with torch.compile",
    judge=judge,
)

if __name__ == "__main__":
    sys.exit(suite.main(SUITE, __doc__))
