"""mIoU by density for several training recipes with five seeds each, at equal steps and at equal points.

    python benchmarks/cloud/robustness.py run rooms --seeds 0 1 2 3 4 --steps 600 --device cuda -o part.json
    python benchmarks/cloud/robustness.py merge part*.json -o benchmarks/results/cloud_robustness_h200.json
    python benchmarks/cloud/robustness_figure.py benchmarks/results/cloud_robustness_h200.json -o
    docs/images/cloud-robustness.png

pinchpoint must be importable: installed, or `PYTHONPATH=src`. If the folder does not exist, the rooms are
made. At equal points, a recipe trains for as many steps as the network needs to see the points that `dense`
sees in --steps, given the average number of points in its views; the record has the number of points actually
seen. Runs are stored next to the part, in a folder of the same name, and the same command resumes them. The
work can be split by recipes, regimes or seeds, and several processes can share one GPU.
`robustness_table.py` describes how the bars are judged.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from robustness_table import (
    DENSITIES,
    bars_of,
    differences_of,
    markdown,
    markdown_of_differences,
    miou_of,
    table_of,
)

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import draw_counts
from pinchpoint.systems.cloud.data.dataset import make_dataset
from pinchpoint.systems.cloud.data.sources import Source, open_source
from pinchpoint.systems.cloud.evaluate import evaluate
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.views import Dense, LogUniform, Uniform, View, parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.train import train
from pinchpoint.systems.common.overrides import parse_overrides

WHAT = "mIoU against density"
REGIMES = ("steps", "points")
COUNTED_SCENES = 8  # scenes used to estimate the average number of points in a view


@dataclass(frozen=True)
class Recipe:
    """The views of each step, and the consistency loss between them."""

    views: tuple[str, ...]
    consistency: str = "none"


THREE = ("dense", "uniform:0.3:0.7", "one-per-cell")
RECIPES: dict[str, Recipe] = {
    "dense": Recipe(("dense",)),
    "three": Recipe(THREE),
    "three+consistency": Recipe(THREE, "kl"),
    "dense+log-uniform": Recipe(("dense", "log-uniform:0.05:1")),
    "log-uniform": Recipe(("log-uniform:0.05:1",)),
}


def run(args: argparse.Namespace) -> None:
    check_output(args.output)
    part = (
        _read(args.output)
        if args.output.exists()
        else {
            "what": WHAT,
            "commands": ["python " + " ".join(sys.argv)],
            "created": now(),
            "machines": [describe()],
            "runs": {},
        }
    )
    if not args.data.exists():
        make_dataset(args.data, train=args.train, test=args.test, points=args.points)
    folder = args.output.with_suffix("")
    folder.mkdir(exist_ok=True)
    source = open_source(args.data)
    model = parse_overrides(args.model, model=CloudConfig).model
    changes = parse_overrides(args.set, training=[Settings], main=True).training
    # The settings as they are read back from JSON: a part is resumed only with equal settings.
    settings = json.loads(json.dumps({"steps": args.steps, "model": model, **changes}))
    for seed in args.seeds:
        for name, steps in steps_by_run(
            source, args.recipes, args.regimes, args.steps, cell=cell_of(changes, model)
        ).items():
            key = f"{name}:{seed}"
            if key in part["runs"]:
                _check_same_settings(args.output, key, part["runs"][key]["asked"], settings)
                print(f"{key}: already done", flush=True)
                continue
            where = folder / key.replace(":", "-")
            recipe = RECIPES[name.partition(":")[0]]
            start = time.perf_counter()
            record = train(
                args.data,
                where / "run",
                resume=(where / "run").exists(),
                **{
                    "record_steps": False,  # recorded steps depend on how much memory is free
                    **changes,
                    "steps": steps,
                    "views": list(recipe.views),
                    "consistency": recipe.consistency,
                    "seed": seed,
                    "device": args.device,
                    "validation": 0,
                    **({"model": model} if model else {}),
                },
            )
            train_s = time.perf_counter() - start
            evaluation = evaluate(
                where / "run",
                args.data,
                where / "scores",
                device=args.device,
                densities=DENSITIES,
                pictures=False,
            )
            part["runs"][key] = {
                "recipe": name.partition(":")[0],
                "regime": name.partition(":")[2],
                "seed": seed,
                "steps": steps,
                "points_seen": record.points_seen,
                "loss": record.loss,
                "train_s": train_s,
                "asked": settings,
                "rows": [dict(row) for row in evaluation.rows],
            }
            write_text(args.output, json.dumps(part, indent=1) + "\n")
            print(_line(key, part["runs"][key]), flush=True)


def steps_by_run(
    source: Source, recipes: list[str], regimes: list[str], steps: int, *, cell: float
) -> dict[str, int]:
    """Return the steps of each `recipe:regime`; dense is the same in both and is listed under steps."""
    shares = {
        name: sum(share_of(view, source, cell) for view in parse_views(RECIPES[name].views))
        for name in recipes
    }
    steps_by_name = {}
    for name in recipes:
        for regime in regimes if name != "dense" else ["steps"]:
            steps_by_name[f"{name}:{regime}"] = (
                steps if regime == "steps" else max(1, round(steps / shares[name]))
            )
    return steps_by_name


def share_of(view: View, source: Source, cell: float) -> float:
    """Return the average share of a scene's points that are in a view."""
    if isinstance(view, Dense):
        return 1.0
    if isinstance(view, LogUniform):
        return view.hi if view.hi == view.lo else (view.hi - view.lo) / math.log(view.hi / view.lo)
    points_in_view = points = 0
    for name in source.names("train")[:COUNTED_SCENES]:
        segments = Segments.from_coords(torch.from_numpy(source.scene(name).xyz), cell)
        points_drawn = (
            int(draw_counts(segments, (view.lo, view.hi), seed=0).sum())
            if isinstance(view, Uniform)
            else segments.cells
        )
        points_in_view, points = points_in_view + points_drawn, points + segments.points
    return points_in_view / points


