"""What `cloud train --budget` predicts for steps of a million points, beside what they take on a GPU.

    pinchpoint cloud data -o rooms-1m --train 2 --test 1 --points 1000000
    python benchmarks/cloud/budget.py rooms-1m --device cuda -o benchmarks/results/cloud_budget_h200.json

Every recipe is trained for a few steps by a process of its own; with --together all of them at one time,
which changes nothing but the seconds. `predicted_bytes` is what the budget has to hold, with the context of
CUDA and what the allocator reserves beyond the tensors; `peak_bytes` is the peak of the tensors, and
`reserved_bytes` what the allocator reserved at most. The exit code is 1 if a recipe could not be trained.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "three views, fp32": {
        "views": ["dense", "uniform:0.3:0.7", "one-per-cell"],
        "consistency": "kl",
        "precision": "fp32",
    },
    "recommended, fp32": {"precision": "fp32"},
    "recommended, bf16": {"precision": "bf16"},
}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Train with one recipe, in this process."""
    from pinchpoint.systems.cloud.train import train
    from pinchpoint.systems.common.training.torch_loop import peak_reserved_bytes

    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        record = train(
            args.data,
            Path(folder) / "run",
            budget=args.budget,
            device=args.device,
            preset=args.preset,
            points=args.points,
            scenes=1,
            steps=args.steps,
            validation=0,
            **RECIPES[args.recipe],
        )
    return {
        "recipe": args.recipe,
        "views_mode": record.views_mode,
        "predicted_bytes": record.predicted_bytes,
        "peak_bytes": record.peak_bytes,
        "reserved_bytes": peak_reserved_bytes(args.device),
        "steps": args.steps,
        "seconds": time.perf_counter() - start,
        "seconds_of_steps": record.seconds,
    }


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
    parser.add_argument("--recipe", choices=RECIPES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.recipe is not None:
        print(json.dumps(measure(args)))
        return
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.core.machine import describe
    from pinchpoint.core.records import now, script_command

    check_output(args.output)

    def start(recipe: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, *sys.argv[1:], "--recipe", recipe]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    rows: list[dict[str, Any]] = []
    started = {recipe: start(recipe) for recipe in args.recipes if args.together}
    for recipe in args.recipes:
        process = started.get(recipe) or start(recipe)
        output, _ = process.communicate()
        if process.returncode:
            print(f"{recipe}: failed with exit code {process.returncode}", flush=True)
            continue
        row = json.loads(output.splitlines()[-1])
        rows.append(row)
        sizes = [(row[f"{name}_bytes"] or 0) / 1e9 for name in ("predicted", "peak", "reserved")]
        print(
            "{}: predicted {:.2f} GB, tensors {:.2f} GB, reserved {:.2f} GB".format(recipe, *sizes),
            flush=True,
        )
        record = {
            "what": "the predicted memory of training steps on point clouds beside the measured one",
            "command": script_command(),
            "points": args.points,
            "preset": args.preset,
            "budget": args.budget,
            "rows": rows,
            "machine": describe(),
            "created": now(),
        }
        write_text(args.output, json.dumps(record, indent=1) + "\n")
    if len(rows) < len(args.recipes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
