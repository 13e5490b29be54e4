"""Peak bytes of a program, computed from the last use of each value.

Pure arithmetic on a `Program`. Arguments stay alive throughout unless they are donated; outputs stay
alive to the end; every other value is alive from the operation that creates it to the last one that
reads it. There are two walks:

- plain: every value is materialised and nothing is written in place, which is an upper estimate.
- fused: XLA fuses elementwise chains, so a value that only fusing operations read is never
  materialised, and its own inputs live until those readers run instead. It is fused into its k
  readers if that moves no more bytes than writing it once and reading it k times; a costly one
  (exp, tanh, division, gather) is fused into a single reader only; one fusion has at most 32 inputs.
  A fused operation may overwrite an input of equal size that is not read afterwards.

Not counted: scratch memory of libraries beyond `workspace_bytes` for matrix products, padding, and
copies that XLA adds for layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pinchpoint.backends.jax.primitives import FUSED, FUSING
from pinchpoint.backends.jax.program import Op, Program

FUSION_INPUTS = 32


@dataclass(frozen=True)
class Alive:
    """A value that is alive at the peak. value: its number in the program, None inside a loop body."""

    bytes: int
    made_in: str  # phase of the operation that made it; "" for an input
    read_in: str  # phase of the last one that reads it; "" for an output
    file: str = ""
    line: int = 0
    value: int | None = None


@dataclass(frozen=True)
class Walk:
    """Result of a liveness walk: peak_bytes = the bytes of `alive` + workspace_bytes."""

    peak_bytes: int
    workspace_bytes: int
    alive: tuple[Alive, ...]
    timeline: tuple[tuple[int, int, str], ...]  # (operation, bytes while it runs, phase)


def walk(program: Program, *, fused: bool = True, workspace_bytes: int = 0) -> Walk:
    """Find the peak. workspace_bytes: scratch memory that a matrix product may use while it runs."""
    reads, fused_away = fuse(program) if fused else ([op.ins for op in program.ops], frozenset())
    end = len(program.ops)
    last = dict.fromkeys(program.inputs, -1)
    for index, values in enumerate(reads):
        last.update(dict.fromkeys(values, index))
    last.update(dict.fromkeys(program.outputs, end))
    # An argument that is donated but never read has no reader to overwrite it.
    last.update({v: end for v in program.inputs if v not in program.donated or last[v] < 0})

    inners = [_inner(op, fused=fused, workspace_bytes=workspace_bytes) for op in program.ops]
    birth: dict[int, int] = dict.fromkeys(program.inputs, -1)
    now = sum(program.sizes[v] for v in birth)
    peak, at = now, -1
    timeline: list[tuple[int, int, str]] = []
    reused: set[int] = set()  # values whose storage an output took over: they are not freed
    for index, op in enumerate(program.ops):
        results = [v for v in op.outs if v not in fused_away]
        if not results and op.outs:
            continue
        dying = [
            v for v in dict.fromkeys(reads[index]) if last[v] == index and v in birth and v not in reused
        ]
        for value in results:
            birth[value] = index
            donor = _donor(op, value, dying, program.sizes) if fused else None
            if donor is None:
                now += program.sizes[value]
            else:
                dying.remove(donor)
                reused.add(donor)
        alive_bytes = now + _transient(inners[index], op, workspace_bytes)
        timeline.append((index, alive_bytes, op.phase))
        if alive_bytes > peak:
            peak, at = alive_bytes, index
        unread = [v for v in results if v not in last]
        now -= sum(program.sizes[v] for v in (*dying, *unread))
    return _at_peak(program, peak, at, birth, last, reused, inners, workspace_bytes, timeline)


def fuse(program: Program) -> tuple[list[tuple[int, ...]], frozenset[int]]:
    """The materialised values that each operation reads, and the values that are never materialised."""
    readers: dict[int, list[Op]] = {}
    for op in program.ops:
        for value in op.ins:
            readers.setdefault(value, []).append(op)
    outputs = set(program.outputs)
    fused_away: set[int] = set()
    leaves: dict[int, tuple[int, ...]] = {}
    reads: list[tuple[int, ...]] = []
    for op in program.ops:
        sources = tuple(dict.fromkeys(leaf for value in op.ins for leaf in leaves.get(value, (value,))))
        reads.append(sources)
        for value in op.outs if op.kind in FUSED else ():
            if value not in outputs and _vanishes(op, value, sources, readers.get(value, []), program.sizes):
                fused_away.add(value)
                leaves[value] = sources
    return reads, frozenset(fused_away)


def _vanishes(
    op: Op, value: int, sources: Sequence[int], readers: Sequence[Op], sizes: Sequence[int]
) -> bool:
    count = len(readers)
    takes_in = all(r.kind in FUSING or (r.kind == "dot" and op.name == "transpose") for r in readers)
    # An update writes into its first operand, which must therefore be materialised.
    overwritten = any(pair[0] == value for r in readers for pair in r.in_place)
    if not count or not takes_in or overwritten or len(sources) > FUSION_INPUTS:
        return False
    if op.kind == "costly":
        return count == 1
    inputs = sum(sizes[v] for v in sources)
    return inputs * count <= inputs + sizes[value] * (1 + count)


def _donor(op: Op, value: int, dying: Sequence[int], sizes: Sequence[int]) -> int | None:
    """The input whose storage this output takes over."""
    if op.in_place:
        return next(
            (a for a, b in op.in_place if b == value and a in dying and sizes[a] == sizes[value]), None
        )
    return next((v for v in dying if sizes[v] == sizes[value]), None) if op.kind in FUSED else None


def _inner(op: Op, *, fused: bool, workspace_bytes: int) -> Walk | None:
    """The walk of the body with the largest peak after its shared bytes are subtracted."""
    walks = [
        (walk(b.program, fused=fused, workspace_bytes=workspace_bytes), b.shared_bytes) for b in op.bodies
    ]
    return max(walks, key=lambda pair: pair[0].peak_bytes - pair[1])[0] if walks else None


def _transient(inner: Walk | None, op: Op, workspace_bytes: int) -> int:
    if inner is not None:
        return max(0, inner.peak_bytes - op.bodies[0].shared_bytes)
    return workspace_bytes if op.kind == "dot" else 0


def _at_peak(
    program: Program,
    peak: int,
    at: int,
    birth: dict[int, int],
    last: dict[int, int],
    reused: set[int],
    inners: Sequence[Walk | None],
    workspace_bytes: int,
    timeline: Sequence[tuple[int, int, str]],
) -> Walk:
    """The values alive while operation `at` runs, without those whose storage an output took over."""
    makers = {value: op for op in program.ops for value in op.outs}
    phases = [op.phase for op in program.ops]
    alive: list[Alive] = []
    for value, start in birth.items():
        stop = last.get(value, start)
        is_dead = stop < at or (stop == at and value in reused)
        if start > at or is_dead or not program.sizes[value]:
            continue
        maker = makers.get(value)
        read_in = phases[stop] if 0 <= stop < len(phases) else ""
        alive.append(
            Alive(program.sizes[value], maker.phase, read_in, maker.file, maker.line, value)
            if maker
            else Alive(program.sizes[value], "", read_in, value=value)
        )
    op = program.ops[at] if at >= 0 else None
    inner = inners[at] if at >= 0 else None
    workspace = workspace_bytes if op is not None and op.kind == "dot" else 0
    if op is not None and inner is not None:
        extra, workspace = _inner_share(inner, op)
        alive += extra
    assert sum(a.bytes for a in alive) + workspace == peak
    return Walk(peak, workspace, tuple(sorted(alive, key=lambda a: -a.bytes)), tuple(timeline))


def _inner_share(inner: Walk, op: Op) -> tuple[list[Alive], int]:
    """The values and bytes that a body adds at its own peak, without the bytes it shares with its caller."""
    room = max(0, inner.peak_bytes - op.bodies[0].shared_bytes)
    workspace = min(inner.workspace_bytes, room)
    room -= workspace
    extra: list[Alive] = []
    for item in sorted(inner.alive, key=lambda a: (not a.file, -a.bytes)):
        size = min(item.bytes, room)
        room -= size
        if size:
            extra.append(
                Alive(
                    size,
                    item.made_in or op.phase,
                    item.read_in or op.phase,
                    item.file or op.file,
                    item.line or op.line,
                )
            )
    return extra, workspace
