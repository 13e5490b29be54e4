"""stream: any number of points through a function, in chunks chosen for a budget.

The function must treat rows alone: row i of its result depends on row i of its points only. That cannot be
seen from outside; `check=True` tries it on a sample. On a GPU points and results are copied through pinned
buffers while the device computes. Where memory runs out the chunk is halved and finished chunks stay.
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
HALVINGS = 3  # of a chunk that was given, where no tile says how far it may go down
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Flow:
    """How the points went through. Bytes are None where none were counted."""

    points: int
    chunk: int  # of the last call
    calls: int
    halvings: int  # how often memory ran out
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
    """`function(chunk, *extra)` of all points, in order: one array (N, ...), or a tuple if the function gives one.

    points: an array or tensor (N, ...), a tuple of such (the function then takes as many), or a number or range of
    indices, which the function gets as int64 (C,) made on the device.
    budget: bytes, "6GiB", or a card: all that lies on the device counts. Default 80 % of the free device memory; on a CPU
    16 MiB, where larger chunks are slower, and never more than 25 % of the free RAM.
    chunk: points at one time, or "auto": the largest for the budget, found by trial chunks, which are kept.
    device: "cuda", "cpu", "auto" (a tensor's or module's own, else CUDA if there is one), or "numpy" for a function of
    numpy arrays. out: arrays to fill, "numpy", or "device"; default as the points are, numpy for indices.
    extra: arrays among these are moved to the device once. pad: the tail repeats its last point, so that all chunks
    have one shape. tile: chunks are multiples of it, and none is smaller (default 1,024). most: with "auto", no chunk is
    larger, so that progress is told often where a point takes few bytes and much time.
    bytes_per_point: what a point of a chunk takes, if known: no trials. check: refuse a function that mixes rows.
    progress(done, total) is called before the first chunk and after each; report(flow) once at the end.
    """
    if not callable(function):
        raise BadInput(
            f"the function is {function!r:.40}", hint="give stream a function first, then the points"
        )
    given = _points(points)
    wanted, tile = _sizes(chunk, tile, bytes_per_point, budget, most)
    lane = _lane(function, given, device=device, out=out, extra=tuple(extra), pad=pad)
    if check:
        _check(lane, given.count, tile)
    room = None if wanted is not None else lane.room(budget_bytes(budget))
    pace = Pace(
        given.count,
        tile=tile,
        room=room,
        chunk=wanted,
        whole=pad,
        bytes_per_point=bytes_per_point,
        held_bytes=lane.held_bytes(),
        most=most,
    )
    try:
        last, calls = _run(lane, pace, given.count, progress)
        made = lane.result(trial=wanted or 1)
    finally:
        lane.close()
    if report is not None:
        bound = None if room is None else room.bound_bytes
        fixed, slope = (
            None if value is None else round(value) for value in (pace.fixed_bytes, pace.bytes_per_point)
        )
        report(
            Flow(given.count, last, calls, pace.halvings, lane.device, bound, fixed, slope, pace.peak_bytes)
        )
    return made


def _run(lane: Lane, pace: Pace, count: int, progress: Progress | None) -> tuple[int, int]:
    """Every point through the lane; the last chunk and the number of calls."""
    tell = progress or (lambda done, total: None)
    at = done = chunk = calls = 0
    flying: deque[int] = deque()  # where each chunk under way ends

    def land() -> None:
        nonlocal done
        lane.land()
        done = flying.popleft()
        tell(done, count)

    try:
        tell(0, count)
        while at < count or flying:
            if at == count or len(flying) == lane.depth:
                land()
                continue
            wanted, failed = pace.next(count - at), None
            if wanted != chunk:
                while flying:
                    land()
                chunk = wanted
                failed = _attempt(lane, lane.resize, chunk)
            if failed is None:
                calls += 1
                failed = _attempt(lane, lane.launch, at, min(at + chunk, count), watch=pace.is_trial())
            if failed is None:
                at = min(at + chunk, count)
                flying.append(at)
                peak = lane.peak_bytes()
                if peak is not None:
                    pace.saw(chunk, peak)
                continue
            while flying:
                land()
            lane.clear()
            pace.halve(chunk, why=failed, free_bytes=lane.free_bytes())
            chunk = 0
    except BaseException as error:
        with suppress(
            Exception
        ):  # landing may be what failed, and fails again: the first fault is the one to tell
            while flying:  # what was sent before the fault is whole, Ctrl-C or not
                lane.land()
                done = flying.popleft()
        error.add_note(f"stream: the results of {done:,} of {count:,} points are stored")
        raise
    return chunk, calls


def _check(lane: Lane, count: int, size: int) -> None:
    """Try the function on a sample, halved for as long as memory runs out."""
    while (failed := _attempt(lane, check_rowwise, lane, count, size)) is not None:
        if size < 4:
            raise DoesNotFit(
                f"memory ran out at {size} points, with {show_bytes(lane.free_bytes())} free",
                hint="free memory",
            ) from failed
        lane.clear()
        size //= 2


def _attempt(lane: Lane, run: Callable[..., None], *args: Any, **options: Any) -> BaseException | None:
    """The error, if memory ran out; its frames are let go, for they hold the tensors that filled the memory."""
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
            f"points are ({kinds})" if isinstance(points, (tuple, list)) else f"points are {points!r:.40}",
            hint="give an array (N, ...), a tuple of them, or a number of points",
        )
    counts = [int(shape[0]) for shape in shapes if shape]
    if len(set(counts)) > 1:
        raise BadInput(
            f"the arrays of points have {', '.join(f'{count:,}' for count in counts)} rows",
            hint="give arrays of the same first dimension; what all points share goes into extra=",
        )
    return Points(counts[0], arrays)


def _sizes(
    chunk: int | str, tile: int | None, bytes_per_point: int | None, budget: Any, most: int | None
) -> tuple[int | None, int]:
    """The chunk, None for auto, and the tile."""
    wanted = None if chunk == "auto" else parse_size(chunk)
    if wanted is not None and (budget is not None or bytes_per_point is not None or most is not None):
        raise BadInput(
            "both a chunk and a budget, most or bytes_per_point were given", hint="leave one of them out"
        )
    if most is not None and most < (tile or TILE):
        raise BadInput(
            f"most is {most:,} points, less than a tile",
            hint=f"give at least {tile or TILE:,}, or a smaller tile=",
        )
    if bytes_per_point is not None and bytes_per_point < 1:
        raise BadInput(
            f"bytes_per_point is {bytes_per_point}", hint="give a whole number above 0, or leave it out"
        )
    if tile is not None and tile < 1:
        raise BadInput(f"a tile of {tile} points", hint="give a tile of at least 1 point")
    return wanted, tile or (TILE if wanted is None else max(1, min(TILE, wanted >> HALVINGS)))


def budget_bytes(budget: str | int | Card | None) -> int | None:
    """Bytes for tensors: of a card, what its context leaves."""
    if budget is None:
        return None
    if isinstance(budget, str) and not budget.strip().lstrip("+-.")[:1].isdigit():
        budget = card(budget)
    if isinstance(budget, Card):
        return budget.memory_bytes - budget.context_bytes
    return parse_bytes(budget)


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
            "torch is not installed",
            hint="pip install 'pinchpoint[torch]', or device=\"numpy\" for a function of numpy arrays",
        ) from error
    return open_lane(function, points, device=device, out=out, extra=extra, pad=pad)
