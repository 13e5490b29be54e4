"""`stream` applies a function to any number of points, in chunks that fit a budget.

The function must treat rows independently: row i of its result depends only on row i of its points.
`check=True` tests this on some of the points. On a GPU, points and results are copied through pinned buffers
while the device computes. If memory runs out, the chunk is halved, and finished chunks are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pinchpoint.backends.stream_backend import Function, Lane, Points
from pinchpoint.core.errors import BadInput, DoesNotFit, Missing
from pinchpoint.core.units import parse_bytes, parse_size, show_bytes
from pinchpoint.forecasting.cards import Card, card
from pinchpoint.streaming.chunk_model import Pace
from pinchpoint.streaming.rowwise import check_rowwise

TILE = 1_024
HALVINGS = 3  # how many times a fixed chunk may be halved if no tile limits it
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Flow:
    """How the points were processed. Bytes are None where they were not counted."""

    points: int
    chunk: int  # of the last call
    calls: int
    halvings: int  # how many times memory ran out
    device: str
    budget_bytes: int | None = None
    fixed_bytes: int | None = None
    bytes_per_point: int | None = None
    peak_bytes: int | None = None


def stream(
    function: Function,
    points: Any,
    *,
    budget: str | int | Card | None = None,
    chunk: int | str = "auto",
    device: str = "auto",
    out: Any = None,
    extra: tuple[Any, ...] = (),
    pad: bool = True,
    tile: int | None = None,
    most: int | None = None,
    bytes_per_point: int | None = None,
    check: bool = False,
    progress: Progress | None = None,
    report: Callable[[Flow], None] | None = None,
) -> Any:
    """Apply `function(chunk, *extra)` to all points, in order; returns an array (N, ...) or a tuple of them.

    points: an array or tensor (N, ...), a tuple of such (the function then takes as many), or a number or
    range of indices, which the function receives as int64 (C,) created on the device.
    budget: bytes, "6GiB", or a card; everything on the device counts. The default is 80 % of the free device
    memory. On a CPU it is 16 MiB, because larger chunks are slower, but at most 25 % of the free RAM.
    chunk: points per chunk, or "auto" for the largest that fits the budget, found by trial chunks whose
    results are kept.
    device: "cuda", "cpu", "auto" (that of a tensor or module, else CUDA if it is available), or "numpy" for a
    function of NumPy arrays.
    out: arrays to fill, "numpy", or "device". By default, results are like the points; NumPy for indices.
    extra: arrays among these are moved to the device once.
    pad: repeat the last point at the end, so that all chunks have the same shape.
    tile: chunks are multiples of it, and none is smaller. The default is 1,024.
    most: the largest chunk with "auto", for frequent progress where a point takes few bytes but much time.
    bytes_per_point: what each point of a chunk takes, if known; there are then no trials.
    check: raise if the function mixes rows.
    progress(done, total) is called before the first chunk and after each; report(flow) once at the end.
    """
    if not callable(function):
        raise BadInput(
            f"The function is {function!r:.40}, which cannot be called.",
            hint="Give stream a function first, then the points.",
        )
    source = _points(points)
    fixed_chunk, tile = _sizes(chunk, tile, bytes_per_point, budget, most)
    lane = _lane(function, source, device=device, out=out, extra=tuple(extra), pad=pad)
    if check:
        _check(lane, source.count, tile)
    room = None if fixed_chunk is not None else lane.room(budget_bytes(budget))
    pace = Pace(
        source.count,
        tile=tile,
        room=room,
        chunk=fixed_chunk,
        whole=pad,
        bytes_per_point=bytes_per_point,
        held_bytes=lane.held_bytes(),
        most=most,
    )
    try:
        last, calls = _run(lane, pace, source.count, progress)
        result = lane.result(trial=fixed_chunk or 1)
    finally:
        lane.close()
    if report is not None:
        bound_bytes = None if room is None else room.bound_bytes
        fixed_bytes, slope = (
            None if value is None else round(value) for value in (pace.fixed_bytes, pace.bytes_per_point)
        )
        report(
            Flow(
                source.count,
                last,
                calls,
                pace.halvings,
                lane.device,
                bound_bytes,
                fixed_bytes,
                slope,
                pace.peak_bytes,
            )
        )
    return result


def _run(lane: Lane, pace: Pace, count: int, progress: Progress | None) -> tuple[int, int]:
    """Process every point; return the last chunk and the number of calls."""
    tell = progress or (lambda done, total: None)
    at = done = chunk = calls = 0
    pending: deque[int] = deque()  # the end index of each chunk that is being computed

    def land() -> None:
        nonlocal done
        lane.land()
        done = pending.popleft()
        tell(done, count)

    try:
        tell(0, count)
        while at < count or pending:
            if at == count or len(pending) == lane.depth:
                land()
                continue
            next_chunk, oom = pace.next(count - at), None
            if next_chunk != chunk:
                while pending:
                    land()
                chunk = next_chunk
                oom = _attempt(lane, lane.resize, chunk)
            if oom is None:
                calls += 1
                oom = _attempt(lane, lane.launch, at, min(at + chunk, count), watch=pace.is_trial())
            if oom is None:
                at = min(at + chunk, count)
                pending.append(at)
                peak = lane.peak_bytes()
                if peak is not None:
                    pace.record(chunk, peak)
                continue
            while pending:
                land()
            lane.clear()
            pace.halve(chunk, why=oom, free_bytes=lane.free_bytes())
            chunk = 0
    except BaseException as error:
        # Storing results may be what failed, and it may fail again: the first error is the one to report.
        with suppress(Exception):
            while pending:  # chunks that were sent before the error, or before Ctrl-C, are complete
                lane.land()
                done = pending.popleft()
        error.add_note(f"stream: the results of {done:,} of {count:,} points are stored")
        raise
    return chunk, calls


def _check(lane: Lane, count: int, size: int) -> None:
    """Check the function on some points, halving their number while memory runs out."""
    while (oom := _attempt(lane, check_rowwise, lane, count, size)) is not None:
        if size < 4:
            raise DoesNotFit(
                f"Memory ran out at {size} points, with {show_bytes(lane.free_bytes())} free.",
                hint="Free memory on the device.",
            ) from oom
        lane.clear()
        size //= 2


def _attempt(lane: Lane, run: Callable[..., None], *args: Any, **options: Any) -> BaseException | None:
    """Run and return the error if memory ran out.

    The error's frames are removed, because they refer to the tensors that filled the memory.
    """
    try:
        run(*args, **options)
    except Exception as error:
        if not lane.is_oom(error):
            raise
        return error.with_traceback(None)
    return None


def _points(points: Any) -> Points:
    if isinstance(points, (int, np.integer)) and not isinstance(points, bool):
        points = range(int(points)) if points >= 0 else points
    if isinstance(points, range):
        return Points(len(points), numbers=points)
    arrays = tuple(points) if isinstance(points, (tuple, list)) else (points,)
    shapes = [getattr(array, "shape", None) for array in arrays]
    if not shapes or not all(shapes):
        kinds = ", ".join(type(array).__name__ for array in arrays)
        raise BadInput(
            f"The points are ({kinds}), which cannot be streamed."
            if isinstance(points, (tuple, list))
            else f"The points are {points!r:.40}, which cannot be streamed.",
            hint="Give an array (N, ...), a tuple of arrays, or a number of points.",
        )
    counts = [int(shape[0]) for shape in shapes if shape]
    if len(set(counts)) > 1:
        raise BadInput(
            f"The arrays of points have different numbers of rows: {', '.join(f'{n:,}' for n in counts)}.",
            hint="Give arrays with the same first dimension; what all points share belongs in extra=.",
        )
    return Points(counts[0], arrays)


def _sizes(
    chunk: int | str, tile: int | None, bytes_per_point: int | None, budget: Any, most: int | None
) -> tuple[int | None, int]:
    """The chunk, None for auto, and the tile."""
    fixed_chunk = None if chunk == "auto" else parse_size(chunk)
    if fixed_chunk is not None and (budget is not None or bytes_per_point is not None or most is not None):
        raise BadInput(
            "Both a chunk and a budget, most or bytes_per_point are set.", hint="Leave one of them out."
        )
    if most is not None and most < (tile or TILE):
        raise BadInput(
            f"most= is {most:,} points, which is less than a tile.",
            hint=f"Give at least {tile or TILE:,}, or a smaller tile=.",
        )
    if bytes_per_point is not None and bytes_per_point < 1:
        raise BadInput(
            f"bytes_per_point is {bytes_per_point}, but it must be positive.",
            hint="Give a whole number above 0, or leave it out.",
        )
    if tile is not None and tile < 1:
        raise BadInput(
            f"tile= is {tile} points, but it must be at least 1.", hint="Give a tile of at least 1 point."
        )
    return fixed_chunk, tile or (TILE if fixed_chunk is None else max(1, min(TILE, fixed_chunk >> HALVINGS)))


def budget_bytes(budget: str | int | Card | None) -> int | None:
    """The bytes available to tensors; for a card, its memory without the context."""
    if budget is None:
        return None
    if isinstance(budget, str) and not budget.strip().lstrip("+-.")[:1].isdigit():
        budget = card(budget)
    if isinstance(budget, Card):
        return budget.usable_bytes
    return parse_bytes(budget, or_card=True)


def _lane(
    function: Function, points: Points, *, device: str, out: Any, extra: tuple[Any, ...], pad: bool
) -> Lane:
    if device == "numpy":
        from pinchpoint.streaming.numpy_backend import HostLane

        return HostLane(function, points, out=out, extra=extra, pad=pad)
    try:
        from pinchpoint.backends.torch.streaming import open_lane
    except ModuleNotFoundError as error:
        raise Missing(
            "PyTorch is not installed.",
            hint="Run pip install 'pinchpoint[torch]', or use device=\"numpy\" for functions of arrays.",
        ) from error
    return open_lane(function, points, device=device, out=out, extra=extra, pad=pad)
