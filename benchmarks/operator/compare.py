"""Comparison with neuralop's GINO on inviscid flow over cars: equal data, parameters, steps and seeds.

    python benchmarks/operator/compare.py data DATA --train 400 --test 50 --panels 5k --fine 20k --device cuda
    python benchmarks/operator/compare.py run DATA -o part.json --only tune
    python benchmarks/operator/compare.py run DATA -o part.json --only ours:0,1,2 gino:0,1,2 time
    python benchmarks/operator/compare.py merge part.json other.json -o record.json

`run` does the work that part.json lacks and writes the file after every piece of work, so that it can be
stopped and split over machines; `--from` reads the results of earlier parts (above all the learning rates).
pinchpoint must be importable (installed, or PYTHONPATH=src), and neuralop is needed (see README.md in this
folder).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import parts
from report import table

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.units import parse_size

VECTORS = (0, 3)  # first columns of the normal and of the onset direction in the features
# The settings of pinchpoint's operator for flow, as `pinchpoint operator train` chooses them; see README.md.
FLOW = {"vectors": VECTORS, "mirror": 4, "turning": True}


def make_data(args: argparse.Namespace) -> int:
    from pinchpoint.systems.operator.data.dataset import make_dataset

    def report(finished: int, total: int) -> None:
        if finished == total or finished % 50 == 0:
            print(f"  {finished} of {total} bodies", flush=True)

    for folder, train, panels in (("coarse", args.train, args.panels), ("fine", 0, args.fine)):
        if not panels:
            continue
        start = time.perf_counter()
        dataset = make_dataset(
            args.data / folder,
            kind="flow",
            train=train,
            test=args.test,
            panels=panels,
            seed=args.seed,
            device=args.device,
            progress=report,
        )
        counts = ", ".join(f"{len(dataset.names(split))} {split}" for split in ("train", "test"))
        print(
            f"{folder}: {counts} bodies of about {panels:,} panels in {time.perf_counter() - start:.0f} s",
            flush=True,
        )
    return 0


def run(args: argparse.Namespace) -> int:
    """Do every requested piece of work that is not in the record yet."""
    import torch
    from contenders import NAMES
    from peer import load_gino, reduce_by
    from states import Late

    start = time.monotonic()
    device = torch.device(args.device)
    if args.tf32:
        torch.set_float32_matmul_precision("high")  # for both models alike
    check_output(args.output)
    load_gino()
    work, about = open_work(args, device, end=start + 60 * args.minutes if args.minutes else None)
    part = parts.new(about)
    part["machines"][0]["versions"] |= versions()
    earlier = [args.output, *args.earlier] if args.output.exists() else args.earlier
    part = parts.merge(part, *(parts.read(path) for path in earlier))
    for piece in list(pieces(args.only, NAMES)):
        if (
            piece.name in part["runs"]
            or (piece.kind == "time" and part["times"])
            or (piece.kind == "tune" and part["chosen"])
        ):
            print(f"{piece.name}: already in the record", flush=True)
            continue
        if work.states.late():
            print(f"{piece.name}: not started, {args.minutes:g} minutes are over", flush=True)
            continue
        if piece.kind == "prepare":
            work.prepare()
            continue
        try:
            with reduce_by("vectorised"):
                if piece.kind == "tune":
                    work.tune(part, lambda: parts.save(args.output, part))
                elif piece.kind == "time":
                    work.time(part, repeats=args.repeats, loops=args.loops)
                else:
                    work.run(part, piece.model, piece.seed)
        except Late as late:
            print(f"{late}: suspended after {args.minutes:g} minutes; run again to resume", flush=True)
            continue
        parts.save(args.output, part)
        work.states.remove(piece.name)
    print(table(part))
    return 0


def open_work(args: argparse.Namespace, device: Any, *, end: float | None) -> tuple[Any, dict[str, Any]]:
    """The work on a dataset, and what identifies it."""
    from contenders import Problem, scales_of
    from states import States
    from work import Work

    from pinchpoint.systems.common.overrides import parse_overrides
    from pinchpoint.systems.operator.data.dataset import open_dataset
    from pinchpoint.systems.operator.metrics import statistics_of
    from pinchpoint.systems.operator.model.config import OperatorConfig

    coarse = open_dataset(args.data / "coarse")
    fine = open_dataset(args.data / "fine") if (args.data / "fine").exists() else None
    bodies = {split: [coarse.sample(name) for name in coarse.names(split)] for split in ("train", "test")}
    bodies["held"] = bodies["train"][-max(1, len(bodies["train"]) // 10) :]
    bodies["fine"] = [fine.sample(name) for name in fine.names("test")] if fine else []
    scales = scales_of(bodies["train"], vectors=VECTORS)
    changes: dict[str, Any] = FLOW | asdict(scales) | parse_overrides(args.set, model=OperatorConfig).model
    config = OperatorConfig.preset(
        args.preset,
        low=coarse.low,
        high=coarse.high,
        in_features=len(coarse.features),
        panel_side=statistics_of(bodies["train"]).panel_side,
        **changes,
    )
    shape = {
        key: value
        for key, value in json.loads(config.to_json()).items()
        if not key.endswith(("_shift", "_scale"))
    }
    data_description = {
        "kind": coarse.kind,
        "seed": coarse.seed,
        "panels": coarse.panels,
        "train": len(bodies["train"]),
        "test": len(bodies["test"]),
        "fine": {"panels": fine.panels, "test": len(bodies["fine"])} if fine else None,
    }
    about = {
        "data": data_description,
        "config": shape,
        "steps": args.steps,
        "tune_steps": args.tune_steps,
        "rates": list(args.rates),
        "loss": args.loss,
        "tf32": args.tf32,
        "device": device.type,
    }
    work = Work(
        Problem(config, scales, memory=args.memory),
        bodies,
        device,
        steps=args.steps,
        tune_steps=args.tune_steps,
        rates=args.rates,
        loss=args.loss,
        say=lambda text: print(text, flush=True),
        states=States(args.output, args.earlier, json.loads(json.dumps(about)), end),
        cache=Path(args.data) / "prepared",
    )
    return work, about


@dataclass(frozen=True)
class Piece:
    """One piece of work: prepare, tune, time, or train MODEL with SEED."""

    kind: str
    model: str = ""
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.model}:{self.seed}" if self.kind == "train" else self.kind


def pieces(only: list[str], models: tuple[str, ...]) -> Iterator[Piece]:
    """The pieces for `prepare`, `tune`, `time` and `MODEL:SEED,SEED`, in the given order."""
    for word in only:
        model, colon, seeds = word.partition(":")
        if word in ("prepare", "tune", "time"):
            yield Piece(word)
        elif colon and model in models and all(seed.isdigit() for seed in seeds.split(",")):
            yield from (Piece("train", model, int(seed)) for seed in seeds.split(","))
        else:
            raise BadInput(
                f"--only {word!r} names no piece of work.",
                hint=f"Use prepare, tune, time or MODEL:0,1,2 with MODEL one of {', '.join(models)}.",
            )


def versions() -> dict[str, str]:
    from importlib import metadata

    return {name: metadata.version(name) for name in ("neuraloperator", "tensorly", "tensorly-torch")}


def merge(args: argparse.Namespace) -> int:
    """Merge several parts into one record, and write its table next to it."""
    part = parts.merge(*(parts.read(path) for path in args.parts))
    parts.save(args.output, part)
    write_text(args.output.with_suffix(".md"), table(part))
    print(table(part))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    verbs = parser.add_subparsers(required=True)
    data = verbs.add_parser("data", help="Create DATA/coarse and, for the test bodies, DATA/fine.")
    data.add_argument("data", type=Path)
    data.add_argument("--train", type=parse_size, default=400)
    data.add_argument("--test", type=parse_size, default=50)
    data.add_argument("--panels", type=parse_size, default=5000)
    data.add_argument("--fine", type=parse_size, default=20_000, help="Panels per body of DATA/fine.")
    data.add_argument("--no-fine", dest="fine", action="store_const", const=0)
    data.add_argument("--seed", type=int, default=0)
    data.add_argument("--device", default="cpu")
    data.set_defaults(do=make_data)
    run_parser = verbs.add_parser("run", help="Tune, train and time whatever -o lacks.")
    run_parser.add_argument("data", type=Path)
    run_parser.add_argument("-o", "--output", type=Path, required=True)
    run_parser.add_argument(
        "--from", dest="earlier", type=Path, nargs="*", default=[], help="Earlier parts to continue from."
    )
    everything = ["tune", "time", "ours:0,1,2", "gino:0,1,2"]
    run_parser.add_argument(
        "--only",
        nargs="+",
        default=everything,
        help="Work to do: prepare, tune, time, MODEL:SEED,SEED; by default all except prepare.",
    )
    run_parser.add_argument("--steps", type=parse_size, default=6000)
    run_parser.add_argument("--tune-steps", type=parse_size, default=1200)
    run_parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3, 3e-3])
    run_parser.add_argument("--loss", choices=("l1", "l2"), default="l2")
    run_parser.add_argument("--preset", default="base")
    run_parser.add_argument(
        "--set", action="append", default=[], help="KEY=VALUE of pinchpoint's operator configuration."
    )
    run_parser.add_argument(
        "--memory",
        choices=("flat", "eager", "checkpoint"),
        default="eager",
        help="How pinchpoint's operator stores its edges.",
    )
    run_parser.add_argument("--device", default="cpu")
    run_parser.add_argument("--tf32", action=argparse.BooleanOptionalAction, default=True)
    run_parser.add_argument(
        "--minutes",
        type=float,
        default=0,
        help="Suspend the training after this time; run again to resume. 0: no limit.",
    )
    run_parser.add_argument("--repeats", type=int, default=30, help="Timed steps per model.")
    run_parser.add_argument("--loops", type=int, default=1, help="Timed steps with GINO's own reduce.")
    run_parser.set_defaults(do=run)
    join = verbs.add_parser("merge", help="Merge several parts into one record and one table.")
    join.add_argument("parts", type=Path, nargs="+")
    join.add_argument("-o", "--output", type=Path, required=True)
    join.set_defaults(do=merge)
    try:
        args = parser.parse_args()
        return args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
