"""Training steps of `cloud` at a million points, eager and recorded as CUDA graphs.

    pinchpoint cloud data -o rooms-1m --train 2 --test 1 --points 1000000
    python benchmarks/cloud/recorded_steps.py rooms-1m -o benchmarks/results/cloud_recorded_steps_h200.json

Both variants train the same network on the same points, which are read, copied and drawn ahead of time. With
--augment, scenes are scaled and rotated as in a run: sizes are recorded later, and some grow. After
their first steps, in which most sizes are recorded, blocks of five steps run in turn. The record has the
milliseconds of a step in each block, the losses of the first steps, and the number of recorded sizes; it is
written after every block.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.systems.cloud.data.batches import Supply, step_scenes
from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive
from pinchpoint.systems.cloud.data.sources import open_source
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.training_step import Stepper

BLOCK = 5  # steps that are timed together
THREE_VIEWS = {"views": ["dense", "uniform:0.3:0.7", "one-per-cell"], "consistency": "kl"}
# The settings of a recipe, its first steps, and its timed blocks.
RECIPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "recommended": ({}, 40, 4),
    "three views": (THREE_VIEWS, 5, 3),
}
Step = Callable[[int], Tensor]


def prepare(args: argparse.Namespace, recipe: dict[str, Any], *, records: bool) -> tuple[Stepper, Step]:
    source = open_source(args.data)
    config = CloudConfig.preset(args.preset, in_features=len(source.features), classes=len(source.classes))
    settings = Settings(
        points=args.points,
        scenes=1,
        steps=10**6,
        precision=args.precision,
        augment=args.augment,
        model=json.loads(config.to_json()),
        classes=list(source.classes),
        features=list(source.features),
        record_steps=records,
        **recipe,
    )
    stepper, side_stream = Stepper(config, settings, "cuda", note=print), SideStream()
    supply, names = Supply(source), source.names("train")

    def make(number: int) -> PreparedStep:
        scenes = step_scenes(supply, names, settings, step=number, rank=0)

        def draw() -> tuple[Batch, ViewDraw]:
            batch = Batch.from_scenes(scenes, device="cuda")
            return batch, stepper.draw(batch, number=number)

        return side_stream.prepare(draw)

    prefetcher = Prefetcher(make, last=10**9, side_stream=side_stream)
    return stepper, lambda number: stepper.step_on(*receive(prefetcher.get(number)), number=number)


def measure(args: argparse.Namespace, name: str, write: Callable[[dict[str, Any]], None]) -> None:
    """Measure one recipe. write: called with its results so far, after every block."""
    recipe, first, blocks = RECIPES[name]
    variants = {kind: prepare(args, recipe, records=kind == "recorded") for kind in ("eager", "recorded")}
    losses = {
        kind: [float(step(number)[0]) for number in range(1, first + 1)]
        for kind, (_, step) in variants.items()
    }
    times: dict[str, list[float]] = {kind: [] for kind in variants}
    for block in range(blocks):
        for kind, (_, step) in variants.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for number in range(BLOCK):
                step(first + block * BLOCK + number + 1)
            torch.cuda.synchronize()
            times[kind].append(1e3 * (time.perf_counter() - start) / BLOCK)
        write({"losses": losses, "ms": times, "sizes": variants["recorded"][0].recorded_sizes})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="A dataset of `pinchpoint cloud data`.")
    parser.add_argument("--points", type=int, default=1_000_000, help="Points per scene.")
    parser.add_argument("--preset", default="base", help="Preset of the model.")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--augment", action="store_true", help="Scale and rotate the scenes.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="File of the record.")
    args = parser.parse_args()
    check_output(args.output)
    recipes: dict[str, Any] = {}

    def write(name: str, result: dict[str, Any]) -> None:
        recipes[name] = result
        record = {
            "what": "training steps on point clouds, eager and recorded, in turn",
            "command": script_command(),
            "points": args.points,
            "preset": args.preset,
            "precision": args.precision,
            "augment": args.augment,
            "recipes": recipes,
            "machine": describe(),
            "created": now(),
        }
        write_text(args.output, json.dumps(record, indent=1) + "\n")
        last = {kind: round(times[-1], 1) for kind, times in result["ms"].items()}
        print(f"{name}: {last} ms per step", flush=True)

    for name in RECIPES:
        measure(args, name, partial(write, name))
    os._exit(0)  # a prefetched step may still be under way


if __name__ == "__main__":
    main()
