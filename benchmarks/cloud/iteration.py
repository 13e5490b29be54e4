"""Breakdown of the time of a training iteration at a million points, by the parts of `cloud train`'s log.

    python benchmarks/cloud/iteration.py rooms-1m --device cuda -o
    benchmarks/results/cloud_iteration_h200.json
    python benchmarks/cloud/iteration.py rooms --points 5k --steps 3 --preset small --device cpu -o
    iteration.json  # small

pinchpoint must be importable: installed, or `PYTHONPATH=src`. If the folder does not exist, the rooms are
made. Every step processes one scene without a crop, and every part ends with a wait for the device. Each row
is one recipe: the means over its timed steps after the first (`counted_steps`; on a GPU every tenth step is
timed), and the share of sampling. On a GPU points are moved and views are drawn ahead of time, so data and
sampling are the times that a step still waits. `drawing_costs` is the total cost of drawing, overlapped or
not: steps that draw their views run in turn with the same steps whose views are already drawn.
`draw_alone_s` is the time of one draw while nothing else is computed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from pinchpoint.backends.torch.measurement import wait
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.core.units import parse_size
from pinchpoint.studies.timing import interleave, ratio_interval
from pinchpoint.systems.cloud.data.batches import Supply, step_scenes
from pinchpoint.systems.cloud.data.dataset import make_dataset
from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive
from pinchpoint.systems.cloud.data.sources import open_source
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw, draw_views, parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.train import train
from pinchpoint.systems.cloud.training.breakdown import Log
from pinchpoint.systems.cloud.training.training_step import Stepper

RECIPES: dict[str, dict[str, Any]] = {
    "recommended": {},
    "three views, consistency": {"views": ["dense", "uniform:0.3:0.7", "one-per-cell"], "consistency": "kl"},
}
MAX_SAMPLING_SHARE = 0.01  # of an iteration
DRAWS = 15
BLOCK = 5  # steps that are timed together


def time_recipe(
    data: Path, *, points: int, steps: int, blocks: int, device: str, **choices: Any
) -> dict[str, Any]:
    """Train for some steps and return the row of a recipe, with the mean seconds of each part."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "steps": steps,
            "points": points,
            "scenes": 1,
            "device": device,
            "validation": 0,
            "augment": False,
            "record_steps": False,  # recorded steps have no parts
        }
        record = train(data, Path(folder) / "run", **settings, **choices)
        rows = sum(
            getattr(row, "forward_s", None) is not None for row in Log.read(Path(folder) / "run" / "log.csv")
        )
    iteration_s = sum(record.breakdown.values())
    costs, low, high = (ratio - 1 for ratio in time_drawing(data, record.settings, device, blocks=blocks))
    return {
        "seconds": record.breakdown,
        "iteration_s": iteration_s,
        "sampling_share": record.breakdown["sampling"] / iteration_s,
        "drawing_costs": {"share": costs, "low": low, "high": high, "steps": BLOCK * blocks},
        "draw_alone_s": time_draw_alone(data, record.settings, device),
        "points_a_step": record.points_seen / steps,
        "peak_bytes": record.peak_bytes,
        "counted_steps": max(1, rows - 1),
    }


def time_drawing(
    data: Path, settings_dict: dict[str, Any], device: str, *, blocks: int
) -> tuple[float, float, float]:
    """Return the ratio of the time of steps that draw their views to that of steps with prepared views.

    The result is the ratio with its interval. On a GPU views are drawn ahead of time, as in a training run.
    """
    settings, source = Settings.from_dict(settings_dict), open_source(data)
    stepper = Stepper(CloudConfig.from_json(json.dumps(settings.model)), settings, device)
    names = source.names("train")
    scenes = [
        step_scenes(Supply(source), names, settings, step=number, rank=0) for number in range(1, BLOCK + 1)
    ]
    batches = [Batch.from_scenes(scenes_of_step, device=device) for scenes_of_step in scenes]
    prepared = [
        PreparedStep(batch, stepper.draw(batch, number=number)) for number, batch in enumerate(batches, 1)
    ]
    side_stream = SideStream() if device == "cuda" else None

    def make(number: int) -> PreparedStep:
        def make_draw() -> tuple[Batch, ViewDraw]:
            batch = batches[(number - 1) % BLOCK]
            return batch, stepper.draw(batch, number=(number - 1) % BLOCK + 1)

        return PreparedStep(*make_draw()) if side_stream is None else side_stream.prepare(make_draw)

    numbers = itertools.count(1)
    with Prefetcher(make, last=10**9, side_stream=side_stream) as prefetcher:

        def block(get_prepared: Callable[[int], PreparedStep]) -> None:
            for place in range(BLOCK):
                stepper.step_on(*receive(get_prepared(place)), number=place + 1)

        with_drawing, without_drawing = interleave(
            lambda: block(lambda _: prefetcher.get(next(numbers))),
            lambda: block(lambda place: prepared[place]),
            wait=lambda _: wait(device),
            warmup=1,
            repeats=blocks,
        )
    return ratio_interval(with_drawing, without_drawing)


def time_draw_alone(data: Path, settings: dict[str, Any], device: str) -> float:
    """Return the median seconds to draw the views of a scene on the device, while nothing else is computed.

    The time includes building the cells.
    """
    source = open_source(data)
    batch = Batch.from_scenes([source.scene(source.names("train")[0])], device=device)
    cell = settings["cell"] or CloudConfig.preset(settings["preset"], in_features=0, classes=2).cell
    seconds = []
    for step in range(DRAWS):
        wait(device)
        start = time.perf_counter()
        draw_views(batch, parse_views(settings["views"]), cell=cell, seed=0, step=step)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path, help="Folder of rooms; made if it does not exist.")
    parser.add_argument("--points", type=parse_size, default=1_000_000, help="Points per room.")
    parser.add_argument("--steps", type=int, default=60, help="Training steps of each recipe.")
    parser.add_argument(
        "--blocks", type=int, default=11, help=f"Blocks of {BLOCK} steps to time with and without drawing."
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--preset", default="base", help="Preset of the model; base suits a million points.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="File of the record.")
    args = parser.parse_args(arguments)
    try:
        run(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def run(args: argparse.Namespace) -> None:
    check_output(args.output)
    if not args.data.exists():
        make_dataset(args.data, train=2, test=1, points=args.points)
    settings = {
        "points": args.points,
        "steps": args.steps,
        "device": args.device,
        "precision": args.precision,
        "preset": args.preset,
    }
    rows = {
        name: time_recipe(args.data, blocks=args.blocks, **settings, **choices)
        for name, choices in RECIPES.items()
    }
    record = {
        "what": "parts of a training iteration",
        "command": "python " + " ".join(sys.argv),
        "created": now(),
        "machine": describe(),
        **settings,
        "rows": rows,
        "held": all(row["sampling_share"] <= MAX_SAMPLING_SHARE for row in rows.values()),
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for name, row in rows.items():
        parts = ", ".join(f"{part} {1e3 * seconds:.2f}" for part, seconds in row["seconds"].items())
        costs = "{share:.2%} [{low:.2%}, {high:.2%}]".format(**row["drawing_costs"])
        sampling = (
            f"sampling {row['sampling_share']:.2%}, total {costs},"
            f" one draw {1e3 * row['draw_alone_s']:.2f} ms"
        )
        print(f"{name}: {1e3 * row['iteration_s']:.1f} ms ({parts}); {sampling}")


if __name__ == "__main__":
    sys.exit(main())
