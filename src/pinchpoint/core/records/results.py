"""What predict, plan, study and verify produce: frozen dataclasses that can be saved as JSON.

The keys are a contract with other tools (docs/reference/records.md). Bytes are ints, times are in seconds,
and what cannot be known is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pinchpoint.core import machine as _machine
from pinchpoint.core.records.base import Record, now
from pinchpoint.core.settings import show_settings
from pinchpoint.core.units import show_bytes, show_seconds, show_size

BREAKDOWN = ("weights", "gradients", "optimizer", "activations", "temporaries", "inputs", "workspace")
Status = Literal["ok", "oom", "failed", "timeout"]


@dataclass(frozen=True)
class Inside:
    """The bytes of a source line that belong to one module, or to `count` repeated ones, and where it is."""

    module: str  # `encoder.layer.*.intermediate`; empty outside modules
    count: int
    bytes: int  # of all of them together
    equal: bool  # whether each has the same bytes
    file: str = ""  # the file of the package that allocated most of it
    line: int | None = None  # the line in it; None if no line allocated most of it
    code: str = ""


@dataclass(frozen=True)
class Line:
    """The bytes that belong to one source line at the peak. inside: for a line with much of the peak."""

    file: str
    line: int
    bytes: int
    phase: str
    code: str = ""
    inside: tuple[Inside, ...] = ()


@dataclass(frozen=True)
class Lever:
    """A change that would lower the peak, and the predicted saving."""

    name: str
    saves_bytes: int
    how: str


@dataclass(frozen=True)
class Forecast(Record):
    """The predicted peak of a step. See docs/toolkit/predict.md for what each number can be compared with."""

    kind: ClassVar[str] = "forecast"
    target: str
    framework: str
    method: str  # how the peak was predicted: "fake tensors", "xla memory analysis", "jaxpr liveness"
    mode: str
    size: int | None  # None for a script
    variant: str | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    workspace_bytes: int  # cuBLAS and similar libraries; part of allocated and of reserved
    context_bytes: int
    total_bytes: int  # reserved + context + NCCL's buffers: what the driver shows
    breakdown: dict[str, int]  # keys of BREAKDOWN; sums to peak_allocated_bytes
    lines: tuple[Line, ...]
    modules: tuple[dict[str, Any], ...]  # at the peak: {"name", "count", "bytes_each", "bytes"}
    timeline: tuple[tuple[int, int, str], ...]  # (event number, allocated bytes, phase), thinned
    fits: dict[str, bool | None]  # by card; None if it cannot be known, for one of the `reasons`
    margin_bytes: int  # left free on a card before it counts as fitting
    card: str  # the card whose workspace and context are modelled
    steps: int
    needs_bytes: int | None = None  # what the allocator must have for the step to fit, margin included
    # Set by `plan` if the run needs more than the card has: the same after the allocator has freed its cache.
    completes_bytes: int | None = None
    processed: int | None = None
    world_size: int | None = None  # of a parallel job, of which one rank is predicted; in JAX, devices
    rank: int | None = None  # None in JAX, where one process has several devices
    nccl_bytes: int | None = None  # buffers of NCCL, an estimate; part of total, not of allocated or reserved
    nccl_high_bytes: int | None = None  # the most that they are expected to take, which decides what fits
    low_bytes: int | None = None  # bounds of allocated, where libraries or the data decide
    high_bytes: int | None = None
    search_bytes: int | None = None  # peak of allocated if cuDNN searches for kernels and memory is left
    search_reserved_bytes: int | None = None
    reasons: tuple[str, ...] = ()  # why the peak may lie above every bound given here
    seen: dict[str, Any] = field(default_factory=dict)  # {"training_steps", "inference_calls", "evaluation"}
    levers: tuple[Lever, ...] = ()
    notes: tuple[str, ...] = ()
    took_s: float = 0.0
    measured: dict[str, int] | None = None  # with --measure: allocated_bytes, reserved_bytes, total_bytes
    settings: dict[str, str] = field(default_factory=dict)  # the workload's, defaults included
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [("target", self.target), ("mode", self.mode)]
        if self.size is not None:
            rows.append(("size", show_size(self.size)))
        if self.variant:
            rows.append(("variant", self.variant))
        rows += _settings(self.settings)
        if self.rank is not None:
            rows.append(("rank", f"{self.rank} of {self.world_size}"))
        elif self.world_size is not None:
            rows.append(("devices", f"{self.world_size}; of these, the one that needs most"))
        if self.seen:
            rows.append(("observed", _observed(self.seen)))
        rows += [
            ("card", self.card),
            ("peak allocated", show_bytes(self.peak_allocated_bytes)),
            ("peak reserved", show_bytes(self.peak_reserved_bytes)),
            ("workspace", show_bytes(self.workspace_bytes)),
            ("context", show_bytes(self.context_bytes)),
            *([("NCCL, estimated", show_bytes(self.nccl_bytes))] if self.nccl_bytes else []),
            ("total", show_bytes(self.total_bytes)),
        ]
        if self.low_bytes is not None and show_bytes(self.low_bytes) != show_bytes(self.high_bytes):
            rows.insert(
                rows.index(("peak reserved", show_bytes(self.peak_reserved_bytes))),
                ("allocated between", f"{show_bytes(self.low_bytes)} and {show_bytes(self.high_bytes)}"),
            )
        if self.search_bytes is not None:
            rows.append(
                ("cuDNN's search", f"about {show_bytes(self.search_bytes)} for a moment, or what is left")
            )
        return rows


def _observed(seen: dict[str, Any]) -> str:
    """`2 training steps, no evaluation`."""
    steps, calls = seen["training_steps"], seen["inference_calls"]
    if not steps:
        return f"{calls} inference call{'s' if calls != 1 else ''}"
    evaluation = "with evaluation" if seen["evaluation"] else "no evaluation"
    return f"{steps} training step{'s' if steps != 1 else ''}, {evaluation}"


@dataclass(frozen=True)
class Plan(Record):
    """The largest size that fits a budget, with its chunk and variant."""

    kind: ClassVar[str] = "plan"
    target: str
    mode: str
    budget_bytes: int
    size: int | None  # the largest known to fit, or the requested size; None if that is unknown
    chunk: int | None
    variant: str | None
    margin_bytes: int
    peak_bytes: int  # predicted total at `size`, or at `possible_size` if it is None
    tried: tuple[dict[str, Any], ...]  # every fake run: {"size", "variant", "chunk", "total_bytes", "fits"}
    # per variant: {"variant", "size", "chunk", "peak_bytes", "possible_size", "why"}
    choices: tuple[dict[str, Any], ...] = ()
    # with --cards: {"card", "budget_bytes", "size", "variant", "chunk", "how"}; if unknown, "possible_size"
    cards: tuple[dict[str, Any], ...] = ()
    world_size: int | None = None  # of a parallel job: the smallest with which `size` fits
    # {"world_size", "size", "possible_size", "peak_bytes", "needs_bytes", "rank", "runs", "why"} for each one
    world_sizes: tuple[dict[str, Any], ...] = ()
    axis: str = "size"  # what a size is called: the axis of a workload, "batch size" of a script
    possible_size: int | None = None  # fits as well, unless its peak is higher than predicted for a reason
    reasons: tuple[str, ...] = ()  # why it is unknown whether some sizes fit
    complete: bool = True  # False for an answer before all runs were made
    notes: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        return [
            ("target", self.target),
            ("mode", self.mode),
            *_settings(self.settings),
            ("budget", show_bytes(self.budget_bytes)),
            (self.axis, show_size(self.size) if self.size is not None else self._no_size()),
            *([("world size", str(self.world_size))] if self.world_size is not None else []),
            *([("at most", show_size(self.possible_size))] if self.possible_size is not None else []),
            *([("chunk", show_size(self.chunk))] if self.chunk is not None else []),
            *([("variant", self.variant)] if self.variant else []),
            ("predicted peak", show_bytes(self.peak_bytes)),
            ("margin", show_bytes(self.margin_bytes)),
            *([] if self.complete else [("state", "stopped before all runs were made")]),
        ]

    def _no_size(self) -> str:
        return "unknown" if self.possible_size is not None or not self.world_sizes else "none fits"


@dataclass(frozen=True)
class Point:
    """One size of a study, in one mode, for one variant."""

    size: int
    mode: str
    variant: str
    status: Status
    processed: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    total_bytes: int | None = None  # what the driver shows
    time_s: float | None = None  # median
    time_low_s: float | None = None
    time_high_s: float | None = None
    theory_bytes: int | None = None  # allocated, from the fake run
    breakdown: dict[str, int] | None = None
    modules: tuple[dict[str, Any], ...] = ()
    reason: str = ""  # why the status is not "ok"


@dataclass(frozen=True)
class Law:
    """The growth law of the allocated peak: affine or piecewise affine. Slopes belong to the last segment."""

    mode: str
    variant: str
    slope_bytes_per_point: float
    slope_low: float
    slope_high: float
    intercept_bytes: float
    exponent: float | None
    holdout_error: float | None  # relative error at the largest size, predicted from the others
    breaks: tuple[float, ...] = ()
    segments: tuple[dict[str, float], ...] = ()  # {"from", "to", "slope", "intercept"}
    intercept_low: float | None = None
    intercept_high: float | None = None
    points: int = 0
    residual: float = 0.0  # largest relative residual of the fit
    exponent_low: float | None = None
    exponent_high: float | None = None
    band: tuple[tuple[float, float, float], ...] = ()  # 95 % interval of the fit: (size, low, high)


@dataclass(frozen=True)
class Study(Record):
    """Peak and time against size."""

    kind: ClassVar[str] = "study"
    target: str
    axis: str
    on: str
    points: tuple[Point, ...]
    laws: tuple[Law, ...]
    passed: bool  # the size check
    gate: tuple[str, ...]  # why it failed, one line each; empty when it passed
    # largest size per card: {"card", "mode", "variant", "size", "low", "high"}
    cards: tuple[dict[str, Any], ...] = ()
    boundary: tuple[dict[str, Any], ...] = ()  # OOM boundary: {"mode", "variant", "fits", "fails"}
    notes: tuple[str, ...] = ()
    complete: bool = True
    took_s: float = 0.0
    seed: int = 0
    repeats: int = 0  # timed runs per point; 0 where nothing was timed
    # the same for all points; a setting that varies is part of the variants' names
    settings: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    @property
    def unit(self) -> str:
        """One of what the axis counts: `point` for `points`; a plain size has no name of its own."""
        return self.axis.removesuffix("s") if self.axis != "size" else "unit of size"

    def summary(self) -> list[tuple[str, str]]:
        rows = [("target", self.target), ("axis", self.axis), ("on", self.on), *_settings(self.settings)]
        rows.append(("runs", str(len(self.points))))
        rows += [
            (
                f"{law.variant} {law.mode}",
                f"{law.slope_bytes_per_point:,.1f} B per {self.unit} + {show_bytes(law.intercept_bytes)}",
            )
            for law in self.laws
        ]
        rows.append(("size check", "passed" if self.passed else "; ".join(self.gate)))
        return rows


@dataclass(frozen=True)
class Verdict(Record):
    """Whether a variant computes the same as its baseline, and whether it is better."""

    kind: ClassVar[str] = "verdict"
    target: str
    mode: str
    size: int
    baseline: str
    variant: str
    status: Literal["pass", "fail", "inconclusive"]
    reason: str
    worst_error: float | None  # relative L2 error, or 1 - p for distributions
    where: str  # the output or gradient, and the index in it, of the worst error
    speedup: float | None = None  # baseline / variant
    speedup_low: float | None = None
    speedup_high: float | None = None
    peak_before_bytes: int | None = None
    peak_after_bytes: int | None = None
    peaks_are: str = "predicted"  # or "measured"
    baseline_s: float | None = None
    variant_s: float | None = None
    repeats: int = 0
    comparisons: tuple[dict[str, Any], ...] = ()  # {"name", "what", "error", "tolerance", "ok", "where"}
    device: str = "cpu"
    seed: int = 0
    notes: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("target", self.target),
            ("size", f"{show_size(self.size)}, {self.mode}"),
            *_settings(self.settings),
            ("variant", f"{self.variant} against {self.baseline}"),
            ("status", self.status),
            ("worst error", "-" if self.worst_error is None else f"{self.worst_error:.2e} in {self.where}"),
        ]
        if self.speedup is not None:
            rows.append(_speed(self.speedup, self.speedup_low, self.speedup_high))
            rows.append(("step", f"{show_seconds(self.baseline_s)} -> {show_seconds(self.variant_s)}"))
        if self.peak_before_bytes is not None:
            peaks = f"{show_bytes(self.peak_before_bytes)} -> {show_bytes(self.peak_after_bytes)}"
            rows.append((f"peak ({self.peaks_are})", peaks))
        return rows


def _speed(ratio: float, low: float | None, high: float | None) -> tuple[str, str]:
    """Label and value of a speed-up; under 1 it is a slow-down, which is its inverse."""
    if ratio >= 1 or not low or not high:
        return "speed-up", f"{ratio:.2f} [{low:.2f}, {high:.2f}]"
    return "slow-down", f"{1 / ratio:.2f} [{1 / high:.2f}, {1 / low:.2f}]"


def _settings(settings: dict[str, str]) -> list[tuple[str, str]]:
    return [("settings", show_settings(settings))] if settings else []
