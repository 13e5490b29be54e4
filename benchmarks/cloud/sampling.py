"""Randomness of draws: the faults of the point-cloud report's sampler in numbers, and our statistics.

    python benchmarks/cloud/sampling.py -o benchmarks/results/cloud_sampling_cpu.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Runs in a minute on one core; --seed changes
every draw. The threshold of the chi-squares is set before: p of at least 1e-4 in every one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import Method, draw_counts, sample_subset
from pinchpoint.systems.cloud import baseline
from pinchpoint.systems.cloud.workload import off_by, probe_of, problem_of

LEAST_P = 1e-4
RATIOS = (0.3, 0.7)
METHODS: tuple[Method, ...] = ("exact", "sort", "nested", "bernoulli")


def even_cells(cells: int, points: int) -> Segments:
    """`cells` cells of `points` points each, one after another."""
    return Segments.from_offsets(torch.arange(0, cells * points + 1, points))


def prefix_bias(seed: int, *, cells: int = 20_000, points: int = 20) -> dict[str, Any]:
    """Share of cells whose first, middle and last place are taken, by prefix sampling and by ours."""
    segments = even_cells(cells, points)
    wanted = draw_counts(segments, RATIOS, seed=seed)
    found: dict[str, Any] = {"points": points, "cells": cells}
    for name, drawn in (
        ("prefix", baseline.prefix(segments, wanted)),
        ("exact", sample_subset(segments, wanted, seed=seed)),
    ):
        taken = torch.zeros(cells * points)
        taken[drawn.long()] = 1
        shares = taken.view(cells, points).mean(dim=0)
        found[name] = {
            "first": float(shares[0]),
            "middle": float(shares[points // 2]),
            "last": float(shares[-1]),
        }
    again = [
        torch.equal(baseline.prefix(segments, wanted), baseline.prefix(segments, wanted)) for _ in range(4)
    ]
    return {**found, "prefix_same_every_time": all(again)}


def mean_shares(seed: int, *, cells: int = 400_000) -> list[dict[str, float]]:
    """E[k / n] where half is meant: floor and at least one, against floor(n r + u) and at least one."""
    rng, made = np.random.default_rng(seed), []
    for n in (1, 2, 3, 4, 5, 20):
        cut = np.maximum(np.floor(n * rng.uniform(*RATIOS, cells)), 1) / n
        ours = draw_counts(even_cells(cells, n), RATIOS, seed=seed, view=n).double() / n
        made.append({"n": n, "floor": float(cut.mean()), "ours": float(ours.mean())})
    return made


def subset_test(method: Method, n: int, k: int, seed: int, *, cells: int = 200_000) -> dict[str, Any]:
    """Chi-square of all C(n, k) subsets; of bernoulli those of its cells that have k."""
    segments = even_cells(cells, n)
    how: Any = 0.5 if method == "bernoulli" else k
    drawn = sample_subset(segments, how, method=method, seed=seed, view=1)
    taken = torch.zeros(cells * n, dtype=torch.int64)
    taken[drawn.long()] = 1
    taken = taken.view(cells, n)
    codes = (taken << torch.arange(n)).sum(dim=1)[taken.sum(dim=1) == k]
    names = [sum(1 << place for place in chosen) for chosen in combinations(range(n), k)]
    seen = np.bincount(codes.numpy(), minlength=2**n)[names]
    due = len(codes) / len(names)
    statistic = float(((seen - due) ** 2 / due).sum())
    p = chi_square_tail(statistic, len(names) - 1)
    return {
        "method": method,
        "n": n,
        "k": k,
        "draws": len(codes),
        "chi_square": statistic,
        "freedom": len(names) - 1,
        "p": p,
    }


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square > statistic), by Wilson and Hilferty's cube root: good to a few percent for 10 degrees
    and more.
    """
    spread = 2 / (9 * freedom)
    score = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(score / math.sqrt(2))


def alike(seed: int) -> dict[str, float]:
    """What two cells of one count both took, over what is due if neither knows of the other."""
    problem = problem_of(200_000, 10_000, device="cpu")
    torch.manual_seed(seed)
    ways: dict[str, Callable[[Any, int], Tensor]] = {
        "shared": lambda p, step: baseline.grouped(p.segments, p.wanted, shared=True),
        "loop": lambda p, step: baseline.loop(p.segments, p.wanted),
        "exact": lambda p, step: sample_subset(p.segments, p.wanted, seed=seed),
    }
    return {
        name: float(probe_of(draw, problem, problem).outputs["alike"].mean()) for name, draw in ways.items()
    }


def cache_by_size(seed: int) -> dict[str, float]:
    """Count the errors of the point-cloud report's sampler on a second scene of equal size.

    Returns cells with a wrong number of points, and points of other cells.
    """
    first, second = (problem_of(200_000, 10_000, device="cpu", scene=scene) for scene in (seed, seed + 1))
    sampler = baseline.GridSampler()
    sampler.by_count(baseline.grid_of(first.segments), first.wanted)
    drawn = sampler.by_count(baseline.grid_of(second.segments), second.wanted)[0]
    meant = torch.repeat_interleave(torch.arange(second.segments.cells), second.wanted)
    elsewhere = second.segments.of_point()[drawn.long()] != meant
    return {
        "cells_off": float((off_by(second, drawn) != 0).mean()),
        "points_of_other_cells": float(elsewhere.double().mean()),
    }


def item_cost(*, cells: int = 50_000) -> dict[str, float]:
    """Seconds of reading one number, and of the reads a loop over the cells makes."""
    counts = torch.arange(cells)
    best = math.inf
    for _ in range(3):
        start = time.perf_counter()
        for cell in range(cells):
            counts[cell].item()
        best = min(best, time.perf_counter() - start)
    return {"one_s": best / cells, "loop_s": 3 * best, "cells": cells}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    tests = [subset_test(method, n, k, args.seed) for method in METHODS for n, k in ((8, 4), (12, 6))]
    made = {
        "what": "statistics of draws from cells",
        "command": "python " + " ".join(sys.argv),
        "created": now(),
        "machine": describe(),
        "least_p": LEAST_P,
        "prefix": prefix_bias(args.seed),
        "mean_shares": mean_shares(args.seed),
        "subsets": tests,
        "alike": alike(args.seed),
        "cache_by_size": cache_by_size(args.seed),
        "item": item_cost(),
    }
    write_text(args.output, json.dumps(made, indent=1) + "\n")
    print(
        json.dumps(
            {key: made[key] for key in ("prefix", "mean_shares", "alike", "cache_by_size", "item")}, indent=1
        )
    )
    for one in tests:
        told = "fine" if one["p"] >= LEAST_P else "REFUSED"
        print(
            f"{one['method']:10} C({one['n']}, {one['k']}): {one['chi_square']:.1f} of {one['freedom']},"
            f" p {one['p']:.3f} {told}"
        )
    return 0 if all(one["p"] >= LEAST_P for one in tests) else 1


if __name__ == "__main__":
    sys.exit(main())
