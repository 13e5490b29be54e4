"""Measured peaks on the GPU, with each model and size in a separate process.

The libraries are imported once in a parent that never uses CUDA; every case is forked from it, so it has a
fresh CUDA context and allocator but no import time. That process builds and steps the model, reads its peaks,
and then builds and steps it again under memory caps: at the boundary from which the forecast says that it
fits, and 2 % to either side.
"""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from entries import FOLDERS, Entry

from pinchpoint.core import machine

STEPS = 2  # as many as the forecast assumes
MORE_STEPS = 3
CAPS = (1.02, 1.00, 0.98)


def load_factory(entry: Entry) -> Callable[[int, str], Callable[[], Any]]:
    file, _, name = entry.target.rpartition(":")
    path = Path(file)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def idle_bytes() -> int | None:
    """Return the bytes that the driver counts on the idle card; None if nvidia-smi is not available."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return int(reply.stdout.strip()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def driver_bytes() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


def read_peaks() -> dict[str, int]:
    torch.cuda.synchronize()
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def forget() -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def measure_case(factory: Callable[[int, str], Callable[[], Any]], size: int) -> dict[str, Any]:
    step = factory(size, "cuda")
    for _ in range(STEPS):
        step()
    peaks: dict[str, Any] = {**read_peaks(), "after_three": {}}
    start = time.perf_counter()
    for _ in range(MORE_STEPS - STEPS):
        step()
    torch.cuda.synchronize()
    peaks["step_s"] = time.perf_counter() - start
    peaks["after_three"] = read_peaks()
    peaks["driver_bytes"] = driver_bytes()
    peaks["context_bytes"] = driver_bytes() - torch.cuda.memory_reserved()
    return peaks


def run_capped(
    factory: Callable[[int, str], Callable[[], Any]], size: int, limit_bytes: int
) -> dict[str, Any]:
    """Build and step while the allocator may not reserve more than the limit."""
    forget()
    total = torch.cuda.get_device_properties(0).total_memory
    outcome: dict[str, Any] = {"limit_bytes": limit_bytes, "ran": False, "retries": 0}
    if limit_bytes >= total:
        return {**outcome, "ran": None, "reason": "the limit is larger than the card"}
    torch.cuda.set_per_process_memory_fraction(limit_bytes / total)
    before = torch.cuda.memory_stats()["num_alloc_retries"]
    try:
        step = factory(size, "cuda")
        for _ in range(MORE_STEPS):
            step()
        torch.cuda.synchronize()
        outcome["ran"] = True
    # An out-of-memory error, or a library (cuDNN, cuBLAS) that could not allocate.
    except RuntimeError as error:
        outcome["reason"] = " ".join(str(error).split())[:300]
    # In a retry the allocator frees cached blocks to stay below the cap: it fits, with less to spare.
    outcome["retries"] = torch.cuda.memory_stats()["num_alloc_retries"] - before
    outcome["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    return outcome


def work(entry: Entry, size: int, boundary_bytes: int | None, threads: int, pipe: Connection) -> None:
    """Measure in the forked process, first without and then with caps.

    The results are sent after each run, so a crash loses only the rest.
    """
    torch.set_num_threads(threads)
    try:
        factory = load_factory(entry)
        torch.cuda.init()
        peaks = measure_case(factory, size)
        pipe.send({"status": "ok", **peaks})
        if boundary_bytes is not None:
            for cap in CAPS:
                pipe.send({f"cap_{cap:.2f}": run_capped(factory, size, int(boundary_bytes * cap))})
    except torch.cuda.OutOfMemoryError as error:
        pipe.send({"status": "oom", "reason": " ".join(str(error).split())[:300]})
    except Exception as error:  # a failed case is one line of the table and does not stop the others
        pipe.send({"status": "failed", "reason": f"{type(error).__name__}: {error}"[:500]})
    pipe.send(None)


def describe(pipe: Connection) -> None:
    """Describe the machine in a forked process, because asking for the GPU's name starts CUDA."""
    about = machine.describe()
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        about["cuda"] = torch.version.cuda
        about["cudnn"] = torch.backends.cudnn.version()
        about["gpu_memory_bytes"] = torch.cuda.get_device_properties(0).total_memory
        about["bare_context_bytes"] = total - free
    pipe.send(about)
    pipe.send(None)


def fork(job: Callable[..., None], *args: Any, timeout_s: float) -> dict[str, Any]:
    """Run a job in a forked process and merge the dicts it sends until it sends None."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=job, args=(*args, theirs))
    process.start()
    theirs.close()
    results: dict[str, Any] = {}
    deadline = time.monotonic() + timeout_s
    try:
        while ours.poll(max(0.0, deadline - time.monotonic())):
            part = ours.recv()
            if part is None:
                break
            results.update(part)
        else:
            results = {**results, "status": "timeout", "reason": f"no answer within {timeout_s:.0f} s"}
            process.kill()
    except EOFError:
        process.join()
        results = {
            **results,
            "status": "failed",
            "reason": f"the process ended with exit code {process.exitcode}",
        }
    process.join(30)
    ours.close()
    return results


def preload() -> None:
    """Import what the models import, in the parent, without starting CUDA or a thread pool."""
    torch.set_num_threads(1)
    for path in sorted(path for folder in FOLDERS.values() for path in folder.glob("*.py")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(("import e3nn", "from e3nn")):
                try:
                    importlib.import_module(line.split()[1])
                except ImportError:
                    package = line.split()[1]
                    print(f"{path.name}: {package} is not installed; the model will be recorded as failed")
