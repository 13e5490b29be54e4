"""Where the time of a training iteration goes at a million points: the parts of `cloud train`'s log, the
device awaited.

    python benchmarks/cloud/iteration.py rooms-1m --device cuda -o
    benchmarks/results/cloud_iteration_h200.json
    python benchmarks/cloud/iteration.py rooms --points 5k --steps 3 --preset small --device cpu -o
    iteration.json  # small

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The rooms are made where the folder has none.
One scene a step, without crops; each row is one recipe: the means of its timed steps after the first
(`counted_steps`; on a GPU every tenth is timed), and what share is sampling. On a GPU points are moved and
drawn ahead, and data and sampling are what a step still waits for. What drawing costs in all, overlapped or
not, is told by steps that draw anew in turn with the same steps whose draws are given (`drawing_costs`); what
a draw takes alone, when nothing else computes, stands beside.
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
MOST = 0.01  # share of sampling
DRAWS = 15
BLOCK = 5  # steps that are timed as a whole


def timed(data: Path, *, points: int, steps: int, blocks: int, device: str, **choices: Any) -> dict[str, Any]:
    """Train for some steps; mean seconds of each part of those that were timed."""
    with tempfile.TemporaryDirectory() as folder:
        told = {
            "steps": steps,
            "points": points,
            "scenes": 1,
            "device": device,
            "validation": 0,
            "augment": False,
        }
        made = train(data, Path(folder) / "run", **told, **choices)
        rows = sum(
            getattr(row, "forward_s", None) is not None for row in Log.read(Path(folder) / "run" / "log.csv")
        )
    whole = sum(made.breakdown.values())
    costs, low, high = (ratio - 1 for ratio in drawing_anew(data, made.settings, device, blocks=blocks))
    return {
        "seconds": made.breakdown,
        "iteration_s": whole,
        "sampling_share": made.breakdown["sampling"] / whole,
        "drawing_costs": {"share": costs, "low": low, "high": high, "steps": BLOCK * blocks},
        "draw_alone_s": drawn_alone(data, made.settings, device),
        "points_a_step": made.points_seen / steps,
        "peak_bytes": made.peak_bytes,
        "counted_steps": max(1, rows - 1),
    }


def drawing_anew(data: Path, told: dict[str, Any], device: str, *, blocks: int) -> tuple[float, float, float]:
    """Seconds of steps that draw their views, ahead where a run does, over those of the same steps with
    views drawn before.
    """
    settings, source = Settings.from_dict(told), open_source(data)
    stepper = Stepper(CloudConfig.from_json(json.dumps(settings.model)), settings, device)
    names = source.names("train")
    scenes = [
        step_scenes(Supply(source), names, settings, step=number, rank=0) for number in range(1, BLOCK + 1)
    ]
    batches = [Batch.from_scenes(some, device=device) for some in scenes]
    given = [
        PreparedStep(batch, stepper.draw(batch, number=number)) for number, batch in enumerate(batches, 1)
    ]
    aside = SideStream() if device == "cuda" else None

    def make(number: int) -> PreparedStep:
        def drawn() -> tuple[Batch, ViewDraw]:
            batch = batches[(number - 1) % BLOCK]
            return batch, stepper.draw(batch, number=(number - 1) % BLOCK + 1)

        return PreparedStep(*drawn()) if aside is None else aside.prepare(drawn)

    numbers = itertools.count(1)
    with Prefetcher(make, last=10**9) as ahead:

        def block(ready: Callable[[int], PreparedStep]) -> None:
            for at in range(BLOCK):
                stepper.step_on(*receive(ready(at)), number=at + 1)

        anew, before = interleave(
            lambda: block(lambda _: ahead.get(next(numbers))),
            lambda: block(lambda at: given[at]),
            wait=lambda _: wait(device),
            warmup=1,
            repeats=blocks,
        )
    return ratio_interval(anew, before)


def drawn_alone(data: Path, told: dict[str, Any], device: str) -> float:
    """Seconds of drawing the views of a scene that lies on the device, cells and all, when nothing else
    computes: the median.
    """
    source = open_source(data)
    batch = Batch.from_scenes([source.scene(source.names("train")[0])], device=device)
    cell = told["cell"] or CloudConfig.preset(told["preset"], in_features=0, classes=2).cell
    seconds = []
    for step in range(DRAWS):
        wait(device)
        start = time.perf_counter()
        draw_views(batch, parse_views(told["views"]), cell=cell, seed=0, step=step)
        wait(device)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--points", type=parse_size, default=1_000_000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--blocks", type=int, default=11, help=f"of {BLOCK} steps, with and without drawing")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--preset", default="base", help="base is the one for so many points")
    parser.add_argument("-o", "--output", type=Path, required=True)
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
    told = {
        "points": args.points,
        "steps": args.steps,
        "device": args.device,
        "precision": args.precision,
        "preset": args.preset,
    }
    rows = {
        name: timed(args.data, blocks=args.blocks, **told, **choices) for name, choices in RECIPES.items()
    }
    record = {
        "what": "parts of a training iteration",
        "command": "python " + " ".join(sys.argv),
        "created": now(),
        "machine": describe(),
        **told,
        "rows": rows,
        "held": all(row["sampling_share"] <= MOST for row in rows.values()),
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
