"""Measured points: the result of a worker, and of a worker that dies."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="workers measure torch here")

from pinchpoint.core import host_memory, targets
from pinchpoint.core.errors import Missing
from pinchpoint.studies import worker
from pinchpoint.studies.point_runs import measure_point
from pinchpoint.studies.worker import Request
from pinchpoint.studies.worker_pool import Workers, _environment

TARGET = """
import os
import time
import torch

def step_of(size, device):
    kept = torch.zeros(size, device=device)
    if size == 13:
        raise ValueError("thirteen")
    if size == 14:
        return torch.empty(2**60, dtype=torch.uint8)
    if size == 15:
        return 7
    if size == 20:
        add = lambda tensor: tensor + 1
        add.processed = size
        return add, (kept,)
    if size == 16:
        os._exit(3)
    if size == 17:
        os.kill(os.getpid(), 11)
    calls = []

    def step():
        calls.append(1)
        if len(calls) > 3 and size == 18:
            time.sleep(60)
        if len(calls) > 3 and size == 19:
            os._exit(3)
        return kept + 1

    return step
"""


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    path = tmp_path / "grower.py"
    path.write_text(TARGET)
    # In this process the guard would limit the whole test run.
    monkeypatch.setattr(worker, "_guard_host", lambda: None)

    def make(size: int, **options) -> Request:
        target = asdict(targets.find(f"{path}:step_of"))
        return Request(
            what="point",
            target=target,
            framework="torch",
            size=size,
            mode=None,
            variant=None,
            device="cpu",
            seed=0,
            **options,
        )

    yield make
    sys.modules.pop("grower", None)


def test_the_peak_of_a_point_is_the_most_bytes_alive_at_once(request_of):
    # `kept`, the result of one step, and the result of the step before it.
    result = worker.answer(request_of(1_000, timed=False))
    assert (result["status"], result["peak_allocated_bytes"], result["processed"]) == ("ok", 8_000, None)
    assert "median_s" not in result


def test_time_and_peak_come_from_separate_runs(request_of, monkeypatch):
    runs = []
    built = worker._build
    monkeypatch.setattr(worker, "_build", lambda *args: runs.append("build") or built(*args))
    monkeypatch.setattr(worker, "_time", lambda *args, real=worker._time: runs.append("time") or real(*args))
    saves = []
    result = worker.answer(request_of(1_000, repeats=6, warmup=1), saves.append)
    assert runs == ["build", "time", "build"]
    assert result["peak_allocated_bytes"] == saves[0]["peak_allocated_bytes"] == 8_000
    assert 0 < result["low_s"] <= result["median_s"] <= result["high_s"]


def test_an_error_of_the_target_is_recorded_with_its_line(request_of):
    result = worker.answer(request_of(13))
    assert result["status"] == "failed"
    assert "ValueError" in result["reason"]
    assert "thirteen" in result["reason"]
    assert "grower.py:9" in result["reason"]


def test_running_out_of_memory_is_recorded_as_such(request_of):
    assert worker.answer(request_of(14))["status"] == "oom"


def test_a_factory_that_does_not_return_a_callable_is_bad_input(request_of):
    result = worker.answer(request_of(15))
    assert result["error"] == "BadInput"
    assert "step_of returned int, not a step" in result["what"]


def test_a_factory_may_return_a_function_with_its_arguments(request_of):
    result = worker.answer(request_of(20, timed=False))
    assert (result["status"], result["peak_allocated_bytes"], result["processed"]) == ("ok", 160, 20)


def test_a_point_contains_the_result_of_its_worker(request_of):
    def run(request, *, timeout_s):
        return {"status": "oom", "reason": "CUDA out of memory", "limit_bytes": 5}

    result = measure_point(request_of(1_000), label="plain", mode="train", timeout_s=600, run=run)
    assert (result.point.status, result.point.variant, result.limit_bytes) == ("oom", "plain", 5)


@pytest.fixture
def workers():
    with Workers("torch") as run:
        yield run


def test_a_fresh_interpreter_answers_as_this_one_does(request_of, workers):
    result = workers(request_of(1_000), timeout_s=600)
    assert (result["status"], result["peak_allocated_bytes"]) == ("ok", 8_000)
    assert result["median_s"] > 0
    assert result["machine"]["versions"]["torch"]


def test_a_process_that_dies_is_a_failed_point(request_of, workers):
    assert workers(request_of(16), timeout_s=600)["reason"].startswith("exited with code 3")


def test_a_run_beyond_its_time_limit_is_ended_and_recorded(request_of, workers):
    assert workers(request_of(1_000), timeout_s=0.05) == {
        "status": "timeout",
        "reason": "took longer than 0.05 s",
    }


@pytest.mark.parametrize(
    ("size", "status", "reason"),
    [(18, "timeout", "while timing: took longer"), (19, "failed", "while timing: exited with code 3")],
)
def test_a_peak_is_kept_when_the_timing_fails(request_of, workers, monkeypatch, size, status, reason):
    plain = subprocess.Popen.wait

    def wait(self, timeout=None):
        """Start the time limit at the peak, because the start-up time of torch depends on the machine."""
        while timeout is not None and not Path(self.args[-1]).exists() and self.poll() is None:
            time.sleep(0.02)  # polling: the file is written by another process
        return plain(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    result = workers(request_of(size), timeout_s=0.5 if status == "timeout" else 600)
    assert (result["status"], result["peak_allocated_bytes"]) == (status, 8 * size)
    assert result["reason"].startswith(reason)


def test_a_framework_without_bytecode_is_compiled_once_per_study(tmp_path, monkeypatch):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: SimpleNamespace(origin=str(package / "__init__.py"))
    )
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    assert _environment("torch", "/shared")["PYTHONPYCACHEPREFIX"] == "/shared"
    (package / "__pycache__").mkdir()
    assert "PYTHONPYCACHEPREFIX" not in _environment("torch", "/shared")


def test_a_missing_device_raises_instead_of_being_recorded(request_of, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    request = request_of(1_000)
    result = worker.answer(Request(**{**asdict(request), "device": "cuda"}))
    assert result["error"] == Missing.__name__


def test_requests_survive_json(request_of):
    request = request_of(1_000)
    assert Request(**json.loads(json.dumps(asdict(request)))) == request


@pytest.mark.skipif(sys.platform != "linux", reason="the guard uses Linux limits")
def test_the_guard_reads_the_free_memory_of_the_host():
    assert 2**20 < host_memory.available_bytes() < 2**50
