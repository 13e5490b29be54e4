"""Views of one object with depth maps, and grids of objects by shape and appearance.

Letters: N images, K objects, W pixels per side.
"""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, make_folder, write_bytes, write_text
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_count, show_seconds
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.common.training.precision import matmuls, usable_precision
from pinchpoint.systems.radiance.data.images import pillow
from pinchpoint.systems.radiance.model.objective import where_occupied
from pinchpoint.systems.radiance.orbit import (
    STEEP,
    baked_objects,
    check_sizes,
    codes_of,
    interpolation_note,
    prepare_views,
    save_sheet,
    tile_images,
    views,
)
from pinchpoint.systems.radiance.rendering.rays import frames
from pinchpoint.systems.radiance.rendering.render import Codes
from pinchpoint.systems.radiance.training.runs import TrainedRun, Which
from pinchpoint.systems.radiance.training.weights import load_weights

INDEX = "views.json"
_DEEPEST = 65535  # value of the distance `far` in a depth map; 0 where there is nothing
_COVERED = 0.5  # coverage from which a pixel of a depth map has a depth
_MOST = 360  # views of one command, or images of a grid

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Views(Record):
    """Images of one object that `radiance render` wrote, with the camera of each."""

    kind: ClassVar[str] = "radiance-views"
    target: str
    step: int
    seed: int
    thing: int
    size: int  # side of an image in pixels
    fov_degrees: float
    near: float
    far: float
    depth_unit: float  # distance from the camera that 1 in a depth map stands for
    views: tuple[dict[str, Any], ...]  # file, depth (or None), u, v, and the 4 x 4 matrix camera_to_world
    files: tuple[str, ...]
    seconds: float
    interpolated: bool = False  # between values that are computed once, at the nodes of a grid
    limited: bool = False  # whether coarse values were used where a view shows too many nodes
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            ("object", f"number {self.thing} of seed {self.seed}"),
            ("views", f"{show_count(len(self.views), 'view')}, {self.size} x {self.size}"),
            ("written", _show_files(self.files)),
            ("time", show_seconds(self.seconds)),
            *interpolation_note(self.interpolated, self.limited),
        ]


@dataclass(frozen=True)
class Grid(Record):
    """A sheet of objects that `radiance grid` wrote."""

    kind: ClassVar[str] = "radiance-grid"
    target: str
    step: int
    seed: int
    rows: int
    columns: int
    interpolated: bool
    size: int
    files: tuple[str, ...]
    seconds: float
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        what = (
            f"{self.columns} steps between two objects, by both codes, by shape, and by appearance"
            if self.interpolated
            else f"{self.rows} shapes by {self.columns} appearances"
        )
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            ("grid", f"{what}, {self.size} x {self.size}"),
            ("written", _show_files(self.files)),
            ("time", show_seconds(self.seconds)),
        ]


