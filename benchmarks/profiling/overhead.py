"""What a profile costs: the same training programs plain, under pinchpoint, and under other profilers.

    PYTHONPATH=src python benchmarks/profiling/overhead.py -o overhead.json        # CUDA if there is one
    PYTHONPATH=src python benchmarks/profiling/overhead.py --cases resnet18 --seconds 300

Every way is a process of its own; their loops run in turns of about a second, one process at a time (see
referee.py). A ratio is the time per step of a turn divided by that of the plain run in the same round. The
first steps of a run and two at the beginning of each turn are not timed. The median lies in the interval with
a confidence of 95 % (order statistics); with less than six rounds the interval is from lowest to highest.
`plain again` shows how exact the comparison is. CPU is the ratio of CPU seconds. Scalene and TraceML run if
they are installed. The ways that have no bar play in the first rounds only. A
bar is met or missed if the whole interval is on one side of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import profilers
import torch
from referee import contest

from pinchpoint.core import machine
from pinchpoint.core.records import now

HERE = Path(__file__).parent
BARS = {"profile --light": 0.02, "profile": 0.15}
MAIN = ("plain", "plain again", *BARS)  # these decide the bars and have more rounds than the others
# Program; what it is and its options, with CUDA and without; ways that are left out; its share of the time.
CASES = {
    "resnet18": (
        "resnet18.py",
        ("ResNet-18, 256 images of 224 x 224, bfloat16", ""),
        ("ResNet-18, 2 images of 32 x 32", "--batch 2 --size 32 --workers 1"),
        (),
        3,
    ),
    "gpt2": (
        "gpt2.py",
        ("GPT-2 small, bfloat16, 8 x 512 tokens", "--workers 0"),
        (
            "small GPT-2, 2 x 64 tokens",
            "--layers 4 --width 128 --batch 2 --length 64 --vocabulary 1024 --workers 0",
        ),
        ("Scalene", "TraceML"),
        2,
    ),
    "small_images": (
        "resnet18.py",
        ("ResNet-18, 32 images of 64 x 64, bfloat16 (bound by the host)", "--batch 32 --size 64"),
        ("ResNet-18, 1 image of 32 x 32", "--batch 1 --size 32 --workers 1"),
        ("Scalene", "TraceML"),
        2,
    ),
}


def measure(case: str, *, only: list[str], block_s: float, seconds: float, rounds: int) -> dict[str, Any]:
    """Time one program in all ways, or `only` in some."""
    program, on_cuda, on_cpu, without, _ = CASES[case]
    title, text = on_cuda if torch.cuda.is_available() else on_cpu
    print(title, file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="overhead") as name:
        folder = Path(name)
        ways, addresses = {}, {}
        # Each way has a folder and a socket of its own, and else the same options.
        for number, way in enumerate(profilers.ways(HERE / program, [], _new(folder, "names"))):
            if way in without or (only and way not in ("plain", *only)):
                continue
            addresses[way] = folder / f"{number}.socket"
            options = [*text.split(), "--referee", str(addresses[way])]
            ways[way] = profilers.ways(HERE / program, options, _new(folder, str(number)))[way]
        runs = contest(ways, addresses, main=MAIN, block_s=block_s, seconds=seconds, most=rounds)
        for run in runs.values():
            run["failure"] = run["failure"].replace(name, "FOLDER").replace(str(HERE), "profiling")
    return {"case": case, "title": title, "options": text, "ways": _summary(runs), "runs": runs}


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def _summary(runs: dict[str, Any]) -> dict[str, Any]:
    plain = runs["plain"]
    return {
        name: {
            "time": ratio(run["turns"], plain["turns"], "loop_s"),
            "cpu": ratio(run["turns"], plain["turns"], "cpu_s"),
            "same_weights": _is_same(run, plain),
            "recorded": run["recorded"],
            "failure": run["failure"],
        }
        for name, run in runs.items()
    }


def _is_same(run: dict[str, Any], plain: dict[str, Any]) -> bool | None:
    """Whether the weights are those of the plain run; None if there are none or after fewer steps."""
    if "weights" not in run["result"] or [turn.get("steps") for turn in run["turns"]] != [
        turn.get("steps") for turn in plain["turns"]
    ]:
        return None
    return run["result"]["weights"] == plain["result"].get("weights")


def ratio(turns: list[Any], plain: list[Any], key: str) -> dict[str, float] | None:
    """Median of turn / plain turn over the rounds, with an interval; None without turns."""
    ratios = sorted(
        (a[key] / a["steps"]) / (b[key] / b["steps"]) for a, b in zip(turns, plain, strict=False) if a and b
    )
    if not ratios:
        return None
    drop = _drop(len(ratios))
    return {
        "median": statistics.median(ratios),
        "low": ratios[drop],
        "high": ratios[-1 - drop],
        "rounds": len(ratios),
    }


def _drop(count: int) -> int:
    """How many values to drop at either end, so that the median lies between the rest with 95 %."""
    outside, drop = 2 / 2**count, 0
    while True:
        outside += 2 * math.comb(count, drop + 1) / 2**count
        if outside > 0.05:
            return drop
        drop += 1


def table(cases: list[dict[str, Any]]) -> str:
    """The result as Markdown."""
    lines = []
    for case in cases:
        lines += [f"## {case['title']}", ""]
        lines += ["| way | time | 95 % interval | rounds | CPU | same weights | bar | recorded |"]
        lines += ["|---|---|---|---|---|---|---|---|"]
        lines += [_row(name, way) for name, way in case["ways"].items()]
        plain = case["runs"]["plain"]["turns"]
        step_s = statistics.median(turn["loop_s"] / turn["steps"] for turn in plain)
        steps = f"{len(plain)} rounds of {plain[0]['steps']} steps"
        lines += ["", f"Plain: {step_s * 1e3:.2f} ms per step; {steps}.", ""]
    return "\n".join(lines)


def _row(name: str, way: dict[str, Any]) -> str:
    time, cpu = way["time"], way["cpu"]
    if time is None:
        return f"| {name} | failed | | | | | | {way['failure'][:120]} |"
    bar = ""
    if name in BARS:
        most = 1 + BARS[name]
        word = "met" if time["high"] <= most else "missed" if time["low"] > most else "undecided"
        bar = f"{BARS[name]:.0%}: {word}"
    cells = [
        name,
        f"{time['median'] - 1:+.1%}",
        f"{time['low'] - 1:+.1%} to {time['high'] - 1:+.1%}",
        str(time["rounds"]),
        f"{cpu['median'] - 1:+.1%}",
        {True: "yes", False: "no", None: "not compared"}[way["same_weights"]],
        bar,
        way["recorded"] or way["failure"][:120],
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="File for the record; the table goes beside it.")
    parser.add_argument("--cases", default="resnet18,gpt2,small_images")
    parser.add_argument("--ways", default="", help="Compare only these with the plain run.")
    parser.add_argument("--seconds", type=float, default=600.0, help="Time for all cases together.")
    parser.add_argument("--rounds", type=int, default=25, help="Most rounds.")
    parser.add_argument("--block-s", type=float, default=1.0, help="Seconds of a turn of the plain run.")
    options = parser.parse_args()
    # A request to end reaches the processes that were started, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS computes the same sums in each run
    names = options.cases.split(",")
    cases = []
    for name in names:
        cases.append(
            measure(
                name,
                only=options.ways.split(",") if options.ways else [],
                block_s=options.block_s,
                seconds=options.seconds * CASES[name][-1] / sum(CASES[case][-1] for case in names),
                rounds=options.rounds,
            )
        )
        _report(cases, options.output)
    print(table(cases))
    return 0


def _report(cases: list[dict[str, Any]], output: Path | None) -> None:
    if output is None:
        return
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "machine": machine.describe(),
        "versions": profilers.versions(),
        "created": now(),
        "bars": BARS,
        "cases": cases,
    }
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    text = f"# Overhead of profile\n\nOn {record['device']}: `{record['command']}`\n\n{table(cases)}"
    output.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
