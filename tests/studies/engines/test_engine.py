"""Engines: options of the command line, and a study whose points run elsewhere and in any order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput, Missing, TargetFailed
from pinchpoint.studies.engines import engine
from pinchpoint.studies.engines.engine import EngineConfig, Outcome, read_engine
from pinchpoint.studies.point_runs import PointJob, PointRuns
from pinchpoint.studies.study import study

RAY = EngineConfig("ray")


class BackwardsPool:
    """Runs jobs in this process in batches of `workers`, the last one of a batch first."""

    def __init__(self, runs: Any, workers: int, lost: set[int]) -> None:
        self.runs, self.workers, self.lost = runs, workers, lost
        self.sizes: list[int] = []

    def run(self, jobs: Iterable[Any], *, limit_s: float) -> Iterator[Outcome]:
        source = enumerate(jobs)
        while batch := [pair for _, pair in zip(range(self.workers), source, strict=False)]:
            for index, job in reversed(batch):
                if isinstance(job, PointJob):
                    self.sizes.append(job.size)
                    if job.size in self.lost:
                        error = TargetFailed("Its worker died 3 times.", hint="Look at the logs.")
                        yield Outcome(index, job, error=error, tries=3)
                        continue
                yield Outcome(index, job, value=self.runs(job))


@pytest.fixture
def spread(monkeypatch, forecasts, workers):
    """Makes `study` run its points on a BackwardsPool; returns the pool of the last study."""
    pools: list[BackwardsPool] = []

    def use(*, limit_bytes: int = 10**18, at_a_time: int = 3, lost: Iterable[int] = ()):
        @contextmanager
        def open_pool(config, open_worker):
            runs = PointRuns(open_worker.config, forecasts(), workers(limit_bytes=limit_bytes))
            pools.append(BackwardsPool(runs, at_a_time, set(lost)))
            yield pools[-1]

        monkeypatch.setattr("pinchpoint.studies.study.open_pool", open_pool)
        monkeypatch.setattr("pinchpoint.studies.study.check_engine", lambda config: None)
        return pools

    return use


def same(record):
    return replace(record, took_s=0.0, created="", machine={})


def test_points_that_finish_in_another_order_give_the_record_of_a_local_study(spread, forecasts):
    spread()
    options = {"sizes": "5k:1M:8", "variants": "all", "on": "fake"}
    local = study("field", **options, forecaster=forecasts())
    assert same(study("field", **options, engine=RAY)) == same(local)


def test_a_measured_study_elsewhere_finds_the_same_boundary(spread, forecasts, workers):
    limit = 2**30
    options = {"sizes": "5k:1M:8", "modes": "train", "on": "cuda"}
    local = study("field", **options, forecaster=forecasts(), runner=workers(limit_bytes=limit))
    # With two at a time, one size more than locally has started when a smaller one runs out of memory.
    pools = spread(limit_bytes=limit, at_a_time=2)
    elsewhere = study("field", **options, engine=RAY)
    assert elsewhere.boundary == local.boundary
    assert elsewhere.laws == local.laws
    too_large = [p.size for p in elsewhere.points if p.reason.startswith("not run")]
    assert too_large == [p.size for p in local.points if p.reason.startswith("not run")][1:]
    assert len(too_large) == 2 and not set(too_large) & set(pools[0].sizes)


def test_a_job_that_was_lost_is_a_failed_point_and_the_study_goes_on(spread):
    spread(lost=[5_000])
    result = study("field", sizes="5k,10k,20k,40k,80k", modes="train", engine=RAY)
    assert [p.status for p in result.points] == ["failed", "ok", "ok", "ok", "ok"]
    assert result.points[0].reason == "Its worker died 3 times."


def test_a_stopped_study_on_a_cluster_resumes_from_its_points(spread, monkeypatch, tmp_path):
    monkeypatch.setattr("pinchpoint.studies.study_folder.gallery.draw_all", lambda study: {})
    options = {"sizes": "5k,10k,20k,40k,80k", "modes": "train", "output": tmp_path, "engine": RAY}

    def stop(done, total, text):
        if done == 2:
            raise KeyboardInterrupt

    pools = spread(at_a_time=1)
    # A requeued job repeats its first command line, so `--resume` must also begin a study.
    with pytest.raises(KeyboardInterrupt):
        study("field", **options, resume=True, progress=stop)
    assert study("field", **options, resume=True).complete
    assert [pool.sizes for pool in pools] == [[5_000, 10_000, 20_000], [40_000, 80_000]]


def test_machines_that_differ_are_noted(spread, forecasts, workers, monkeypatch):
    class Mixed(workers):
        def __call__(self, request, *, timeout_s):
            gpu = "A100" if request.size < 20_000 else "H100"
            return {**super().__call__(request, timeout_s=timeout_s), "machine": {"gpu": gpu}}

    @contextmanager
    def open_pool(config, open_worker):
        yield BackwardsPool(PointRuns(open_worker.config, forecasts(), Mixed()), 2, set())

    spread()
    monkeypatch.setattr("pinchpoint.studies.study.open_pool", open_pool)
    result = study("field", sizes="5k,10k,20k,40k", modes="train", on="cuda", engine=RAY)
    assert any("different machines (A100, H100)" in note for note in result.notes)


@pytest.mark.parametrize(
    ("name", "workers", "options", "says"),
    [
        ("spark", None, (), "no engine 'spark'"),
        ("local", 2, (), "--workers needs a cluster"),
        ("local", None, ("a=1",), "--engine-option needs a cluster"),
        ("ray", 0, (), "--workers is 0"),
        ("slurm", None, ("partition",), "form KEY=VALUE"),
    ],
)
def test_bad_options_are_refused(name, workers, options, says, monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda package: nullcontext())
    with pytest.raises(BadInput, match=says):
        read_engine(name, workers=workers, options=options)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_engine_without_its_package_says_how_to_install_it(name, package, monkeypatch):
    monkeypatch.setattr(engine, "find_spec", lambda package: None)
    with pytest.raises(Missing, match=package) as caught:
        read_engine(name, workers=None, options=())
    assert f"pinchpoint[{name}]" in caught.value.hint
