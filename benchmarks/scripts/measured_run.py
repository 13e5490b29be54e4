"""Run one program unmodified on the GPU: python measured_run.py PROGRAM RESULT.json [CAP].

The result holds its peaks. With CAP, in bytes, the allocator may not reserve more, and the result says
whether the program still runs.
"""

from __future__ import annotations

import json
import runpy
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch


def main(program: str, result: str, cap_bytes: str | None = None) -> int:
    out: dict[str, Any] = {"status": "ok"}
    total = torch.cuda.get_device_properties(0).total_memory
    if cap_bytes:
        torch.cuda.set_per_process_memory_fraction(min(1.0, int(cap_bytes) / total))
    sys.argv = [program]
    sys.path.insert(0, str(Path(program).parent))
    start = time.perf_counter()
    try:
        runpy.run_path(program, run_name="__main__")
    except torch.cuda.OutOfMemoryError as error:
        out |= {"status": "oom", "reason": " ".join(str(error).split())[:300]}
    except BaseException as error:
        # A library that could not allocate under a cap (cuDNN, cuBLAS) raises errors of its own.
        lines = traceback.format_exception(error)
        out |= {
            "status": "failed",
            "reason": f"{type(error).__name__}: {error}"[:500],
            "traceback": lines[-3:],
        }
    try:
        torch.cuda.synchronize()
        out |= {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        }
    except RuntimeError as error:
        out.setdefault("reason", f"The peaks cannot be read: {error}")
        out["status"] = "failed"
    out["seconds"] = round(time.perf_counter() - start, 2)
    Path(result).write_text(json.dumps(out), encoding="utf-8")
    return 0 if out["status"] == "ok" else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
