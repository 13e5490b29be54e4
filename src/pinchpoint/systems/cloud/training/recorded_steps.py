"""Steps recorded as CUDA graphs and replayed, with draws padded to a few sizes.

A step launches more than a thousand kernels, which takes the host longer than the kernels run. Every draw has
its own numbers of points and voxels, so that draws of similar size are padded to a common one. Rows of the
padding are read by no row of the draw, have no label and therefore no gradient: the loss and its gradient are
those of the draw alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.systems.cloud.data.scene import IGNORED
from pinchpoint.systems.cloud.model.attention import Windows
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import Tables
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw
from pinchpoint.systems.cloud.model.voxels import Level, Stride, Voxels
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.training.recorder import Note, Recorder, can_record
from pinchpoint.systems.common.training.recording import Result, release_memory

STEP = 1.4  # ratio of the numbers of points of one recorded size and the next
SPARE = 1.1  # room for more voxels and cells than in the draw for which a size was recorded
MOVED_DRAWS = 3  # of a size before it is padded, if scenes are scaled and rotated, which changes their voxels
DEAD = 1024  # cells for the points of the padding: a sum over one cell is not computed in parallel


@dataclass(frozen=True)
class Sizes:
    """The number of points of a draw, and of voxels of every level.

    scene_points, cells: of the batch from which views are drawn; 0 if its cells are not compared.
    """

    points: int
    voxels: tuple[int, ...]
    scene_points: int = 0
    cells: int = 0

    def hold(self, other: Sizes) -> bool:
        """Whether a draw of the other sizes can be padded to these. Rows of the padding are left over."""
        fit = (mine > theirs for mine, theirs in zip(self.voxels, other.voxels, strict=True))
        dead = DEAD if other.cells else 0
        return (
            self.points >= other.points
            and all(fit)
            and self.scene_points >= other.scene_points + dead
            and self.cells >= other.cells + dead
        )

    def or_more(self, other: Sizes | None) -> Sizes:
        """The larger one of each number of both."""
        if other is None:
            return self
        return Sizes(
            max(self.points, other.points),
            tuple(map(max, self.voxels, other.voxels)),
            max(self.scene_points, other.scene_points),
            max(self.cells, other.cells),
        )

    def with_room(self, points: int, before: Sizes | None) -> Sizes:
        """Sizes for draws like this one with up to this number of points, and for those before."""
        dead = DEAD if self.cells else 0
        room = Sizes(
            points,
            tuple(math.ceil(SPARE * count) + 1 for count in self.voxels),
            math.ceil(SPARE * self.scene_points) + dead,
            math.ceil(SPARE * self.cells) + dead,
        )
        return room.or_more(before)


class RecordedSteps:
    """Steps recorded for draws of similar numbers of points, on a GPU.

    The first step of a size is eager and padded, so that all its kernels are compiled; the second one is
    recorded. If a draw has more voxels than the size has room for, the size grows and begins again. Steps for
    which a `Recorder` has no room, and all steps after a recording that failed, are eager. compares_cells:
    whether the loss compares views cell by cell. first_draws: of a size, for the most voxels of which it gets
    room; all but the last of them are not padded. most_bytes, note: as in `Recorder`.
    """

    def __init__(
        self,
        *,
        compares_cells: bool = False,
        first_draws: int = 1,
        most_bytes: int | None = None,
        note: Note | None = None,
    ) -> None:
        self.compares_cells, self.first_draws = compares_cells, first_draws
        self._draws: dict[int, int] = {}  # of each size, until it has room
        self._largest: dict[int, Sizes] = {}  # of those
        self._read_bytes: dict[int, int] = {}  # of the padded draw of each size, once there was one
        self._recorder = Recorder(kind=("size", "sizes"), most_bytes=most_bytes, note=note)
        self._clear: Callable[[], None] = lambda: None  # of the last step
        self._sizes: dict[int, Sizes] = {}

    @property
    def recorded_sizes(self) -> int:
        """The number of sizes whose steps are replayed."""
        return len(self._recorder)

    @property
    def recorded_bytes(self) -> int:
        """The bytes of all recordings, and of the draws that they read."""
        return self._recorder.taken_bytes

    def run(self, draw: ViewDraw, step: Callable[[ViewDraw], Tensor], *, clear: Callable[[], None]) -> Tensor:
        """Return step(draw). clear: frees the gradients of the last step."""
        recorder, self._clear = self._recorder, clear
        if recorder.is_over or draw.tables is None:
            return recorder.run_eagerly(lambda: step(draw))
        own = sizes_of(draw, compares_cells=self.compares_cells)
        number = size_number(own.points)
        sizes = self._sizes.get(number)
        if sizes is None:
            self._draws[number] = self._draws.get(number, 0) + 1
            own = self._largest[number] = own.or_more(self._largest.get(number))
            if self._draws[number] < self.first_draws:
                return recorder.run_eagerly(lambda: step(draw))
        if sizes is None or not sizes.hold(own):
            recorder.forget(str(number))
            sizes = self._sizes[number] = own.with_room(largest_of_size(number), sizes)
            self._read_bytes.pop(number, None)
            return recorder.run_eagerly(lambda: step(pad_draw(draw, sizes)))
        result = self._replay_or_record(number, draw, step, clear)
        return recorder.run_eagerly(lambda: step(draw)) if result is None else result

    def run_eagerly(self, function: Callable[[], Result]) -> Result:
        """Return function(), run with the memory of eager steps, which is given back."""
        self._clear()
        self._recorder.measure_steps()
        result = self._recorder.run_eagerly(function)
        release_memory()  # a step may take less, and recordings get room by what steps take
        return result

    def with_room(self, function: Callable[[], Result]) -> Result:
        """Return function(), which is run again without recordings if it runs out of memory beside them."""
        return self._recorder.with_room(function)

    def _replay_or_record(
        self, number: int, draw: ViewDraw, step: Callable[[ViewDraw], Tensor], clear: Callable[[], None]
    ) -> Tensor | None:
        """Return step(draw) by the recording of this size; None if it is not recorded."""
        recorder, name = self._recorder, str(number)
        inputs = recorder.reads(name)
        if inputs is None and not recorder.could_record(self._read_bytes.get(number, 0)):
            return None
        try:
            padded = pad_draw(draw, self._sizes[number])
            copies = [value.clone() for value in _tensors(padded)] if inputs is None else []
        except torch.OutOfMemoryError:
            padded = copies = inputs = None
        if padded is None or copies is None:
            # Here the error no longer holds what there was of them.
            recorder.make_room("there was no memory to pad a draw")
            return None
        if inputs is not None:
            for buffer, value in zip(inputs, _tensors(padded), strict=True):
                buffer.copy_(value)
            return recorder.replay(name)
        inputs = copies
        read_bytes = self._read_bytes[number] = sum(value.nbytes for value in inputs)
        # The draw is put together anew, so that nothing that an earlier step computed is stored in it.
        return recorder.record(
            name,
            lambda: step(_with_tensors(padded, iter(inputs))),
            clear=clear,
            reads=inputs,
            read_bytes=read_bytes,
        )


def size_number(points: int) -> int:
    """The number of the size to which draws of this many points are padded."""
    return math.ceil(math.log(max(points, 2)) / math.log(STEP))


def largest_of_size(number: int) -> int:
    """The points to which the draws of a size are padded."""
    return math.floor(STEP**number) + 1


def refuse_unrecordable(config: CloudConfig, settings: Settings, *, processes: int) -> None:
    """Refuse recorded steps if they are asked for together with settings that they do not support."""
    if settings.record_steps and (option := _unrecordable(config, settings, processes)) is not None:
        raise BadInput(
            f"--set record_steps=true cannot be combined with {option}.",
            hint="Leave one of them out: steps are eager with --set record_steps=false.",
        )


def may_record(
    config: CloudConfig, settings: Settings, *, device: str, processes: int, note: Note | None = None
) -> bool:
    """Whether steps on this device can be recorded, and the settings ask for it or leave it open.

    note: called with the reason if only the device or its memory allocator keeps steps from being recorded.
    """
    if settings.record_steps is False or _unrecordable(config, settings, processes) is not None:
        return False
    return can_record(device, asked=settings.record_steps, note=note)


def _unrecordable(config: CloudConfig, settings: Settings, processes: int) -> str | None:
    """The option that keeps steps from being recorded; None if there is none."""
    reasons = {
        "--target": bool(settings.target),
        f"--set norm={config.norm}": config.norm != "layer",
        "--set views_mode=accumulate": settings.views_mode == "accumulate",
        "several processes": processes > 1,
    }
    return next((option for option, holds in reasons.items() if holds), None)


def sizes_of(draw: ViewDraw, *, compares_cells: bool = False) -> Sizes:
    assert draw.tables is not None
    cells = draw.segments
    return Sizes(
        draw.tables.inputs.shape[0],
        tuple(level.voxels for level in draw.tables.voxels.levels),
        cells.points if compares_cells else 0,
        cells.cells if compares_cells else 0,
    )


def pad_draw(draw: ViewDraw, sizes: Sizes) -> ViewDraw:
    """Return the draw with more points and voxels, and if `sizes` has cells, with more of these.

    It has only what the loss reads.
    """
    points, tables = draw.points, draw.tables
    assert points is not None and tables is not None
    padded_points = Batch(
        points.xyz[:1], points.features[:1], _pad(points.labels, sizes.points, IGNORED), points.offsets
    )
    voxels = tables.voxels
    levels, strides = list[Level](), list[Stride]()
    for level, count in zip(voxels.levels, sizes.voxels, strict=True):
        neighbours = _pad_table(level.neighbours, count, level.voxels, count)
        levels.append(Level(_pad(level.keys, count, 0), neighbours, level.depth))
    for depth, stride in enumerate(voxels.strides):
        fine, coarse = sizes.voxels[depth], sizes.voxels[depth + 1]
        children = _pad_table(stride.children, 8 * coarse, voxels.levels[depth].voxels, fine)
        strides.append(Stride(_pad(stride.place, fine, 8 * coarse), children))
    windows = tuple(
        tuple(_pad_windows(one, level.voxels, count) for one in both)
        for both, level, count in zip(tables.windows, voxels.levels, sizes.voxels, strict=True)
    )
    segments = _pad_segments(voxels.segments, sizes)
    padded_voxels = Voxels(
        segments, tuple(levels), tuple(strides), voxels.inside[:1], voxels.group[:1], voxels.groups
    )
    # Cells are read only if they are compared; the first one takes their place.
    first = Segments(segments.order[:1], segments.offsets[:2], segments.of_place[:1], None, 1, empty=True)
    index, view, cells = draw.index[:1], draw.view[:1], first
    if sizes.cells:
        index, view, cells = _pad_cells(draw, sizes)
    return replace(
        draw,
        index=index,
        view=view,
        scene=draw.scene[:1],
        segments=cells,
        points=padded_points,
        tables=Tables(padded_voxels, windows, _pad(tables.inputs, sizes.points, 0)),
    )


def _pad_cells(draw: ViewDraw, sizes: Sizes) -> tuple[Tensor, Tensor, Segments]:
    """The points of a draw, their views, and the cells of the batch, with points and cells of the padding.

    Points of the padding belong to the first view alone and lie in cells of their own, so that no cell of
    theirs is compared.
    """
    segments, device = draw.segments, draw.index.device
    dead = torch.arange(DEAD, dtype=torch.int32, device=device)
    others = sizes.scene_points - segments.points  # at least DEAD
    order = torch.arange(segments.points, sizes.scene_points, dtype=torch.int32, device=device)
    of_place = dead.repeat(-(-others // DEAD))[:others] + (sizes.cells - DEAD)
    cells = Segments(
        torch.cat([segments.order, order]),
        _pad(segments.offsets, sizes.cells + 1, segments.points),
        torch.cat([segments.of_place, of_place]),
        None,
        segments.longest,
        empty=True,
    )
    more = sizes.points - draw.index.shape[0]
    index = torch.cat([draw.index, (dead.repeat(-(-more // DEAD))[:more] + segments.points).to(draw.index)])
    return index, _pad(draw.view, sizes.points, 0), cells


def _pad_windows(windows: Windows, voxels: int, count: int) -> Windows:
    old = windows.mask.shape[0]
    surplus = old - voxels // windows.width  # windows besides the full ones: one or two for each group
    new = count // windows.width + surplus
    slots = new * windows.width
    table = _pad_table(windows.table, slots, voxels, count)
    # The rows of an empty window attend to themselves.
    return Windows(table, _pad(windows.place, count, slots), _pad(windows.mask, new, True), windows.width)


def _pad_segments(segments: Segments, sizes: Sizes) -> Segments:
    """Segments with empty cells at the end; further points belong to the last one, which has none of them.

    A sum over a cell does not read them, and their gradient is that of a cell that nothing reads.
    """
    count, points = sizes.voxels[0], segments.points
    others = torch.arange(points, sizes.points, dtype=torch.int32, device=segments.order.device)
    return Segments(
        torch.cat([segments.order, others]),
        _pad(segments.offsets, count + 1, points),
        _pad(segments.of_place, sizes.points, count - 1),
        None,
        segments.longest,
        empty=True,
    )


def _pad(values: Tensor, rows: int, fill: float) -> Tensor:
    """Rows with this number are added at the end."""
    padded = values.new_full((rows, *values.shape[1:]), fill)
    padded[: values.shape[0]] = values
    return padded


def _pad_table(table: Tensor, rows: int, absent: int, absent_now: int) -> Tensor:
    """A table of rows with a new number for absent ones."""
    return _pad(torch.where(table == absent, absent_now, table), rows, absent_now)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in the fields of a dataclass, in order, without those that it has cached."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for one in fields(value):
            yield from _tensors(getattr(value, one.name))


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Put a dataclass together anew from tensors in the order of `_tensors`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, tuple):
        return tuple(_with_tensors(part, tensors) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {one.name: _with_tensors(getattr(value, one.name), tensors) for one in fields(value)}
        return type(value)(**parts)
    return value
