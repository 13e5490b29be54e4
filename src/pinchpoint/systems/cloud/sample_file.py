"""`cloud sample`: writes a thinned copy of a point-cloud file, with all properties of each point.

Each grid cell is thinned separately with the sampler that training uses. Every occupied cell keeps at least
one point, so a room keeps its shape. Points keep their order and all of their properties; another format gets
every column that it can hold, and notes say what it cannot. A PLY or LAS file that does not fit into the
budget is read twice, in chunks: the same points are drawn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch

from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import parse_bytes, show_bytes, show_seconds
from pinchpoint.kit.segments.cell_size import CellSize, plain_cell, show_cell
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import Method
from pinchpoint.systems.cloud.data.large_draw import draw_large, pick_points
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.files.ply import subset_header
from pinchpoint.systems.cloud.files.readers import ArrayCloud, Cloud, PlyCloud, open_cloud
from pinchpoint.systems.cloud.files.scratch import Scratch
from pinchpoint.systems.cloud.files.writers import Target, check_pair, las_scale, open_writer

Faces = Literal["refuse", "drop"]
RATIO = 0.5  # by default
DRAW_BYTES = 130  # of memory that a point takes in a draw, besides its properties
FEWEST, MOST = 1_000, 4_000_000  # points of a chunk if a file is read twice
CHUNKS = 3  # whose memory a draw in chunks is allowed


@dataclass(frozen=True)
class SampleRecord(Record):
    """Record of one thinned file."""

    kind: ClassVar[str] = "cloud-sample"
    target: str  # the file that was read
    output: str
    points: int  # points read
    kept: int  # points written
    # The ratio achieved. It exceeds the requested ratio if many cells have few points, because each keeps
    # one.
    ratio: float
    cells: int  # occupied cells of the grid
    cell: float | tuple[float, float, float]  # edge or edges of the grid's cells
    asked: tuple[float, float] | None  # lowest and highest requested ratio; None: one point per cell
    method: str
    seed: int
    device: str
    read_s: float
    sample_s: float
    write_s: float
    passes: int = 1  # how many times the points were read; one more for the ranges of columns that become LAS
    notes: tuple[str, ...] = ()  # what the format of the output cannot hold
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        request = (
            "one per cell"
            if self.asked is None
            else f"requested {':'.join(f'{end:g}' for end in dict.fromkeys(self.asked))}"
        )
        times = (
            f"reading {show_seconds(self.read_s)}, sampling {show_seconds(self.sample_s)},"
            f" writing {show_seconds(self.write_s)}"
        )
        return [
            ("points", f"{self.kept:,} of {self.points:,} ({self.ratio:.2%}; {request})"),
            ("cells", self.cells_text()),
            ("seconds", times),
            ("written", self.output),
        ]

    def cells_text(self) -> str:
        """Return the number and size of the cells, and their mean number of points."""
        return f"{self.cells:,} of {show_cell(self.cell)}, {self.points / self.cells:.1f} points each"


def sample_file(
    path: str | Path,
    output: str | Path,
    *,
    ratio: str | float | tuple[float, float] | None = None,
    cell: CellSize = 0.02,
    method: Method = "exact",
    one_per_cell: bool = False,
    seed: int = 0,
    device: str = "cpu",
    faces: Faces = "refuse",
    scale: float | None = None,
    budget: str | int | None = None,
) -> SampleRecord:
    """Write a thinned copy of a file.

    ratio: "0.5" (the default), or "0.3:0.7" for a random ratio per cell; not with one_per_cell. cell: edge or
    edges of the grid's cells, in the file's units; faces: whether a PLY file with faces is refused, or its
    faces are dropped; scale: step of the coordinates of a LAS file made from another format; budget: bytes of
    memory, by default half of what is free.
    """
    path, output = Path(path), Path(output)
    if one_per_cell and ratio is not None:
        raise BadInput(
            f"The ratio {ratio} cannot be combined with one point per cell.",
            hint="Give either --ratio or --one-per-cell.",
        )
    ratios = None if one_per_cell else parse_ratio(RATIO if ratio is None else ratio)
    if faces not in get_args(Faces):
        raise BadInput(
            f"The option faces is {faces!r}, which is unknown.",
            hint=f"Give one of {', '.join(get_args(Faces))}.",
        )
    if method == "bernoulli" and ratios is not None and ratios[0] != ratios[1]:
        raise BadInput(
            "The method bernoulli does not support a range of ratios.",
            hint="Give one ratio, or another method.",
        )
    check_pair(path, output)
    budget_bytes = free_bytes() // 2 if budget is None else parse_bytes(budget)
    start = time.perf_counter()
    cloud = open_cloud(path)
    if isinstance(cloud, PlyCloud):
        subset_header(cloud.ply, 0, faces=faces)  # refuses faces before the work starts
    if not cloud.points:
        raise BadInput(f"{path} has no points.", hint="Give a cloud with at least one point.")
    las_scale(cloud, output, scale)
    target = Target(output, 0, scale=scale, others=faces)
    point_bytes = cloud.row_bytes + DRAW_BYTES
    if budget is not None:
        _check_budget(cloud, point_bytes, budget_bytes)
    if cloud.points * point_bytes <= budget_bytes or isinstance(cloud, ArrayCloud):
        parts = _sample_whole(cloud, target, ratios, cell=cell, method=method, seed=seed, device=device)
    else:
        device = "cpu"  # where the sorted cells on disk are drawn from
        size = min(MOST, max(FEWEST, budget_bytes // (CHUNKS * point_bytes)))
        parts = _sample_in_chunks(cloud, target, ratios, size, cell=cell, method=method, seed=seed)
    return SampleRecord(
        str(path),
        str(output),
        cloud.points,
        parts.kept,
        parts.kept / cloud.points,
        parts.cells,
        plain_cell(cell),
        ratios,
        "one" if ratios is None else method,
        seed,
        device,
        parts.read_end - start,
        parts.draw_end - parts.read_end,
        time.perf_counter() - parts.draw_end,
        parts.passes,
        parts.notes,
    )


def _check_budget(cloud: Cloud, point_bytes: int, budget_bytes: int) -> None:
    """Raise DoesNotFit if the points fit into the budget neither in one piece nor in the smallest chunks."""
    whole_bytes, chunk_bytes = cloud.points * point_bytes, CHUNKS * FEWEST * point_bytes
    is_array = isinstance(cloud, ArrayCloud)
    need_bytes = whole_bytes if is_array else min(whole_bytes, chunk_bytes)
    if need_bytes <= budget_bytes:
        return
    how = "in one piece" if need_bytes == whole_bytes else f"in chunks of {FEWEST:,} points"
    other = ", or sample a PLY or LAS file, which can be read in chunks" if is_array else ""
    raise DoesNotFit(
        f"{cloud.path} is sampled {how}, which takes {show_bytes(need_bytes)}, but the budget is "
        f"{show_bytes(budget_bytes)}.",
        hint=f"Raise --budget to at least {-(-need_bytes // 1024)}KiB{other}.",
        need_bytes=need_bytes,
    )


@dataclass(frozen=True)
class _Parts:
    """What was drawn and written, and when reading and drawing ended."""

    kept: int
    cells: int
    read_end: float
    draw_end: float
    passes: int
    notes: tuple[str, ...]


def _sample_whole(
    cloud: Cloud,
    target: Target,
    ratio: tuple[float, float] | None,
    *,
    cell: CellSize,
    method: Method,
    seed: int,
    device: str,
) -> _Parts:
    # The iterator is exhausted, because it checks the end of the file last.
    (rows,) = cloud.chunks(cloud.points)
    xyz = _check_xyz(rows.xyz, str(cloud.path))
    read_end = time.perf_counter()
    segments, keep = draw(xyz, ratio, cell=cell, method=method, seed=seed, device=device)
    draw_end = time.perf_counter()
    with open_writer(cloud, replace(target, count=len(keep))) as writer:
        writer.write(rows.take(keep), {})
    return _Parts(len(keep), segments.cells, read_end, draw_end, 1 + writer.passes, tuple(writer.notes))


def _sample_in_chunks(
    cloud: Cloud,
    target: Target,
    ratio: tuple[float, float] | None,
    size: int,
    *,
    cell: CellSize,
    method: Method,
    seed: int,
) -> _Parts:
    where = str(cloud.path)
    coordinates = (_check_xyz(rows.xyz, where) for rows in cloud.chunks(size))
    with Scratch(target.path) as scratch:
        subset = draw_large(
            coordinates, ratio, cell=cell, method=method, seed=seed, scratch=scratch, most=size
        )
        draw_end = time.perf_counter()
        done = 0
        with open_writer(cloud, replace(target, count=subset.kept)) as writer:
            for rows in cloud.chunks(size):
                keep = np.flatnonzero(subset.mask[done : done + rows.points])
                done += rows.points
                if len(keep):
                    writer.write(rows.take(keep), {})
        passes, notes = 2 + writer.passes, tuple(writer.notes)
        return _Parts(subset.kept, subset.cells, subset.read_end, draw_end, passes, notes)


def draw(
    xyz: np.ndarray,
    ratio: tuple[float, float] | None,
    *,
    cell: CellSize,
    method: Method = "exact",
    seed: int,
    device: str = "cpu",
) -> tuple[Segments, np.ndarray]:
    """Return the cells of xyz (N, 3) and the increasing indices (M,) int64 of the points to keep.

    ratio: lowest and highest ratio of a cell; None keeps one point per cell.
    """
    segments = Segments.from_coords(torch.from_numpy(xyz).to(device), cell)
    index = pick_points(segments, ratio, method=method, seed=seed)
    # A mask gives increasing order in one pass, without a sort.
    mask = torch.zeros(len(xyz), dtype=torch.bool, device=device)
    mask[index.long()] = True
    return segments, mask.nonzero()[:, 0].cpu().numpy()


def parse_ratio(ratio: str | float | tuple[float, float]) -> tuple[float, float]:
    """Parse 0.5, "0.5", "0.3:0.7" or (0.3, 0.7) into the lowest and highest share of a cell to keep."""
    try:
        ends = [float(end) for end in ratio.split(":")] if isinstance(ratio, str) else [*_pair(ratio)]
    except (TypeError, ValueError):
        ends = []
    if len(ends) not in (1, 2) or not 0 <= ends[0] <= ends[-1] <= 1:
        raise BadInput(
            f"The ratio {ratio!r} is not valid.",
            hint="Give a number in 0..1, such as 0.5, or a range such as 0.3:0.7.",
        )
    if ends[-1] == 0:
        raise BadInput(
            f"The ratio {ratio!r} keeps no points.",
            hint="Give a share above 0, or --one-per-cell to keep one point of every cell.",
        )
    return ends[0], ends[-1]


def _pair(ratio: float | tuple[float, float]) -> tuple[float, ...]:
    return tuple(float(end) for end in ratio) if isinstance(ratio, tuple | list) else (float(ratio),)


def _check_xyz(xyz: np.ndarray, where: str) -> np.ndarray:
    """Return the coordinates (N, 3) as contiguous floats, or raise BadInput if they are not valid.

    All other properties are copied without a check.
    """
    if xyz.dtype.kind != "f" or xyz.dtype.itemsize not in (4, 8):
        xyz = xyz.astype(np.float64)
    xyz = np.ascontiguousarray(xyz)
    check_scene(Scene(where, xyz, np.zeros((len(xyz), 0), np.float32)))
    return xyz
