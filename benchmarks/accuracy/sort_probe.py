"""Requests to the CUDA allocator of operations that sort, by operation, type and shape.

    PYTHONPATH=src python benchmarks/accuracy/sort_probe.py -o benchmarks/results/sort_probe_h200.json

Each is called twice; the requests of the second call are recorded in order, in bytes before rounding, what
it added to the allocated bytes at most, and what its results keep.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from op_probe import clear_workspaces, observe
from torch import Tensor

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now, script_command

LENGTHS = (4_000, 4_097, 6_000, 10_000, 20_000, 50_000, 65_537, 150_000, 333_333, 1_000_000, 4_000_000)
ROWS = (
    (1_000, 4_000),
    (2, 5_000),
    (3, 10_000),
    (2, 1_000_001),
    (127, 8_192),
    (128, 8_192),
    (1_000, 5_000),
    (4_096, 4_100),
)
TYPES = ("bool", "uint8", "bfloat16", "int32", "float32", "int64", "float64")
SELECTED = [  # rows and lengths where several blocks select from each, and where one does
    *(
        (rows, length)
        for rows, least in ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000))
        for length in (least, least - 1)
    ),
    *((rows, length) for rows in (21, 41, 81, 200, 800, 4_000, 4_001) for length in (400, 800, 3_000, 5_000)),
    (21, 10_000),
    (41, 8_000),
    (4_001, 399),
    (4_000, 799),
]
OPERATIONS: dict[str, Callable[[Tensor], object]] = {
    "sort": torch.sort,
    "sort of columns": lambda x: torch.sort(x, dim=0),
    "sort of every second": lambda x: torch.sort(x[..., ::2]),
    "argsort": torch.argsort,
    "median": torch.median,
    "unique": torch.unique,
    "unique with inverse": lambda x: torch.unique(x, return_inverse=True),
    "unique with counts": lambda x: torch.unique(x, return_counts=True),
    "unique with both": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "randperm": lambda x: torch.randperm(x.numel(), device=x.device),
    "index_put": lambda x: x.new_zeros(1000).index_put_((x % 1000,), x, accumulate=True),
    "topk": lambda x: torch.topk(x, 100),
    "topk of many": lambda x: torch.topk(x, 6_000),
    "cumsum": lambda x: torch.cumsum(x, -1),
}


def cases() -> list[tuple[str, str, tuple[int, ...]]]:
    """The operation, the type and the shape of its argument."""
    lengths = [(length,) for length in LENGTHS]
    chosen: list[tuple[str, str, tuple[int, ...]]] = [
        ("sort", kind, shape) for kind in TYPES for shape in (*lengths, *ROWS)
    ]
    chosen += [("sort of columns", "float32", (columns, rows)) for rows, columns in ROWS]
    chosen += [("sort of every second", "int64", shape) for shape in (*lengths, *ROWS)]
    chosen += [(name, "float32", shape) for name in ("argsort", "median") for shape in lengths]
    for name in ("unique", "unique with inverse", "unique with counts", "unique with both"):
        chosen += [(name, kind, shape) for kind in ("int64", "int32", "uint8") for shape in lengths]
    chosen += [(name, "int64", shape) for name in ("randperm", "index_put") for shape in lengths]
    chosen += [("topk", kind, shape) for kind in ("float32", "bfloat16") for shape in (*lengths, *ROWS)]
    chosen += [("topk", "float32", shape) for shape in SELECTED]
    chosen += [("topk of many", "float32", shape) for shape in (*lengths, *ROWS) if shape[-1] >= 6_000]
    chosen += [("cumsum", kind, shape) for kind in TYPES[1:] for shape in lengths]
    return chosen


def argument_of(kind: str, shape: tuple[int, ...], device: str) -> Tensor:
    torch.manual_seed(0)
    return (torch.rand(shape, device=device) * 30_000).to(getattr(torch, kind))


def requests_of(name: str, kind: str, shape: tuple[int, ...]) -> dict[str, Any]:
    x = argument_of(kind, shape, "cuda")
    OPERATIONS[name](x)
    clear_workspaces()
    results: list[object] = []
    seen = observe(lambda: results.append(OPERATIONS[name](x)))
    return {
        "operation": name,
        "type": kind,
        "shape": shape,
        "requests": [size for action, size in seen["events"] if action == "alloc"],
        "peak_bytes": seen["peak_added_bytes"],
        "kept_bytes": seen["kept_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="The record to write.")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("sort_probe.py needs a GPU.")
    record = {"command": script_command(), "created": now(), "machine": machine.describe()}
    write_text(args.output, json.dumps(record | {"rows": [requests_of(*case) for case in cases()]}))


if __name__ == "__main__":
    sys.exit(main())
