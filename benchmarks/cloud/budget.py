"""What `cloud train --budget` predicts for steps of a million points, beside what they take on a GPU.

    pinchpoint cloud data -o rooms-1m --train 2 --test 1 --points 1000000
    python benchmarks/cloud/budget.py rooms-1m --device cuda -o benchmarks/results/cloud_budget_h200.json

Every recipe is trained for a few steps by a process of its own; with --together all of them at one time,
which changes nothing but the seconds and, if the GPU is nearly full, how many sizes are recorded. Rows are
written as recipes end. Steps are eager in recipes whose names do not say otherwise; `default` leaves the
choice to the trainer. `predicted_bytes` is what the budget has to hold, with the context of
CUDA and what the allocator reserves beyond the tensors; `peak_bytes` is the peak of the tensors, and
`reserved_bytes` what the allocator reserved at most. `recorded_bytes` is what recorded steps took: the memory
in which they compute, which `reserved_bytes` contains, the draws that they read, and their graphs, which it
does not. The exit code is 1 if a recipe could not be trained, or if no step of a recipe with recorded steps
was recorded. With --again RECORD nothing is trained: the recipes are predicted anew, on a CPU, and the record
keeps what was measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

THREE_VIEWS = {"views": ["dense", "uniform:0.3:0.7", "one-per-cell"], "consistency": "kl"}
RECORDED_STEPS = 100  # of recipes with recorded steps, in which most sizes are recorded
# Recipes with recorded steps take longest, so they come first.
RECIPES: dict[str, dict[str, Any]] = {
    "three views, bf16, recorded": {**THREE_VIEWS, "precision": "bf16", "record_steps": True},
    "recommended, bf16, recorded": {"precision": "bf16", "record_steps": True},
    "recommended, bf16, default": {"precision": "bf16"},
    "three views, fp32": {**THREE_VIEWS, "precision": "fp32", "record_steps": False},
    "recommended, fp32": {"precision": "fp32", "record_steps": False},
    "recommended, bf16": {"precision": "bf16", "record_steps": False},
}


def should_record(recipe: str) -> bool:
    """Whether steps of this recipe are recorded: if its settings ask for it, or leave it to the trainer."""
    return RECIPES[recipe].get("record_steps", True)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train with one recipe, in this process."""
    from pinchpoint.core.machine import describe
    from pinchpoint.systems.cloud.train import train
    from pinchpoint.systems.common.training.torch_loop import peak_reserved_bytes

    start = time.perf_counter()
    steps = max(args.steps, RECORDED_STEPS) if should_record(args.recipe) else args.steps
    with tempfile.TemporaryDirectory() as folder:
        record = train(
            args.data,
            Path(folder) / "run",
            budget=args.budget,
            device=args.device,
            preset=args.preset,
            points=args.points,
            scenes=1,
            steps=steps,
            validation=0,
            **RECIPES[args.recipe],
        )
    return {
        "recipe": args.recipe,
        "views_mode": record.views_mode,
        "predicted_bytes": record.predicted_bytes,
        "peak_bytes": record.peak_bytes,
        "reserved_bytes": peak_reserved_bytes(args.device),
        "recorded_sizes": record.recorded_sizes,
        "recorded_bytes": record.recorded_bytes,
        "steps": steps,
        "seconds": time.perf_counter() - start,
        "seconds_of_steps": record.seconds,
        "machine": describe(),
    }


def predict(args: argparse.Namespace) -> dict[str, Any]:
    """Return what was measured with a recipe, with the bytes that are predicted for it now."""
    from pinchpoint.systems.cloud.data.batches import Supply
    from pinchpoint.systems.cloud.data.sources import open_source
    from pinchpoint.systems.cloud.model.config import CloudConfig
    from pinchpoint.systems.cloud.settings import Settings
    from pinchpoint.systems.cloud.training.budget import views_mode_for

    start = time.perf_counter()
    rows = json.loads(args.again.read_text(encoding="utf-8"))["rows"]
    row = next(row for row in rows if row["recipe"] == args.recipe)
    source = open_source(args.data)
    config = CloudConfig.preset(args.preset, in_features=len(source.features), classes=len(source.classes))
    settings = Settings(
        points=args.points,
        scenes=1,
        steps=row["steps"],
        model=json.loads(config.to_json()),
        classes=list(source.classes),
        features=list(source.features),
        **RECIPES[args.recipe],
    )
    scenes = [Supply(source).scene(name) for name in source.names("train")]
    choice = views_mode_for(config, settings, scenes, budget=args.budget, device=args.device)
    assert choice.views_mode == row["views_mode"]
    seconds = time.perf_counter() - start
    return row | {"predicted_bytes": choice.predicted_bytes, "seconds_of_prediction": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="A dataset of `pinchpoint cloud data`.")
    parser.add_argument("--points", type=int, default=1_000_000, help="Points per scene.")
    parser.add_argument("--steps", type=int, default=12, help="Steps of each recipe.")
    parser.add_argument("--budget", default="h200", help="The budget of the runs.")
    parser.add_argument("--preset", default="base", help="Preset of the model.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-o", "--output", type=Path, required=True, help="File of the record.")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES), metavar="RECIPE")
    parser.add_argument("--together", action="store_true", help="Start the processes of all recipes at once.")
    parser.add_argument(
        "--again", type=Path, metavar="RECORD", help="Predict the recipes of this record anew."
    )
    parser.add_argument("--recipe", choices=RECIPES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.recipe is not None:
        print(json.dumps(measure(args) if args.again is None else predict(args)))
        return
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.core.records import now, script_command

    check_output(args.output)
    earlier = None if args.again is None else json.loads(args.again.read_text(encoding="utf-8"))
    others = [] if earlier is None else [row for row in earlier["rows"] if row["recipe"] not in args.recipes]

    def start(recipe: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *sys.argv[1:], "--recipe", recipe]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def run(recipe: str) -> tuple[str, subprocess.Popen[str], str]:
        process = start(recipe)
        return recipe, process, process.communicate()[0]

    rows: list[dict[str, Any]] = others
    failed = 0
    pool = ThreadPoolExecutor(len(args.recipes) if args.together else 1)
    for done in as_completed([pool.submit(run, recipe) for recipe in args.recipes]):
        recipe, process, output = done.result()
        if process.returncode:
            print(f"{recipe}: failed with exit code {process.returncode}", flush=True)
            failed += 1
            continue
        row = json.loads(output.splitlines()[-1])
        rows.append(row)
        rows.sort(key=lambda row: list(RECIPES).index(row["recipe"]))
        sizes = {name: (row[f"{name}_bytes"] or 0) / 1e9 for name in ("predicted", "peak", "reserved")}
        print(
            "{}: predicted {predicted:.2f} GB, tensors {peak:.2f} GB, reserved {reserved:.2f} GB, "
            "{} recorded sizes".format(recipe, row["recorded_sizes"] or "no", **sizes),
            flush=True,
        )
        if should_record(recipe) and not row["recorded_sizes"] and args.device != "cpu":
            print(f"{recipe}: FAILED: no step was recorded", flush=True)
            failed += 1
        machine = row.pop("machine", None)
        record = {
            "what": "the predicted memory of training steps on point clouds beside the measured one",
            "command": script_command(),
            "points": args.points,
            "preset": args.preset,
            "budget": args.budget,
            "rows": rows,
            "machine": machine,
            "created": now(),
        }
        if earlier is not None:
            about = {"command_of_predictions": script_command(), "predicted": now()}
            record = earlier | about | {"rows": rows}
        write_text(args.output, json.dumps(record, indent=1) + "\n")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
