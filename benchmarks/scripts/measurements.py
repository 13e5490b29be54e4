"""Measured peaks of unmodified programs on the GPU, each in processes of its own.

A program's process is forked from one that has imported torch without touching CUDA. It imports the
libraries of the program (unless they start CUDA), and is forked for the run itself and, if the forecast names
a limit, for a second run in which the allocator may not reserve more. So each run has a new CUDA context and
allocator.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import allocation_trace
import single_rank
from programs import OFFLINE, Program

from pinchpoint.forecasting.launch_command import read_launch

CONTEXT = multiprocessing.get_context("fork")
THREADS = 2  # of each program: many run at one time
# JAX reserves memory when it starts, and its peak depends on that: blocks of a growing pool are larger than
# what is asked for. So it starts as by default, with a share that leaves room for the other programs.
JAX_SHARE = "0.08"
START_CUDA = {"diffusers", "torch_geometric"}  # when imported, so that the process cannot be forked
for _package, _importers in {  # packages that ask for the card, and those that import them if they can
    "torchao": {"transformers"},
    "bitsandbytes": {"bitsandbytes", "peft", "transformers"},
    "deepspeed": {"transformers", "accelerate"},
}.items():
    if importlib.util.find_spec(_package) is not None:
        START_CUDA |= _importers


def describe_machine() -> dict[str, Any]:
    """Describe the machine in a forked process, because asking for the GPU starts CUDA."""
    return _in_fork(_describe, timeout_s=60.0)


def _describe() -> dict[str, Any]:
    import torch

    from pinchpoint.core import machine

    cuda = torch.cuda.is_available()
    return {
        "machine": machine.describe(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
    }


def _in_fork(job: Callable[..., dict[str, Any]], *args: Any, timeout_s: float) -> dict[str, Any]:
    """Run a job in a forked process and return its answer, or a failed case."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_answer, args=(theirs, job, *args))
    process.start()
    theirs.close()
    try:
        if ours.poll(timeout_s):
            return ours.recv()
        return {"status": "timeout", "reason": f"The program did not end within {timeout_s:.0f} s."}
    except EOFError:
        process.join()
        return {"status": "failed", "reason": f"The process ended with exit code {process.exitcode}."}
    finally:
        process.kill()
        process.join()
        ours.close()


def _answer(pipe: Connection, job: Callable[..., dict[str, Any]], *args: Any) -> None:
    try:
        answer = job(*args)
    except Exception as error:
        answer = {"status": "failed", "reason": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
    pipe.send(answer)


def run_program(program: Program, limit_bytes: int | None, traces: Path | None) -> dict[str, Any]:
    """Run the program in this process and read its peaks. traces: the folder for its allocations."""
    sys.argv = [str(program.path), *program.args]
    sys.path.insert(0, str(program.path.parent))
    if program.launcher:
        name, *launch = program.launcher
        os.environ |= read_launch(name, [*launch, str(program.path)]).environment
    if program.ranks is not None:  # before CUDA starts, because peers are forked
        single_rank.start(*program.ranks, path=program.path, has_peers=program.has_peers)
    if program.framework == "torch":
        import torch

        torch.set_num_threads(THREADS)
        if limit_bytes:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / total))
    if traces is not None and limit_bytes is None:
        allocation_trace.start()
    start = time.perf_counter()
    case: dict[str, Any] = {"status": "ok"}
    try:
        runpy.run_path(str(program.path), run_name="__main__")
    except SystemExit as end:
        if end.code:
            case = {"status": "failed", "reason": f"The program ended with exit code {end.code}."}
    except BaseException as error:
        # A library that cannot allocate under a limit (cuDNN, cuBLAS) raises errors of its own.
        status = "oom" if type(error).__name__ == "OutOfMemoryError" else "failed"
        case = {"status": status, "reason": " ".join(f"{type(error).__name__}: {error}".split())[:500]}
    try:
        case |= _jax_peaks() if program.framework == "jax" else _torch_peaks()
    except (RuntimeError, ImportError) as error:
        case = {"reason": f"The peaks cannot be read: {error}", **case, "status": "failed"}
    if traces is not None and limit_bytes is None:
        allocation_trace.write(traces / f"{program.name.replace('/', '_')}.json.gz")
    return {**case, "seconds": round(time.perf_counter() - start, 2)}


def _torch_peaks() -> dict[str, int]:
    import torch

    torch.cuda.synchronize()
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
    }


