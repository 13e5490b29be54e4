"""Statistics of random draws: the faults of the point-cloud report's sampler, and pinchpoint's samplers.

    python benchmarks/cloud/sampling.py -o benchmarks/results/cloud_sampling_cpu.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The script takes a minute on one core. --seed
changes every draw. The threshold of the chi-square tests is fixed in advance: each p must be at least 1e-4.
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
    """Return `cells` consecutive cells of `points` points each."""
    return Segments.from_offsets(torch.arange(0, cells * points + 1, points))


def prefix_bias(seed: int, *, cells: int = 20_000, points: int = 20) -> dict[str, Any]:
    """Return the shares of cells whose first, middle and last place are drawn, by `prefix` and by `exact`."""
    segments = even_cells(cells, points)
    draws_per_cell = draw_counts(segments, RATIOS, seed=seed)
    result: dict[str, Any] = {"points": points, "cells": cells}
    for name, index in (
        ("prefix", baseline.prefix(segments, draws_per_cell)),
        ("exact", sample_subset(segments, draws_per_cell, seed=seed)),
    ):
        is_drawn = torch.zeros(cells * points)
        is_drawn[index.long()] = 1
        shares = is_drawn.view(cells, points).mean(dim=0)
        result[name] = {
            "first": float(shares[0]),
            "middle": float(shares[points // 2]),
            "last": float(shares[-1]),
        }
    repeats = [
        torch.equal(baseline.prefix(segments, draws_per_cell), baseline.prefix(segments, draws_per_cell))
        for _ in range(4)
    ]
    return {**result, "prefix_same_every_time": all(repeats)}


def mean_shares(seed: int, *, cells: int = 400_000) -> list[dict[str, float]]:
    """Return E[k / n] for a mean ratio of one half, by max(floor(n r), 1) and by max(floor(n r + u), 1)."""
    rng, rows = np.random.default_rng(seed), []
    for n in (1, 2, 3, 4, 5, 20):
        floored = np.maximum(np.floor(n * rng.uniform(*RATIOS, cells)), 1) / n
        ours = draw_counts(even_cells(cells, n), RATIOS, seed=seed, view=n).double() / n
        rows.append({"n": n, "floor": float(floored.mean()), "ours": float(ours.mean())})
    return rows


def subset_test(method: Method, n: int, k: int, seed: int, *, cells: int = 200_000) -> dict[str, Any]:
    """Return the chi-square test of all C(n, k) subsets; for bernoulli, of the cells that draw k points."""
    segments = even_cells(cells, n)
    count_or_ratio: Any = 0.5 if method == "bernoulli" else k
    points = sample_subset(segments, count_or_ratio, method=method, seed=seed, view=1)
    is_drawn = torch.zeros(cells * n, dtype=torch.int64)
    is_drawn[points.long()] = 1
    is_drawn = is_drawn.view(cells, n)
    codes = (is_drawn << torch.arange(n)).sum(dim=1)[is_drawn.sum(dim=1) == k]
    names = [sum(1 << place for place in subset) for subset in combinations(range(n), k)]
    observed = np.bincount(codes.numpy(), minlength=2**n)[names]
    expected = len(codes) / len(names)
    statistic = float(((observed - expected) ** 2 / expected).sum())
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
    """Return P(chi-square > statistic) by the cube-root approximation of Wilson and Hilferty.

    It is accurate to a few percent for 10 or more degrees of freedom.
    """
    variance = 2 / (9 * freedom)
    score = ((statistic / freedom) ** (1 / 3) - (1 - variance)) / math.sqrt(variance)
    return 0.5 * math.erfc(score / math.sqrt(2))


def alike(seed: int) -> dict[str, float]:
    """Return the number of places that two cells of one count both draw, relative to independent draws."""
    problem = problem_of(200_000, 10_000, device="cpu")
    torch.manual_seed(seed)
    draws: dict[str, Callable[[Any, int], Tensor]] = {
        "shared": lambda p, step: baseline.grouped(p.segments, p.draws_per_cell, shared=True),
        "loop": lambda p, step: baseline.loop(p.segments, p.draws_per_cell),
        "exact": lambda p, step: sample_subset(p.segments, p.draws_per_cell, seed=seed),
    }
    return {
        name: float(probe_of(draw, problem, problem).outputs["alike"].mean()) for name, draw in draws.items()
    }


def cache_by_size(seed: int) -> dict[str, float]:
    """Count the errors of the point-cloud report's sampler on a second scene of equal size.

    Returns the share of cells with a wrong number of points, and the share of points from other cells.
    """
    first, second = (problem_of(200_000, 10_000, device="cpu", scene=scene) for scene in (seed, seed + 1))
    sampler = baseline.GridSampler()
    sampler.by_count(baseline.grid_of(first.segments), first.draws_per_cell)
    points = sampler.by_count(baseline.grid_of(second.segments), second.draws_per_cell)[0]
    expected_cells = torch.repeat_interleave(torch.arange(second.segments.cells), second.draws_per_cell)
    elsewhere = second.segments.of_point()[points.long()] != expected_cells
    return {
        "cells_off": float((off_by(second, points) != 0).mean()),
        "points_of_other_cells": float(elsewhere.double().mean()),
    }


def item_cost(*, cells: int = 50_000) -> dict[str, float]:
    """Return the seconds to read one number, and those of all reads in a loop over the cells."""
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
    record = {
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
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(
        json.dumps(
            {key: record[key] for key in ("prefix", "mean_shares", "alike", "cache_by_size", "item")},
            indent=1,
        )
    )
    for test in tests:
        verdict = "passed" if test["p"] >= LEAST_P else "FAILED"
        print(
            f"{test['method']:10} C({test['n']}, {test['k']}): {test['chi_square']:.1f} of {test['freedom']},"
            f" p {test['p']:.3f} {verdict}"
        )
    return 0 if all(test["p"] >= LEAST_P for test in tests) else 1


if __name__ == "__main__":
    sys.exit(main())
