"""What a second, local network brings: a trained model, the same with a correction, and two fair rivals.

    pinchpoint density data -o DATA --geometries 8 --tests 1
    python benchmarks/density/pair.py DATA --device cuda --jobs 6 -o benchmarks/results/density_pair_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. For each seed, `first` is trained for --steps
steps, and `pair` is that network with a local one that learns for --more steps. The rivals take as many steps
in all: `longer` is one network, `joint` is both networks trained together from the start. Each is scored on
new geometries of the training molecules (test) and on molecules without any (heldout). --jobs trainings share
the machine, so that seconds per step are no timing; `steps.py` times them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command

SPLITS = ("test", "heldout")
VARIANTS = ("first", "longer", "joint", "pair")


def density(*words: object) -> None:
    command = [sys.executable, "-m", "pinchpoint", "density", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")


def train(folder: Path, variant: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Train and score one variant; return its row."""
    run = folder / f"{variant}{seed}"
    steps = {"first": args.steps, "pair": args.more}.get(variant, args.steps + args.more)
    extra = {
        "pair": ["--first", folder / f"first{seed}", "--set", f"local={args.local}"],
        "joint": ["--set", f"local={args.local}"],
    }.get(variant, [])
    density("train", args.data, "-o", run, "--steps", steps, "--seed", seed, "--device", args.device, *extra)
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    row = {"variant": variant, "seed": seed, "steps": steps, "parameters": record["parameters"]}
    for split in SPLITS:
        scores = folder / f"{variant}{seed}-{split}.json"
        density("score", run, args.data, "--split", split, "-o", scores, "--device", args.device)
        result = json.loads(scores.read_text(encoding="utf-8"))
        row[split] = {
            "nmae": result["nmae"],
            "worst": max(sample["nmae"] for sample in result["samples"]),
            "samples": len(result["samples"]),
        }
    return row


def chain(
    folder: Path, variants: tuple[str, ...], seed: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    return [train(folder, variant, seed, args) for variant in variants]


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return, per variant and split, the mean over the seeds, the lowest and the highest."""
    summary: dict[str, Any] = {}
    for variant in VARIANTS:
        summary[variant] = {}
        for split in SPLITS:
            errors = [row[split]["nmae"] for row in rows if row["variant"] == variant]
            summary[variant][split] = [sum(errors) / len(errors), min(errors), max(errors)]
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--more", type=int, default=500)
    parser.add_argument("--local", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(args.jobs) as pool:
        chains = [
            pool.submit(chain, Path(name), variants, seed, args)
            for seed in args.seeds
            for variants in (("first", "pair"), ("longer",), ("joint",))
        ]
        rows = [row for each in chains for row in each.result()]
    record = {
        "command": script_command(),
        "created": now(),
        "machine": describe(),
        "device": args.device,
        "steps": args.steps,
        "more": args.more,
        "local": args.local,
        "summary": summary_of(rows),
        "rows": rows,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for variant, splits in record["summary"].items():
        print(
            variant,
            {split: f"{mean:.3%} ({low:.3%} to {high:.3%})" for split, (mean, low, high) in splits.items()},
        )


if __name__ == "__main__":
    main()
