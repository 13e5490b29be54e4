"""Benches on a cluster: one job per system, whose record travels there and back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.errors import TargetFailed
from pinchpoint.studies.engines.engine import EngineConfig, Outcome
from pinchpoint.systems.common.bench import cluster
from pinchpoint.systems.common.bench.cluster import BenchJob, bench_on_cluster, run_job
from pinchpoint.systems.common.bench.worker import Request


@pytest.fixture
def worker(monkeypatch) -> list[Request]:
    """A stand-in for the worker's process: adds a letter to its record, and fails for `vmc`."""
    requests: list[Request] = []

    def process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        import json

        request = Request(**json.loads(command[-1]))
        requests.append(request)
        path = Path(request.folder) / f"{request.system}.json"
        if request.system == "vmc":
            return subprocess.CompletedProcess(command, -9, "Killed")
        path.write_text((path.read_text() if path.exists() else "") + "x")
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(cluster.subprocess, "run", process)
    return requests


@pytest.fixture
def pool(monkeypatch) -> list[EngineConfig]:
    """Runs the jobs of a pool here, the last one first; a job of `lost` is lost."""
    configs: list[EngineConfig] = []

    class Here:
        def run(self, jobs: Iterable[BenchJob], *, limit_s: float) -> Iterator[Outcome]:
            for index, job in reversed(list(enumerate(jobs))):
                if job.name == "density":
                    yield Outcome(index, job, error=TargetFailed("Its worker died.", hint="Look."))
                else:
                    yield Outcome(index, job, value=run_job(job))

    @contextmanager
    def open_pool(config: EngineConfig, open_worker: Any) -> Iterator[Here]:
        configs.append(config)
        yield Here()

    monkeypatch.setattr(cluster, "open_pool", open_pool)
    return configs


def test_records_are_continued_elsewhere_and_written_here(worker, pool, tmp_path: Path) -> None:
    (tmp_path / "cloud.json").write_text("earlier ")
    requests = [
        Request(name, str(tmp_path), device="cuda") for name in ("cloud", "operator", "vmc", "density")
    ]
    lines: list[str] = []
    codes = bench_on_cluster(requests, tmp_path, EngineConfig("ray"), tell=lines.append)
    assert codes == {"cloud": 0, "operator": 0, "vmc": 137, "density": 2}
    assert (tmp_path / "cloud.json").read_text() == "earlier x"
    assert (tmp_path / "operator.json").read_text() == "x"
    assert not (tmp_path / "vmc.json").exists()
    assert any("Killed" in line for line in lines) and "density: Its worker died." in lines
    assert all(request.folder != str(tmp_path) for request in worker)
    assert (pool[0].gpus, pool[0].alone, pool[0].jobs) == (1, False, 4)


@pytest.mark.usefixtures("worker")
def test_without_a_gpu_each_system_has_a_machine_to_itself(pool, tmp_path: Path) -> None:
    bench_on_cluster([Request("cloud", str(tmp_path))], tmp_path, EngineConfig("ray"), tell=str)
    assert (pool[0].gpus, pool[0].alone) == (0, True)


def test_the_command_passes_the_engine_on(monkeypatch, tmp_path: Path) -> None:
    calls: list[Any] = []

    def bench(requests, folder, engine, *, tell):
        calls.append(([request.system for request in requests], engine))
        return {request.system: 0 for request in requests}

    monkeypatch.setattr(cluster, "bench_on_cluster", bench)
    monkeypatch.setattr("pinchpoint.studies.engines.engine.find_spec", lambda package: object())
    command = ["bench", "cloud", "vmc", "--engine", "slurm", "--engine-option", "partition=gpu"]
    assert run([*command, "--workers", "2", "-o", str(tmp_path)]) == 0
    assert calls == [(["cloud", "vmc"], EngineConfig("slurm", workers=2, options={"partition": "gpu"}))]
