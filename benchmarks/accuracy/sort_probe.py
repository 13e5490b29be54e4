"""Requests to the CUDA allocator of operations that sort, by operation, type and shape.

    PYTHONPATH=src python benchmarks/accuracy/sort_probe.py -o benchmarks/results/sort_probe_h200.json

Each is called twice. Of the second call, the record has up to 40 requests in order, in bytes before
rounding, the most that it added to the allocated bytes, and what its results keep.
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


def _repeatably(call: Callable[[], object]) -> object:
    torch.use_deterministic_algorithms(True)
    try:
        return call()
    finally:
        torch.use_deterministic_algorithms(False)


def _gradient(x: Tensor) -> Tensor:
    """That of rows that are read by index, and summed."""
    rows = torch.zeros(1000, 64, device=x.device, requires_grad=True)
    rows[x % 1000].sum().backward()
    assert rows.grad is not None
    return rows.grad


def _table(x: Tensor, *shape: int) -> Tensor:
    return torch.zeros(shape, device=x.device)


def _places(x: Tensor) -> Tensor:
    return (x[:, None] + torch.arange(8, device=x.device)) % 1000


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
    "unique_consecutive": lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True),
    "unique rows": lambda x: torch.unique(x, dim=0),
    "unique rows with both": lambda x: torch.unique(x, dim=0, return_inverse=True, return_counts=True),
    "unique columns": lambda x: torch.unique(x, dim=-1, return_counts=True),
    "sort of one column": lambda x: x[:, :1].sort(0),
    "sort of repeated rows": lambda x: x.expand(4, *x.shape).sort(),
    "sort of overlapping rows": lambda x: x[:, :1].expand(2, 2, x.shape[-1]).sort(),
    "median of a column": lambda x: x[:, 0].median(),
    "median of a transpose": lambda x: x.t().median(),
    "unique of a column": lambda x: x[:, 0].unique(),
    "unique_consecutive of a column": lambda x: torch.unique_consecutive(x[:, 0]),
    "mode": lambda x: torch.mode(x),
    "isin": lambda x: torch.isin(x, x.flatten()[:1000]),
    "isin of few": lambda x: torch.isin(x, x[:20]),
    "isin of as many": lambda x: torch.isin(x, x + 1),
    "randperm of int32": lambda x: torch.randperm(x.numel(), device=x.device, dtype=torch.int32),
    "index_put of a number": lambda x: _table(x, 1000, 64).index_put_(
        (x % 1000,), _table(x), accumulate=True
    ),
    "index_put of a transpose": lambda x: _table(x, 1000, 64).index_put_(
        (x % 1000,), _table(x, 64, len(x)).t(), accumulate=True
    ),
    "index_put into a transpose": lambda x: (
        _table(x, 20_000, 64).t().index_put_((x % 64,), _table(x, len(x), 20_000), accumulate=True)
    ),
    "index_put of columns": lambda x: torch.ops.aten.index_put_(
        _table(x, 64, 1000, 8), [None, x % 1000], _table(x, 64, len(x), 8), True
    ),
    "index_put of two sides": lambda x: torch.ops.aten.index_put_(
        _table(x, 100, 64, 1000), [x % 100, None, x % 1000], _table(x, len(x), 64), True
    ),
    "index_put of int32": lambda x: _table(x, 1000).index_put_(
        ((x % 1000).int(),), _table(x, len(x)), accumulate=True
    ),
    "index_put repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000).index_put_((x % 1000,), _table(x, len(x)))
    ),
    "index_add repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000, 8).index_add_(0, x % 1000, _table(x, len(x), 8))
    ),
    "index_copy repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000, 8).index_copy_(0, x % 1000, _table(x, len(x), 8))
    ),
    "scatter_add repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000).scatter_add_(0, x % 1000, _table(x, len(x)))
    ),
    "scatter_add of rows repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000, 8).scatter_add_(0, (x % 1000)[:, None].expand(-1, 8), _table(x, len(x), 8))
    ),
    "scatter_add of places repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000, 8).scatter_add_(0, _places(x), _table(x, len(x), 8))
    ),
    "scatter repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000).scatter_(0, x % 1000, _table(x, len(x)))
    ),
    "scatter of a number repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000).scatter_(0, x % 1000, 1.0)
    ),
    "scatter_reduce repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000).scatter_reduce_(0, x % 1000, _table(x, len(x)), "mean")
    ),
    "scatter_reduce to the largest repeatably": lambda x: _repeatably(
        lambda: _table(x, 1000).scatter_reduce_(0, x % 1000, _table(x, len(x)), "amax")
    ),
    "index_add of columns repeatably": lambda x: _repeatably(
        lambda: _table(x, 8, 1000).index_add_(1, x % 1000, _table(x, 8, len(x)))
    ),
    "gradient of an embedding": lambda x: torch.ops.aten.embedding_dense_backward(
        _table(x, len(x), 4), x % 1000, 1000, -1, False
    ),
    "gradient of indexing": _gradient,
    "index_put": lambda x: x.new_zeros(1000).index_put_((x % 1000,), x, accumulate=True),
    "topk": lambda x: torch.topk(x, 100),
    "topk of many": lambda x: torch.topk(x, 6_000),
    "cumsum": lambda x: torch.cumsum(x, -1),
}

UNIQUE = ("unique", "unique with inverse", "unique with counts", "unique with both")


def cases() -> list[tuple[str, str, tuple[int, ...]]]:
    """The operation, the type and the shape of its argument."""
    lengths = [(length,) for length in LENGTHS]
    chosen: list[tuple[str, str, tuple[int, ...]]] = [
        ("sort", kind, shape) for kind in TYPES for shape in (*lengths, *ROWS)
    ]
    chosen += [("sort of columns", "float32", (columns, rows)) for rows, columns in ROWS]
    chosen += [("sort of every second", "int64", shape) for shape in (*lengths, *ROWS)]
    chosen += [(name, "float32", shape) for name in ("argsort", "median") for shape in lengths]
    for name in UNIQUE:
        chosen += [(name, kind, shape) for kind in ("int64", "int32", "uint8") for shape in lengths]
    chosen += [(name, "int64", shape) for name in ("randperm", "index_put") for shape in lengths]
    chosen += [("topk", kind, shape) for kind in ("float32", "bfloat16") for shape in (*lengths, *ROWS)]
    chosen += [("topk", "float32", shape) for shape in SELECTED]
    chosen += [("topk of many", "float32", shape) for shape in (*lengths, *ROWS) if shape[-1] >= 6_000]
    chosen += [("unique_consecutive", kind, shape) for kind in ("int64", "bool") for shape in lengths]
    chosen += [(name, "bool", shape) for name in UNIQUE for shape in lengths]
    long, many = [(4_000,), (100_000,), (1_000_000,)], [(100_000, 3), (1_000_000, 3)]
    for name in ("unique rows", "unique rows with both"):
        chosen += [(name, kind, shape) for kind in ("int64", "float32") for shape in ((5_000, 2), *many)]
    chosen += [("unique columns", "float32", shape) for shape in ((3, 5_000), (3, 1_000_000), (512, 1_000))]
    chosen += [("sort of one column", "float32", shape) for shape in ((4_000, 4), (1_000_000, 4))]
    chosen += [("sort of repeated rows", "float32", shape) for shape in ((3, 8_192), (1, 50_000), (50_000,))]
    chosen += [("sort of overlapping rows", "float32", (2, 3, 5_000))]
    for name in ("median of a column", "unique of a column", "unique_consecutive of a column"):
        chosen += [(name, "float32", shape) for shape in ((4_000, 2), (1_000_000, 2))]
    chosen += [("median of a transpose", "float32", (1_000, 1_000))]
    chosen += [
        ("mode", kind, shape)
        for kind in ("float32", "int64")
        for shape in ((1_000, 2_000), (10, 5_000), (1_000, 5_000), (1_000_000,))
    ]
    for name in ("isin", "isin of few", "isin of as many", "randperm of int32"):
        chosen += [(name, "int64", shape) for shape in long]
    for name in (
        "index_put of a number",
        "index_put of a transpose",
        "index_put of two sides",
        "index_put of int32",
        "gradient of an embedding",
        "gradient of indexing",
        *(name for name in OPERATIONS if name.endswith(" repeatably")),
    ):
        chosen += [(name, "int64", shape) for shape in long]
    chosen += [("index_put of columns", "int64", shape) for shape in long[:2]]
    chosen += [("index_put into a transpose", "int64", (1_000,))]
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
    stage = observe(lambda: results.append(OPERATIONS[name](x)))
    return {
        "operation": name,
        "type": kind,
        "shape": shape,
        "requests": [size for action, size in stage["events"] if action == "alloc"][:40],
        "peak_bytes": stage["peak_added_bytes"],
        "kept_bytes": stage["kept_bytes"],
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
