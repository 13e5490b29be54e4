"""The ladder that distances between sets of images are read by: cars worse in one known way each.

    python benchmarks/radiance/ladder.py [-o record.json] [--images 128] [--size 64] [--seeds 0 1 2] [--inception FILE]

Each rung is measured against as many cars of its own kind, for every seed, by EfficientNet-Lite0's features (or FID's
Inception where its file is given). Prints a table of means with the smallest and the largest, and writes a JSON record.
Needs pinchpoint importable (installed, or PYTHONPATH=src) and its extra `radiance`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now

RESULT = Path(__file__).parents[1] / "results" / "radiance_ladder_cpu.json"


def measured(asked: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """The features' name, and per rung its distances for every seed."""
    from pinchpoint.systems.radiance.metrics.features import open_extractor
    from pinchpoint.systems.radiance.metrics.ladder import ladder

    extract = open_extractor(inception_file=asked.inception, device=asked.device)
    rows: dict[str, dict[str, Any]] = {}
    for seed in asked.seeds:
        for rung in ladder(extract, images=asked.images, size=asked.size, seed=seed):
            row = rows.setdefault(rung.rung, {"rung": rung.rung})
            for name, value in rung.distances.items():
                row.setdefault(name, []).append(value)
        print(f"seed {seed} done", file=sys.stderr, flush=True)
    return extract.name, list(rows.values())


def table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if name != "rung"]
    lines = [f"{'rung':12}" + "".join(f"{name:>30}" for name in names)]
    for row in rows:
        shown = (f"{sum(row[n]) / len(row[n]):.1f} [{min(row[n]):.1f}, {max(row[n]):.1f}]" for n in names)
        lines.append(f"{row['rung']:12}" + "".join(f"{text:>30}" for text in shown))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    try:
        check_output(asked.output)
        start = time.perf_counter()
        features, rows = measured(asked)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    seeds = " ".join(map(str, asked.seeds))
    command = (
        f"python benchmarks/radiance/ladder.py --images {asked.images} --size {asked.size} --seeds {seeds}"
    )
    record = {
        "command": command + (" --inception FILE" if asked.inception else ""),
        "created": now(),
        "machine": describe(),
        "features": features,
        "images": asked.images,
        "size": asked.size,
        "seeds": asked.seeds,
        "took_s": time.perf_counter() - start,
        "rows": rows,
    }
    write_text(asked.output, json.dumps(record, indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
