"""Energies of small atoms and molecules compared with the best known values, three seeds each.

    python benchmarks/vmc/accuracy.py run H2 He LiH Be --seeds 0 1 2 --device cuda -o part.json    # resumes
    python benchmarks/vmc/accuracy.py run LiH Be -o few.json \\
        --set walkers=1024 steps=4000 adam_steps=300 moves=21 burn=200 spring_decay=1000
    python benchmarks/vmc/accuracy.py run H2O --net medium -o h2o.json \\
        --set optimizer=spring pretrain=2000 moves=31 steps=15000
    OPENBLAS_NUM_THREADS=1 python benchmarks/vmc/accuracy.py run H2 --device cpu --samples 1000 -o cpu.json
    python benchmarks/vmc/accuracy.py merge part*.json -o benchmarks/results/vmc_accuracy_h200.json
    python benchmarks/vmc/accuracy.py table    # of that record, into docs/systems/vmc.md

pinchpoint must be importable: installed, or `PYTHONPATH=src`. --set takes any field of `Settings` and
`NetConfig` (`kind` is that of the network) and `pretrain`; the recipes above are for a GPU, up to 4 and 14
electrons. Runs are stored next to the part, in a folder of the same name; the curve of each run (means of its
steps as a CSV file, and the plot) is written next to the part itself. A stopped run is resumed, also with
fewer or more --steps; its `train_s` then includes the steps taken before (`before_s`), but not their
pretraining. A system is right if at least three seeds of one recipe have mixed (R-hat < 1.01) with an error
bar of at most 0.3 mHa, and each energy lies within 1.6 mHa of the reference, including its error bar, and at
most three error bars below it. H2O and runs on a CPU have their own bars (`verdicts.py`). Several processes
can share a GPU with XLA_PYTHON_CLIENT_PREALLOCATE=false.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import verdicts

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_bytes, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.common.overrides import parse_overrides
from pinchpoint.systems.common.training.runs import CONFIG, LOG
from pinchpoint.systems.vmc.evaluate import evaluate
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache
from pinchpoint.systems.vmc.settings import RunOptions, Settings
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.runs import PICTURE, Log, read_run

REPOSITORY = Path(__file__).parents[2]
RECORD, PAGE = (
    REPOSITORY / "benchmarks" / "results" / "vmc_accuracy_h200.json",
    REPOSITORY / "docs" / "systems" / "vmc.md",
)
CURVE = 300  # rows of a curve, at most
WHAT = "energies of wave functions"


def run(args: argparse.Namespace) -> None:
    check_output(args.output)
    part = (
        _read(args.output)
        if args.output.exists()
        else {"what": WHAT, "commands": [], "created": now(), "machines": [], "runs": {}}
    )
    command = "python " + " ".join(sys.argv)
    for group, one in (("commands", command), ("machines", describe())):
        part[group] += [] if one in part[group] else [one]
    folder = args.output.with_suffix("")
    folder.mkdir(exist_ok=True)
    named = {"steps": args.steps, "walkers": args.walkers}
    net_changes, changes = choices_of(args.set)
    changes |= {key: value for key, value in named.items() if value is not None}
    recipe = {**net_changes, **changes, **({} if args.moves is None else {"eval_moves": args.moves})}
    for system in args.systems:
        for seed in args.seeds:
            name = f"{system}:{args.net}:{seed}"
            if name in part["runs"]:
                _check_same(args.output, name, part["runs"][name].get("changes", recipe), recipe)
                print(f"{name}: already finished", flush=True)
                continue
            where = folder / name.replace(":", "-")
            before, start = seconds_before(where), time.perf_counter()
            options = {**changes, "seed": seed, "device": args.device}
            train(
                system,
                where,
                net=args.net,
                net_changes=net_changes,
                resume=(where / CONFIG).exists(),
                **options,
            )
            trained = before + time.perf_counter() - start
            evaluation = evaluate(where, samples=args.samples, moves=args.moves, device=args.device)
            part["runs"][name] = {
                **json.loads(evaluation.to_json()),
                "train_s": trained,
                "before_s": before,
                "seed": seed,
                "system": system,
                "net": args.net,
                "changes": recipe,
                "curve": curve(where, args.output.with_name(f"{args.output.stem}-{where.name}.csv")),
            }
            write_text(args.output, json.dumps(part, indent=1) + "\n")
            print(_line(name, part["runs"][name]), flush=True)


def seconds_before(run: Path) -> float:
    """Return the seconds of the steps that a run has taken; 0 for a new run."""
    state = read_run(run).resumed_state() if (run / CONFIG).exists() else None
    return float(state["seconds"]) if state is not None else 0.0


def choices_of(texts: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of `NetConfig`, and the other arguments of `train`."""
    overrides = parse_overrides(texts, training=(RunOptions, Settings), model=NetConfig, main=True)
    return overrides.model, overrides.training