def _jax_peaks() -> dict[str, int]:
    import jax

    return {"peak_allocated_bytes": int(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"])}


def _import_libraries(program: Program) -> None:
    """Execute the program's import statements; one that fails will fail again in the run, and be recorded."""
    names: dict[str, Any] = {}
    for node in ast.parse(program.path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            with contextlib.suppress(Exception):
                exec(compile(ast.Module([node], []), str(program.path), "exec"), names)


def _measure(
    program: Program,
    limit_bytes: int | None,
    known: dict[str, Any] | None,
    timeout_s: float,
    traces: Path | None,
) -> dict[str, Any]:
    """Measure one program in this process, which leads a group so that it can be killed with its children.

    known: what an earlier run measured, so that only the run under the limit is made.
    """
    os.setsid()
    os.environ |= {**OFFLINE, "OMP_NUM_THREADS": str(THREADS), "XLA_CLIENT_MEM_FRACTION": JAX_SHARE}
    os.environ.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # JAX does not accept both names
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if program.framework == "torch" and not START_CUDA & set(program.packages):
            import torch

            torch.set_num_threads(1)  # a process that has a pool of threads must not be forked
            _import_libraries(program)
        case = known or _in_fork(run_program, program, None, traces, timeout_s=timeout_s)
        if case["status"] == "ok" and limit_bytes and program.framework == "torch":
            capped = _in_fork(run_program, program, limit_bytes, None, timeout_s=timeout_s)
            case["capped"] = {"limit_bytes": limit_bytes, "ran": capped["status"] == "ok", **capped}
        os.chdir("/")
    return {"wall_s": round(time.perf_counter() - start, 2), **case}


@dataclass
class _Job:
    program: Program
    process: BaseProcess
    pipe: Connection
    deadline: float


def measure_all(
    programs: list[Program],
    limits: dict[str, int],
    known: dict[str, dict[str, Any]],
    *,
    at_once: int,
    timeout_s: float,
    total_s: float,
    traces: Path | None = None,
) -> Iterator[tuple[Program, dict[str, Any]]]:
    """Yield each program's case as it is ready; programs that must run alone come last, one by one.

    known: cases measured earlier, which are only run under their limits.
    """
    import torch  # noqa: F401 (once for all processes)

    end = time.monotonic() + total_s
    shared = [program for program in programs if not program.alone]
    alone = [program for program in programs if program.alone]
    for group, jobs in ((shared, at_once), (alone, 1)):
        yield from _measure_some(
            group, limits, known, at_once=jobs, timeout_s=timeout_s, end=end, traces=traces
        )


def _measure_some(
    programs: list[Program],
    limits: dict[str, int],
    known: dict[str, dict[str, Any]],
    *,
    at_once: int,
    timeout_s: float,
    end: float,
    traces: Path | None,
) -> Iterator[tuple[Program, dict[str, Any]]]:
    waiting, running = list(reversed(programs)), []
    while waiting or running:
        while waiting and len(running) < at_once:
            program = waiting.pop()
            if time.monotonic() > end:
                yield program, {"status": "skipped", "reason": "The time for all programs was used up."}
                continue
            ours, theirs = CONTEXT.Pipe(duplex=False)
            name = program.name
            arguments = (program, limits.get(name), known.get(name), timeout_s, traces)
            process = CONTEXT.Process(target=_answer, args=(theirs, _measure, *arguments))
            process.start()
            theirs.close()
            running.append(_Job(program, process, ours, time.monotonic() + 2 * timeout_s + 30))
        wait([job.pipe for job in running], timeout=1.0)
        for job in list(running):
            case = _case_of(job)
            if case is not None:
                running.remove(job)
                yield job.program, case


def _case_of(job: _Job) -> dict[str, Any] | None:
    """The case of a process that has answered, ended or used up its time; None while it works."""
    case: dict[str, Any] | None = None
    try:
        if job.pipe.poll():
            case = job.pipe.recv()
    except EOFError:
        case = {"status": "failed", "reason": "The process ended without an answer."}
    if case is None and time.monotonic() > job.deadline:
        case = {"status": "timeout", "reason": "The program did not end in time."}
    if case is not None:
        assert job.process.pid  # it was started; 0 would mean our own group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.process.pid, signal.SIGKILL)
        job.process.join()
        job.pipe.close()
    return case
