"""The runs of one study: every point of the ladder, then the boundary, kept as they come.

Fake points come from forecasts; measured points from fresh interpreters, with the forecast beside
them as theory. Whatever was done before (`--resume`) is not run again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pinchpoint.core.errors import BadInput, CannotFake, Missing, PinchpointError, TimedOut
from pinchpoint.core.growth_law import LEAST, fit
from pinchpoint.core.records import Forecast, Point, Status
from pinchpoint.core.units import show_size
from pinchpoint.studies.forecast_process import Forecasts
from pinchpoint.studies.measured_points import Runner, measure_point
from pinchpoint.studies.memory_boundary import close_in
from pinchpoint.studies.request import Ask
from pinchpoint.studies.worker import Request

MODULES = 40  # the largest modules kept with a point
NOT_RUN = "not run: "

Progress = Callable[[int, int, str], None]


@dataclass
class Session:
    """Runs what was asked, in order. `points`, `boundary` and `notes` hold what is known so far."""

    ask: Ask
    forecasts: Forecasts
    run: Runner  # of measured points
    progress: Progress = lambda done, total, text: None
    keep: Callable[[], None] = lambda: None  # called after every point
    before: Sequence[Point] = ()  # from an earlier, unfinished study
    points: list[Point] = field(default_factory=list)
    boundary: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] | None = None
    first_error: PinchpointError | None = None
    _limits: dict[tuple[str, str], int] = field(default_factory=dict)
    _no_theory: set[tuple[str, str | None]] = field(default_factory=set)

    def check(self) -> None:
        """Raise if the device is not there, before anything runs on it."""
        if self.ask.device == "cuda":
            variant, mode, size = self.ask.jobs()[0]
            found = self.run(self._request("check", variant, mode, size), timeout_s=self.ask.timeout_s)
            if found["status"] != "ok":
                raise Missing(
                    f"the GPU cannot be opened: {found['reason']}", hint="check nvidia-smi, or use --on fake"
                )
            self.machine = found.get("machine")

    def go(self) -> None:
        """Every point, then the boundary of every line that ran out of memory."""
        jobs = self.ask.jobs()
        for done, (variant, mode, size) in enumerate(jobs):
            self.progress(done, len(jobs), _name(variant, mode, size))
            self._add(self._point(variant, mode, size))
        for variant, mode in self._lines():
            self._close_in(variant, mode)
        self.progress(len(jobs), len(jobs), "done")

    def _point(self, variant: str, mode: str | None, size: int) -> Point:
        earlier = self._earlier(variant, mode, size)
        if earlier is not None:
            return earlier
        if self.ask.device == "fake":
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
            raise  # no other size would fare better
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
        found = measure_point(request, label=variant, mode=label, timeout_s=self.ask.timeout_s, run=self.run)
        self.machine = self.machine or found.machine
        if found.limit_bytes is not None:
            self._limits[variant, label] = found.limit_bytes
        if theory is None:
            return found.point
        parts, theory_bytes = dict(theory.breakdown), theory.peak_allocated_bytes
        if self.ask.device == "cpu":
            theory_bytes -= parts.pop("workspace", 0)  # cuBLAS is not on the CPU, so neither is its workspace
        return dataclasses.replace(
            found.point,
            processed=theory.processed if found.point.processed is None else found.point.processed,
            theory_bytes=theory_bytes,
            breakdown=parts,
            modules=_largest(theory),
        )

    def _request(self, what: Literal["check", "point"], variant: str, mode: str | None, size: int) -> Request:
        return Request(
            what=what,
            target=dataclasses.asdict(self.ask.target),
            framework=self.ask.framework,
            size=size,
            mode=mode,
            variant=self.ask.lines[variant].variant,
            device=self.ask.device,
            seed=self.ask.seed,
            warmup=self.ask.warmup,
            repeats=self.ask.repeats,
            cap_bytes=self.ask.cap_bytes,
            settings=dict(self.ask.lines[variant].settings),
        )

    def _theory(self, variant: str, mode: str | None, size: int) -> Forecast | None:
        """The fake run beside a measured point; where one cannot be made, the study goes on without."""
        if (variant, mode) in self._no_theory:
            return None
        try:
            return self._forecast(variant, mode, size)
        except (BadInput, Missing):
            raise
        except PinchpointError as error:
            if isinstance(error, (CannotFake, TimedOut)):
                self._no_theory.add((variant, mode))  # the next size would only fail the same way, slowly
            self.notes.append(f"no theory for {_name(variant, mode, size)}: {error.what}")
            return None

    def _forecast(self, variant: str, mode: str | None, size: int) -> Forecast:
        line = self.ask.lines[variant]
        return self.forecasts.predict(size=size, mode=mode, variant=line.variant, settings=line.settings)

    def _close_in(self, variant: str, mode: str) -> None:
        """From the sizes of the ladder, and of an earlier study's search, to within 1 % of the boundary."""
        if self.ask.device == "fake":
            return
        earlier = [p for p in self.before if (p.variant, p.mode) == (variant, mode) and p not in self.points]
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
                len(self.ask.jobs()), len(self.ask.jobs()), f"boundary: {_name(variant, mode, size)}"
            )
            asked = None if self.ask.plain else mode
            point = self._measure(variant, asked, size, timed=False)
            self._add(point)
            return {"ok": True, "oom": False}.get(point.status)

        found = close_in(fits[-1].size, fails[0].size, guess=self._guess(fits, variant, mode), run=run)
        self.boundary.append({"mode": mode, "variant": variant, **dataclasses.asdict(found)})

    def _guess(self, fits: Sequence[Point], variant: str, mode: str) -> float | None:
        """Where the fitted line meets the memory there is."""
        limit = self._limits.get((variant, mode))
        peaks = [p.peak_reserved_bytes or p.peak_allocated_bytes for p in fits]
        known = [peak for peak in peaks if peak]
        if limit is None or len(known) < max(LEAST, len(peaks)):
            return None
        return fit([p.size for p in fits], known, seed=self.ask.seed).curve.size_at(limit)

    def _earlier(self, variant: str, mode: str | None, size: int) -> Point | None:
        for point in self.before:
            if (point.variant, point.size) == (variant, size) and mode in (None, point.mode):
                return point
        return None

    def _lines(self) -> Iterator[tuple[str, str]]:
        yield from dict.fromkeys((p.variant, p.mode) for p in self.points)

    def _mode_of(self, variant: str) -> str:
        """A plain factory's mode, from any point that showed it; until then what a factory mostly is."""
        return next((p.mode for p in self.points if p.variant == variant and p.status == "ok"), "train")

    def _add(self, point: Point) -> None:
        self.points.append(point)
        self.keep()


def reusable(points: Sequence[Point]) -> tuple[Point, ...]:
    """Of an earlier study: what ran to its end. Failures and what was skipped are tried again."""
    return tuple(p for p in points if p.status in ("ok", "oom") and not p.reason.startswith(NOT_RUN))


def _largest(forecast: Forecast) -> tuple[dict[str, Any], ...]:
    return tuple(sorted(forecast.modules, key=lambda m: -int(m["bytes"]))[:MODULES])


def _name(variant: str, mode: str | None, size: int) -> str:
    return " ".join(part for part in (variant, mode, show_size(size)) if part)