def curve(run: Path, path: Path) -> list[str]:
    """Write the convergence of a run to `path` and its plot next to it, and return their names.

    Each row has the means of several steps.
    """
    rows = Log.read(run / LOG)
    width = -(-len(rows) // CURVE) or 1
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["step", "energy_ha", "variance", "acceptance", "seconds"])
    for at in range(0, len(rows), width):
        part = rows[at : at + width]
        means = (
            fmean(getattr(row, name) for row in part) for name in ("energy_ha", "variance", "acceptance")
        )
        table.writerow([part[-1].step, *(f"{mean:.8g}" for mean in means), f"{part[-1].seconds:.2f}"])
    paths = [write_text(path, text.getvalue())]
    if (run / PICTURE).exists():
        paths.append(write_bytes(path.with_suffix(Path(PICTURE).suffix), (run / PICTURE).read_bytes()))
    return [one.name for one in paths]


def _check_same(path: Path, name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before != now:
        raise BadInput(
            f"{name} in {path} was trained with {before}, not with {now}.", hint="Name another file with -o."
        )


def merge(args: argparse.Namespace) -> None:
    """Merge several parts into one record."""
    check_output(args.output)
    parts = [_read(path) for path in args.parts]
    record = parts[0]
    for part in parts[1:]:
        record["runs"] |= part["runs"]
        for group in ("commands", "machines"):
            record[group] += [one for one in part[group] if one not in record[group]]
    record["judged"] = verdicts.verdicts(record["runs"])
    write_text(args.output, json.dumps(record, indent=1).replace(args.without, "") + "\n")
    for name, one in record["runs"].items():
        print(_line(name, one))
    for name, verdict in record["judged"].items():
        print(f"{name}: {verdict}")


def table(args: argparse.Namespace) -> None:
    """Print the table of the record, and write it to its page."""
    print(verdicts.into_page(args.page, verdicts.table(_read(args.record)["runs"])))


def _line(name: str, one: dict[str, Any]) -> str:
    off = (
        "" if one["difference_ha"] is None else f"  {1e3 * one['difference_ha']:+.3f} mHa from the reference"
    )
    energy = f"{one['energy_ha']:.6f} +- {one['error_ha']:.6f} Ha{off}"
    return f"{name:18} {energy}  R-hat {one['rhat']:.4f}  {one['train_s']:.0f} s"


def _read(path: Path) -> dict[str, Any]:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be read: {error}.", hint="Name a file that `accuracy.py run` wrote."
        ) from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(
            f"{path} does not hold energies of wave functions.",
            hint="Name a file that `accuracy.py run` wrote.",
        )
    return part


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    run_parser = verbs.add_parser("run")
    run_parser.add_argument("systems", nargs="+")
    run_parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    run_parser.add_argument("--net", default="small")
    run_parser.add_argument("--steps", type=int)
    run_parser.add_argument("--walkers", type=int)
    run_parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="Set fields of Settings and NetConfig, and pretrain.",
    )
    run_parser.add_argument("--samples", type=int, default=4000, help="Samples per walker of the evaluation.")
    run_parser.add_argument(
        "--moves",
        type=int,
        help="Moves of every walker between two samples of the evaluation; by default as in training.",
    )
    run_parser.add_argument("--device", default="cuda")
    run_parser.add_argument("-o", "--output", type=Path, required=True)
    run_parser.set_defaults(do=run)
    merge_parser = verbs.add_parser("merge")
    merge_parser.add_argument("parts", type=Path, nargs="+")
    merge_parser.add_argument("-o", "--output", type=Path, required=True)
    merge_parser.add_argument(
        "--without",
        default="",
        metavar="TEXT",
        help="Remove this text wherever it occurs, such as a private folder.",
    )
    merge_parser.set_defaults(do=merge)
    table_parser = verbs.add_parser("table")
    table_parser.add_argument("record", type=Path, nargs="?", default=RECORD)
    table_parser.add_argument("--page", type=Path, default=PAGE)
    table_parser.set_defaults(do=table)
    args = parser.parse_args()
    try:
        use_compile_cache()
        args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
