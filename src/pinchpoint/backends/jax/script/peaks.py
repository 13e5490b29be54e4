"""`find_peak`: the peak of a script from its ledger, by XLA's analysis or by liveness, with its interval.

Each program's highest peak is the bytes alive around it plus what the program adds. XLA analyses only the
programs that can be the highest; a script with hundreds of small programs compiles one or two.
"""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pinchpoint.backends.jax import xla
from pinchpoint.backends.jax.analysis import LINES, LIVENESS, XLA, CardLike, thin
from pinchpoint.backends.jax.captured_arrays import hoist
from pinchpoint.backends.jax.library_memory import (
    PLUGIN_HINT,
    Interval,
    liveness_interval,
    scratch_bytes,
    xla_interval,
)
from pinchpoint.backends.jax.script.ledger import Ledger, LiveBuffer, ProgramCalls
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import BREAKDOWN, Line
from pinchpoint.core.units import show_bytes


@dataclass(frozen=True)
class ScriptPeak:
    """low_bytes and high_bytes bound the peak; breakdown has the keys of BREAKDOWN and sums to peak_bytes."""

    peak_bytes: int
    low_bytes: int
    high_bytes: int
    breakdown: dict[str, int]
    lines: tuple[Line, ...]
    timeline: tuple[tuple[int, int, str], ...]
    method: str
    notes: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Candidate:
    """A program with the interval of its peak. analysis: XLA's, where there is one."""

    entry: ProgramCalls
    interval: Interval
    is_tuning: bool = False
    analysis: xla.Analysis | None = field(default=None)


def find_peak(ledger: Ledger, card: CardLike) -> ScriptPeak:
    entries = list(ledger.programs.values())
    candidates = [_by_liveness(entry) for entry in entries]
    refusal = ""
    if xla.is_available():
        candidates, refusal = _with_xla(candidates, card)
    else:
        refusal = "JAX's CUDA plugin is not installed"
    highest = max(candidates, key=lambda c: c.interval.usual)
    method = XLA if highest.analysis is not None else LIVENESS
    low = max(c.interval.low for c in candidates)
    high = max(c.interval.high for c in candidates)
    notes = _notes(highest, method, refusal, low, high, has_devices=len(ledger.now) > 1)
    return ScriptPeak(
        highest.interval.usual,
        min(low, highest.interval.usual),
        high,
        _breakdown(highest),
        _lines(highest),
        _timeline(ledger, highest),
        method,
        notes,
        _reasons(highest, method),
    )


def _by_liveness(entry: ProgramCalls) -> _Candidate:
    sizes = entry.program
    if sizes.traced is None:
        peak = entry.live_bytes + sizes.added_bytes
        return _Candidate(entry, Interval(peak, peak, peak))
    interval = liveness_interval(
        entry.live_bytes,
        sizes.added_bytes,
        sizes.most_added_bytes,
        output_bytes=sizes.output_bytes,
        workspace=sizes.walk.workspace_bytes if sizes.walk is not None else 0,
        scratch=sizes.scratch_bytes,
        tuning=sizes.tuning,
        first_live_bytes=entry.first_live_bytes,
    )
    return _Candidate(entry, interval, interval.usual > entry.live_bytes + sizes.added_bytes)


def _with_xla(candidates: Sequence[_Candidate], card: CardLike) -> tuple[list[_Candidate], str]:
    """The candidates, with XLA's analysis for those that may be the highest."""
    refusal = ""
    order = sorted(candidates, key=lambda c: -c.interval.high)
    results: list[_Candidate] = []
    best = 0
    for candidate in order:
        sizes = candidate.entry.program
        if candidate.interval.high <= best or sizes.traced is None or refusal:
            results.append(candidate)
            best = max(best, candidate.interval.low)
            continue
        try:
            analyses = _analyse(sizes, card)
        except xla.NoAnalysis as reason:
            refusal = str(reason)
            results.append(candidate)
            continue
        entry, jaxpr = candidate.entry, sizes.traced.closed_jaxpr.jaxpr
        interval = xla_interval(
            entry.live_bytes,
            analyses.added_bytes,
            sorts=scratch_bytes(jaxpr, only_sorts=True) if sizes.sorts is None else sizes.sorts,
            tuning=analyses.tuning or sizes.tuning,
            first_live_bytes=entry.first_live_bytes,
        )
        is_tuning = interval.usual > entry.live_bytes + analyses.expected.added_bytes
        results.append(_Candidate(entry, interval, is_tuning, analyses.expected))
        best = max(best, interval.low)
    return results, refusal


