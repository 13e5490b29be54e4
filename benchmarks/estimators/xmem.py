"""Published runs of xMem's evaluation on an RTX 3060 and an RTX 4060: pinchpoint beside four estimators.

    python benchmarks/estimators/xmem.py predict -o predicted.json     # any machine; needs torchvision
    python benchmarks/estimators/xmem.py table --predicted predicted.json

The runs and their numbers are facts from Stone-ResearchLife/xMem (Middleware '25): every second file, in the
order of their paths, of `plot/data/002-Monte Carlo/CNN/001` and `.../Transformer/001`. They are in
xmem_runs.json: the peak that NVML showed, whether the run ran out of memory, and the estimates of xMem,
DNNMem, SchedTune and LLMem. `predict` forecasts each run again with xmem_case.py; no GPU is used.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).parent
RUNS = HERE / "xmem_runs.json"
RECORD = HERE.parent / "results" / "xmem_cards.json"
KEPT = (
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "total_bytes",
    "context_bytes",
    "low_bytes",
    "high_bytes",
    "needs_bytes",
    "notes",
    "reasons",
)
TOOLS = {
    "pinchpoint": "pinchpoint",
    "xmem": "xMem",
    "dnnmem": "DNNMem",
    "schedtune": "SchedTune",
    "llmem": "LLMem",
}


def read_runs() -> dict[str, Any]:
    return json.loads(RUNS.read_text(encoding="utf-8"))


def key(run: dict[str, Any]) -> str:
    return f"{run['model']} {run['optimizer']} {run['batch']} {run['card']}"


def predict_run(run: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Forecast one run in a process of its own."""
    script = HERE / "xmem_case.py"
    command = [
        sys.executable,
        "-m",
        "pinchpoint",
        "predict",
        str(script),
        "--card",
        run["card"],
        "--json",
        "--",
    ]
    command += [run["model"], run["optimizer"], str(run["batch"])]
    start = time.perf_counter()
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:.0f} s"}
    try:
        forecast = json.loads(reply.stdout)
    except ValueError:
        return {"error": reply.stderr.strip()[-400:]}
    answer = {name: forecast[name] for name in KEPT}
    return {**answer, "fits": forecast["fits"][run["card"]], "wall_s": round(time.perf_counter() - start, 1)}


def predict(args: argparse.Namespace) -> int:
    from pinchpoint.core import machine
    from pinchpoint.core.records import now

    def job(run: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        answer = predict_run(run, args.timeout_s)
        print(json.dumps({"run": key(run), **answer}), flush=True)
        return key(run), answer

    listed = read_runs()
    runs = {key(run): run for run in (*listed["runs"], *listed["check"])}.values()
    runs = [run for run in runs if not args.only or args.only in key(run)]
    old = json.loads(args.output.read_text(encoding="utf-8"))["runs"] if args.output.exists() else {}
    with ThreadPoolExecutor(args.jobs) as pool:
        answers = {**old, **dict(pool.map(job, runs))}
    data = {
        "command": shlex.join(["python", *sys.argv]),
        "created": now(),
        "machine": machine.describe(),
        "runs": answers,
    }
    args.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0 if all("error" not in answer for answer in answers.values()) else 1


def judge(run: dict[str, Any], forecast: dict[str, Any]) -> dict[str, Any]:
    """One row: the error of each tool where the run has a peak, and what each says about fitting."""
    estimates = {"pinchpoint": forecast.get("total_bytes"), **run["estimates"]}
    row: dict[str, Any] = {**run, "pinchpoint": forecast, "errors": {}, "says_fits": {}}
    for tool, value in estimates.items():
        if value is None:
            continue
        if not run["out_of_memory"]:
            row["errors"][tool] = value / run["nvml_bytes"] - 1
        row["says_fits"][tool] = (
            forecast["fits"] if tool == "pinchpoint" else not run["says_out_of_memory"][tool]
        )
    return row


def summary(rows: list[dict[str, Any]], tool: str) -> dict[str, Any]:
    errors = [abs(row["errors"][tool]) for row in rows if tool in row["errors"]]
    answers = [(row["says_fits"][tool], row["out_of_memory"]) for row in rows if tool in row["says_fits"]]
    return {
        "runs": len(answers),
        "with_peak": len(errors),
        "median_error": median(errors),
        "mean_error": mean(errors),
        "within_5_percent": sum(error <= 0.05 for error in errors) / len(errors),
        "too_low": sum(row["errors"].get(tool, 0) < 0 for row in rows),
        "wrong_fits": sum(says is True and oom for says, oom in answers),
        "wrong_does_not_fit": sum(says is False and not oom for says, oom in answers),
        "unknown": sum(says is None for says, _ in answers),
    }


def table_lines(summaries: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        '| estimator | runs | median error | mean error | within 5 % | wrong "fits" | wrong "does not fit" |',
        "|---|---|---|---|---|---|---|",
    ]
    for tool, parts in summaries.items():
        lines.append(
            f"| {TOOLS[tool]} | {parts['with_peak']} + {parts['runs'] - parts['with_peak']}"
            f" | {parts['median_error']:.1%} | {parts['mean_error']:.1%} | {parts['within_5_percent']:.0%}"
            f" | {parts['wrong_fits']} | {parts['wrong_does_not_fit']} |"
        )
    return lines


def table(args: argparse.Namespace) -> int:
    predicted, listed = json.loads(args.predicted.read_text(encoding="utf-8")), read_runs()
    rows, check = (
        [judge(run, predicted["runs"][key(run)]) for run in listed[name]] for name in ("runs", "check")
    )
    summaries = {tool: summary(rows, tool) for tool in TOOLS}
    record = {
        "kind": "xmem",
        "schema": 1,
        "target": "benchmarks/estimators",
        "created": predicted["created"],
        "machine": predicted["machine"],
        "commands": [predicted["command"], shlex.join(["python", *sys.argv])],
        **{name: value for name, value in listed.items() if name not in ("runs", "check")},
        "summary": summaries,
        "check_summary": {tool: summary(check, tool) for tool in TOOLS if tool != "llmem"},
        "runs": rows,
        "check": check,
    }
    args.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print("\n".join(table_lines(summaries)))
    ours, theirs = summaries["pinchpoint"], summaries["xmem"]
    return 0 if ours["median_error"] < theirs["median_error"] and not ours["wrong_fits"] else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="predict|table")
    verb = verbs.add_parser("predict", help="Forecast every run; needs no GPU.")
    verb.set_defaults(run=predict)
    verb.add_argument("-o", "--output", type=Path, required=True)
    verb.add_argument("--jobs", type=int, default=1, help="Forecasts made at the same time (default: 1).")
    verb.add_argument("--only", help="Forecast the runs whose name contains this text; keep the others.")
    verb.add_argument("--timeout-s", type=float, default=300.0)
    verb = verbs.add_parser("table", help="Compare with the published peaks and write the record.")
    verb.set_defaults(run=table)
    verb.add_argument("--predicted", type=Path, required=True)
    verb.add_argument("--record", type=Path, default=RECORD)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
