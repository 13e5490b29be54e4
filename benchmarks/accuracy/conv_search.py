"""Memory that cuDNN uses while it searches for its fastest kernels, for every convolution of whole programs.

    PYTHONPATH=src python benchmarks/accuracy/conv_search.py PROGRAM.py ... -o conv_search.json

Each program runs in its own process with `torch.backends.cudnn.benchmark` on. The record has a row for the
first call of every shape that needs more than 100 MB besides its results.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now

COLUMNS = (
    "program",
    "backward",
    "input",
    "weight",
    "output",
    "stride",
    "dilation",
    "transposed",
    "groups",
    "dtype",
    "extra_bytes",
)
LEAST_BYTES = 100_000_000


class Watch(TorchDispatchMode):
    """Prints a row for every convolution: what its call needed besides its results."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self.program = program
        self.seen: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        backward = func.name() == "aten::convolution_backward"
        if not backward and func.name() != "aten::convolution":
            return func(*args, **(kwargs or {}))
        source, weight = args[1:3] if backward else args[:2]
        stride, _, dilation, transposed, _, groups = args[4:10] if backward else args[3:9]
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        result = func(*args, **(kwargs or {}))
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
        output = args[0] if backward else result
        shapes = [list(t.shape) for t in (source, weight, output)]
        dtype = str(source.dtype).removeprefix("torch.")
        row = [
            self.program,
            backward,
            *shapes,
            max(stride),
            max(dilation),
            transposed,
            groups,
            dtype,
            extra,
        ]
        key = json.dumps(row[:-1])
        if key not in self.seen and extra > LEAST_BYTES:
            print("row " + json.dumps(row), flush=True)
        self.seen.add(key)
        return result


def watch(path: Path) -> None:
    """Run a program in this process and print its rows."""
    torch.backends.cudnn.benchmark = True
    sys.argv = [str(path)]
    with Watch(path.stem):
        runpy.run_path(str(path), run_name="__main__")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write; without it, print the rows.")
    args = parser.parse_args()
    if args.output is None:
        watch(args.programs[0])
        return 0
    start, rows = time.perf_counter(), []
    for path in args.programs:
        child = subprocess.run([sys.executable, __file__, str(path)], capture_output=True, text=True)
        found = [json.loads(line[4:]) for line in child.stdout.splitlines() if line.startswith("row ")]
        print(f"{path.stem}: {len(found)} rows" + ("" if not child.returncode else "; it failed"), flush=True)
        rows += found
        write(
            args, rows, time.perf_counter() - start
        )  # after every program: a run that is cut keeps its rows
    return 0


def write(args: argparse.Namespace, rows: list[Any], took_s: float) -> None:
    record = {
        "kind": "conv-search",
        "schema": 1,
        "target": "cuDNN",
        "created": now(),
        "machine": machine.describe(),
        "command": f"python benchmarks/accuracy/conv_search.py {' '.join(map(str, args.programs))} "
        f"-o {args.output.name}",
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "took_s": round(took_s, 1),
        "columns": COLUMNS,
    }
    lines = ",\n".join(map(json.dumps, rows))
    write_text(
        args.output, json.dumps(record, indent=1).removesuffix("\n}") + f',\n "rows": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    raise SystemExit(main())