def _analyse(sizes: Any, card: CardLike) -> xla.Analyses:
    if sizes.lowering is not None:
        return xla.analyse_partition(
            sizes.lowering, capability=card.capability, memory_bytes=card.memory_bytes
        )
    return xla.analyse(hoist(sizes.traced), capability=card.capability, memory_bytes=card.memory_bytes)


def _notes(
    highest: _Candidate, method: str, refusal: str, low: int, high: int, *, has_devices: bool
) -> tuple[str, ...]:
    entry = highest.entry
    sizes = entry.program
    while_tuning = " while XLA tries kernels for it" if highest.is_tuning else ""
    where = f" on device {entry.device}" if has_devices else ""
    notes = [
        f"the peak is in the program {entry.name!r}{while_tuning}, with {show_bytes(entry.live_bytes)} alive"
        + where
    ]
    if method == LIVENESS and sizes.traced is not None:
        notes.append(
            f"a liveness walk, not XLA's analysis ({refusal}): the peak is between {show_bytes(low)} and "
            f"{show_bytes(high)}; {PLUGIN_HINT}"
        )
    elif highest.analysis is not None:
        notes.append(f"XLA's own memory analysis, compiled for {highest.analysis.target} without a GPU")
    return tuple(notes)


def _reasons(highest: _Candidate, method: str) -> tuple[str, ...]:
    sizes = highest.entry.program
    if method == XLA or not sizes.unknown:
        return ()
    return (f"memory that {', '.join(sizes.unknown)} takes is not known; {PLUGIN_HINT}",)


def _breakdown(highest: _Candidate) -> dict[str, int]:
    entry = highest.entry
    sizes = entry.program
    total: Counter[str] = Counter()
    for buffer in entry.live_buffers:
        total[_role(buffer, sizes)] += buffer.bytes
    added = highest.interval.usual - sum(total.values())
    if highest.analysis is None and sizes.walk is not None and not highest.is_tuning:
        for item in sizes.walk.alive:
            if item.made_in:
                part = (
                    "activations"
                    if (item.made_in, item.read_in) == ("forward", "backward")
                    else "gradients"
                    if item.made_in == "backward" and item.read_in in ("optimizer", "")
                    else "temporaries"
                )
                total[part] += item.bytes
                added -= item.bytes
        total["workspace"] = min(sizes.walk.workspace_bytes, max(added, 0))
        added -= total["workspace"]
    total["workspace" if highest.is_tuning else "temporaries"] += added
    return {key: total[key] for key in BREAKDOWN}


def _role(buffer: LiveBuffer, sizes: Any) -> str:
    if buffer.argument is not None and buffer.argument < len(sizes.roles) and sizes.trains:
        role = sizes.roles[buffer.argument]
        if role != "inputs":
            return role
        if "weights" not in sizes.roles and buffer.argument in sizes.state:
            return "weights"  # the step returns a new value for it
    return buffer.role or "inputs"


def _lines(highest: _Candidate) -> tuple[Line, ...]:
    total: Counter[tuple[str, int, str]] = Counter()
    for buffer in highest.entry.live_buffers:
        if buffer.place[0]:
            total[*buffer.place, "data"] += buffer.bytes
    walk = highest.entry.program.walk
    for item in walk.alive if walk is not None else ():
        if item.file and item.made_in:
            total[item.file, item.line, item.made_in] += item.bytes
    return tuple(
        Line(shown_path(file), line, size, phase, linecache.getline(file, line).strip())
        for (file, line, phase), size in total.most_common(LINES)
    )


def _timeline(ledger: Ledger, highest: _Candidate) -> tuple[tuple[int, int, str], ...]:
    steps = [
        (i, live, "data" if not trained else "forward") for i, (trained, live) in enumerate(ledger.events)
    ]
    if not steps:
        return ()
    at = max(range(len(steps)), key=lambda i: steps[i][1])
    steps[at] = (steps[at][0], highest.interval.usual, "backward" if highest.entry.trains else "forward")
    return thin(steps)
