"""The runs of one study: every point of the ladder, then the memory boundary, each saved when it finishes.

Fake points come from forecasts. Measured points come from fresh interpreters, with the forecast beside
them as theory: running out of memory, a crash, a signal or the time limit is the point's result, with
its reason, and only input that no point could use is raised. Points of an earlier study (`--resume`)
are not run again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pinchpoint.core.errors import BadInput, CannotFake, Missing, PinchpointError, TimedOut
from pinchpoint.core.growth_law import LEAST, fit
from pinchpoint.core.records import Forecast, Point, Status
from pinchpoint.core.units import show_size
from pinchpoint.forecasting.forecaster import Forecasts
from pinchpoint.studies.config import StudyConfig
from pinchpoint.studies.memory_boundary import find_boundary
from pinchpoint.studies.worker import Request

MODULES = 40  # the number of largest modules stored with a point
NOT_RUN = "not run: "

Progress = Callable[[int, int, str], None]


class Runner(Protocol):
    """Answers a request for a point, as `worker_pool.Workers` does."""

    def __call__(self, request: Request, *, timeout_s: float) -> dict[str, Any]: ...


@dataclass(frozen=True)
class MeasuredPoint:
    """A point, and what its worker reports about its machine.

    `limit_bytes`: the memory of the device, if known.
    """

    point: Point
    limit_bytes: int | None = None
    machine: dict[str, Any] | None = None


def measure_point(request: Request, *, label: str, mode: str, timeout_s: float, run: Runner) -> MeasuredPoint:
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
    return MeasuredPoint(point, answer.get("limit_bytes"), answer.get("machine"))


@dataclass
class Session:
    """Runs the points of a study in order. `points`, `boundary` and `notes` hold the results so far."""

    config: StudyConfig
    forecasts: Forecasts
    run: Runner  # for measured points
    progress: Progress = lambda done, total, text: None
    save: Callable[[], None] = lambda: None  # called after every point
    earlier_points: Sequence[Point] = ()  # those of an earlier, unfinished study
    points: list[Point] = field(default_factory=list)
    boundary: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] | None = None
    first_error: PinchpointError | None = None
    _limits: dict[tuple[str, str], int] = field(default_factory=dict)
    _no_theory: set[tuple[str, str | None]] = field(default_factory=set)

    def check_device(self) -> None:
        """Raise if the device is missing, before anything runs on it."""
        if self.config.device == "cuda":
            variant, mode, size = self.config.jobs()[0]
            answer = self.run(self._request("check", variant, mode, size), timeout_s=self.config.timeout_s)
            if answer["status"] != "ok":
                raise Missing(
                    f"The GPU cannot be opened: {answer['reason'].rstrip('.')}.",
                    hint="Check that nvidia-smi lists the GPU, or use --on fake.",
                )
            self.machine = answer.get("machine")

    def run_all(self) -> None:
        """Run every point, then find the boundary of every line that ran out of memory."""
        jobs = self.config.jobs()
        for done, (variant, mode, size) in enumerate(jobs):
            self.progress(done, len(jobs), _name(variant, mode, size))
            self._add(self._point(variant, mode, size))
        for variant, mode in self._lines():
            self._find_boundary(variant, mode)
        self.progress(len(jobs), len(jobs), "done")

    def _point(self, variant: str, mode: str | None, size: int) -> Point:
        earlier_point = self._earlier_point(variant, mode, size)
        if earlier_point is not None:
            return earlier_point
        if self.config.device == "fake":
            return self._fake(variant, mode, size)
        for smaller in self.points:
            if (smaller.variant, smaller.status) in ((variant, "oom"), (variant, "timeout")) and mode in (
                None,
                smaller.mode,
            ):
                why = "ran out of memory" if smaller.status == "oom" else "took too long"
                reason = f"{NOT_RUN}{show_size(smaller.size)} already {why}"
                return Point(size, smaller.mode, variant, smaller.status, reason=reason)
        return self._measure(variant, mode, size)

    def _fake(self, variant: str, mode: str | None, size: int) -> Point:
        try:
            forecast = self._forecast(variant, mode, size)
        except (BadInput, Missing):
            raise  # every other size would fail in the same way
        except PinchpointError as error:
            self.first_error = self.first_error or error
            status: Status = "timeout" if isinstance(error, TimedOut) else "failed"
            return Point(size, mode or self._mode_of(variant), variant, status, reason=error.what)
        return Point(
            size=size,
            mode=forecast.mode,
            variant=variant,
            status="ok",
            processed=forecast.processed,
            peak_allocated_bytes=forecast.peak_allocated_bytes,
            peak_reserved_bytes=forecast.peak_reserved_bytes,
            total_bytes=forecast.total_bytes,
            theory_bytes=forecast.peak_allocated_bytes,
            breakdown=dict(forecast.breakdown),
            modules=_largest(forecast),
        )

    def _measure(self, variant: str, mode: str | None, size: int, *, timed: bool = True) -> Point:
        theory = self._theory(variant, mode, size)
        request = dataclasses.replace(self._request("point", variant, mode, size), timed=timed)
        label = theory.mode if theory else mode or self._mode_of(variant)
        result = measure_point(
            request, label=variant, mode=label, timeout_s=self.config.timeout_s, run=self.run
        )
        self.machine = self.machine or result.machine
        if result.limit_bytes is not None:
            self._limits[variant, label] = result.limit_bytes
        if theory is None:
            return result.point
        parts, theory_bytes = dict(theory.breakdown), theory.peak_allocated_bytes
        if self.config.device == "cpu":
            theory_bytes -= parts.pop("workspace", 0)  # a CPU run has no cuBLAS workspace
        return dataclasses.replace(
            result.point,
            processed=theory.processed if result.point.processed is None else result.point.processed,
            theory_bytes=theory_bytes,
            breakdown=parts,
            modules=_largest(theory),
        )

    def _request(self, what: Literal["check", "point"], variant: str, mode: str | None, size: int) -> Request:
        return Request(
            what=what,
            target=dataclasses.asdict(self.config.target),
            framework=self.config.framework,
            size=size,
            mode=mode,
            variant=self.config.lines[variant].variant,
            device=self.config.device,
            seed=self.config.seed,
            warmup=self.config.warmup,
            repeats=self.config.repeats,
            cap_bytes=self.config.cap_bytes,
            settings=dict(self.config.lines[variant].settings),
        )

    def _theory(self, variant: str, mode: str | None, size: int) -> Forecast | None:
        """Return the forecast for a measured point, or None if it fails."""
        if (variant, mode) in self._no_theory:
            return None
        try:
            return self._forecast(variant, mode, size)
        except (BadInput, Missing):
            raise
        except PinchpointError as error:
            if isinstance(error, (CannotFake, TimedOut)):
                self._no_theory.add((variant, mode))  # the next size would fail in the same way, slowly
            self.notes.append(f"{_name(variant, mode, size)} has no theory: {error.what}")
            return None

    def _forecast(self, variant: str, mode: str | None, size: int) -> Forecast:
        line = self.config.lines[variant]
        return self.forecasts.predict(size=size, mode=mode, variant=line.variant, settings=line.settings)

    def _find_boundary(self, variant: str, mode: str) -> None:
        """Start from the ladder and an earlier study's search, and narrow the boundary to within 1 %."""
        if self.config.device == "fake":
            return
        earlier = [
            p for p in self.earlier_points if (p.variant, p.mode) == (variant, mode) and p not in self.points
        ]
        mine = [
            p
            for p in self.points
            if (p.variant, p.mode) == (variant, mode) and not p.reason.startswith(NOT_RUN)
        ]
        fails = sorted((p for p in [*mine, *earlier] if p.status == "oom"), key=lambda p: p.size)
        fits = sorted((p for p in [*mine, *earlier] if p.status == "ok"), key=lambda p: p.size)
        if not fits or not fails:
            return
        for point in earlier:
            self._add(point)

        def run(size: int) -> bool | None:
            self.progress(
                len(self.config.jobs()), len(self.config.jobs()), f"boundary: {_name(variant, mode, size)}"
            )
            run_mode = None if self.config.plain else mode
            point = self._measure(variant, run_mode, size, timed=False)
            self._add(point)
            return {"ok": True, "oom": False}.get(point.status)

        boundary = find_boundary(
            fits[-1].size, fails[0].size, guess=self._guess(fits, variant, mode), run=run
        )
        self.boundary.append({"mode": mode, "variant": variant, **dataclasses.asdict(boundary)})

    def _guess(self, fits: Sequence[Point], variant: str, mode: str) -> float | None:
        """Return the size at which the fitted law reaches the memory limit, if both are known."""
        limit = self._limits.get((variant, mode))
        peaks = [p.peak_reserved_bytes or p.peak_allocated_bytes for p in fits]
        known_peaks = [peak for peak in peaks if peak]
        if limit is None or len(known_peaks) < max(LEAST, len(peaks)):
            return None
        return fit([p.size for p in fits], known_peaks, seed=self.config.seed).curve.size_at(limit)

    def _earlier_point(self, variant: str, mode: str | None, size: int) -> Point | None:
        for point in self.earlier_points:
            if (point.variant, point.size) == (variant, size) and mode in (None, point.mode):
                return point
        return None

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield from dict.fromkeys((p.variant, p.mode) for p in self.points)

    def _mode_of(self, variant: str) -> str:
        """Return a plain factory's mode, from any point that has run; until then assume `train`."""
        return next((p.mode for p in self.points if p.variant == variant and p.status == "ok"), "train")

    def _add(self, point: Point) -> None:
        self.points.append(point)
        self.save()


def reusable_points(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points of an earlier study that ran to their end.

    Failures and skipped sizes are tried again.
    """
    return tuple(p for p in points if p.status in ("ok", "oom") and not p.reason.startswith(NOT_RUN))


def _largest(forecast: Forecast) -> tuple[dict[str, Any], ...]:
    return tuple(sorted(forecast.modules, key=lambda m: -int(m["bytes"]))[:MODULES])


def _name(variant: str, mode: str | None, size: int) -> str:
    return " ".join(part for part in (variant, mode, show_size(size)) if part)
