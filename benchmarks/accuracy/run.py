"""The accuracy table: predict on any machine, measure on a GPU, and compare.

    python benchmarks/accuracy/run.py predict -o predicted.json
    python benchmarks/accuracy/run.py measure -o measured.json --predicted predicted.json
    python benchmarks/accuracy/run.py table -o table.md --predicted predicted.json --measured measured.json

`--set` chooses the held-out models (the default, on which the bars are judged), the development models, or
all. pinchpoint must be importable (installed, or PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from entries import FOLDERS, MODELS, key, select

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now
from pinchpoint.core.units import show_bytes, show_seconds

RESULTS = Path(__file__).parents[1] / "results" / "accuracy_h200.json"


def read(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(
            f"The file {path} cannot be read: {error}\n"
            "  hint: Create it with this program's predict or measure."
        ) from error


def start_file(path: Path, what: str, about: dict[str, Any], *, rerun: set[str]) -> dict[str, Any]:
    """The content of a new file; the cases of models that are not run again come from the old file."""
    old = read(path)["cases"] if path.exists() else {}
    cases = {name: case for name, case in old.items() if case["model"] not in rerun}
    command = shlex.join(["python", *sys.argv])
    return {"what": what, "command": command, "created": now(), "machine": about, "cases": cases}


def save(path: Path, data: dict[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def predict(args: argparse.Namespace) -> int:
    import predicting

    todo = list(select(args.set, args.only))
    rerun = {name for name, _, _ in todo}
    data = start_file(args.output, "predicted", machine.describe(), rerun=rerun)
    for name, entry, size in todo:
        case = predicting.predict_case(name, entry, size, card=args.card, timeout_s=args.timeout_s)
        data["cases"][key(name, size)] = case
        save(args.output, data)
        text = show_bytes(case.get("peak_allocated_bytes")) if case["status"] == "ok" else case["reason"]
        print(f"{name:20} {size:>10,}  {text}  ({show_seconds(case['wall_s'])})", flush=True)
    return (
        0 if all(case["status"] == "ok" for case in data["cases"].values() if case["model"] in rerun) else 1
    )


def measure(args: argparse.Namespace) -> int:
    import measuring
    import torch  # pyright: ignore[reportMissingImports]

    todo = list(select(args.set, args.only))
    threads = torch.get_num_threads()
    idle = measuring.idle_bytes()
    measuring.preload()
    about = measuring.fork(measuring.describe, timeout_s=args.timeout_s)
    if not about.get("gpu"):
        print(
            "No CUDA device is available on this machine.\n  hint: Run measure on a machine with a GPU.",
            file=sys.stderr,
        )
        return 3
    forecasts = read(args.predicted)["cases"] if args.predicted else {}
    data = start_file(
        args.output, "measured", {**about, "idle_bytes": idle}, rerun={name for name, _, _ in todo}
    )
    for name, entry, size in todo:
        start = time.perf_counter()
        boundary = forecasts.get(key(name, size), {}).get("needs_bytes")
        case = measuring.fork(measuring.work, entry, size, boundary, threads, timeout_s=args.timeout_s)
        case |= {"model": name, "size": size, "wall_s": time.perf_counter() - start}
        data["cases"][key(name, size)] = case
        save(args.output, data)
        text = show_bytes(case.get("peak_allocated_bytes")) if case["status"] == "ok" else case["reason"]
        tried = [cap for cap in ("cap_1.02", "cap_1.00", "cap_0.98") if cap in case]
        caps = " ".join(f"{cap}: {'ran' if case[cap]['ran'] else 'OOM'}" for cap in tried)
        print(f"{name:20} {size:>10,}  {text}  {caps}  ({show_seconds(case['wall_s'])})", flush=True)
    return 0


def table(args: argparse.Namespace) -> int:
    import table as tables

    predicted, measured = read(args.predicted), read(args.measured)
    rows = tables.rows_of(predicted, measured, args.set)
    judged = tables.rows_to_judge(rows)
    bars = tables.judge(judged)
    text = tables.markdown(rows, measured["machine"])
    record = {
        "kind": "accuracy",
        "schema": 1,
        "target": "benchmarks/accuracy",
        "machine": measured["machine"],
        "created": measured["created"],
        "predicted_on": predicted["machine"],
        "commands": [predicted["command"], measured["command"]],
        "judged_on": judged[0].set,
        "bars": [{"name": bar.name, "met": bar.met, "detail": bar.detail} for bar in bars],
        "cases": [
            {
                "model": row.model,
                "set": row.set,
                "what": MODELS[row.model].what,
                "size": row.size,
                "allocated_error": row.error("peak_allocated_bytes"),
                "reserved_error": row.error("peak_reserved_bytes"),
                "total_error": None
                if not row.usable
                else row.predicted["total_bytes"] / row.measured["driver_bytes"] - 1,
                "predicted": row.predicted,
                "measured": row.measured,
            }
            for row in rows
        ],
    }
    write_text(args.output, text)
    args.record.parent.mkdir(parents=True, exist_ok=True)
    save(args.record, record)
    print(text, end="")
    return 0 if all(bar.met for bar in bars) else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True, metavar="predict|measure|table")
    for name, run, about in (
        ("predict", predict, "Predict every model and size; needs no GPU."),
        ("measure", measure, "Run every model and size on the GPU, then under memory caps."),
        ("table", table, "Compare the two, judge the bars and write the record."),
    ):
        verb = verbs.add_parser(name, help=about, description=about)
        verb.set_defaults(run=run)
        verb.add_argument("-o", "--output", type=Path, required=True)
        verb.add_argument(
            "--set", choices=(*FOLDERS, "all"), default="heldout", help="Models to use (default: heldout)."
        )
        if name != "table":
            verb.add_argument(
                "--only", help="Comma-separated model names; others in the output file are kept."
            )
            verb.add_argument(
                "--timeout-s", type=float, default=120.0, help="Time limit per model and size (default: 120)."
            )
        if name == "predict":
            verb.add_argument("--card", default="h200")
        else:
            verb.add_argument(
                "--predicted", type=Path, required=name == "table", help="File that predict wrote."
            )
        if name == "table":
            verb.add_argument("--measured", type=Path, required=True, help="File that measure wrote.")
            verb.add_argument("--record", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