def render_views(
    run: str | Path,
    output: str | Path,
    *,
    seed: int = 0,
    thing: int = 0,
    count: int | None = None,
    turn: float = 0.0,
    height: float | None = None,
    size: int | None = None,
    depth: bool = False,
    only: str | None = None,
    exact: bool = False,
    which: Which = "last",
    device: str = "auto",
    progress: Progress | None = None,
) -> Views:
    """Write `count` views around one object: to a folder with views.json, or one view to a .png file.

    turn: azimuth of the first view, in turns; height: v of the poses; depth: also write depth maps (PNG of 16
    bits: the mean distance from the camera, in `depth_unit`, of pixels that are covered; 0 elsewhere). seed,
    thing: object `thing` of those that an orbit of this seed shows; only: its class, in a run with classes;
    exact: also on a CPU, compute every view anew instead of interpolating between values on a grid.
    """
    start = time.perf_counter()
    one_file = Path(output).suffix.lower() == ".png"
    count = (1 if one_file else 8) if count is None else count
    if one_file and count != 1:
        raise BadInput(
            f"{count} views cannot be written to one file, {output}.",
            hint="Name a folder with -o, or leave out --views.",
        )
    if thing < 0:
        raise BadInput(f"--object is {thing}, but objects are numbered from 0.", hint="Give --object 0.")
    check_sizes(("views", count, 1, _MOST), ("size", size, 8, None), height=height)
    pillow()
    folder = Path(output)
    if one_file:
        check_output(output)
    else:
        refuse_others(folder, own=INDEX)
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"{folder} is not a folder.", hint="Name a folder, or a file that ends in .png.")
    trained, device = _load(run, which, device)
    settings = trained.settings
    rise = _rise(trained, height)
    every = codes_of(trained.config, thing + 1, seed=seed, device=device, only=only)
    code = Codes(every.shape[thing:], every.app[thing:])
    if not one_file:
        make_folder(folder)
        _remove_views(folder)
    rows: list[dict[str, Any]] = []
    side = 0
    with matmuls(usable_precision(settings.precision, device)):
        occupied = prepare_views(trained.model, code, views=count, size=size, exact=exact)
        for number in range(count):
            u = (turn + number / count) % 1.0
            images = views(trained.model, code, u, rise, size=size, occupied=occupied)
            path = Path(output) if one_file else folder / f"view-{number:02d}.png"
            save_sheet(path, tile_images(images.best, columns=1))
            depth_path = path.with_name(f"{path.stem}-depth.png") if depth else None
            if depth_path is not None:
                _save_depth(depth_path, images.depth[0], images.acc[0], far=settings.far)
            rows.append(
                {
                    "file": path.name,
                    "depth": None if depth_path is None else depth_path.name,
                    "u": u,
                    "v": rise,
                    "camera_to_world": _camera_to_world(u, rise, settings.radius),
                }
            )
            side = images.best.shape[-1]
            if progress is not None:
                progress(number + 1, count)
    names = [row[key] for row in rows for key in ("file", "depth") if row[key]]
    parent = Path(output).parent if one_file else folder
    files = [str(parent / name) for name in names] + ([] if one_file else [str(folder / INDEX)])
    baked = baked_objects(occupied)
    record = Views(
        target=str(run),
        step=trained.step,
        seed=seed,
        thing=thing,
        size=side,
        fov_degrees=settings.fov,
        near=settings.near,
        far=settings.far,
        depth_unit=settings.far / _DEEPEST,
        views=tuple(rows),
        files=tuple(files),
        seconds=time.perf_counter() - start,
        interpolated=bool(baked),
        limited=any(one.is_limited for one in baked),
    )
    if not one_file:
        write_text(folder / INDEX, json.dumps(record.to_dict(), indent=1) + "\n")
    return record


def _remove_views(folder: Path) -> None:
    """Remove the views of an earlier call, so that none of them stands beside new cameras."""
    if (folder / INDEX).exists():
        (folder / INDEX).unlink()
        for path in folder.iterdir():
            if re.fullmatch(r"view-\d{2,}(-depth)?\.png", path.name):
                path.unlink()


