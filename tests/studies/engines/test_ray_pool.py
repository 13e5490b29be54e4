"""The Ray engine, on a cluster of two workers that is started on this machine."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import load
from pinchpoint.studies.engines.ray_pool import Task, Worker, next_lost, other_place

FACTORY = """
import torch

def wide(size, device):
    layer = torch.nn.Linear(64, 64).to(device)
    points = torch.zeros(size, 64, device=device)

    def step():
        layer(points).square().mean().backward()

    return step
"""


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        # Ray kills workers when the machine's memory is nearly full, whoever uses it.
        _system_config={"memory_monitor_refresh_ms": 0},
    )
    yield
    ray.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_workers_share_jobs_and_a_job_whose_worker_dies_runs_again(tmp_path: Path):
    from pinchpoint.studies.engines.engine import EngineConfig, open_pool

    died = tmp_path / "died"

    @contextmanager
    def open_worker():
        def run(job: int) -> tuple[int, int]:
            (tmp_path / f"started {job}").touch()
            late = time.monotonic() + 300
            while job < 2 and not (tmp_path / f"started {1 - job}").exists():
                assert time.monotonic() < late, "The second worker did not start."
                time.sleep(0.05)  # each worker gets one of the first two jobs
            if job == 2 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if job == 4:
                raise BadInput("Four is not a size.", hint="Use another.")
            return job * job, os.getpid()

        yield run

    with open_pool(EngineConfig("ray", workers=2), open_worker) as pool:
        outcomes = sorted(pool.run(range(6), limit_s=600), key=lambda outcome: outcome.index)
        again = list(pool.run([10], limit_s=600))
    assert [outcome.index for outcome in outcomes] == [0, 1, 2, 3, 4, 5]
    assert [outcome.value[0] for outcome in outcomes if outcome.error is None] == [0, 1, 4, 9, 25]
    assert [outcome.tries for outcome in outcomes] == [1, 1, 2, 1, 1, 1]
    error = outcomes[4].error
    assert isinstance(error, BadInput) and error.hint == "Use another."
    assert len({outcome.value[1] for outcome in outcomes if outcome.error is None}) >= 2
    assert again[0].value[0] == 100


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_study_on_two_workers_writes_the_record_of_a_local_one(tmp_path: Path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from pinchpoint.cli.main import run

    monkeypatch.setattr("pinchpoint.studies.study_folder.gallery.draw_all", lambda study: {})
    (tmp_path / "wide.py").write_text(FACTORY, encoding="utf-8")
    command = ["study", f"{tmp_path / 'wide.py'}:wide", "--sizes", "1k,2k,4k,8k"]
    assert run([*command, "-o", str(tmp_path / "ray"), "--engine", "ray", "--workers", "2"]) == 0
    assert run([*command, "-o", str(tmp_path / "local")]) == 0
    elsewhere, local = (load(tmp_path / name / "study.json") for name in ("ray", "local"))
    assert elsewhere.points == local.points  # pyright: ignore[reportAttributeAccessIssue]
    assert elsewhere.laws == local.laws  # pyright: ignore[reportAttributeAccessIssue]
    assert elsewhere.notes == local.notes  # pyright: ignore[reportAttributeAccessIssue]
    assert elsewhere.machine == local.machine  # pyright: ignore[reportAttributeAccessIssue]
    capsys.readouterr()
    assert run([*command, "--engine", "ray", "--engine-option", "partition=gpu"]) == 2
    assert "has no option 'partition'" in capsys.readouterr().err


def worker(node: str | None) -> Worker:
    return Worker(actor=None, reference=None, node=node)


def test_a_lost_job_goes_to_another_node_while_there_is_one():
    here, there, starting = worker("a"), worker("b"), worker(None)
    task = Task(0, "job", nodes={"a"})
    assert next_lost([task], here, [here, there]) is None
    assert next_lost([task], here, [here, starting]) is None
    assert next_lost([task], there, [here, there]) is task
    assert next_lost([task], here, [here]) is task
    assert other_place(starting, task)
