"""The peak of a JAX step on a CUDA card, with no GPU: what `predict` asks for.

XLA's own memory analysis where JAX's CUDA plugin is installed; else a liveness walk of the jaxpr.
Each is labelled as what it is. Source lines and the timeline are the walk's in both cases: XLA's
analysis is a sum and names no lines.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pinchpoint.backends.jax import xla
from pinchpoint.backends.jax.argument_roles import Role, roles, trains
from pinchpoint.backends.jax.captured_arrays import hoist
from pinchpoint.backends.jax.compile_targets import matmul_workspace
from pinchpoint.backends.jax.fake_devices import pretend_cuda
from pinchpoint.backends.jax.liveness import Alive, Walk, walk
from pinchpoint.backends.jax.program import Program, read, settle
from pinchpoint.backends.jax.tracing import Traced, trace, trace_made
from pinchpoint.core.records import BREAKDOWN, Line
from pinchpoint.core.units import show_bytes
from pinchpoint.core.workload import unpack

XLA = "xla memory analysis"
LIVENESS = "jaxpr liveness"
LINES = 30
TIMELINE = 400


class CardLike(Protocol):
    """What of a card matters here; memory.cards.Card has it."""

    @property
    def name(self) -> str: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def capability(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class Observation:
    """breakdown has the keys of BREAKDOWN and sums to peak_bytes. mode: what the step does, train or infer.

    high_bytes: the walk with nothing fused, or the fused one where that is more; None where XLA was asked.
    """

    peak_bytes: int
    breakdown: dict[str, int]
    lines: tuple[Line, ...]
    timeline: tuple[tuple[int, int, str], ...]
    method: str
    notes: tuple[str, ...]
    mode: str
    high_bytes: int | None = None


def observe(step: Callable[..., Any], args: Sequence[Any] = (), *, card: CardLike) -> Observation:
    """Predict one call of `step(*args)`. Arguments may be arrays or `jax.ShapeDtypeStruct`s; nothing is run."""
    return _observe(trace(step, args), card)


def observe_made(make: Callable[[], Any], *, card: CardLike) -> tuple[Observation, int | None]:
    """Build a target and predict its step: `make` gives a `Case`, a step, or `(jitted, args)`. Also the points it counts.

    The target is built inside a trace, so that its arrays are never made either, and may ask for
    CUDA devices. One that cannot be built so is built for real on the CPU.
    """
    note: tuple[str, ...] = ()
    with pretend_cuda():
        try:
            traced, processed = trace_made(make)
        except Exception as error:
            # Whatever it was, the real thing decides: a fault of the target's own comes up again here.
            built = unpack(make())
            traced, processed = trace(built.step, built.args), built.processed
            note = (
                f"the target was built with real arrays on the CPU: building it from shapes raised {type(error).__name__}",
            )
        found = _observe(traced, card)
    return replace(found, notes=found.notes + note), processed


def _observe(traced: Traced, card: CardLike) -> Observation:
    program = read(traced)
    training = trains(traced, program)
    program = settle(program, trains=training)
    workspace = matmul_workspace(card.capability)
    found = walk(program, workspace_bytes=workspace)
    lines, timeline, mode = _lines(found), _thin(found.timeline), "train" if training else "infer"
    try:
        analysis = xla.analyse(hoist(traced), capability=card.capability, memory_bytes=card.memory_bytes)
    except xla.NoAnalysis as reason:
        # Fusing can also cost: a value that is not made keeps its inputs alive for longer.
        high = max(found.peak_bytes, walk(program, fused=False, workspace_bytes=workspace).peak_bytes)
        notes = _liveness_notes(program, str(reason), found.peak_bytes, high)
        return Observation(
            found.peak_bytes,
            _walk_breakdown(found, traced, program),
            lines,
            timeline,
            LIVENESS,
            notes,
            mode,
            high,
        )
    notes = (
        f"XLA's own memory analysis, compiled for {analysis.target} without a GPU, kernels not autotuned",
        "XLA takes its temporaries as one block: activations, gradients and workspace are inside it",
        "source lines and timeline are from a liveness walk of the jaxpr, "
        f"whose own peak is {show_bytes(found.peak_bytes)}",
    )
    return Observation(
        analysis.peak_bytes, _xla_breakdown(analysis, traced), lines, timeline, XLA, notes, mode
    )


def _liveness_notes(program: Program, reason: str, low: int, high: int) -> tuple[str, ...]:
    notes = [
        f"a liveness walk of the jaxpr, not XLA's analysis: {reason}",
        f"{show_bytes(low)} counts elementwise chains as fused, as XLA does; with nothing fused it would be {show_bytes(high)}",
        "for XLA's own analysis install jax[cuda13] or jax[cuda12]; no GPU is needed",
    ]
    if program.scratch:
        notes.append(f"scratch memory of {', '.join(program.scratch)} is not counted")
    if program.unknown:
        notes.append(
            f"what happens inside {', '.join(program.unknown)} is not counted, only what goes in and comes out"
        )
    return tuple(notes)


def _walk_breakdown(found: Walk, traced: Traced, program: Program) -> dict[str, int]:
    kinds = dict(zip(program.inputs, roles(traced), strict=False))
    total = Counter({"workspace": found.workspace_bytes})
    for item in found.alive:
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


def _xla_breakdown(analysis: xla.Analysis, traced: Traced) -> dict[str, int]:
    """Arguments by role; every byte XLA adds on top is temporary to whoever calls the step."""
    total: Counter[str] = Counter()
    for struct, role in zip(hoist(traced).inputs, roles(traced), strict=True):
        total[role] += struct.size * struct.dtype.itemsize
    total["inputs"] = analysis.arguments - total["weights"] - total["optimizer"]
    total["temporaries"] = analysis.temporaries + analysis.outputs - analysis.aliases
    return {key: total[key] for key in BREAKDOWN}


def _lines(found: Walk) -> tuple[Line, ...]:
    total: Counter[tuple[str, int, str]] = Counter()
    for item in found.alive:
        if item.file:
            total[item.file, item.line, item.made_in] += item.bytes
    return tuple(
        Line(file, line, size, phase, linecache.getline(file, line).strip())
        for (file, line, phase), size in total.most_common(LINES)
    )


def _thin(timeline: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int, str], ...]:
    """At most `TIMELINE` entries: of each run of neighbours the highest, so that the peak stays."""
    if not timeline:
        return ()
    width = -(-len(timeline) // TIMELINE)
    return tuple(
        max(timeline[i : i + width], key=lambda entry: entry[1]) for i in range(0, len(timeline), width)
    )
