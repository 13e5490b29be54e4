"""Energies of small atoms and molecules against the best known ones, three seeds each: train, freeze, evaluate.

    python benchmarks/vmc/accuracy.py run H2 He LiH Be --seeds 0 1 2 --device cuda -o part.json    # goes on where it stopped
    python benchmarks/vmc/accuracy.py run LiH Be -o few.json \\
        --set walkers=1024 steps=4000 adam_steps=300 moves=20 burn=200 spring_decay=1000
    python benchmarks/vmc/accuracy.py merge part*.json -o benchmarks/results/vmc_accuracy_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. --set takes any field of `Settings`; those above are a recipe for
a card and up to 4 electrons. Runs lie beside the part, in a folder of its name. A system is right where every seed's energy lies
within 1.6 mHa of the reference, its error bar included, and not below it by more than three error bars. Several processes may
share a GPU: XLA_PYTHON_CLIENT_PREALLOCATE=false.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.workloads.training.settings import overrides
from pinchpoint.workloads.vmc.evaluate import evaluate
from pinchpoint.workloads.vmc.settings import Settings
from pinchpoint.workloads.vmc.train import train

CHEMICAL_HA = 1.6e-3
WHAT = "energies of wave functions"


def run(args: argparse.Namespace) -> None:
    check_output(args.output)
    part = _read(args.output) if args.output.exists() else {
        "what": WHAT, "commands": ["python " + " ".join(sys.argv)], "created": now(), "machines": [describe()], "runs": {}
    }  # fmt: skip
    folder = args.output.with_suffix("")
    folder.mkdir(exist_ok=True)
    named = {"steps": args.steps, "walkers": args.walkers}
    changes = {**overrides(args.set, Settings), **{key: value for key, value in named.items() if value is not None}}
    for system in args.systems:
        for seed in args.seeds:
            name = f"{system}:{args.net}:{seed}"
            if name in part["runs"]:
                _check_same(args.output, name, part["runs"][name].get("changes", changes), changes)
                print(f"{name}: done before", flush=True)
                continue
            where = folder / name.replace(":", "-")
            start = time.perf_counter()
            told = {**changes, "seed": seed, "device": args.device}
            train(system, where, net=args.net, resume=where.exists(), **told)
            trained = time.perf_counter() - start
            made = evaluate(where, samples=args.samples, device=args.device)
            part["runs"][name] = {
                **json.loads(made.to_json()),
                "train_s": trained,
                "seed": seed,
                "system": system,
                "net": args.net,
                "changes": changes,
            }
            write_text(args.output, json.dumps(part, indent=1) + "\n")
            print(_line(name, part["runs"][name]), flush=True)


def _check_same(path: Path, name: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    if before != now:
        raise BadInput(f"{name} in {path} was trained with {before}, and {now} is asked for", mend="name another -o")


def merge(args: argparse.Namespace) -> None:
    """One record of several parts."""
    check_output(args.output)
    parts = [_read(path) for path in args.parts]
    made = parts[0]
    for part in parts[1:]:
        made["runs"] |= part["runs"]
        for group in ("commands", "machines"):
            made[group] += [one for one in part[group] if one not in made[group]]
    made["judged"] = {
        system: _judged(made["runs"], system) for system in dict.fromkeys(r["system"] for r in made["runs"].values())
    }
    write_text(args.output, json.dumps(made, indent=1) + "\n")
    for name, one in made["runs"].items():
        print(_line(name, one))
    for system, judged in made["judged"].items():
        print(f"{system}: {judged}")


def _judged(runs: dict[str, Any], system: str) -> str:
    found = [one for one in runs.values() if one["system"] == system and one["difference_ha"] is not None]
    if not found:
        return "no reference"
    high = all(one["difference_ha"] + one["error_ha"] <= CHEMICAL_HA for one in found)
    low = all(one["difference_ha"] >= -3 * one["error_ha"] for one in found)
    return "right" if high and low else "too high" if low else "below the reference"


def _line(name: str, one: dict[str, Any]) -> str:
    off = "" if one["difference_ha"] is None else f"  {1e3 * one['difference_ha']:+.3f} mHa of the reference"
    return f"{name:18} {one['energy_ha']:.6f} +- {one['error_ha']:.6f} Ha{off}  R-hat {one['rhat']:.4f}  {one['train_s']:.0f} s"


def _read(path: Path) -> dict[str, Any]:
    try:
        part = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read {path}: {error}", mend="name a file that `accuracy.py run` wrote") from error
    if not isinstance(part, dict) or part.get("what") != WHAT:
        raise BadInput(f"{path} holds no such energies", mend="name a file that `accuracy.py run` wrote")
    return part


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    one = verbs.add_parser("run")
    one.add_argument("systems", nargs="+")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--net", default="small")
    one.add_argument("--steps", type=int)
    one.add_argument("--walkers", type=int)
    one.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="fields of Settings")
    one.add_argument("--samples", type=int, default=1000)
    one.add_argument("--device", default="cuda")
    one.add_argument("-o", "--output", type=Path, required=True)
    one.set_defaults(do=run)
    other = verbs.add_parser("merge")
    other.add_argument("parts", type=Path, nargs="+")
    other.add_argument("-o", "--output", type=Path, required=True)
    other.set_defaults(do=merge)
    args = parser.parse_args()
    try:
        args.do(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
