"""What a device reaches in plain work: products in bf16 and fp32, and a copy.

    python benchmarks/kit/rates.py -o benchmarks/results/rates_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The floors of the performance page are counts
of operations and bytes divided by these rates. A product multiplies two square matrices by torch, without
TF32; a copy reads and writes each byte once. Rates are those of the median of the runs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from pinchpoint.backends.torch.measurement import wait
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.studies.timing import measure
from pinchpoint.systems.common.training.precision import matmuls

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def rates(device: str, *, side: int, copied_bytes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Return the rate of each kind of work per second, with the seconds of its median run."""
    result: dict[str, dict[str, float]] = {}
    with matmuls("fp32"):
        for name, dtype in DTYPES.items():
            a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in "ab")
            out = torch.empty_like(a)
            timing = measure(
                lambda a=a, b=b, out=out: torch.mm(a, b, out=out),
                wait=lambda _: wait(device),
                repeats=repeats,
            )
            result[name] = {"per_s": 2 * side**3 / timing.median_s, "seconds": timing.median_s}
    source = torch.zeros(copied_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    timing = measure(lambda: target.copy_(source), wait=lambda _: wait(device), repeats=repeats)
    result["bytes"] = {"per_s": 2 * copied_bytes / timing.median_s, "seconds": timing.median_s}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--side", type=int, default=8192, help="Side of the matrices.")
    parser.add_argument("--copied-bytes", type=int, default=2**31, help="Bytes of the copy.")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    sizes: dict[str, Any] = {
        name: getattr(args, name) for name in ("device", "side", "copied_bytes", "repeats")
    }
    result = rates(args.device, side=args.side, copied_bytes=args.copied_bytes, repeats=args.repeats)
    record = {
        "what": "rates of plain products and of a copy",
        "command": script_command(),
        "created": now(),
        "machine": describe(),
        **sizes,
        "rates": result,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for name, rate in result.items():
        print(f"{name:6} {rate['per_s'] / 1e12:.4g} {'TB/s' if name == 'bytes' else 'TFLOP/s'}")


if __name__ == "__main__":
    main()
