"""The accuracy table: predict on any machine, measure on a GPU, compare.

    python benchmarks/accuracy/run.py predict -o predicted.json
    python benchmarks/accuracy/run.py measure -o measured.json --predicted predicted.json
    python benchmarks/accuracy/run.py table -o table.md --predicted predicted.json --measured measured.json

`--set` chooses the held-out models (the default: the bars are judged on them), the development models, or all.
Needs pinchpoint importable (installed, or PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from entries import FOLDERS, MODELS, chosen, key

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
            f"cannot read {path}: {error}\n  hint: make it with this program's predict or measure"
        ) from error


def start_file(path: Path, what: str, about: dict[str, Any], *, redone: set[str]) -> dict[str, Any]:
    """A new file's content: the cases of models that are not redone stay as they are in an old one."""
    old = read(path)["cases"] if path.exists() else {}
    cases = {name: case for name, case in old.items() if case["model"] not in redone}
    command = shlex.join(["python", *sys.argv])
    return {"what": what, "command": command, "created": now(), "machine": about, "cases": cases}


def save(path: Path, data: dict[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1) + "\n")


def predict(args: argparse.Namespace) -> int:
    import predicting

    todo = list(chosen(args.set, args.only))
    redone = {name for name, _, _ in todo}
    data = start_file(args.output, "predicted", machine.describe(), redone=redone)
    for name, entry, size in todo:
        case = predicting.predict_case(name, entry, size, card=args.card, timeout_s=args.timeout_s)
        data["cases"][key(name, size)] = case
        save(args.output, data)
        said = show_bytes(case.get("peak_allocated_bytes")) if case["status"] == "ok" else case["reason"]
        print(f"{name:20} {size:>10,}  {said}  ({show_seconds(case['wall_s'])})", flush=True)
    return (
        0 if all(case["status"] == "ok" for case in data["cases"].values() if case["model"] in redone) else 1
    )


def measure(args: argparse.Namespace) -> int:
    import measuring
    import torch  # pyright: ignore[reportMissingImports]

    todo = list(chosen(args.set, args.only))
    threads = torch.get_num_threads()
    idle = measuring.idle_bytes()
    measuring.preload()
    about = measuring.fork(measuring.describe, timeout_s=args.timeout_s)
    if not about.get("gpu"):
        print("no CUDA device is visible here\n  hint: run measure on a machine with a GPU", file=sys.stderr)
        return 3
    forecasts = read(args.predicted)["cases"] if args.predicted else {}
    data = start_file(
        args.output, "measured", {**about, "idle_bytes": idle}, redone={name for name, _, _ in todo}
    )
    for name, entry, size in todo:
        start = time.perf_counter()
        boundary = forecasts.get(key(name, size), {}).get("needs_bytes")
        found = measuring.fork(measuring.work, entry, size, boundary, threads, timeout_s=args.timeout_s)
        found |= {"model": name, "size": size, "wall_s": time.perf_counter() - start}
        data["cases"][key(name, size)] = found
        save(args.output, data)
        said = show_bytes(found.get("peak_allocated_bytes")) if found["status"] == "ok" else found["reason"]
        tried = [cap for cap in ("cap_1.02", "cap_1.00", "cap_0.98") if cap in found]
        caps = " ".join(f"{cap}: {'ran' if found[cap]['ran'] else 'OOM'}" for cap in tried)
        print(f"{name:20} {size:>10,}  {said}  {caps}  ({show_seconds(found['wall_s'])})", flush=True)
    return 0


def table(args: argparse.Namespace) -> int:
    import table as tables

    predicted, measured = read(args.predicted), read(args.measured)
    rows = tables.rows_of(predicted, measured, args.set)
    judged = tables.judged(rows)
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
        ("predict", predict, "forecast every model and size; needs no GPU"),
        ("measure", measure, "run every model and size on the GPU, then under caps; needs CUDA"),
        ("table", table, "compare the two, judge the bars, write the record"),
    ):
        verb = verbs.add_parser(name, help=about, description=about)
        verb.set_defaults(run=run)
        verb.add_argument("-o", "--output", type=Path, required=True)
        verb.add_argument(
            "--set", choices=(*FOLDERS, "all"), default="heldout", help="which models (default: heldout)"
        )
        if name != "table":
            verb.add_argument(
                "--only", help="comma-separated model names; others in the output file are kept"
            )
            verb.add_argument("--timeout-s", type=float, default=120.0, help="per model and size")
        if name == "predict":
            verb.add_argument("--card", default="h200")
        else:
            verb.add_argument("--predicted", type=Path, required=name == "table", help="what predict wrote")
        if name == "table":
            verb.add_argument("--measured", type=Path, required=True, help="what measure wrote")
            verb.add_argument("--record", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    return args.run(args)


if __name__ == "__main__":
    sys.exit(main())
