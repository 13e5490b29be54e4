"""Measured points: what a worker answers, and what becomes of one that dies."""

from __future__ import annotations

import json
import select
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="workers measure torch here")

from pinchpoint.core import discover
from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.measure import worker
from pinchpoint.measure.points import measure_point
from pinchpoint.measure.worker import Request
from pinchpoint.measure.workers import Workers

TARGET = """
import os
import torch

def step_of(size, device):
    kept = torch.zeros(size, device=device)
    if size == 13:
        raise ValueError("thirteen")
    if size == 14:
        return torch.empty(2**60, dtype=torch.uint8)
    if size == 15:
        return 7
    if size == 16:
        os._exit(3)
    if size == 17:
        os.kill(os.getpid(), 11)
    return lambda: kept + 1
"""


@pytest.fixture
def request_of(tmp_path, monkeypatch):
    path = tmp_path / "grower.py"
    path.write_text(TARGET)
    # In this process the guard would limit the whole test run.
    monkeypatch.setattr(worker, "_guard_host", lambda: None)

    def make(size: int, what: str = "peak", **options) -> Request:
        target = asdict(discover.find(f"{path}:step_of"))
        return Request(
            what=what, target=target, framework="torch", size=size, mode=None, variant=None, device="cpu", seed=0, **options
        )

    yield make
    sys.modules.pop("grower", None)


def test_the_peak_of_a_point_is_what_it_holds_at_once(request_of):
    # `kept`, the result of one step, and the result before it while the next is made.
    found = worker.answer(request_of(1_000))
    assert (found["status"], found["peak_allocated_bytes"], found["processed"]) == ("ok", 8_000, None)


def test_time_and_peak_are_never_of_one_run(request_of):
    asked = []

    def run(request, *, timeout_s):
        asked.append(request.what)
        return worker.answer(request)

    point = measure_point(request_of(1_000, repeats=6, warmup=1), label="plain", mode="train", timeout_s=60, run=run).point
    assert asked == ["peak", "time"]
    assert point.peak_allocated_bytes == 8_000
    assert point.time_s is not None
    assert point.time_low_s is not None
    assert 0 < point.time_low_s <= point.time_s
    assert point.peak_reserved_bytes is None


def test_an_error_of_the_target_is_recorded_with_its_line(request_of):
    found = worker.answer(request_of(13))
    assert found["status"] == "failed"
    assert "ValueError" in found["reason"]
    assert "thirteen" in found["reason"]
    assert "grower.py:8" in found["reason"]


def test_running_out_of_memory_is_recorded_as_such(request_of):
    assert worker.answer(request_of(14))["status"] == "oom"


def test_a_factory_that_returns_no_callable_is_said_to(request_of):
    found = worker.answer(request_of(15))
    assert found["error"] == "TargetFailed"
    assert "returned int" in found["what"]


def test_a_point_that_is_not_timed_keeps_its_peak(request_of):
    def run(request, *, timeout_s):
        return worker.answer(request) if request.what == "peak" else {"status": "timeout", "reason": "took longer than 60 s"}

    point = measure_point(request_of(1_000), label="plain", mode="train", timeout_s=60, run=run).point
    assert (point.status, point.peak_allocated_bytes) == ("timeout", 8_000)
    assert point.reason == "while timing: took longer than 60 s"


def test_a_size_that_runs_out_of_memory_is_not_timed(request_of):
    asked = []

    def run(request, *, timeout_s):
        asked.append(request.what)
        return {"status": "oom", "reason": "CUDA out of memory", "limit_bytes": 5}

    found = measure_point(request_of(1_000), label="plain", mode="train", timeout_s=60, run=run)
    assert (found.point.status, found.limit_bytes, asked) == ("oom", 5, ["peak"])


@pytest.fixture
def workers():
    with Workers("torch", ahead=0) as run:
        yield run


def test_a_fresh_interpreter_answers_as_this_one_does(request_of, workers):
    found = workers(request_of(1_000), timeout_s=120)
    assert (found["status"], found["peak_allocated_bytes"]) == ("ok", 8_000)
    assert found["machine"]["versions"]["torch"]


def test_a_process_that_dies_is_a_failed_point(request_of, workers):
    assert workers(request_of(16), timeout_s=120)["reason"].startswith("exited with code 3")


def test_a_run_beyond_its_time_limit_is_ended_and_recorded(request_of, workers):
    assert workers(request_of(1_000), timeout_s=0.05) == {"status": "timeout", "reason": "took longer than 0.05 s"}


def test_interpreters_wait_ahead_sit_still_while_one_is_timed_and_are_ended_with_the_study(request_of):
    """Each says when its imports are done; a timed run begins only after that."""
    with Workers("torch") as run:
        assert run(request_of(1_000), timeout_s=120)["status"] == "ok"
        waiting = list(run._waiting)
        assert len(waiting) == 2
        assert run(request_of(1_000, "time", repeats=2, warmup=1), timeout_s=120)["status"] == "ok"
        (left,) = run._waiting
        assert left is waiting[1] and select.select([left._ready], [], [], 0)[0]  # it had said that it is ready
        assert left._process.poll() is None
    assert left._process.poll() is not None
    assert not Path(left._folder.name).exists()


def test_a_device_that_is_not_here_is_raised_not_recorded(request_of, monkeypatch):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    made = request_of(1_000)
    found = worker.answer(Request(**{**asdict(made), "device": "cuda"}))
    assert found["error"] == Missing.__name__


def test_requests_survive_json(request_of):
    made = request_of(1_000)
    assert Request(**json.loads(json.dumps(asdict(made)))) == made


@pytest.mark.skipif(sys.platform != "linux", reason="the guard uses Linux limits")
def test_the_host_has_memory_left_and_the_guard_reads_it():
    assert 2**20 < worker.host_bytes_left() < 2**50


def test_the_framework_of_a_factory_is_what_its_module_imports(tmp_path):
    (tmp_path / "uses_jax.py").write_text("import types, sys\njax = types.ModuleType('jax')\ndef step_of(size, device): ...\n")
    loaded = discover.load(discover.find(f"{tmp_path / 'uses_jax.py'}:step_of"))
    assert worker.framework_of(loaded) == "jax"
    with pytest.raises(BadInput):
        discover.find("no_such_workload")
