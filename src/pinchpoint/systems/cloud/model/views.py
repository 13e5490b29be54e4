"""Views of scenes at several densities: random subsets of the points of each cell, for a whole batch in one
call.

Letters: N points of a batch of B scenes, C cells, V views, M drawn points in total. A view has a plain-text
name ("dense", "uniform:0.3:0.7", "log-uniform:0.05:1", "one-per-cell"). A draw depends only on (seed, step,
rank) and the number of the view, and is the same on every device. It waits for the device once, to read the
number of cells, the sizes and the values for checks together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments import hashing
from pinchpoint.kit.segments.cell_size import CellSize
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import Method, draw_counts, sample_one, sample_subset
from pinchpoint.kit.segments.take_rows import take_rows
from pinchpoint.systems.cloud.data.scene import IGNORED, Scene
from pinchpoint.systems.cloud.model.voxels import (
    AXIS_BITS,
    check_batch,
    check_extent,
    check_offsets,
    grid_keys,
    groups_of,
    offset_ends,
)

if TYPE_CHECKING:
    from pinchpoint.systems.cloud.model.model import Tables


@dataclass(frozen=True)
class Dense:
    """All points."""

    @property
    def name(self) -> str:
        return "dense"


@dataclass(frozen=True)
class Uniform:
    """A share of the points of every cell, drawn uniformly from lo..hi for each cell.

    Every cell keeps at least one point, so no cell is lost.
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        _check_range(self.lo, self.hi, least=0.0)

    @property
    def name(self) -> str:
        return f"uniform:{self.lo:g}:{self.hi:g}"


