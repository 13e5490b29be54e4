"""The run of one point of a study, in this process or in a worker of an engine.

Fake points come from forecasts. Measured points come from fresh interpreters, with the forecast beside
them as theory: running out of memory, a crash, a signal or the time limit is the point's result, with
its reason, and only input that no point could use is raised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pinchpoint.core.errors import BadInput, CannotFake, Missing, PinchpointError, TimedOut
from pinchpoint.core.records import Forecast, Point, Status
from pinchpoint.core.units import show_size
from pinchpoint.forecasting.forecaster import Forecaster, Forecasts
from pinchpoint.studies.config import StudyConfig
from pinchpoint.studies.forecast_process import RestartingForecaster
from pinchpoint.studies.memory_boundary import Boundary, find_boundary
from pinchpoint.studies.worker import Request
from pinchpoint.studies.worker_pool import Workers

MODULES = 40  # the number of largest modules stored with a point


class Runner(Protocol):
    """Answers a request for a point, as `worker_pool.Workers` does."""

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]: ...


@dataclass(frozen=True)
class PointJob:
    """One point to run. likely_mode: the mode of a plain factory whose run fails before it is known."""

    variant: str
    mode: str | None
    size: int
    timed: bool = True
    likely_mode: str = "train"

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.variant, self.mode, show_size(self.size)) if part)


@dataclass(frozen=True)
class BoundaryJob:
    """A search for the memory boundary of one line, between a size that fits and one that does not."""

    variant: str
    mode: str
    fits: int
    fails: int
    guess: float | None


@dataclass(frozen=True)
class PointResult:
    """A point, and what its run reports besides.

    `limit_bytes`: the memory of the device, if known. error: why a forecast failed.
    """

    point: Point
    limit_bytes: int | None = None
    machine: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    error: PinchpointError | None = None


@dataclass
class PointRuns:
    """Runs points of one study, one after another."""

    config: StudyConfig
    forecasts: Forecasts
    run: Runner  # for measured points
    _no_theory: set[tuple[str, str | None]] = field(default_factory=set)

    def __call__(self, job: PointJob | BoundaryJob) -> Any:
        """Return the PointResult of a point, or (Boundary, PointResults) of a boundary."""
        if isinstance(job, BoundaryJob):
            results: list[PointResult] = []
            return self.boundary(job, on_result=results.append), results
        return self._fake(job) if self.config.device == "fake" else self._measure(job)

    def boundary(self, job: BoundaryJob, *, on_result: Callable[[PointResult], object]) -> Boundary:
        """Narrow the boundary to within 1 %. on_result: called with every run."""
        run_mode = None if self.config.plain else job.mode

        def fits(size: int) -> bool | None:
            result = self._measure(PointJob(job.variant, run_mode, size, timed=False, likely_mode=job.mode))
            on_result(result)
            return {"ok": True, "oom": False}.get(result.point.status)

        return find_boundary(job.fits, job.fails, guess=job.guess, run=fits)

    def check_device(self, job: PointJob) -> dict[str, Any] | None:
        """Return the machine that measures, or raise if it has no GPU, before anything runs on it."""
        answer = self.run(self._request("check", job), timeout_s=self.config.timeout_s)
        if answer["status"] != "ok":
            raise Missing(
                f"The GPU cannot be opened: {answer['reason'].rstrip('.')}.",
                hint="Check that nvidia-smi lists the GPU, or use --on fake.",
            )
        return answer.get("machine")

    def _fake(self, job: PointJob) -> PointResult:
        try:
            forecast = self._forecast(job)
        except (BadInput, Missing):
            raise  # every other size would fail in the same way
        except PinchpointError as error:
            status: Status = "timeout" if isinstance(error, TimedOut) else "failed"
            point = Point(job.size, job.mode or job.likely_mode, job.variant, status, reason=error.what)
            return PointResult(point, error=error)
        point = Point(
            size=job.size,
            mode=forecast.mode,
            variant=job.variant,
            status="ok",
            processed=forecast.processed,
            peak_allocated_bytes=forecast.peak_allocated_bytes,
            peak_reserved_bytes=forecast.peak_reserved_bytes,
            total_bytes=forecast.total_bytes,
            theory_bytes=forecast.peak_allocated_bytes,
            breakdown=dict(forecast.breakdown),
            modules=_largest(forecast),
        )
        return PointResult(point, machine=forecast.machine)

    def _measure(self, job: PointJob) -> PointResult:
        theory, notes = self._theory(job)
        request = dataclasses.replace(self._request("point", job), timed=job.timed)
        mode = theory.mode if theory else job.mode or job.likely_mode
        result = measure_point(
            request, label=job.variant, mode=mode, timeout_s=self.config.timeout_s, run=self.run
        )
        point = result.point
        if theory is not None:
            parts, theory_bytes = dict(theory.breakdown), theory.peak_allocated_bytes
            if self.config.device == "cpu":
                theory_bytes -= parts.pop("workspace", 0)  # a CPU run has no cuBLAS workspace
            point = dataclasses.replace(
                point,
                processed=theory.processed if point.processed is None else point.processed,
                theory_bytes=theory_bytes,
                breakdown=parts,
                modules=_largest(theory),
            )
        return dataclasses.replace(result, point=point, notes=notes)

    def _request(self, what: Literal["check", "point"], job: PointJob) -> Request:
        return Request(
            what=what,
            target=dataclasses.asdict(self.config.target),
            framework=self.config.framework,
            size=job.size,
            mode=job.mode,
            variant=self.config.lines[job.variant].variant,
            device=self.config.device,
            seed=self.config.seed,
            warmup=self.config.warmup,
            repeats=self.config.repeats,
            cap_bytes=self.config.cap_bytes,
            settings=dict(self.config.lines[job.variant].settings),
        )

    def _theory(self, job: PointJob) -> tuple[Forecast | None, tuple[str, ...]]:
        """Return the forecast for a measured point, or None and a note if it fails."""
        if (job.variant, job.mode) in self._no_theory:
            return None, ()
        try:
            return self._forecast(job), ()
        except (BadInput, Missing):
            raise
        except PinchpointError as error:
            if isinstance(error, (CannotFake, TimedOut)):
                # The next size would fail in the same way, slowly.
                self._no_theory.add((job.variant, job.mode))
            return None, (f"{job.name} has no theory: {error.what}",)

    def _forecast(self, job: PointJob) -> Forecast:
        line = self.config.lines[job.variant]
        return self.forecasts.predict(
            size=job.size, mode=job.mode, variant=line.variant, settings=line.settings
        )


@dataclass(frozen=True)
class OpenPointRuns:
    """Opens what a worker of an engine runs the points of a study with."""

    config: StudyConfig

    @contextmanager
    def __call__(self) -> Iterator[Callable[[PointJob | BoundaryJob], Any]]:
        config = self.config
        with open_forecaster(config.target.text, config) as forecasts, Workers(config.framework) as run:
            yield PointRuns(config, forecasts, run)


def open_forecaster(target: Any, config: StudyConfig) -> RestartingForecaster:
    """Return the forecaster of a study, whose process starts on first use."""
    return RestartingForecaster(
        lambda: Forecaster(target, card=config.card.name, seed=config.seed, timeout_s=config.timeout_s)
    )


def measure_point(request: Request, *, label: str, mode: str, timeout_s: float, run: Runner) -> PointResult:
    """Measure one point; `label` and `mode` name it."""
    answer = run(request, timeout_s=timeout_s)
    point = Point(
        size=request.size,
        mode=mode,
        variant=label,
        status=answer["status"],
        processed=answer.get("processed"),
        peak_allocated_bytes=answer.get("peak_allocated_bytes"),
        peak_reserved_bytes=answer.get("peak_reserved_bytes"),
        total_bytes=answer.get("peak_total_bytes"),
        time_s=answer.get("median_s"),
        time_low_s=answer.get("low_s"),
        time_high_s=answer.get("high_s"),
        reason=answer.get("reason", ""),
    )
    return PointResult(point, answer.get("limit_bytes"), answer.get("machine"))


def _largest(forecast: Forecast) -> tuple[dict[str, Any], ...]:
    return tuple(sorted(forecast.modules, key=lambda m: -int(m["bytes"]))[:MODULES])
