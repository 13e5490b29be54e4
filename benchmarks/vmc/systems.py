"""Runs of vmc beyond small ground states: N2, pseudopotentials, and excited states, one seed each.

    python benchmarks/vmc/systems.py run al al+ --device cuda -o runs     # all without names; skips finished
    python benchmarks/vmc/systems.py collect runs -o benchmarks/results/vmc_systems_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Each run is `vmc train` with the arguments in
RUNS and then `vmc eval`; --seconds stops the training of a run after that time, with a checkpoint, which is
then evaluated. The folder holds a run NAME, and NAME.json, its evaluation. `collect` writes one record with
the evaluation of each run, its training, its commands, the step at which --seconds stopped it, or null, and
the mean energy of each tenth of its steps; runs and trainings that are in the record and not in the folder
stay. Several processes can share a GPU with
XLA_PYTHON_CLIENT_PREALLOCATE=false.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from pinchpoint.core.files import write_text
from pinchpoint.core.records import now
from pinchpoint.systems.vmc.training.runs import Log

WHAT = "energies of larger systems, pseudopotentials and excited states"
SMALL = (
    "--net small --walkers 1024 --set adam_steps=300 --set spring_decay=1000 --set burn=100 --set moves=20"
)
CCECP = f"--pseudopotential ccecp {SMALL}"
# Walkers near a core are few, and their energies are far off until the core is learned: clipped at five
# deviations, they would hardly count.
ALUMINIUM = (
    "--pseudopotential ccecp --net small --set one=64 --set two=16 --set determinants=8 --walkers 2048 "
    "--set clip=100 --set adam_steps=300 --set spring_decay=1000 --set moves=15 --set burn=100 --steps 8000"
)
SCALED = "--set sampler=scaled --set moves=20"
# Arguments of `vmc train` and of `vmc eval`. {runs} is the folder of the runs.
RUNS = {
    "n2-start": (
        "N2 --net medium --optimizer spring --walkers 1024 --steps 10000 --set pretrain=1000 --set moves=12 "
        "--set norm_cap=3e-3 --set spring_decay=1200",
        "--samples 250 --moves 40",
    ),
    "n2-middle": (
        "N2 --net medium --optimizer spring --walkers 1024 --steps 20000 --from {runs}/n2-start "
        f"--set norm_cap=2e-3 --set spring_rate=0.03 --set spring_decay=1200 {SCALED} --set burn=200",
        "--samples 900 --moves 40",
    ),
    "n2": (
        "N2 --net medium --optimizer spring --walkers 1024 --steps 20000 --from {runs}/n2-middle "
        f"--set norm_cap=5e-4 --set spring_rate=0.02 --set spring_decay=3000 {SCALED} --set burn=200",
        "--samples 500 --moves 40",
    ),
    "al": (f"Al {ALUMINIUM}", "--samples 1500 --moves 20"),
    "al+": (f"Al --charge 1 {ALUMINIUM}", "--samples 1500 --moves 20"),
    "mg": (f"Mg {CCECP} --steps 1500", "--samples 1500"),
    "si": (f"Si {CCECP} --steps 2500", "--samples 1500"),
    "ne": (
        "Ne --pseudopotential ccecp --net small --set one=64 --walkers 1024 --steps 10000 --optimizer spring "
        f"--set pretrain=500 --set clip=20 {SCALED} --set burn=100 --set spring_decay=800 "
        "--set norm_cap=5e-3",
        "--samples 800",
    ),
    "sco": (
        "ScO --pseudopotential ccecp --net small --walkers 512 --steps 10000 --optimizer spring "
        f"--set pretrain=1000 --set clip=10 {SCALED} --set burn=100 --set spring_decay=1500 "
        "--set norm_cap=5e-3",
        "--samples 400 --moves 30",
    ),
    "he": (
        f"He --states 3 --net small --walkers 1024 {SCALED} --set burn=100 --set clip=20 "
        "--set adam_steps=400 --set spring_decay=1500 --steps 10000",
        "--samples 2000 --moves 40",
    ),
    "h2x": (f"H2 --states 2 {SMALL} --steps 4000", "--samples 1500"),
    "lihx": (
        "LiH --states 2 --net small --set one=64 --set two=16 --set determinants=8 --walkers 1024 "
        f"{SCALED} --set burn=100 --set clip=20 --set adam_steps=400 --set spring_decay=2000 --steps 16000",
        "--samples 1500 --moves 40",
    ),
}


def run(args: argparse.Namespace) -> None:
    args.output.mkdir(parents=True, exist_ok=True)
    for name in args.names or RUNS:
        folder, evaluation = args.output / name, args.output / f"{name}.json"
        if evaluation.exists():
            continue
        train, evaluate = RUNS[name]
        resume = ["--resume"] if (folder / "config.json").exists() else []
        process = subprocess.Popen(
            [
                *_command("train", train.format(runs=args.output).split()),
                "--device",
                args.device,
                *resume,
                "-o",
                str(folder),
            ]
        )
        try:
            process.wait(args.seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.wait()
        command = _command("eval", [str(folder), *evaluate.split()])
        subprocess.run([*command, "--device", args.device, "-o", str(evaluation)], check=True)


def _command(verb: str, arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "pinchpoint", "vmc", verb, *arguments]


def collect(args: argparse.Namespace) -> None:
    """Write one record with the runs in a folder; the evaluation of a run is null if it has none.

    A record that exists keeps its other runs, and the training of a run that was only evaluated again.
    """
    stored: dict[str, Any] = {}
    if args.output.exists():
        stored = json.loads(args.output.read_text(encoding="utf-8"))["runs"]
    runs: dict[str, Any] = {}
    for name, (train, evaluate) in RUNS.items():
        training, evaluation = (
            json.loads(file.read_text(encoding="utf-8")) | {"target": name} if file.exists() else None
            for file in (args.folder / name / "record.json", args.folder / f"{name}.json")
        )
        if training is None:
            if name in stored:
                runs[name] = stored[name] | ({} if evaluation is None else {"evaluation": evaluation})
            continue
        device = training["device"]
        runs[name] = {
            "commands": [
                f"pinchpoint vmc train {train.format(runs='.')} --device {device} -o {name}",
                f"pinchpoint vmc eval {name} {evaluate} --device {device} -o {name}.json",
            ],
            "stopped_at_step": None if training["complete"] else training["step"],
            "evaluation": evaluation,
            "training": training,
            "tenths_ha": _tenths(args.folder / name / "log.csv"),
        }
    record = {"what": WHAT, "created": now(), "runs": runs}
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for name, one in runs.items():
        print(_line(name, one["evaluation"]) if one["evaluation"] else f"{name:6} was not evaluated")


def _tenths(log: Path) -> list[float] | None:
    """Return the mean energy of each tenth of the steps; None without a log."""
    if not log.exists():
        return None
    energies = [row.energy_ha for row in Log.read(log)]
    ends = [len(energies) * tenth // 10 for tenth in range(11)]
    return [fmean(energies[start:end]) for start, end in pairwise(ends)]


def _line(name: str, evaluation: dict[str, Any]) -> str:
    text = f"{name:6} {evaluation['energy_ha']:.6f} +- {evaluation['error_ha']:.6f} Ha"
    if evaluation["difference_ha"] is not None:
        text += f"  {1e3 * evaluation['difference_ha']:+.3f} mHa from the reference"
    for state in evaluation.get("states") or ():
        text += f"\n       {state['energy_ha']:.6f} +- {state['error_ha']:.6f} Ha"
        if state["reference_ha"] is not None:
            text += f"  {1e3 * (state['energy_ha'] - state['reference_ha']):+.3f} mHa from the reference"
    return f"{text}  R-hat {evaluation['rhat']:.4f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    run_parser = verbs.add_parser("run")
    run_parser.add_argument("names", nargs="*", metavar="NAME", help=f"Any of {', '.join(RUNS)}.")
    run_parser.add_argument("--device", default="cuda")
    run_parser.add_argument("--seconds", type=float, help="Stop the training of a run after this time.")
    run_parser.add_argument("-o", "--output", type=Path, required=True)
    run_parser.set_defaults(do=run)
    collect_parser = verbs.add_parser("collect")
    collect_parser.add_argument("folder", type=Path)
    collect_parser.add_argument("-o", "--output", type=Path, required=True)
    collect_parser.set_defaults(do=collect)
    args = parser.parse_args()
    if unknown := set(getattr(args, "names", ())) - set(RUNS):
        parser.error(f"There is no run {', '.join(sorted(unknown))}; the runs are {', '.join(RUNS)}.")
    args.do(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
