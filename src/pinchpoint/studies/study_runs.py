"""The runs of one study: every point of the ladder, then the memory boundary, each saved when it finishes.

Points of an earlier study (`--resume`) are not run again. Points run one after another in this process, or
in any order on the workers of an engine; the record has them in the order of the ladder either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pinchpoint.core.errors import BadInput, Missing, PinchpointError, TargetFailed
from pinchpoint.core.growth_law import LEAST, fit
from pinchpoint.core.records import Point
from pinchpoint.core.units import show_size
from pinchpoint.studies.config import StudyConfig
from pinchpoint.studies.engines.engine import Outcome, Pool
from pinchpoint.studies.memory_boundary import MAX_RUNS, Boundary
from pinchpoint.studies.point_runs import BoundaryJob, PointJob, PointResult, PointRuns

NOT_RUN = "not run: "

Progress = Callable[[int, int, str], None]


@dataclass
class Session:
    """Runs the points of a study. `points`, `boundary` and `notes` hold the results so far."""

    config: StudyConfig
    runs: PointRuns | None  # for points that run in this process
    pool: Pool | None = None  # for points that run elsewhere
    progress: Progress = lambda done, total, text: None
    save: Callable[[], None] = lambda: None  # called after every point
    earlier_points: Sequence[Point] = ()  # those of an earlier, unfinished study
    points: list[Point] = field(default_factory=list)
    boundary: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] | None = None
    first_error: PinchpointError | None = None
    _limits: dict[tuple[str, str], int] = field(default_factory=dict)
    _machines: list[dict[str, Any]] = field(default_factory=list)

    def check_device(self) -> None:
        """Raise if the GPU is missing, before anything runs on it; the workers of a pool do it themselves."""
        if self.config.device == "cuda" and self.runs is not None:
            self.machine = self.runs.check_device(PointJob(*self.config.jobs()[0]))

    def run_all(self) -> None:
        """Run every point, then find the boundary of every line that ran out of memory."""
        if self.pool is None:
            self._run_here()
        else:
            self._run_elsewhere(self.pool)
        jobs = self.config.jobs()
        self.progress(len(jobs), len(jobs), "done")

    def _run_here(self) -> None:
        assert self.runs is not None, "without a pool, points run here"
        jobs = self.config.jobs()
        for done, (variant, mode, size) in enumerate(jobs):
            job = PointJob(variant, mode, size, likely_mode=self._mode_of(variant))
            self.progress(done, len(jobs), job.name)
            self._add(self._known_point(job) or self._accept(self.runs(job)))
        for boundary_job in self._boundary_jobs():
            self._show_boundary(boundary_job)
            boundary = self.runs.boundary(boundary_job, on_result=lambda r: self._add(self._accept(r)))
            self._add_boundary(boundary_job, boundary)

    def _run_elsewhere(self, pool: Pool) -> None:
        """Run the points on a pool; `points` is kept in the order of the ladder as they arrive."""
        jobs = self.config.jobs()
        by_place: dict[int, Point] = {}
        places: list[int] = []  # of the jobs that the pool took

        def add(place: int, point: Point) -> None:
            by_place[place] = point
            self.points = [by_place[place] for place in sorted(by_place)]
            self.save()

        def next_jobs() -> Iterator[PointJob]:
            for place, (variant, mode, size) in enumerate(jobs):
                job = PointJob(variant, mode, size, likely_mode=self._mode_of(variant))
                if (known_point := self._known_point(job)) is not None:
                    add(place, known_point)
                    continue
                places.append(place)
                yield job

        for outcome in pool.run(next_jobs(), limit_s=self.config.point_limit_s):
            add(places[outcome.index], self._accept(_result_of(outcome)))
            self.progress(len(by_place) - 1, len(jobs), outcome.job.name)
        if self.config.plain:  # a point that failed early did not know its mode
            self.points = [replace(p, mode=self._mode_of(p.variant)) for p in self.points]
        boundary_jobs = list(self._boundary_jobs())
        for boundary_job in boundary_jobs:
            self._show_boundary(boundary_job)
        limit_s = MAX_RUNS * self.config.point_limit_s
        outcomes = sorted(pool.run(boundary_jobs, limit_s=limit_s), key=lambda outcome: outcome.index)
        for outcome in outcomes:
            if outcome.error is not None:
                self.notes.append(f"the boundary of {outcome.job.variant} is unknown: {outcome.error.what}")
                continue
            boundary, results = outcome.value
            for result in results:
                self._add(self._accept(result))
            self._add_boundary(outcome.job, boundary)
        self._note_machines()

    def _known_point(self, job: PointJob) -> Point | None:
        """Return a point that need not run: one of an earlier study, or one that is too large."""
        for point in self.earlier_points:
            if (point.variant, point.size) == (job.variant, job.size) and job.mode in (None, point.mode):
                return point
        return None if self.config.device == "fake" else self._skipped(job)

    def _skipped(self, job: PointJob) -> Point | None:
        """Return the point of a job that is larger than one that ran out of memory or time."""
        for smaller in self.points:
            if (
                smaller.variant == job.variant
                and smaller.status in ("oom", "timeout")
                and smaller.size < job.size
                and job.mode in (None, smaller.mode)
            ):
                why = "ran out of memory" if smaller.status == "oom" else "took too long"
                reason = f"{NOT_RUN}{show_size(smaller.size)} already {why}"
                return Point(job.size, smaller.mode, job.variant, smaller.status, reason=reason)
        return None

    def _accept(self, result: PointResult) -> Point:
        """Keep what a run reports besides its point."""
        point = result.point
        self.first_error = self.first_error or result.error
        self.notes += result.notes
        if result.machine is not None:
            if self.config.device != "fake":
                self.machine = self.machine or result.machine
            if result.machine not in self._machines:
                self._machines.append(result.machine)
        if result.limit_bytes is not None:
            self._limits[point.variant, point.mode] = result.limit_bytes
        return point

    def _note_machines(self) -> None:
        """Note if the machines of a cluster differ in what the numbers depend on."""
        versions = dict.fromkeys(_versions(m) for m in self._machines)
        if len(versions) > 1:
            self.notes.append(f"the points ran with different versions of packages: {'; '.join(versions)}")
        if self.config.device == "fake":
            return
        kinds = dict.fromkeys(m.get("gpu") or f"{m.get('cpu_count')} CPU cores" for m in self._machines)
        if len(kinds) > 1:
            self.notes.append(
                f"the points ran on different machines ({', '.join(kinds)}), so that their times and memory"
                " limits are not comparable"
            )

    def _boundary_jobs(self) -> Iterator[BoundaryJob]:
        """The searches to make, each starting from the ladder and an earlier study's search."""
        if self.config.device == "fake":
            return
        for variant, mode in dict.fromkeys((p.variant, p.mode) for p in self.points):
            earlier = [
                p
                for p in self.earlier_points
                if (p.variant, p.mode) == (variant, mode) and p not in self.points
            ]
            mine = [
                p
                for p in self.points
                if (p.variant, p.mode) == (variant, mode) and not p.reason.startswith(NOT_RUN)
            ]
            fails = sorted((p for p in [*mine, *earlier] if p.status == "oom"), key=lambda p: p.size)
            fits = sorted((p for p in [*mine, *earlier] if p.status == "ok"), key=lambda p: p.size)
            if not fits or not fails:
                continue
            for point in earlier:
                self._add(point)
            yield BoundaryJob(variant, mode, fits[-1].size, fails[0].size, self._guess(fits, variant, mode))

    def _show_boundary(self, job: BoundaryJob) -> None:
        total = len(self.config.jobs())
        between = f"{show_size(job.fits)} and {show_size(job.fails)}"
        self.progress(total, total, f"boundary: {job.variant} {job.mode} between {between}")

    def _add_boundary(self, job: BoundaryJob, boundary: Boundary) -> None:
        self.boundary.append({"mode": job.mode, "variant": job.variant, **asdict(boundary)})

    def _guess(self, fits: Sequence[Point], variant: str, mode: str) -> float | None:
        """Return the size at which the fitted law reaches the memory limit, if both are known."""
        limit = self._limits.get((variant, mode))
        peaks = [p.peak_reserved_bytes or p.peak_allocated_bytes for p in fits]
        known_peaks = [peak for peak in peaks if peak]
        if limit is None or len(known_peaks) < max(LEAST, len(peaks)):
            return None
        return fit([p.size for p in fits], known_peaks, seed=self.config.seed).curve.size_at(limit)

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


def _result_of(outcome: Outcome) -> PointResult:
    """Return the result of a point that ran elsewhere. Raise what would make every point fail."""
    if outcome.error is None:
        return outcome.value
    if isinstance(outcome.error, (BadInput, Missing)) or not isinstance(outcome.error, TargetFailed):
        raise outcome.error
    job: PointJob = outcome.job
    point = Point(job.size, job.mode or job.likely_mode, job.variant, "failed", reason=outcome.error.what)
    return PointResult(point, error=outcome.error)


def _versions(machine: dict[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in machine.get("versions", {}).items())
