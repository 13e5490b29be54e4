"""Times systems on the machines of a cluster: one job per system, each on a machine or GPU of its own.

A job takes the record so far with it and returns it with the missing cases, so that the machines need not
share a file system for the records.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pinchpoint.core.files import write_text
from pinchpoint.studies.engines.engine import EngineConfig, open_pool
from pinchpoint.systems.common.bench.worker import Request, record_path

# What SLURM is asked for per system; a guess that covers the report's sizes on a GPU.
LIMIT_S = 4 * 3600.0
_TAIL = 2_000  # characters of what a worker printed that come back if it fails


@dataclass(frozen=True)
class BenchJob:
    """A system to time. record: the text of its record so far, or empty."""

    request: Request
    record: str = ""

    @property
    def name(self) -> str:
        return self.request.system


@dataclass(frozen=True)
class BenchResult:
    """code: the exit code of the worker. record: the text of the record, or empty if there is none."""

    code: int
    record: str
    printed: str


@contextmanager
def open_worker() -> Iterator[Callable[[BenchJob], BenchResult]]:
    """Open what a worker of the cluster times a system with."""
    yield run_job


def run_job(job: BenchJob) -> BenchResult:
    """Time one system in a process of its own, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="pinchpoint-") as folder:
        path = record_path(folder, job.request.system)
        if job.record:
            write_text(path, job.record)
        request = replace(job.request, folder=folder)
        process = subprocess.run(
            [sys.executable, "-m", "pinchpoint.systems.common.bench.worker", request.to_json()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        record = path.read_text(encoding="utf-8") if path.exists() else ""
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return BenchResult(code, record, process.stdout[-_TAIL:])


def bench_on_cluster(
    requests: Sequence[Request], folder: Path, engine: EngineConfig, *, tell: Callable[[str], None]
) -> dict[str, int]:
    """Time the systems on a cluster, write their records to the folder, and return their exit codes."""
    jobs = []
    for request in requests:
        path = record_path(folder, request.system)
        jobs.append(BenchJob(request, path.read_text(encoding="utf-8") if path.exists() else ""))
    on_gpu = all(request.device == "cuda" for request in requests)
    config = replace(
        engine, jobs=len(jobs), gpus=int(on_gpu), alone=not on_gpu, folder=engine.folder or folder
    )
    codes: dict[str, int] = {}
    with open_pool(config, open_worker) as pool:
        for outcome in pool.run(jobs, limit_s=LIMIT_S):
            name = outcome.job.name
            if outcome.error is not None:
                tell(f"{name}: {outcome.error.what}")
                codes[name] = outcome.error.exit_code
                continue
            result: BenchResult = outcome.value
            codes[name] = result.code
            if result.record:
                write_text(record_path(folder, name), result.record)
            tell(f"{name}: done" if not result.code else f"{name}: exit code {result.code}\n{result.printed}")
    return codes
