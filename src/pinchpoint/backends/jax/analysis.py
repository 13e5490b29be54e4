"""The peak of a JAX step on a CUDA card, computed without a GPU for `predict`.

The peak comes from XLA's own memory analysis if JAX's CUDA plugin is installed, and otherwise from a
liveness walk of the jaxpr; `Observation.method` says which. Source lines and the timeline always come
from the walk, because XLA's analysis is a sum and names no lines.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from pinchpoint.backends.jax import library_memory, xla
from pinchpoint.backends.jax.argument_roles import Role, roles, trains
from pinchpoint.backends.jax.captured_arrays import hoist
from pinchpoint.backends.jax.compile_targets import matmul_workspace
from pinchpoint.backends.jax.fake_devices import fake_cuda, trace_for
from pinchpoint.backends.jax.liveness import Alive, Walk, walk
from pinchpoint.backends.jax.program import Program, assign_phases, bytes_of, read_program
from pinchpoint.backends.jax.tracing import TracedStep, trace, trace_factory
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import BREAKDOWN, Line
from pinchpoint.core.units import show_bytes
from pinchpoint.core.workload import unpack

XLA = "xla memory analysis"
LIVENESS = "jaxpr liveness"
LINES = 30
TIMELINE = 400


class CardLike(Protocol):
    """The properties of a card that matter here; `forecasting.cards.Card` has them."""

    @property
    def name(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def capability(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Observation:
    """The predicted peak of one step.

    breakdown: has the keys of BREAKDOWN and sums to peak_bytes
    mode: what the step does, "train" or "infer"
    low_bytes, high_bytes: bounds of the peak, which depends on kernels that XLA chooses on the card
    """

    peak_bytes: int
    breakdown: dict[str, int]
    lines: tuple[Line, ...]
    timeline: tuple[tuple[int, int, str], ...]
    method: str
    notes: tuple[str, ...]
    mode: str
    low_bytes: int
    high_bytes: int


def observe(step: Callable[..., Any], args: Sequence[Any] = (), *, card: CardLike) -> Observation:
    """Predict one call of `step(*args)` without running it. Arguments: arrays or `jax.ShapeDtypeStruct`s."""
    return _observe(trace(step, args), card)


def observe_factory(make: Callable[[], Any], *, card: CardLike) -> tuple[Observation, int | None]:
    """Build a target, predict its step, and return the prediction and the number of points it processes.

    `make` returns a `Case`, a step, or `(jitted, args)`. It is called inside a trace, so its arrays are
    not allocated either, and it may request CUDA devices. A target that cannot be built in a trace is
    built with real arrays on the CPU.
    """
    note: tuple[str, ...] = ()
    for_card = partial(trace_for, card.capability, card.memory_bytes)
    with fake_cuda():
        try:
            with for_card():
                traced_step, processed = trace_factory(make)
        except Exception as error:
            # Build with real arrays to tell the cause: an error of the target itself is raised again here.
            case = unpack(make())
            with for_card():
                traced_step, processed = trace(case.step, case.args), case.processed
            note = (
                "the target was built with real arrays on the CPU, "
                f"because building it from shapes raised {type(error).__name__}",
            )
        with for_card():
            observation = _observe(traced_step, card)
    return replace(observation, notes=observation.notes + note), processed


def _observe(traced_step: TracedStep, card: CardLike) -> Observation:
    program = read_program(traced_step)
    training = trains(traced_step, program)
    program = assign_phases(program, trains=training)
    workspace = matmul_workspace(card.capability)
    walk_result = walk(program, workspace_bytes=workspace)
    lines, timeline, mode = _lines(walk_result), thin(walk_result.timeline), "train" if training else "infer"
    jaxpr = traced_step.closed_jaxpr.jaxpr
    input_bytes = program.input_bytes
    try:
        analyses = xla.analyse(hoist(traced_step), capability=card.capability, memory_bytes=card.memory_bytes)
    except xla.NoAnalysis as reason:
        interval = library_memory.liveness_interval(
            input_bytes,
            walk_result.peak_bytes - input_bytes,
            walk(program, fused=False, workspace_bytes=workspace).peak_bytes - input_bytes,
            output_bytes=sum(map(bytes_of, traced_step.closed_jaxpr.out_avals)),
            workspace=walk_result.workspace_bytes,
            scratch=library_memory.scratch_bytes(jaxpr),
            tuning=library_memory.tuning_bytes(jaxpr),
            first_live_bytes=input_bytes,
        )
        notes = _liveness_notes(program, str(reason), interval)
        return Observation(
            walk_result.peak_bytes,
            _walk_breakdown(walk_result, traced_step, program),
            lines,
            timeline,
            LIVENESS,
            notes,
            mode,
            min(interval.low, walk_result.peak_bytes),
            interval.high,
        )
    analysis = analyses.expected
    interval = library_memory.xla_interval(
        analysis.arguments,
        analyses.added_bytes,
        sorts=library_memory.scratch_bytes(jaxpr, only_sorts=True),
        tuning=analyses.tuning or library_memory.tuning_bytes(jaxpr),
        first_live_bytes=analysis.arguments,
    )
    notes = (
        f"XLA's own memory analysis, compiled for {analysis.target} without a GPU; kernels are not timed",
        "XLA allocates its temporaries as one block, which includes activations, gradients and workspace",
        "source lines and timeline come from a liveness walk of the jaxpr, "
        f"whose own peak is {show_bytes(walk_result.peak_bytes)}",
    )
    return Observation(
        analysis.peak_bytes,
        _xla_breakdown(analysis, traced_step),
        lines,
        timeline,
        XLA,
        notes,
        mode,
        interval.low,
        interval.high,
    )


def _liveness_notes(program: Program, reason: str, interval: library_memory.Interval) -> tuple[str, ...]:
    notes = [
        f"a liveness walk of the jaxpr, not XLA's analysis: {reason}",
        f"with the kernels that XLA chooses and tries on the card, the peak is between "
        f"{show_bytes(interval.low)} and {show_bytes(interval.high)}",
        library_memory.PLUGIN_HINT,
    ]
    if program.scratch:
        notes.append(f"scratch memory of {', '.join(program.scratch)} is counted only in the high end")
    if program.unknown:
        notes.append(
            f"temporaries inside {', '.join(program.unknown)} are not counted, only their inputs and outputs"
        )
    return tuple(notes)


def _walk_breakdown(walk_result: Walk, traced_step: TracedStep, program: Program) -> dict[str, int]:
    kinds = dict(zip(program.inputs, roles(traced_step), strict=False))
    total = Counter({"workspace": walk_result.workspace_bytes})
    for item in walk_result.alive:
        total[_part(item, kinds)] += item.bytes
    return {key: total[key] for key in BREAKDOWN}


def _part(item: Alive, kinds: dict[int, Role]) -> str:
    if not item.made_in:
        return kinds.get(item.value, "inputs") if item.value is not None else "inputs"
    if item.made_in == "forward" and item.read_in == "backward":
        return "activations"
    if item.made_in == "backward" and item.read_in in ("optimizer", ""):
        return "gradients"
    return "temporaries"


def _xla_breakdown(analysis: xla.Analysis, traced_step: TracedStep) -> dict[str, int]:
    """The arguments' bytes by role; all bytes that XLA adds are temporaries."""
    total: Counter[str] = Counter()
    for struct, role in zip(hoist(traced_step).inputs, roles(traced_step), strict=True):
        total[role] += struct.size * struct.dtype.itemsize
    total["inputs"] = analysis.arguments - total["weights"] - total["optimizer"]
    total["temporaries"] = analysis.temporaries + analysis.outputs - analysis.aliases
    return {key: total[key] for key in BREAKDOWN}


def _lines(walk_result: Walk) -> tuple[Line, ...]:
    total: Counter[tuple[str, int, str]] = Counter()
    for item in walk_result.alive:
        if item.file:
            total[item.file, item.line, item.made_in] += item.bytes
    return tuple(
        Line(shown_path(file), line, size, phase, linecache.getline(file, line).strip())
        for (file, line, phase), size in total.most_common(LINES)
    )


def thin(timeline: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """Reduce to at most `TIMELINE` entries: the highest of each group of neighbours, which keeps the peak."""
    if not timeline:
        return ()
    width = -(-len(timeline) // TIMELINE)
    return tuple(
        max(timeline[i : i + width], key=lambda entry: entry[1]) for i in range(0, len(timeline), width)
    )
