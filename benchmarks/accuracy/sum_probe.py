"""Requests to the CUDA allocator of sums and other reductions, by the layout of what they read.

    PYTHONPATH=src python benchmarks/accuracy/sum_probe.py -o benchmarks/results/sum_probe_h200.json

The record has the requests of each case in order, in bytes before rounding, with those of its argument.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now, script_command

COLUMNS = 256


def _zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def _columns(stride: int, start: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Columns of a matrix whose rows are `stride` numbers apart."""
    return _zeros(32_768, stride, dtype=dtype)[:, start : start + COLUMNS]


def cases() -> dict[str, Callable[[], object]]:
    number = _zeros(1)
    chosen: dict[str, Callable[[], object]] = {
        "sum of a repeated number": lambda: number.expand(16_384, 512).sum(0),
        "sum of a repeated number, two of three": lambda: number.expand(64, 1_024, 256).sum((0, 1)),
        "sum of a repeated row": lambda: _zeros(512).expand(16_384, 512).sum(0),
        "sum of a repeated column": lambda: _zeros(16_384, 1).expand(16_384, 512).sum(0),
    }
    for stride in (411, 412, 410, 256, 258, 260):
        for start in (0, 1, 2, 4):
            if start + COLUMNS <= stride:
                for dtype in (torch.float32, torch.bfloat16):
                    chosen[f"sum of columns from {start} of {stride}, {dtype}"] = (
                        lambda stride=stride, start=start, dtype=dtype: _columns(stride, start, dtype).sum(0)
                    )
    return chosen | {
        "sum of (16, 6)": lambda: _zeros(32_768, 16, 6).sum(0),
        "sum of (5, 3)": lambda: _zeros(32_768, 5, 3).sum(0),
        "sum of (5, 4)": lambda: _zeros(32_768, 5, 4).sum(0),
        "sum of (5, 4) of (5, 8)": lambda: _zeros(32_768, 5, 8)[..., :4].sum(0),
        "sum of (8, 6) of (8, 8)": lambda: _zeros(32_768, 8, 8)[..., :6].sum(0),
        "sum in the middle": lambda: _zeros(64, 4_096, 66).sum(1),
        "sum in the middle, odd": lambda: _zeros(63, 4_096, 65).sum(1),
        "sum of two of three": lambda: _zeros(64, 1_024, 130).sum((0, 1)),
        "sum over rows of a transpose": lambda: _zeros(256, 32_768).t().sum(0),
        "sum over columns of a transpose": lambda: _zeros(32_768, 256).t().sum(1),
        "sum of channels, last": lambda: (
            _zeros(16, 64, 56, 56).contiguous(memory_format=torch.channels_last).sum((0, 2, 3))
        ),
        "sum of channels, first": lambda: _zeros(16, 64, 56, 56).sum((0, 2, 3)),
        "sum of (8, 6) of a transpose": lambda: _zeros(4_096, 6, 8).permute(0, 2, 1).sum(0),
        "sum of (30, 64) of a transpose": lambda: _zeros(4_096, 64, 30).permute(0, 2, 1).sum(0),
        "sum of float64": lambda: _zeros(32_768, 256, dtype=torch.float64).sum(0),
        "sum of int32": lambda: _zeros(32_768, 256, dtype=torch.int32).sum(0),
        "largest": lambda: _zeros(32_768, 256).amax(0),
        "largest of some columns": lambda: _columns(411).amax(0),
        "mean of some columns": lambda: _columns(411).mean(0),
        "variance of some columns": lambda: _columns(411).var(0),
        "variance": lambda: _zeros(32_768, 256).var(0),
        "sum of 3 columns": lambda: _zeros(1_000_000, 3).sum(0),
        "sum of 2 columns": lambda: _zeros(1_000_000, 2).sum(0),
        "sum of 6 columns of 8": lambda: _zeros(1_000_000, 8)[:, :6].sum(0),
        "sum of 1 column of 4": lambda: _zeros(32_768, 4)[:, :1].sum(0),
        "place of the largest": lambda: _zeros(32_768, 256).argmax(0),
        "place of the largest of some columns": lambda: _columns(411).argmax(0),
        "sum of all of some columns": lambda: _columns(411).sum(),
        "sum of all of a transpose": lambda: _zeros(512, 256, 64).permute(2, 0, 1).sum(),
        "sum over long rows of a slice": lambda: _zeros(512, 32_770)[:, :32_768].sum(1),
        "power of a number": lambda: 2 ** _zeros(1_000),
        "power of a number, int32": lambda: 2 ** torch.ones(1_000, dtype=torch.int32, device="cuda"),
    }


def requests_of(call: Callable[[], object]) -> list[int]:
    torch.cuda.synchronize()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=10_000, clear_history=True)
    result = call()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    del result
    return [event["size"] for event in events if event["action"] == "alloc"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="The record to write.")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("sum_probe.py needs a GPU.")
    record = {"command": script_command(), "created": now(), "machine": machine.describe()}
    requests = {name: requests_of(call) for name, call in cases().items()}
    write_text(args.output, json.dumps(record | {"requests": requests}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