def cell_of(changes: dict[str, Any], model: dict[str, Any]) -> float:
    """Return the edge of the cells that views are drawn from, by default that of the network's voxels."""
    preset = CloudConfig.preset(changes.get("preset", Settings().preset), in_features=0, classes=2)
    return changes.get("cell") or model.get("cell") or preset.cell


def merge(args: argparse.Namespace) -> None:
    """Merge several parts into one record, with means, differences and the bars."""
    check_output(args.output)
    parts = [_read(path) for path in args.parts]
    record = parts[0]
    for part in parts[1:]:
        record["runs"] |= part["runs"]
        for group in ("commands", "machines"):
            record[group] += [entry for entry in part[group] if entry not in record[group]]
    runs = record["runs"]
    record["table"], record["bars"], record["differences"] = (
        table_of(runs),
        bars_of(runs),
        differences_of(runs),
    )
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(markdown(record["table"]), markdown_of_differences(record["differences"]), sep="\n\n", end="\n\n")
    for bar in record["bars"]:
        print(f"{bar['verdict']:7} {bar['recipe']}: {bar['bar']}: {_difference_text(bar)}")


def _difference_text(bar: dict[str, Any]) -> str:
    spread = "" if bar["low"] is None else f" [{bar['low']:+.1f}, {bar['high']:+.1f}]"
    return f"{bar['difference']:+.1f}{spread}, {bar['seeds']} seeds"


def _line(name: str, run_record: dict[str, Any]) -> str:
    scores = "  ".join(
        f"{density:.0%} {100 * miou_of(run_record, 'uniform', density):.1f}" for density in DENSITIES
    )
    work = f"{run_record['steps']:,} steps, {run_record['points_seen']:,} points"
    return f"{name:28} {work}: {scores}  ({run_record['train_s']:.0f} s)"


def _check_same_settings(path: Path, name: str, before: dict[str, Any], settings: dict[str, Any]) -> None:
    if before != settings:
        raise BadInput(
            f"{name} in {path} was trained with {before}, but the settings are now {settings}.",
            hint="Give another -o.",
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"Cannot read {path}: {error}", hint="Give a file written by `robustness.py run`."
        ) from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(
            f"{path} is not a part of this comparison.", hint="Give a file written by `robustness.py run`."
        )
    return part


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    run_parser = verbs.add_parser("run")
    run_parser.add_argument("data", type=Path, help="Folder of rooms; made if it does not exist.")
    run_parser.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    run_parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    run_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    run_parser.add_argument("--steps", type=int, default=600, help="Training steps of the recipe dense.")
    run_parser.add_argument("--train", type=int, default=80, help="Training rooms to make.")
    run_parser.add_argument("--test", type=int, default=16, help="Test rooms to make.")
    run_parser.add_argument("--points", type=int, default=20_000, help="Points per room to make.")
    run_parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="Fields of Settings.")
    run_parser.add_argument(
        "--model", nargs="+", default=[], metavar="NAME=VALUE", help="Fields of CloudConfig."
    )
    run_parser.add_argument("--device", default="cuda")
    run_parser.add_argument("-o", "--output", type=Path, required=True, help="File of the part.")
    run_parser.set_defaults(do=run)
    merge_parser = verbs.add_parser("merge")
    merge_parser.add_argument("parts", type=Path, nargs="+")
    merge_parser.add_argument("-o", "--output", type=Path, required=True)
    merge_parser.set_defaults(do=merge)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse_arguments(arguments)
    try:
        args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