def draw_grid(
    run: str | Path,
    output: str | Path,
    *,
    shapes: int = 4,
    appearances: int = 6,
    interpolate: int | None = None,
    seed: int = 0,
    only: str | None = None,
    turn: float = 0.1,
    height: float | None = None,
    size: int | None = None,
    which: Which = "last",
    device: str = "auto",
    progress: Progress | None = None,
) -> Grid:
    """Write a sheet of objects as PNG: one row per shape, one column per appearance.

    interpolate: instead, this many steps between the first two objects of the seed: by both codes in the
    first row, by shape alone in the second, and by appearance alone in the third. only: the class of all
    objects, in a run with classes.
    """
    start = time.perf_counter()
    if Path(output).suffix.lower() != ".png":
        raise BadInput(f"A grid cannot be written to {output}.", hint="Name a file that ends in .png.")
    path = check_output(output)
    check_sizes(
        ("shapes", shapes, 1, _MOST),
        ("appearances", appearances, 1, _MOST // max(1, shapes)),
        ("interpolate", interpolate, 2, _MOST // 3),
        ("size", size, 8, None),
        height=height,
    )
    pillow()
    trained, device = _load(run, which, device)
    columns = appearances if interpolate is None else interpolate
    if interpolate is None:
        codes = cross_codes(
            codes_of(trained.config, max(shapes, appearances), seed=seed, device=device, only=only),
            shapes,
            appearances,
        )
    else:
        codes = steps_between(codes_of(trained.config, 2, seed=seed, device=device, only=only), interpolate)
    rows = len(codes.shape) // columns
    rise, images = _rise(trained, height), []
    with matmuls(usable_precision(trained.settings.precision, device)):
        for first in range(0, len(codes.shape), columns):
            part = Codes(*(values[first : first + columns] for values in codes))
            occupied = where_occupied(trained.model, part)
            images.append(views(trained.model, part, turn, rise, size=size, occupied=occupied).best.cpu())
            if progress is not None:
                progress(first // columns + 1, rows)
    save_sheet(path, tile_images(torch.cat(images), columns=columns))
    return Grid(
        target=str(run),
        step=trained.step,
        seed=seed,
        rows=rows,
        columns=columns,
        interpolated=interpolate is not None,
        size=images[0].shape[-1],
        files=(str(path),),
        seconds=time.perf_counter() - start,
    )


def cross_codes(codes: Codes, shapes: int, appearances: int) -> Codes:
    """Every one of the first shape codes with every one of the first appearance codes, row by row."""
    return Codes(
        codes.shape[:shapes].repeat_interleave(appearances, dim=0), codes.app[:appearances].repeat(shapes, 1)
    )


def steps_between(codes: Codes, steps: int) -> Codes:
    """Steps from the first to the second object: by both codes, by shape alone, and by appearance alone."""
    shape, app = (_arc(values[0], values[1], steps) for values in codes)
    still_shape, still_app = (values[:1].expand(steps, -1) for values in codes)
    return Codes(torch.cat([shape, shape, still_shape]), torch.cat([app, still_app, app]))


def _arc(first: Tensor, last: Tensor, steps: int) -> Tensor:
    """Codes (steps, Z) between two codes (Z,), along an arc.

    Codes of training have about the same length; those on the straight line between two of them are shorter.
    """
    share = torch.linspace(0, 1, steps, dtype=first.dtype, device=first.device)[:, None]
    angle = torch.arccos((first @ last / (first.norm() * last.norm())).clamp(-0.9999, 0.9999))
    return (torch.sin((1 - share) * angle) * first + torch.sin(share * angle) * last) / torch.sin(angle)


def _load(run: str | Path, which: Which, device: str) -> tuple[TrainedRun, str]:
    device = resolve_device(device, backend("torch"))
    return load_weights(run, which=which, device=device), device


def _rise(trained: TrainedRun, height: float | None) -> float:
    low, high = trained.settings.v_low, trained.settings.v_high
    return low + STEEP * (high - low) if height is None else height


def _camera_to_world(u: float, v: float, radius: float) -> list[list[float]]:
    """Matrix of the pose: the columns are right, up, back and the position of the camera."""
    frame = frames(torch.tensor([u], dtype=torch.float64), torch.tensor([v], dtype=torch.float64))[0]
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = frame.numpy().T, radius * frame[2].numpy()
    return matrix.tolist()


def _save_depth(path: Path, depth: Tensor, acc: Tensor, *, far: float) -> Path:
    """Write a depth map. depth, acc: (W, W), as rendered: the depth lacks the share of the background."""
    mean = (depth / acc.clamp_min(1e-6)).cpu().numpy()
    values = np.where(acc.cpu().numpy() >= _COVERED, np.rint(mean / far * _DEEPEST), 0)
    data = io.BytesIO()
    pillow().Image.fromarray(values.clip(0, _DEEPEST).astype(np.uint16)).save(data, format="PNG")
    return write_bytes(path, data.getvalue())


def _show_files(files: tuple[str, ...]) -> str:
    return ", ".join(files) if len(files) <= 3 else f"{files[0]} to {files[-1]}, {len(files)} files"
