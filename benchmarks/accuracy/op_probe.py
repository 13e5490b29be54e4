"""Requests of single operations to the CUDA allocator, in order, with their sizes.

    PYTHONPATH=src python benchmarks/accuracy/op_probe.py -o ops.json

Each operation is run three times from fresh cuBLAS workspaces; the first run (`cold`) and the third
(`steady`) are recorded stage by stage (forward, backward, step). Sizes are the bytes requested, before
rounding. A failing operation is recorded with its error, and the probe continues. `--device cpu` only checks
that the operations run; it records nothing.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from op_cases import cases
from op_live import Case

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now

ACTIONS = {
    "alloc": "alloc",
    "free_completed": "free",
    "segment_alloc": "segment_alloc",
    "segment_free": "segment_free",
}
ROUNDS = ("cold", "warm", "steady")


def allocator_events() -> list[tuple[str, int]]:
    trace: Any = torch.cuda.memory._snapshot().get("device_traces", [])
    return [(ACTIONS[e["action"]], e["size"]) for device in trace for e in device if e["action"] in ACTIONS]


def record_history(on: bool) -> None:
    if on:
        torch.cuda.memory._record_memory_history(
            "all", context=None, stacks="python", max_entries=200_000, clear_history=True
        )
    else:
        torch.cuda.memory._record_memory_history(None)


def observe(run: Any) -> dict[str, Any]:
    """Run one stage and return its allocator events, the peak it added, and the bytes it left allocated."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    record_history(True)
    try:
        run()
        torch.cuda.synchronize()
        events = allocator_events()
    finally:
        record_history(False)
    return {
        "peak_added_bytes": torch.cuda.max_memory_allocated() - before,
        "kept_bytes": torch.cuda.memory_allocated() - before,
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "events": events,
    }


def context_bytes() -> int:
    """Return the bytes that the driver counts beyond the allocator: context, kernels, library state."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def clear_workspaces() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def probe_on_cuda(case: Case) -> dict[str, Any]:
    live = case.build("cuda")
    clear_workspaces()  # building may have called the operation
    record: dict[str, Any] = {"notes": live.notes, "stages": {name: {} for name, _ in live.stages}}
    for label in ROUNDS:
        live.reset()
        for name, run in live.stages:
            if label == "warm":
                run()
            else:
                record["stages"][name][label] = observe(run)
    record["context_bytes"] = context_bytes()
    return record


def probe_on_cpu(case: Case) -> dict[str, Any]:
    live = case.build("cpu")
    live.reset()
    for _, run in live.stages:
        run()
    return {"notes": live.notes, "stages": [name for name, _ in live.stages]}


def probe_all(device: str, *, only: str, limit_s: float) -> dict[str, Any]:
    ops: dict[str, Any] = {}
    start = time.perf_counter()
    for case in cases():
        if not fnmatch.fnmatch(case.name, only):
            continue
        if time.perf_counter() - start > limit_s:
            ops[case.name] = {"error": f"not run: the probe's {limit_s:.0f} s were spent"}
            continue
        case_start = time.perf_counter()
        try:
            ops[case.name] = probe_on_cuda(case) if device == "cuda" else probe_on_cpu(case)
        except Exception as error:  # an operation that this build lacks must not stop the others
            ops[case.name] = {"error": f"{type(error).__name__}: {error}"}
        ops[case.name]["took_s"] = round(time.perf_counter() - case_start, 3)
    return ops


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", default="*", help="Shell pattern of operation names (default: all).")
    parser.add_argument(
        "--limit-s", type=float, default=55.0, help="Start no further operation after this many seconds."
    )
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        print(
            "No CUDA device is available on this machine.\n"
            "  hint: Run on a machine with a GPU, or check the operations with --device cpu."
        )
        return 3
    record: dict[str, Any] = {
        "what": "op probe",
        "command": sys.argv,
        "created": now(),
        "machine": machine.describe(),
    }
    if args.device == "cuda":
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        record["context_at_start_bytes"] = context_bytes()
        record["cuda"] = torch.version.cuda
        record["cudnn"] = torch.backends.cudnn.version()
        record["capability"] = torch.cuda.get_device_capability()
    start = time.perf_counter()
    record["ops"] = probe_all(args.device, only=args.only, limit_s=args.limit_s)
    record["took_s"] = time.perf_counter() - start
    failed = {name: op["error"] for name, op in record["ops"].items() if "error" in op}
    write_text(args.output, json.dumps(record) + "\n")
    for name, error in failed.items():
        print(f"{name}: {error.splitlines()[0]}")
    print(f"{len(record['ops'])} operations, {len(failed)} failed, {record['took_s']:.1f} s -> {args.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
