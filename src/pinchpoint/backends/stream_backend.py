"""The seam between `stream` and a framework: a lane carries chunks to a function and its results back.

A lane knows where arrays live, how bytes are counted and what running out of memory looks like; which
chunk comes next is decided above it. Rows are points: N in all, C in a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pinchpoint.core import host_memory
from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import MIB

Function = Callable[..., Any]
SHARE_OF_RAM = 0.25
SHARE_OF_BUDGET = 0.98  # on a host; the rest is for small things that come and go
CACHED_BYTES = (
    16 * MIB
)  # without a budget a chunk on a CPU takes no more: fresh pages and missed caches make larger ones slower


@dataclass(frozen=True)
class Points:
    """What is streamed: arrays (N, ...), or the numbers of a range, which are made where they are wanted."""

    count: int
    arrays: tuple[Any, ...] = ()
    numbers: range | None = None


@dataclass(frozen=True)
class Room:
    """Bytes a chunk may take: the goal it is chosen for, and the bound it must never pass."""

    goal_bytes: int
    bound_bytes: int


@dataclass(frozen=True)
class Form:
    """What a function gives: for each of its arrays the shape of a row and the type. single: no tuple around it."""

    rows: tuple[tuple[tuple[int, ...], str], ...]
    single: bool

    def text(self) -> str:
        shown = [f"{dtype} (C{''.join(f', {side}' for side in shape)})" for shape, dtype in self.rows]
        return shown[0] if self.single else f"({', '.join(shown)})"


class Lane(Protocol):
    """One way to and from a function. Chunks land in the order they were launched."""

    device: str
    depth: int  # chunks that may be under way at one time

    def room(self, budget_bytes: int | None) -> Room:
        """What chunks may take of a budget, or of what is free when there is none."""
        ...

    def free_bytes(self) -> int:
        """What could be taken now."""
        ...

    def held_bytes(self) -> int:
        """What counts against the budget before the first chunk."""
        ...

    def resize(self, chunk: int) -> None:
        """Buffers for chunks of this many points. Nothing may be under way."""
        ...

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        """Send points start..stop through the function, made up to the chunk by repeating the last one."""
        ...

    def land(self) -> None:
        """Store the results of the oldest chunk under way; nothing where there is none."""
        ...

    def peak_bytes(self) -> int | None:
        """Most bytes since the last launch that was watched, where that is known."""
        ...

    def clear(self) -> None:
        """Give up buffers and caches, after memory ran out."""
        ...

    def close(self) -> None:
        """Give up the buffers."""
        ...

    def is_oom(self, error: BaseException) -> bool: ...

    def try_rows(self, rows: Any) -> list[tuple[Any, str]]:
        """The function's results on just these rows (int64, numpy), as numpy arrays with their true types."""
        ...

    def result(self, *, trial: int) -> Any:
        """The outputs; if nothing was launched, `trial` points of zeros tell their shapes."""
        ...


def room_on_host(budget_bytes: int | None) -> Room:
    """All of a budget; without one a chunk that suits the caches, bound by a quarter of the free RAM."""
    if budget_bytes is not None:
        return Room(int(SHARE_OF_BUDGET * budget_bytes), budget_bytes)
    bound = int(SHARE_OF_RAM * host_memory.free_bytes())
    return Room(min(CACHED_BYTES, int(SHARE_OF_BUDGET * bound)), bound)


def parts_of(returned: Any, *, rows: int, kind: type, shown: str, hint: str) -> tuple[tuple[Any, ...], bool]:
    """The arrays a function gave, and whether it gave just one; each must have a row for every point."""
    single = isinstance(returned, kind)
    parts = (returned,) if single else returned
    if not isinstance(parts, (tuple, list)) or not parts or not all(isinstance(part, kind) for part in parts):
        got = (
            type(returned).__name__
            if not isinstance(parts, (tuple, list))
            else f"({', '.join(type(p).__name__ for p in parts)})"
        )
        raise BadInput(f"the function gave {got}; wanted is {shown} or a tuple of them", hint=hint)
    for part in parts:
        if not part.shape or part.shape[0] != rows:
            raise BadInput(
                f"the function gave {tuple(part.shape)} for a chunk of {rows:,} points",
                hint="give one row for each point: sums over points are taken of what stream returns",
            )
    return tuple(parts), single


def check_same(first: Form, now: Form) -> None:
    """Refuse results that look different from chunk to chunk."""
    if first != now:
        raise BadInput(
            f"the function gave {first.text()} for the first chunk and {now.text()} for a later one",
            hint="give the same shapes and types for every chunk",
        )


def given_outputs(out: Any, count: int) -> tuple[Any, ...] | None:
    """Arrays handed in to be filled, one row a point; None where there are none."""
    if out is None or isinstance(out, str):
        return None
    given = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    for array in given:
        shape = getattr(array, "shape", None)
        if not shape or shape[0] != count:
            raise BadInput(
                f"out is {type(array).__name__}{'' if shape is None else f' {tuple(shape)}'}; there are {count:,} points",
                hint="give arrays whose first dimension is the number of points, or leave out= away",
            )
    return given


def check_given(given: Sequence[Any], form: Form) -> None:
    """Refuse outputs that were handed in and do not take what the function gives."""
    shapes = tuple(tuple(array.shape[1:]) for array in given)
    if shapes != tuple(shape for shape, _ in form.rows):
        raise BadInput(
            f"out takes rows of {', '.join(map(str, shapes))}; the function gives {form.text()}",
            hint="give out= as the function returns it, or leave it away",
        )


def no_cast(have: Any, into: Any) -> BadInput:
    return BadInput(
        f"out is {into} and cannot take {have}",
        hint="give out= in the type the function returns, or a wider one",
    )