@dataclass(frozen=True)
class LogUniform:
    """One share per scene, drawn log-uniformly from lo..hi and applied to all cells.

    The whole view is sparse, and cells may be lost.
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        _check_range(self.lo, self.hi, least=1e-6)

    @property
    def name(self) -> str:
        return f"log-uniform:{self.lo:g}:{self.hi:g}"

    def ratio(self, share: float) -> float:
        """Return the ratio for a share that is uniform in 0..1."""
        return self.lo * (self.hi / self.lo) ** share


@dataclass(frozen=True)
class OnePerCell:
    """One point of every cell, chosen uniformly."""

    @property
    def name(self) -> str:
        return "one-per-cell"


View = Dense | Uniform | LogUniform | OnePerCell


@dataclass(frozen=True)
class Batch:
    """Scenes on a device.

    xyz: (N, 3); features: (N, F); labels: (N,) int64, IGNORED where a point has none; offsets: (B + 1,)
    int64.
    """

    xyz: Tensor
    features: Tensor
    labels: Tensor
    offsets: Tensor
    targets: Tensor | None = None  # (N, D), see `target_head`
    has_target: Tensor | None = None  # (N,) bool

    @property
    def scenes(self) -> int:
        """B."""
        return self.offsets.shape[0] - 1

    @staticmethod
    def from_scenes(scenes: Sequence[Scene], *, device: str | torch.device = "cpu") -> Batch:
        """Concatenate scenes on the device."""
        if not scenes:
            raise BadInput("The batch contains no scenes.", hint="Give at least one scene.")
        widths = {scene.features.shape[1] for scene in scenes}
        if len(widths) > 1:
            raise BadInput(
                f"The scenes of a batch have different numbers of features: {sorted(widths)}.",
                hint="Give scenes with the same columns.",
            )
        labels = [
            np.full(scene.points, IGNORED) if scene.labels is None else scene.labels for scene in scenes
        ]
        columns = (
            np.concatenate([scene.xyz for scene in scenes]).astype(np.float32),
            np.concatenate([scene.features for scene in scenes]).astype(np.float32),
            np.concatenate(labels).astype(np.int64),
            np.cumsum([0, *(scene.points for scene in scenes)], dtype=np.int64),
        )
        place = torch.device(device)
        xyz, features, label, offsets = (_to_device(torch.from_numpy(column), place) for column in columns)
        targets = [scene.targets for scene in scenes if scene.targets is not None]
        if len(targets) < len(scenes):
            return Batch(xyz, features, label, offsets)
        valid = [scene.has_target for scene in scenes if scene.has_target is not None]
        return Batch(
            xyz,
            features,
            label,
            offsets,
            _to_device(torch.from_numpy(np.concatenate(targets)), place),
            _to_device(torch.from_numpy(np.concatenate(valid)), place),
        )


@dataclass(frozen=True)
class ViewDraw:
    """The drawn points of all views, ordered by view and then by scene.

    index: (M,), indices of the batch's points; view, scene: (M,), the numbers of the view and the scene of
    each drawn point; offsets: (V B + 1,), where each scene of each view begins; sizes: number of points per
    view, on the host; segments: the cells of the batch, from which the points are drawn. points, tables: the
    drawn points and what the network reads of them, if they were prepared ahead of the step.
    """

    index: Tensor
    view: Tensor
    scene: Tensor
    offsets: Tensor
    views: tuple[View, ...]
    sizes: tuple[int, ...]
    segments: Segments
    points: Batch | None = None
    tables: Tables | None = None

    def take(self, batch: Batch) -> Batch:
        """Return the drawn points as a batch of V B scenes."""
        if self.points is not None:
            return self.points
        xyz, features, labels = (
            take_rows(values, self.index) for values in (batch.xyz, batch.features, batch.labels)
        )
        if batch.targets is None or batch.has_target is None:
            return Batch(xyz, features, labels, self.offsets)
        targets, valid = take_rows(batch.targets, self.index), batch.has_target.index_select(0, self.index)
        return Batch(xyz, features, labels, self.offsets, targets, valid)

    def only(self, number: int) -> ViewDraw:
        """Return a single view, for processing views one after another; `view` keeps its number."""
        scenes = (self.offsets.shape[0] - 1) // len(self.views)
        start = sum(self.sizes[:number])
        rows = slice(start, start + self.sizes[number])
        offsets = self.offsets[number * scenes : (number + 1) * scenes + 1] - start
        return replace(
            self,
            index=self.index[rows],
            view=self.view[rows],
            scene=self.scene[rows],
            offsets=offsets,
            views=(self.views[number],),
            sizes=(self.sizes[number],),
            points=None,
            tables=None,
        )


def parse_views(names: str | Sequence[str]) -> tuple[View, ...]:
    """Return views by name. names: a list, or one comma-separated string."""
    texts = names.split(",") if isinstance(names, str) else list(names)
    if not texts:
        raise BadInput("The list of views is empty.", hint="Name at least one view, such as dense.")
    return tuple(_parse_view(text.strip()) for text in texts)


def draw_views(
    batch: Batch,
    views: Sequence[View],
    *,
    cell: CellSize,
    seed: int,
    step: int = 0,
    rank: int = 0,
    method: Method = "exact",
    first_view: int = 0,
) -> ViewDraw:
    """Draw every view of every scene.

    cell: edge or edges of the cells to draw from; method: see `sample_subset`; first_view: the number of the
    first of these views among all views of a training, which a draw depends on.
    """
    if not views:
        raise BadInput("The list of views is empty.", hint="Name at least one view, such as dense.")
    check_batch(batch.xyz, batch.offsets, cell)
    points, scenes, device = batch.xyz.shape[0], batch.scenes, batch.xyz.device
    for name, values in (("features", batch.features), ("labels", batch.labels)):
        if values.shape[0] != points:
            raise BadInput(
                f"There are {values.shape[0]:,} {name} for {points:,} points.",
                hint=f"Give {name} for every point.",
            )
    keys, _, extent = grid_keys(batch.xyz, groups_of(batch.offsets, points), scenes, cell=cell)
    open_ended, ordered = _cells(keys)
    counts = [
        _counts(view, open_ended, ordered, scenes, seed, step, rank, number)
        for number, view in enumerate(views, start=first_view)
    ]
    totals = [count_per_cell.sum().double() for count_per_cell in counts if count_per_cell is not None]
    cells = open_ended.of_place[-1].double() + 1
    # The only wait for the device.
    scalars = [extent, *offset_ends(batch.offsets), cells, open_ended.counts.amax().double(), *totals]
    largest, first, end, least, cell_count, longest, *sums = torch.stack(scalars).tolist()
    check_offsets(first, end, least, points=points)
    check_extent(largest, cell)
    count = int(cell_count)
    offsets = open_ended.offsets[: count + 1]
    segments = replace(
        open_ended, offsets=offsets, ids=ordered[offsets[:-1].long()], longest=int(longest), empty=False
    )
    bounds = torch.searchsorted(
        ordered[offsets[:-1].long()] >> 3 * AXIS_BITS, torch.arange(scenes + 1, device=device)
    )
    totals_on_host = iter(sums)
    indices, starts, sizes = [], [], []
    for number, (view, per_cell) in enumerate(zip(views, counts, strict=True), start=first_view):
        if isinstance(view, Dense):
            index, inner = torch.arange(points, dtype=torch.int32, device=device), batch.offsets
        elif per_cell is None:
            index, inner = sample_one(segments, seed=seed, step=step, rank=rank, view=number), bounds
        else:
            total, per_cell = int(next(totals_on_host)), per_cell[:count]
            index = sample_subset(
                segments, per_cell, method=method, seed=seed, step=step, rank=rank, view=number, total=total
            )
            inner = torch.cat([bounds.new_zeros(1), per_cell.cumsum(0)]).index_select(0, bounds)
        indices.append(index)
        starts.append(inner[:-1] + sum(sizes))
        sizes.append(index.shape[0])
    total_points = sum(sizes)
    pieces = torch.cat([*starts, torch.full((1,), total_points, dtype=torch.int64, device=device)])
    piece = groups_of(pieces, total_points)
    return ViewDraw(
        torch.cat(indices),
        piece // scenes + first_view,
        piece % scenes,
        pieces,
        tuple(views),
        tuple(sizes),
        segments,
    )


def _cells(keys: Tensor) -> tuple[Segments, Tensor]:
    """Return the cells of keys (N,), and the sorted keys.

    The cells are padded with empty ones to N, to avoid a wait for the device.
    """
    points = keys.shape[0]
    ordered, order = torch.sort(keys, stable=True)
    of_place = torch.zeros(points, dtype=torch.int32, device=keys.device)
    of_place[1:] = (ordered[1:] != ordered[:-1]).cumsum(0)
    edges = torch.arange(points + 1, dtype=torch.int32, device=keys.device)
    offsets = torch.searchsorted(of_place, edges, out_int32=True)
    return Segments(order.to(torch.int32), offsets, of_place, None, points, empty=True), ordered


def _counts(
    view: View, cells: Segments, ordered: Tensor, scenes: int, seed: int, step: int, rank: int, number: int
) -> Tensor | None:
    """Return (N,) int32, the points to draw from each cell; None for views that need no count."""
    if isinstance(view, Uniform):
        return draw_counts(cells, (view.lo, view.hi), seed=seed, step=step, rank=rank, view=number)
    if not isinstance(view, LogUniform):
        return None
    ratio_words = hashing.words(seed=seed, step=step, rank=rank, view=number, purpose=hashing.RATIOS)
    count_words = hashing.words(seed=seed, step=step, rank=rank, view=number, purpose=hashing.COUNTS)
    shares = [hashing.key(scene, ratio_words) / hashing.ONE for scene in range(scenes)]
    fixed = _to_device(
        torch.tensor([int(view.ratio(share) * hashing.ONE) for share in shares]), ordered.device
    )
    # Empty cells at the end have no first point. They read the scene of the last point, which does not
    # matter, because nothing is drawn from them.
    first = cells.offsets[:-1].clamp(max=ordered.shape[0] - 1)
    ratio = fixed.index_select(0, ordered.index_select(0, first) >> 3 * AXIS_BITS)
    # floor(n r + u) in integers, which is n r on average. There is no minimum of one point per cell, so a
    # sparse view has the stated density.
    lengths = cells.counts.long()
    draws = (
        hashing.keys(torch.arange(len(lengths), device=ordered.device), count_words).add_(lengths * ratio)
        >> 32
    )
    return torch.minimum(draws, lengths).to(torch.int32)


def _to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def _parse_view(text: str) -> View:
    kind, *numbers = text.split(":")
    plain: dict[str, View] = {"dense": Dense(), "one-per-cell": OnePerCell()}
    if kind in plain and not numbers:
        return plain[kind]
    ranged: dict[str, type[Uniform | LogUniform]] = {"uniform": Uniform, "log-uniform": LogUniform}
    if kind not in ranged or len(numbers) != 2:
        raise BadInput(
            f"{text!r} is not a view.", hint="Use dense, uniform:0.3:0.7, log-uniform:0.05:1 or one-per-cell."
        )
    try:
        lo, hi = (float(number) for number in numbers)
    except ValueError:
        raise BadInput(
            f"{text!r} is not a view: {':'.join(numbers)} are not two numbers.",
            hint=f"Write it as {kind}:0.3:0.7.",
        ) from None
    return ranged[kind](lo, hi)


def _check_range(lo: float, hi: float, *, least: float) -> None:
    if not (math.isfinite(lo) and math.isfinite(hi) and least <= lo <= hi <= 1 and hi > 0):
        raise BadInput(
            f"The range of ratios {lo:g} to {hi:g} is not valid.",
            hint=f"Give lo and hi with {least:g} <= lo <= hi <= 1.",
        )
