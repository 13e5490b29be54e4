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
from pinchpoint.systems.common.training import recording

STEP = 1.4  # ratio of the numbers of points of one recorded size and the next
SPARE = 1.1  # room for more voxels and cells than in the draw for which a size was recorded
DEAD = 1024  # cells for the points of the padding: a sum over one cell is not computed in parallel
Note = Callable[[str], None]


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

    def with_room(self, points: int, before: Sizes | None) -> Sizes:
        """Sizes for draws like this one with up to this number of points, and for those before."""
        dead = DEAD if self.cells else 0
        room = Sizes(
            points,
            tuple(math.ceil(SPARE * count) + 1 for count in self.voxels),
            self.scene_points + dead,
            math.ceil(SPARE * self.cells) + dead,
        )
        if before is None:
            return room
        return Sizes(
            points,
            tuple(map(max, room.voxels, before.voxels)),
            max(room.scene_points, before.scene_points),
            max(room.cells, before.cells),
        )


@dataclass
class _Recorded:
    """The recorded step of one size, and the tensors that it reads."""

    inputs: list[Tensor]
    step: recording.Recording


class RecordedSteps:
    """Steps recorded for draws of similar numbers of points, on a GPU.

    The first step of a size is eager and padded, so that all its kernels are compiled; the second one is
    recorded. If a draw has more voxels than the size has room for, the size grows and begins again. If a
    recording fails, all further steps are eager, and `note` is called with the reason. compares_cells:
    whether the loss compares views cell by cell.
    """

    def __init__(self, *, compares_cells: bool = False, note: Note | None = None) -> None:
        self.compares_cells, self._note = compares_cells, note or (lambda text: None)
        self._sizes: dict[int, Sizes] = {}
        self._recorded: dict[int, _Recorded] = {}
        self._side_stream = recording.SideStream()
        self._pool: Any = None
        self._is_over = False

    @property
    def recorded_sizes(self) -> int:
        """The number of sizes whose steps are replayed."""
        return len(self._recorded)

    def run(self, draw: ViewDraw, step: Callable[[ViewDraw], Tensor], *, clear: Callable[[], None]) -> Tensor:
        """Return step(draw). clear: frees the gradients of the last step."""
        if self._is_over or draw.tables is None:
            return self._side_stream.run(lambda: step(draw))
        own = sizes_of(draw, compares_cells=self.compares_cells)
        number = math.ceil(math.log(max(own.points, 2)) / math.log(STEP))
        sizes = self._sizes.get(number)
        if sizes is None or not sizes.hold(own):
            self._recorded.pop(number, None)
            sizes = self._sizes[number] = own.with_room(math.floor(STEP**number) + 1, sizes)
            return self._side_stream.run(lambda: step(pad_draw(draw, sizes)))
        padded = pad_draw(draw, sizes)
        recorded = self._recorded.get(number)
        if recorded is None:
            recorded = self._record(number, padded, step, clear)
            if recorded is None:
                return self._side_stream.run(lambda: step(draw))
        else:
            for buffer, value in zip(recorded.inputs, _tensors(padded), strict=True):
                buffer.copy_(value)
        return recorded.step.replay()

    def _record(
        self, number: int, padded: ViewDraw, step: Callable[[ViewDraw], Tensor], clear: Callable[[], None]
    ) -> _Recorded | None:
        """Record the step of a size; if that fails, drop all recordings."""
        inputs = [value.clone() for value in _tensors(padded)]
        try:
            # The draw is put together anew, so that nothing that an earlier step computed is stored in it.
            step_recording, self._pool = recording.record(
                lambda: step(_with_tensors(padded, iter(inputs))), clear=clear, pool=self._pool
            )
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            first_line, _, _ = str(error).strip().partition("\n")
            clear()
            self._recorded.clear()
            self._pool, self._is_over = None, True
            recording.release_memory()
            self._note(f"All further steps are eager: a step could not be recorded ({first_line}).")
            return None
        self._recorded[number] = _Recorded(inputs, step_recording)
        return self._recorded[number]


def refuse_unrecordable(config: CloudConfig, settings: Settings, *, processes: int) -> None:
    """Refuse recorded steps together with settings that they do not support."""
    if not settings.record_steps:
        return
    reasons = {
        "--target": bool(settings.target),
        f"--set norm={config.norm}": config.norm != "layer",
        "--set views_mode=accumulate": settings.views_mode == "accumulate",
        "several processes": processes > 1,
    }
    for option, holds in reasons.items():
        if holds:
            raise BadInput(
                f"--set record_steps=true cannot be combined with {option}.",
                hint="Leave one of them out: steps are eager with --set record_steps=false.",
            )


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
    index, view, cells = draw.index[:1], draw.view[:1], segments
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
