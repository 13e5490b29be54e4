"""Comparison of pinchpoint with PaiNN and superposed atoms on computed densities, under equal conditions.

Data, parameter counts, steps, batches and seeds are the same for both models.

    python benchmarks/density/compare.py run DATA -o part.json
    python benchmarks/density/compare.py run DATA -o part.json --only superposition tune ours:0,1 painn-128:0
    python benchmarks/density/compare.py merge part.json other.json -o record.json

`run` does the work that part.json does not hold yet and writes the file after every piece, so it can be
stopped and split over processes; `--from` reuses the results of earlier parts. DATA is made by `pinchpoint
density data -o DATA`. pinchpoint must be importable: installed, or PYTHONPATH=src.
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

HALVINGS = 3  # how often the learning rate of a diverging run is halved before giving up
EVERYTHING = ["superposition", "tune", "ours:0,1,2", "painn:0,1,2"]


def run(args: argparse.Namespace) -> int:
    """Do every requested piece of work that is not in the output yet."""
    from contest import Contest

    from pinchpoint.backends.base import backend, resolve_device
    from pinchpoint.systems.common.overrides import parse_overrides
    from pinchpoint.systems.density.data.dataset import open_dataset
    from pinchpoint.systems.density.model.config import DensityConfig

    work = list(pieces(args.only))
    check_output(args.output)
    choices: dict[str, Any] = {"model": parse_overrides(args.set, model=DensityConfig).model}
    fields = ("steps", "molecules", "probes", "preset", "precision", "ema", "weight_decay", "validation")
    choices |= {name: getattr(args, name) for name in fields if getattr(args, name) is not None}
    contest = Contest(
        open_dataset(args.data),
        choices,
        device=resolve_device(args.device, backend("torch")),
        judge=args.judge,
        say=lambda text: print(text, flush=True),
    )
    part = results.new(contest.about())
    earlier = [args.output, *args.earlier] if args.output.exists() else args.earlier
    part = results.merge_parts(part, *(results.read(path) for path in earlier))
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
            if end is not None and time.monotonic() + max(steps, default=0.0) * contest.settings.steps > end:
                print(
                    f"{name}:{seed}: not started, it would not finish within {args.minutes:g} minutes",
                    flush=True,
                )
                continue
            lr = part["tuned"].get(name, {}).get("lr", contest.settings.lr)
            part["runs"][f"{name}:{seed}"] = train_at_rate(contest, name, seed=seed, lr=lr)
        results.save(args.output, part)
    print(results.table(part))
    return 0


def train_at_rate(contest: Any, name: str, *, seed: int, lr: float) -> dict[str, Any]:
    """Train at the tuned rate, and halve it for as long as the run diverges.

    Tuning takes fewer steps, so its best rate may be too high for a full run, which should not count against
    a model. The result has the rates that diverged under `diverged`.
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
    """Yield `superposition`, `tune` and `MODEL:SEED,SEED` in the given order."""
    from contest import CONTENDERS

    for word in only:
        model, colon, seeds = word.partition(":")
        if word in ("superposition", "tune"):
            yield word, None
        elif colon and CONTENDERS.fullmatch(model) and all(seed.isdigit() for seed in seeds.split(",")):
            yield from ((model, int(seed)) for seed in seeds.split(","))
        else:
            raise BadInput(
                f"--only does not support {word!r}.",
                hint="Give superposition, tune or MODEL:0,1,2, where MODEL is ours, painn or painn-WIDTH.",
            )


def merge(args: argparse.Namespace) -> int:
    """Merge several parts into one record, and write its table beside it."""
    part = results.merge_parts(*(results.read(path) for path in args.parts))
    results.save(args.output, part)
    write_text(args.output.with_suffix(".md"), results.table(part))
    print(results.table(part))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    verbs = parser.add_subparsers(required=True)
    run_parser = verbs.add_parser(
        "run", help="Superpose, tune, train and evaluate whatever -o does not hold yet."
    )
    run_parser.add_argument("data", type=Path)
    run_parser.add_argument("-o", "--output", type=Path, required=True)
    run_parser.add_argument(
        "--from", dest="earlier", type=Path, nargs="*", default=[], help="Earlier parts to continue from."
    )
    run_parser.add_argument(
        "--only", nargs="+", default=EVERYTHING, help="Work to do: superposition, tune, MODEL:SEED,SEED."
    )
    run_parser.add_argument(
        "--steps", type=parse_size, help="Training steps; all defaults are those of `density train`."
    )
    run_parser.add_argument("--molecules", type=int, help="Structures per step.")
    run_parser.add_argument("--probes", type=int, help="Probes per structure and step.")
    run_parser.add_argument("--preset", help="Preset of pinchpoint's model.")
    run_parser.add_argument(
        "--set",
        action="append",
        default=[],
        help="KEY=VALUE of pinchpoint's configuration; species, cutoff and prior apply to both models.",
    )
    run_parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"))
    run_parser.add_argument("--ema", type=float)
    run_parser.add_argument("--weight-decay", type=float)
    run_parser.add_argument("--validation", type=int, help="Training geometries held back for tuning.")
    run_parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 5e-3, 1e-2, 2e-2])
    run_parser.add_argument("--tune-steps", type=parse_size, default=500)
    run_parser.add_argument(
        "--judge", type=parse_size, default=0, help="Probes of each grid that are evaluated; 0: all."
    )
    run_parser.add_argument("--device", default="auto")
    run_parser.add_argument(
        "--minutes", type=float, default=0, help="Start no training that would end later; 0: no limit."
    )
    run_parser.set_defaults(do=run)
    merge_parser = verbs.add_parser("merge", help="Merge parts into one record and one table.")
    merge_parser.add_argument("parts", type=Path, nargs="+")
    merge_parser.add_argument("-o", "--output", type=Path, required=True)
    merge_parser.set_defaults(do=merge)
    try:
        args = parser.parse_args(arguments)
        return args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
