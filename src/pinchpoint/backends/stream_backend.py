"""The `Lane` interface between `stream` and a framework, and the checks that all lanes share.

A lane copies chunks to a function and its results back. It knows where arrays are stored, how bytes are
counted and which errors mean that memory ran out; `stream` decides which chunk comes next. Rows are
points: N in total, C in a chunk.
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
SHARE_OF_BUDGET = 0.98  # share for chunks on the host; the rest is for small short-lived allocations
# The largest chunk on a CPU without a budget: fresh pages and cache misses make larger chunks slower.
CACHED_BYTES = 16 * MIB


@dataclass(frozen=True)
class Points:
    """What is streamed: arrays (N, ...), or the numbers of a range, which are created on the device."""

    count: int
    arrays: tuple[Any, ...] = ()
    numbers: range | None = None


@dataclass(frozen=True)
class Room:
    """Bytes for a chunk: the goal for which its size is chosen, and the bound that it must never exceed."""

    goal_bytes: int
    bound_bytes: int


@dataclass(frozen=True)
class Form:
    """What a function returns: the row shape and the dtype of each array. single: one array, not a tuple."""

    rows: tuple[tuple[tuple[int, ...], str], ...]
    single: bool

    def text(self) -> str:
        texts = [f"{dtype} (C{''.join(f', {side}' for side in shape)})" for shape, dtype in self.rows]
        return texts[0] if self.single else f"({', '.join(texts)})"


class Lane(Protocol):
    """Copies chunks to a function and its results back. Chunks finish in the order of their launch."""

    device: str
    depth: int  # chunks that may be in flight at one time

    def room(self, budget_bytes: int | None) -> Room:
        """The part of a budget, or of the free memory if there is no budget, that chunks may use."""
        ...

    def free_bytes(self) -> int:
        """Bytes that could be allocated now."""
        ...

    def held_bytes(self) -> int:
        """Bytes that count against the budget before the first chunk."""
        ...

    def resize(self, chunk: int) -> None:
        """Allocate buffers for chunks of this many points. No chunk may be in flight."""
        ...

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        """Send points start..stop through the function, padded to the chunk by repeating the last one."""
        ...

    def land(self) -> None:
        """Store the results of the oldest chunk in flight; does nothing if there is none."""
        ...

    def peak_bytes(self) -> int | None:
        """Most bytes alive since the last launch with `watch`, or None if unknown."""
        ...

    def clear(self) -> None:
        """Release buffers and caches after memory ran out."""
        ...

    def close(self) -> None:
        """Release the buffers."""
        ...

    def is_oom(self, error: BaseException) -> bool: ...

    def try_rows(self, rows: Any) -> list[tuple[Any, str]]:
        """Results for these rows only (int64, numpy), as numpy arrays, each with the name of its dtype."""
        ...

    def result(self, *, trial: int) -> Any:
        """The outputs; if nothing was launched, `trial` points of zeros determine their shapes."""
        ...


class HostMemory:
    """The part of a lane that concerns memory, for chunks in main memory."""

    def room(self, budget_bytes: int | None) -> Room:
        """All of a budget; without one, a chunk that fits the caches, within a quarter of the free RAM."""
        if budget_bytes is not None:
            return Room(int(SHARE_OF_BUDGET * budget_bytes), budget_bytes)
        bound = int(SHARE_OF_RAM * host_memory.free_bytes())
        return Room(min(CACHED_BYTES, int(SHARE_OF_BUDGET * bound)), bound)

    def free_bytes(self) -> int:
        return host_memory.free_bytes()

    def held_bytes(self) -> int:
        return 0


def parts_of(value: Any, *, rows: int, kind: type, kind_name: str, hint: str) -> tuple[tuple[Any, ...], bool]:
    """The arrays a function returned, and whether it returned one; each must have a row for every point."""
    single = isinstance(value, kind)
    parts = (value,) if single else value
    if not isinstance(parts, (tuple, list)) or not parts or not all(isinstance(part, kind) for part in parts):
        types = (
            type(value).__name__
            if not isinstance(parts, (tuple, list))
            else f"({', '.join(type(p).__name__ for p in parts)})"
        )
        raise BadInput(
            f"The function returned {types}, but it must return {kind_name} or a tuple of them.", hint=hint
        )
    for part in parts:
        if not part.shape or part.shape[0] != rows:
            raise BadInput(
                f"The function returned an array of shape {tuple(part.shape)} "
                f"for a chunk of {rows:,} points.",
                hint="Return one row for each point, and sum over points outside the streamed function.",
            )
    return tuple(parts), single


def check_same(first: Form, now: Form) -> None:
    """Refuse results whose shapes or dtypes differ between chunks."""
    if first != now:
        raise BadInput(
            f"The function returned {first.text()} for the first chunk and {now.text()} for a later one.",
            hint="Return the same shapes and types for every chunk.",
        )


def output_arrays(out: Any, count: int) -> tuple[Any, ...] | None:
    """The arrays that the caller passed as `out`, each with one row per point; None if there are none."""
    if out is None or isinstance(out, str):
        return None
    arrays = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    for array in arrays:
        shape = getattr(array, "shape", None)
        if not shape or shape[0] != count:
            shape_text = "" if shape is None else f" of shape {tuple(shape)}"
            raise BadInput(
                f"The argument out= is {type(array).__name__}{shape_text}, but there are {count:,} points.",
                hint="Pass arrays whose first dimension is the number of points, or leave out= out.",
            )
    return arrays


def check_output_arrays(arrays: Sequence[Any], form: Form) -> None:
    """Refuse arrays passed as `out` whose rows differ from those the function returns."""
    shapes = tuple(tuple(array.shape[1:]) for array in arrays)
    if shapes != tuple(shape for shape, _ in form.rows):
        raise BadInput(
            f"The argument out= has rows of {', '.join(map(str, shapes))}, "
            f"but the function returns {form.text()}.",
            hint="Pass arrays of the shapes that the function returns, or leave out= out.",
        )


def cast_error(source: Any, target: Any) -> BadInput:
    """The error for an output array that cannot store the results."""
    return BadInput(
        f"The argument out= has dtype {target}, which cannot store {source}.",
        hint="Pass an array of the dtype that the function returns, or of a wider one.",
    )
