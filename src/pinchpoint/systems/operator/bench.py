"""Times and peaks of a training step of the edge transform, by all variants."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from pinchpoint.core.settings import parse_pairs
from pinchpoint.core.units import parse_size
from pinchpoint.systems.common import bench_command
from pinchpoint.systems.common.variant_bench import bench_variants
from pinchpoint.systems.operator import WORKLOAD


def command(
    output: Path = bench_command.OUTPUT,
    size: str = typer.Option(str(WORKLOAD.default_size), "--size", help="Number of edges, such as 1M."),
    variants: str = typer.Option(
        None, "--variants", help="Variants with commas between; the first is the baseline.  [default: all]"
    ),
    settings: list[str] = typer.Option(
        None, "--set", metavar="KEY=VALUE", help="A setting of the workload; see pinchpoint list workloads."
    ),
    repeats: int = typer.Option(9, "--repeats", help="Runs of each variant."),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
    device: str = bench_command.DEVICE,
) -> None:
    """Time a training step of the edge transform: every variant in turn with the first.

    eager holds the features of every edge; checkpoint and flat process the edges in chunks.
    """
    measure = partial(
        bench_variants,
        WORKLOAD,
        size=parse_size(size),
        variants=None if variants is None else [name.strip() for name in variants.split(",")],
        settings=parse_pairs(settings or ()),
        repeats=repeats,
        seed=seed,
        device=device,
    )
    bench_command.run_bench(measure, output=output)
