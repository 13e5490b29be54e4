"""Ours against PaiNN and superposed atoms on real densities: equal data, parameters, steps, batches and seeds.

    python benchmarks/density/compare.py run DATA -o part.json
    python benchmarks/density/compare.py run DATA -o part.json --only superposition tune ours:0,1,2 painn:0,1,2 painn-128:0
    python benchmarks/density/compare.py merge part.json other.json -o record.json

`run` does what part.json does not hold yet and writes it after every piece of work, so it can be stopped and split over
processes; `--from` takes what earlier parts found. DATA is made by `pinchpoint density data -o DATA`. Needs pinchpoint
importable: installed, or PYTHONPATH=src.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import results

from pinchpoint.core.errors import BadInput, PinchpointError, TargetFailed
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.units import parse_size

HALVINGS = 3  # of a rate, before a run that diverges is given up
EVERYTHING = ["superposition", "tune", "ours:0,1,2", "painn:0,1,2"]


def run(args: argparse.Namespace) -> int:
    """Every piece of work that is asked for and not there yet."""
    from contest import Contest

    from pinchpoint.backends.base import backend, resolve_device
    from pinchpoint.systems.common.overrides import parse_overrides
    from pinchpoint.systems.density.data.dataset import open_dataset
    from pinchpoint.systems.density.model.config import DensityConfig

    work = list(pieces(args.only))
    check_output(args.output)
    choices: dict[str, Any] = {"model": parse_overrides(args.set, model=DensityConfig).model}
    asked = ("steps", "molecules", "probes", "preset", "precision", "ema", "weight_decay", "validation")
    choices |= {name: getattr(args, name) for name in asked if getattr(args, name) is not None}
    contest = Contest(
        open_dataset(args.data),
        choices,
        device=resolve_device(args.device, backend("torch")),
        judge=args.judge,
        say=lambda text: print(text, flush=True),
    )
    part = results.new(contest.about())
    earlier = [args.output, *args.earlier] if args.output.exists() else args.earlier
    part = results.merged(part, *(results.read(path) for path in earlier))
    end = time.monotonic() + 60 * args.minutes if args.minutes else None
    models = dict.fromkeys(name for name, seed in work if seed is not None) or {"ours": None, "painn": None}
    for name, seed in work:
        if name == "superposition":
            part["superposition"] = part["superposition"] or contest.superposition()
        elif name == "tune":
            for model in models:
                if model not in part["tuned"]:
                    part["tuned"][model] = contest.tune(model, rates=args.rates, steps=args.tune_steps)
                    results.save(args.output, part)
        elif f"{name}:{seed}" not in part["runs"] and seed is not None:
            steps = [one["step_s"] for key, one in part["runs"].items() if key.partition(":")[0] == name]
            if end is not None and time.monotonic() + max(steps, default=0.0) * contest.told.steps > end:
                print(
                    f"{name}:{seed}: not begun, it would not end within {args.minutes:g} minutes", flush=True
                )
                continue
            lr = part["tuned"].get(name, {}).get("lr", contest.told.lr)
            part["runs"][f"{name}:{seed}"] = trained(contest, name, seed=seed, lr=lr)
        results.save(args.output, part)
    print(results.table(part))
    return 0


def trained(contest: Any, name: str, *, seed: int, lr: float) -> dict[str, Any]:
    """A run at the rate that was tuned; where it diverges at half of it, and so on. `diverged`: the rates that did.

    Tuning takes fewer steps, so its best rate may not last: nobody is to lose by that.
    """
    diverged: list[float] = []
    while True:
        try:
            return {**contest.run(name, seed=seed, lr=lr), "diverged": diverged}
        except TargetFailed as error:
            diverged.append(lr)
            if len(diverged) > HALVINGS:
                raise
            lr /= 2
            print(f"{name}:{seed}: {error.what}; again with lr={lr:g}", flush=True)


def pieces(only: list[str]) -> Iterator[tuple[str, int | None]]:
    """`superposition`, `tune` and `MODEL:SEED,SEED`, in the order they are given."""
    from contest import CONTENDERS

    for word in only:
        model, colon, seeds = word.partition(":")
        if word in ("superposition", "tune"):
            yield word, None
        elif colon and CONTENDERS.fullmatch(model) and all(seed.isdigit() for seed in seeds.split(",")):
            yield from ((model, int(seed)) for seed in seeds.split(","))
        else:
            raise BadInput(
                f"--only {word!r}",
                hint="use superposition, tune or MODEL:0,1,2 with MODEL ours, painn or painn-WIDTH",
            )


def merge(args: argparse.Namespace) -> int:
    """One record of several parts, and its table beside it."""
    part = results.merged(*(results.read(path) for path in args.parts))
    results.save(args.output, part)
    write_text(args.output.with_suffix(".md"), results.table(part))
    print(results.table(part))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("run", help="superpose, tune, train and judge: what -o does not hold yet")
    one.add_argument("data", type=Path)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument(
        "--from", dest="earlier", type=Path, nargs="*", default=[], help="parts made before, to go on from"
    )
    one.add_argument("--only", nargs="+", default=EVERYTHING, help="superposition, tune, MODEL:SEED,SEED")
    one.add_argument("--steps", type=parse_size, help="all that is not given is as `density train` has it")
    one.add_argument("--molecules", type=int, help="structures a step")
    one.add_argument("--probes", type=int, help="of each structure a step")
    one.add_argument("--preset", help="of ours")
    one.add_argument(
        "--set",
        action="append",
        default=[],
        help="KEY=VALUE of ours' configuration; species, cutoff, prior: of both",
    )
    one.add_argument("--precision", choices=("fp32", "tf32", "bf16"))
    one.add_argument("--ema", type=float)
    one.add_argument("--weight-decay", type=float)
    one.add_argument("--validation", type=int, help="training geometries held back, to tune by")
    one.add_argument("--rates", type=float, nargs="+", default=[2e-3, 5e-3, 1e-2, 2e-2])
    one.add_argument("--tune-steps", type=parse_size, default=500)
    one.add_argument(
        "--judge", type=parse_size, default=0, help="probes of each grid that are judged; 0: all"
    )
    one.add_argument("--device", default="auto")
    one.add_argument(
        "--minutes", type=float, default=0, help="begin no training that would end later; 0: no limit"
    )
    one.set_defaults(do=run)
    join = verbs.add_parser("merge", help="one record and one table of several parts")
    join.add_argument("parts", type=Path, nargs="+")
    join.add_argument("-o", "--output", type=Path, required=True)
    join.set_defaults(do=merge)
    try:
        args = parser.parse_args(arguments)
        return args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
