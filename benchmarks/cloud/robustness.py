"""mIoU against density for several training recipes, five seeds each, at equal steps and at equal points:
train, thin, score.

    python benchmarks/cloud/robustness.py run rooms --seeds 0 1 2 3 4 --steps 600 --device cuda -o part.json
    python benchmarks/cloud/robustness.py merge part*.json -o benchmarks/results/cloud_robustness_h200.json
    python benchmarks/cloud/robustness_figure.py benchmarks/results/cloud_robustness_h200.json -o
    docs/images/cloud-robustness.png

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The rooms are made where the folder has none.
Equal points: as many steps as bring the network the points that `dense` sees in --steps, by what the views of
a recipe hold on average; what was really seen is in the record. Runs lie beside the part, in a folder of its
name, and the same command goes on where it stopped. Parts may be shared out: by recipes, regimes or seeds, in
several processes on one GPU. `robustness_table.py` says how the bars are judged.
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
LOOKED_AT = 8  # scenes whose cells tell what a view holds


@dataclass(frozen=True)
class Recipe:
    """What a step shows the network."""

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
    # What is asked for, as JSON gives it back: a part is gone on with only by the same.
    asked = json.loads(json.dumps({"steps": args.steps, "model": model, **changes}))
    for seed in args.seeds:
        for name, steps in planned(
            source, args.recipes, args.regimes, args.steps, cell=cell_of(changes, model)
        ).items():
            key = f"{name}:{seed}"
            if key in part["runs"]:
                _check_same(args.output, key, part["runs"][key]["asked"], asked)
                print(f"{key}: done before", flush=True)
                continue
            where = folder / key.replace(":", "-")
            recipe = RECIPES[name.partition(":")[0]]
            start = time.perf_counter()
            made = train(
                args.data,
                where / "run",
                resume=(where / "run").exists(),
                **{
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
            trained = time.perf_counter() - start
            scored = evaluate(
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
                "points_seen": made.points_seen,
                "loss": made.loss,
                "train_s": trained,
                "asked": asked,
                "rows": [dict(row) for row in scored.rows],
            }
            write_text(args.output, json.dumps(part, indent=1) + "\n")
            print(_line(key, part["runs"][key]), flush=True)


def planned(
    source: Source, recipes: list[str], regimes: list[str], steps: int, *, cell: float
) -> dict[str, int]:
    """`recipe:regime` -> steps. Dense alone is the same in both and stands under steps."""
    shares = {
        name: sum(share_of(view, source, cell) for view in parse_views(RECIPES[name].views))
        for name in recipes
    }
    made = {}
    for name in recipes:
        for regime in regimes if name != "dense" else ["steps"]:
            made[f"{name}:{regime}"] = steps if regime == "steps" else max(1, round(steps / shares[name]))
    return made


def share_of(view: View, source: Source, cell: float) -> float:
    """What a view holds of its scene's points, on average."""
    if isinstance(view, Dense):
        return 1.0
    if isinstance(view, LogUniform):
        return view.hi if view.hi == view.lo else (view.hi - view.lo) / math.log(view.hi / view.lo)
    kept = points = 0
    for name in source.names("train")[:LOOKED_AT]:
        segments = Segments.from_coords(torch.from_numpy(source.scene(name).xyz), cell)
        drawn = (
            int(draw_counts(segments, (view.lo, view.hi), seed=0).sum())
            if isinstance(view, Uniform)
            else segments.cells
        )
        kept, points = kept + drawn, points + segments.points
    return kept / points


def cell_of(changes: dict[str, Any], model: dict[str, Any]) -> float:
    """Of the cells that views are drawn from: the network's voxels, unless told otherwise."""
    preset = CloudConfig.preset(changes.get("preset", Settings().preset), in_features=0, classes=2)
    return changes.get("cell") or model.get("cell") or preset.cell


def merge(args: argparse.Namespace) -> None:
    """One record of several parts, with means, differences and the bars."""
    check_output(args.output)
    parts = [_read(path) for path in args.parts]
    made = parts[0]
    for part in parts[1:]:
        made["runs"] |= part["runs"]
        for group in ("commands", "machines"):
            made[group] += [one for one in part[group] if one not in made[group]]
    runs = made["runs"]
    made["table"], made["bars"], made["differences"] = table_of(runs), bars_of(runs), differences_of(runs)
    write_text(args.output, json.dumps(made, indent=1) + "\n")
    print(markdown(made["table"]), markdown_of_differences(made["differences"]), sep="\n\n", end="\n\n")
    for bar in made["bars"]:
        print(f"{bar['verdict']:7} {bar['recipe']}: {bar['bar']}: {_shown(bar)}")


def _shown(bar: dict[str, Any]) -> str:
    spread = "" if bar["low"] is None else f" [{bar['low']:+.1f}, {bar['high']:+.1f}]"
    return f"{bar['difference']:+.1f}{spread}, {bar['seeds']} seeds"


def _line(name: str, one: dict[str, Any]) -> str:
    scores = "  ".join(f"{density:.0%} {100 * miou_of(one, 'uniform', density):.1f}" for density in DENSITIES)
    return (
        f"{name:28} {one['steps']:,} steps, {one['points_seen']:,} points: {scores}  ({one['train_s']:.0f} s)"
    )


def _check_same(path: Path, name: str, before: dict[str, Any], asked: dict[str, Any]) -> None:
    if before != asked:
        raise BadInput(
            f"{name} in {path} was trained with {before}, and {asked} is asked for", hint="name another -o"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"cannot read {path}: {error}", hint="name a file that `robustness.py run` wrote"
        ) from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(f"{path} holds no such scores", hint="name a file that `robustness.py run` wrote")
    return part


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("run")
    one.add_argument("data", type=Path, help="folder of rooms, made where it is not there")
    one.add_argument("--recipes", nargs="+", choices=list(RECIPES), default=list(RECIPES))
    one.add_argument("--regimes", nargs="+", choices=REGIMES, default=list(REGIMES))
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    one.add_argument("--steps", type=int, default=600)
    one.add_argument("--train", type=int, default=80, help="rooms, where they are made")
    one.add_argument("--test", type=int, default=16)
    one.add_argument("--points", type=int, default=20_000, help="of a room")
    one.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="fields of Settings")
    one.add_argument("--model", nargs="+", default=[], metavar="NAME=VALUE", help="fields of CloudConfig")
    one.add_argument("--device", default="cuda")
    one.add_argument("-o", "--output", type=Path, required=True)
    one.set_defaults(do=run)
    other = verbs.add_parser("merge")
    other.add_argument("parts", type=Path, nargs="+")
    other.add_argument("-o", "--output", type=Path, required=True)
    other.set_defaults(do=merge)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parsed(arguments)
    try:
        args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
