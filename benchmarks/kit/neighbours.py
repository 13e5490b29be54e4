"""Comparison of the kit's neighbour search with scipy's k-d tree, on the CPU of this machine.

    python benchmarks/kit/neighbours.py [-o record.json] [--points 50000] [--threads 2] [--repeats 15]

lattice  surface points and the tokens of a 16 x 16 x 16 lattice: `lattice_edges` in both directions,
         against the tree in one direction (lists of points per token, or pairs, whichever is faster)
free     the same surface points and others of the same surface: `radius_edges` against the tree, in one
         direction
The two run in alternation. The times include building the tree, and all of our work. The script prints a
table of medians with 95 % intervals and writes a JSON record. Prefix it with `taskset -c 0,1` to limit it
to two cores.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy
import torch
from scipy.spatial import cKDTree

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.kit import Lattice, lattice_edges, radius_edges
from pinchpoint.studies.timing import interleave, measure, ratio_interval, timing_of

RESULT = Path(__file__).parents[1] / "results" / "neighbours_cpu.json"
PER_POINT = (2, 8, 30)
LATTICE = Lattice((16, 16, 16), (-1.0,) * 3, (1.0,) * 3)


def surface(count: int, seed: int) -> torch.Tensor:
    """Return points, (count, 3), on an ellipsoid inside the lattice."""
    points = np.random.default_rng(seed).normal(size=(count, 3))
    return torch.from_numpy(points / np.linalg.norm(points, axis=1, keepdims=True) * [0.9, 0.5, 0.4]).float()


def trees(x: Any, y: Any, radius: float, workers: int) -> dict[str, Callable[[], Any]]:
    """Return the calls of a k-d tree that find all pairs within a radius, including building the tree."""
    return {
        "query_ball_point": lambda: cKDTree(x).query_ball_point(y, radius, workers=workers),
        "sparse_distance_matrix": lambda: cKDTree(x).sparse_distance_matrix(
            cKDTree(y), radius, output_type="ndarray"
        ),
    }


def compare(
    kind: str, ours: Callable[[], Any], theirs: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, Any]:
    """Time our search and the fastest call of the tree in alternation."""
    alone = {
        name: measure(run, wait=lambda _: None, warmup=1, repeats=5).median_s for name, run in theirs.items()
    }
    name = min(alone, key=alone.__getitem__)
    a, b = interleave(ours, theirs[name], wait=lambda _: None, warmup=2, repeats=repeats)
    ratio, low, high = ratio_interval(a, b)
    mine, tree = timing_of(a), timing_of(b)
    return {
        "kind": kind,
        "tree": name,
        "ours_s": mine.median_s,
        "ours_low_s": mine.low_s,
        "ours_high_s": mine.high_s,
        "tree_s": tree.median_s,
        "tree_low_s": tree.low_s,
        "tree_high_s": tree.high_s,
        "runs": mine.runs,
        "ours_over_tree": ratio,
        "ratio_low": low,
        "ratio_high": high,
        "best_ours_over_best_tree": min(a) / min(b),
        "tree_ways_s": alone,
    }


def rows(points: int, threads: int, repeats: int) -> list[dict[str, Any]]:
    results = []
    x, y = surface(points, 0), surface(points, 1)
    tokens, wide = LATTICE.points().double().numpy(), [cloud.double().numpy() for cloud in (x, y)]
    for per_point in PER_POINT:
        radius = LATTICE.spacing[0] * (per_point * 3 / (4 * np.pi)) ** (1 / 3)
        row = compare(
            "lattice",
            lambda r=radius: lattice_edges(x, LATTICE, r),
            trees(wide[0], tokens, radius, threads),
            repeats,
        )
        results.append({"radius": radius, "edges": lattice_edges(x, LATTICE, radius)[0].count, **row})
    for per_point in PER_POINT:
        radius = float(np.sqrt(per_point * 4.16 / np.pi / points))  # the area of the surface is 4.16
        row = compare(
            "free", lambda r=radius: radius_edges(x, y, r), trees(wide[1], wide[0], radius, threads), repeats
        )
        results.append({"radius": radius, "edges": radius_edges(x, y, radius).count, **row})
    return results


def table(results: list[dict[str, Any]]) -> str:
    lines = [f"{'':8} {'edges':>9}  {'ours, ms':>22}  {'tree, ms':>22}  {'ours/tree':>18}  call of the tree"]
    for row in results:
        times = [
            f"{row[k + '_s'] * 1e3:.1f} [{row[k + '_low_s'] * 1e3:.1f}, {row[k + '_high_s'] * 1e3:.1f}]"
            for k in ("ours", "tree")
        ]
        ratio = f"{row['ours_over_tree']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        lines.append(
            f"{row['kind']:8} {row['edges']:>9,}  {times[0]:>22}  {times[1]:>22}  {ratio:>18}  {row['tree']}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULT, help="File of the record.")
    parser.add_argument("--points", type=int, default=50_000, help="Number of points.")
    parser.add_argument("--threads", type=int, default=2, help="Threads of both programs.")
    parser.add_argument("--repeats", type=int, default=15, help="Timed runs of each program.")
    args = parser.parse_args()
    check_output(args.output)
    torch.set_num_threads(args.threads)
    before = os.getloadavg()[0]
    results = rows(args.points, args.threads, args.repeats)
    record = {
        "command": f"python benchmarks/kit/neighbours.py --points {args.points} --threads {args.threads}"
        f" --repeats {args.repeats}",
        "created": now(),
        "machine": describe() | {"scipy": scipy.__version__, "cores_used": len(os.sched_getaffinity(0))},
        # Other work on the machine slows both, and ours more, because its threads wait for each other.
        "load_before": before,
        "points": args.points,
        "tokens": LATTICE.count,
        "threads": args.threads,
        "rows": results,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
