"""`cloud sample`: writes a thinned copy of a point-cloud file, with all properties of each point.

Each grid cell is thinned separately with the sampler that training uses. Every occupied cell keeps at least
one point, so a room keeps its shape. Points keep their order. PLY, NPZ, LAS, LAZ and folders keep all
properties; a conversion to another format keeps the contents of a Scene (coordinates, features, label).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch

from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_choices, show_seconds
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.kit.segments.subset import Method, draw_counts, sample_subset
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.files.formats import check_cloud_path
from pinchpoint.systems.cloud.files.las import las_scene, las_xyz, read_las, write_las
from pinchpoint.systems.cloud.files.npz import (
    arrays_scene,
    read_arrays,
    scene_arrays,
    take_arrays,
    write_npz,
    xyz_key,
)
from pinchpoint.systems.cloud.files.ply import Ply, ply_scene, read_ply, take_vertices, write_ply
from pinchpoint.systems.cloud.files.pointcept import folder_scene, read_folder, write_folder

Faces = Literal["refuse", "drop"]
WRITES = (".ply", ".npz", ".las", ".laz")


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
    cell: float  # edge of the grid's cells
    asked: tuple[float, float] | None  # lowest and highest requested ratio; None: one point per cell
    method: str
    seed: int
    device: str
    read_s: float
    sample_s: float
    write_s: float
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
            ("cells", f"{self.cells:,} of {self.cell:g}, {self.points / self.cells:.1f} points each"),
            ("seconds", times),
            ("written", self.output),
        ]


@dataclass(frozen=True)
class _Cloud:
    """An open file: its coordinates, and functions to write some of its points."""

    xyz: np.ndarray  # (N, 3) float32 or float64
    write_subset: Callable[[Path, np.ndarray], object]  # writes a subset in the file's own format
    scene: Callable[[], Scene]  # returns the scene, to convert it to another format


def sample_file(
    path: str | Path,
    output: str | Path,
    *,
    ratio: str | float | tuple[float, float] = 0.5,
    cell: float = 0.02,
    method: Method = "exact",
    one_per_cell: bool = False,
    seed: int = 0,
    device: str = "cpu",
    faces: Faces = "refuse",
) -> SampleRecord:
    """Write a thinned copy of a file.

    ratio: "0.5", or "0.3:0.7" for a random ratio per cell; cell: edge of the grid's cells, in the file's
    units; faces: whether a PLY file with faces is refused, or its faces are dropped.
    """
    path, output = check_cloud_path(path), Path(output)
    ratios = None if one_per_cell else parse_ratio(ratio)
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
    _check_pair(path, output)
    start = time.perf_counter()
    cloud = _open_cloud(path, faces)
    read_end = time.perf_counter()
    segments, keep = draw(cloud.xyz, ratios, cell=cell, method=method, seed=seed, device=device)
    sample_end = time.perf_counter()
    if _family(path) == _family(output):
        cloud.write_subset(output, keep)
    else:
        _convert(cloud.scene(), output, keep)
    write_end = time.perf_counter()
    return SampleRecord(
        str(path),
        str(output),
        len(cloud.xyz),
        len(keep),
        len(keep) / len(cloud.xyz),
        segments.cells,
        cell,
        ratios,
        "one" if ratios is None else method,
        seed,
        device,
        read_end - start,
        sample_end - read_end,
        write_end - sample_end,
    )


def draw(
    xyz: np.ndarray,
    ratio: tuple[float, float] | None,
    *,
    cell: float,
    method: Method = "exact",
    seed: int,
    device: str = "cpu",
) -> tuple[Segments, np.ndarray]:
    """Return the cells of xyz (N, 3) and the increasing indices (M,) int64 of the points to keep.

    ratio: lowest and highest ratio of a cell; None keeps one point per cell.
    """
    segments = Segments.from_coords(torch.from_numpy(xyz).to(device), cell)
    # Both methods draw the same points, and for a single draw loading a compiler takes longer than a sort.
    once: Method = "sort" if segments.order.device.type == "cpu" else "exact"
    if method == "exact":
        method = once
    if ratio is None:
        index = sample_subset(segments, 1, method=once, seed=seed)
    elif method == "bernoulli":
        index = sample_subset(segments, float(ratio[0]), method=method, seed=seed)
    else:
        index = sample_subset(segments, draw_counts(segments, ratio, seed=seed), method=method, seed=seed)
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
    return ends[0], ends[-1]


def _pair(ratio: float | tuple[float, float]) -> tuple[float, ...]:
    return tuple(float(end) for end in ratio) if isinstance(ratio, tuple | list) else (float(ratio),)


def _family(path: Path) -> str:
    """Return the format family of a path; all formats of a family are written in the same way."""
    kind = path.suffix.lower()
    if path.is_dir() or kind not in WRITES:
        return "folder"
    return ".las" if kind == ".laz" else kind


def _check_pair(path: Path, output: Path) -> None:
    """Raise BadInput for an output that cannot be written, before anything is read."""
    if _family(output) == "folder":
        if not path.is_dir():
            raise BadInput(
                f"Cannot write points to {output.name!r}: the format is unknown.",
                hint=f"Give a file that ends in {show_choices(WRITES)}.",
            )
        if output.exists():
            raise BadInput(f"{output} already exists.", hint="Choose another -o.")
        check_output(output)
        return
    if _family(output) == ".las" and _family(path) != ".las":
        raise BadInput(
            f"A {path.suffix or 'folder'} cannot be written as {output.suffix}.", hint="Write .ply or .npz."
        )
    check_output(output)
    if output.exists() and output.samefile(path):
        raise BadInput(
            f"{output} is the input file.", hint="Choose another -o: the points left out would be lost."
        )


def _open_cloud(path: Path, faces: Faces) -> _Cloud:
    where = str(path)
    if path.is_dir():
        columns = read_folder(path)
        key = xyz_key(columns, where)

        def write_rows(output: Path, keep: np.ndarray) -> None:
            write_folder(output, {name: values[keep] for name, values in columns.items()})

        return _Cloud(_check_xyz(columns[key], where), write_rows, lambda: folder_scene(columns, where))
    if path.suffix.lower() == ".ply":
        ply = read_ply(path)
        take_vertices(ply, np.zeros(0, np.int64), faces=faces)  # rejects faces before the work starts
        return _Cloud(
            _check_xyz(ply.xyz(), where),
            lambda output, keep: _write_part(output, ply, keep, faces),
            lambda: ply_scene(ply),
        )
    if path.suffix.lower() == ".npz":
        arrays = read_arrays(path)
        return _Cloud(
            _check_xyz(arrays[xyz_key(arrays, where)], where),
            lambda output, keep: write_npz(output, take_arrays(arrays, keep, where)),
            lambda: arrays_scene(arrays, where),
        )
    las = read_las(path)
    return _Cloud(
        _check_xyz(las_xyz(las), where),
        lambda output, keep: write_las(output, las, keep=keep),
        lambda: las_scene(las, path),
    )


def _write_part(output: Path, ply: Ply, keep: np.ndarray, faces: Faces) -> None:
    write_ply(output, take_vertices(ply, keep, faces=faces))


def _convert(scene: Scene, output: Path, keep: np.ndarray) -> None:
    part = check_scene(scene).take(keep)
    if output.suffix.lower() == ".ply":
        write_ply(output, part)
    else:
        write_npz(output, scene_arrays(part))


def _check_xyz(xyz: np.ndarray, where: str) -> np.ndarray:
    """Return the coordinates (N, 3) as contiguous floats, or raise BadInput if they are not valid.

    All other properties are copied without a check.
    """
    if xyz.dtype.kind != "f" or xyz.dtype.itemsize not in (4, 8):
        xyz = xyz.astype(np.float64)
    xyz = np.ascontiguousarray(xyz)
    check_scene(Scene(where, xyz, np.zeros((len(xyz), 0), np.float32)))
    return xyz
