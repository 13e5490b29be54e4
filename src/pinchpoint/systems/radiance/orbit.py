"""Orbits around generated objects, written as sheets (PNG) and movies (GIF, MP4).

Files are written atomically. Letters: K objects, A views of each, N images, H and W pixels. Images are (N, 3,
W, W) in [-1, 1], frames (A, H, W, 3) uint8.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import check_output, write_bytes
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_choices, show_count, show_seconds
from pinchpoint.systems.common.training.precision import matmuls, usable_precision
from pinchpoint.systems.radiance.data.images import pillow, to_bytes
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import (
    FINER,
    GeneratedImages,
    Generator,
    draw_codes,
    where_occupied,
    whole_images,
)
from pinchpoint.systems.radiance.rendering.baked import BakedObject, can_bake, is_worthwhile
from pinchpoint.systems.radiance.rendering.render import Codes, generator_for
from pinchpoint.systems.radiance.rendering.sparse import Occupancy
from pinchpoint.systems.radiance.training.runs import Which
from pinchpoint.systems.radiance.training.weights import load_weights

VIEWS = 8  # views of each object on a sheet
STEEP = 0.75  # camera height as a fraction of the way from v_low to v_high
_WIDEST_GIF = 65535
GAP = 2  # pixels between two images of a sheet
MOVIES = (".gif", ".mp4")
_COLOURS = 128
_FRAMES, _FRAMES_ON_CPU = 48, 16  # views per turn
_TURN_S = 3.0  # seconds of a turn


@dataclass(frozen=True)
class Orbit(Record):
    """Objects rendered from all sides, and the files that `radiance orbit` wrote."""

    kind: ClassVar[str] = "radiance-orbit"
    target: str
    step: int
    things: int
    frames: int
    size: int  # side of one image in pixels
    files: tuple[str, ...]
    seconds: float
    interpolated: bool = False  # between values that are computed once, at the nodes of a grid
    limited: bool = False  # whether coarse values were used where a view shows too many nodes
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        return [
            ("run", f"{self.target}, step {self.step:,}"),
            (
                "orbit",
                f"{show_count(self.things, 'object')}, {show_count(self.frames, 'view')} each, "
                f"{self.size} x {self.size}",
            ),
            ("written", ", ".join(self.files)),
            ("time", show_seconds(self.seconds)),
            *interpolation_note(self.interpolated, self.limited),
        ]


def orbit(
    run: str | Path,
    output: str | Path,
    *,
    things: int = 4,
    frames: int | None = None,
    size: int | None = None,
    fps: float | None = None,
    height: float | None = None,
    which: Which = "last",
    seed: int = 0,
    only: str | None = None,
    exact: bool = False,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Orbit:
    """Render one full turn around `things` new objects. only: their class, in a run with classes.

    Writes a movie (.gif or .mp4) and, beside it, NAME-sheet.png with some of the views. height: v of the
    camera poses (0: straight above, 0.5: at the horizon); size: pixels per side before super-resolution;
    frames: by default 48, or 16 on a CPU, which takes longer; fps: by default one turn takes three seconds;
    exact: also on a CPU, compute every view anew instead of interpolating between values on a grid.
    """
    start = time.perf_counter()
    check_sizes(
        ("things", things, 1, None), ("frames", frames, 2, None), ("size", size, 8, None), height=height
    )
    device = resolve_device(device, backend("torch"))
    frames = (_FRAMES if device == "cuda" else _FRAMES_ON_CPU) if frames is None else frames
    fps = min(100.0, frames / _TURN_S) if fps is None else fps
    if not 0 < fps <= 100:
        raise BadInput(
            f"--fps is {fps:g}, but it must be above 0 and at most 100.",
            hint="Give --fps a value such as 16.",
        )
    pillow()
    path = check_output(output)
    check_movie(path)
    trained_run = load_weights(run, which=which, device=device)
    settings = trained_run.settings
    _check_room(
        things, frames, (size or settings.size) * settings.superres, gif=path.suffix.lower() == ".gif"
    )
    codes = codes_of(trained_run.config, things, seed=seed, device=device, only=only)
    rise = settings.v_low + STEEP * (settings.v_high - settings.v_low) if height is None else height
    pictures: list[list[np.ndarray]] = [[] for _ in range(things)]
    sheet_views: list[Tensor] = []  # one row of views per object
    on_sheet = range(0, frames, max(1, frames // VIEWS))[:VIEWS]
    occupied, interpolated, limited = None, False, False
    with matmuls(usable_precision(settings.precision, device)):
        for at, own_pictures in enumerate(pictures):  # one after another: a baked object has many values
            code = Codes(codes.shape[at : at + 1], codes.app[at : at + 1])
            occupied = None  # frees the previous object
            occupied = prepare_views(trained_run.model, code, views=frames, size=size, exact=exact)
            for number in range(frames):
                images = views(trained_run.model, code, number / frames, rise, size=size, occupied=occupied)
                own_pictures.append(to_bytes(images.best).cpu().numpy())
                if number in on_sheet:
                    sheet_views.append(images.best.cpu())
                if progress is not None:
                    progress(at * frames + number + 1, things * frames)
            baked = baked_objects(occupied)
            interpolated, limited = bool(baked), limited or any(one.is_limited for one in baked)
    # Pictures are removed while they are joined, so that not all exist twice.
    movie_frames = [
        _tile(np.concatenate([one.pop(0) for one in pictures]), columns=things) for _ in range(frames)
    ]
    sheet = torch.cat(sheet_views)
    files = [
        save_movie(path, movie_frames, fps=fps),
        save_sheet(path.with_name(f"{path.stem}-sheet.png"), tile_images(sheet, columns=len(on_sheet))),
    ]
    return Orbit(
        target=str(run),
        step=trained_run.step,
        things=things,
        frames=frames,
        size=sheet.shape[-1],
        files=tuple(str(file) for file in files),
        seconds=time.perf_counter() - start,
        interpolated=interpolated,
        limited=limited,
    )


def prepare_views(
    model: Generator, code: Codes, *, views: int, size: int | None, exact: bool
) -> Sequence[Occupancy | BakedObject] | None:
    """What `views` needs of an object, to render so many views of it. exact: do not interpolate."""
    baked = None if exact or views < 2 else bake(model, code, views=views, size=size)
    return where_occupied(model, code) if baked is None else baked


def bake(
    generator: Generator, codes: Codes, *, views: int, size: int | None = None
) -> list[BakedObject] | None:
    """B objects of which `views` renders several views in less time.

    None where `where_occupied` is, if colours depend on the view, and if the views are so few and small
    (size: pixels per side) that it could take longer.
    """
    settings, config = generator.settings, generator.field.config
    if codes.shape.device.type == "cuda" or not settings.bound or not can_bake(config):
        return None
    if not is_worthwhile(views * (size or settings.size) ** 2 * FINER * settings.samples):
        return None
    return [
        BakedObject(
            generator.field, Codes(shape, app), settings.bound, features=generator.superres is not None
        )
        for shape, app in zip(codes.shape.split(1), codes.app.split(1), strict=True)
    ]


def baked_objects(occupied: Sequence[Occupancy | BakedObject] | None) -> list[BakedObject]:
    return [one for one in occupied or () if isinstance(one, BakedObject)]


def interpolation_note(interpolated: bool, limited: bool) -> list[tuple[str, str]]:
    """The lines of a summary that say how views were computed, if not each by itself."""
    how = "Views are interpolated between values on a grid. Use --exact to compute each view."
    coarse = "Some places have only values of a coarse grid, because the fine one would need too much memory."
    return [("note", how)] * interpolated + [("limit", coarse)] * limited


def check_sizes(*options: tuple[str, int | None, int, int | None], height: float | None) -> None:
    """Raise an error for an option below its least or above its greatest value, or for an impossible height.

    options: name, value (None: not given), least value, and greatest value or None.
    """
    for name, value, least, most in options:
        if value is not None and not least <= value <= (value if most is None else most):
            limits = f"at least {least}" if most is None else f"between {least} and {most}"
            raise BadInput(
                f"--{name} is {value}, but it must be {limits}.", hint=f"Give --{name} a value {limits}."
            )
    if height is not None and not 0 <= height <= 0.5:
        raise BadInput(
            f"--height is {height:g}, but it must be between 0 and 0.5.",
            hint="Give --height a value from 0 (straight above) to 0.5 (the horizon).",
        )


def writing_bytes(things: int, frames: int, side: int) -> int:
    """Lower bound on the host memory needed to write the movie or the sheet; rendering is not counted.

    Movie: the frames as bytes and again as palette indices; the sheet's views in fp32, one by one and
    stacked. Sheet: the frames, and its views in fp32 twice more while they are converted to bytes.
    """
    views_bytes = min(VIEWS, frames) * 3 * 4
    return things * side**2 * max(frames * (3 + 1) + 2 * views_bytes, frames * 3 + 4 * views_bytes)


def _check_room(things: int, frames: int, side: int, *, gif: bool) -> None:
    """Raise an error, before rendering, if an orbit does not fit in memory or in a GIF."""
    request = f"{frames:,} frames of {things:,} objects at {side:,} x {side:,}"
    need, free = writing_bytes(things, frames, side), free_bytes()
    if need > free:
        raise BadInput(
            f"{request} take at least {show_bytes(need)}, but only {show_bytes(free)} of memory is free.",
            hint="Give a smaller --size, or fewer --frames or --things.",
        )
    wide = things * (side + GAP) - GAP
    if gif and wide > _WIDEST_GIF:
        raise BadInput(
            f"{request} are {wide:,} pixels wide, but a GIF can have at most {_WIDEST_GIF:,}.",
            hint="Give a smaller --size, or fewer --things.",
        )


def codes_of(config: FieldConfig, things: int, *, seed: int, device: str, only: str | None = None) -> Codes:
    """Codes of objects to render; the first objects of a seed do not depend on how many are requested.

    only: the class of all objects.
    """
    codes = [
        draw_codes(config, 1, generator=generator_for(seed, at, "things to look at"), only=only)
        for at in range(things)
    ]
    return Codes(
        torch.cat([one.shape for one in codes]).to(device), torch.cat([one.app for one in codes]).to(device)
    )


def views(
    generator: Generator,
    codes: Codes,
    u: float,
    v: float,
    *,
    size: int | None = None,
    occupied: Sequence[Occupancy | BakedObject] | None = None,
) -> GeneratedImages:
    """Images of all objects from one pose. occupied: of `where_occupied` or `bake`."""
    like = codes.shape
    return whole_images(
        generator,
        codes,
        like.new_full((len(like),), u),
        like.new_full((len(like),), v),
        size=size,
        occupied=occupied,
    )


def tile_images(images: Tensor, *, columns: int, zoom: int = 1) -> np.ndarray:
    """Arrange (N, 3, W, W) row by row on white: (H, W', 3) uint8. zoom: factor by which each pixel is
    enlarged.
    """
    return _tile(to_bytes(images).cpu().numpy().repeat(zoom, axis=1).repeat(zoom, axis=2), columns=columns)


def _tile(pixels: np.ndarray, *, columns: int) -> np.ndarray:
    """The same for pixels (N, W, W, 3) uint8."""
    count, side = len(pixels), pixels.shape[1]
    rows = -(-count // columns)
    sheet = np.full((rows * (side + GAP) - GAP, columns * (side + GAP) - GAP, 3), 255, dtype=np.uint8)
    for number, picture in enumerate(pixels):
        top, left = (side + GAP) * (number // columns), (side + GAP) * (number % columns)
        sheet[top : top + side, left : left + side] = picture
    return sheet


def save_sheet(path: str | Path, sheet: np.ndarray) -> Path:
    """Write a sheet as PNG."""
    data = io.BytesIO()
    pillow().Image.fromarray(sheet).save(data, format="PNG")
    return write_bytes(path, data.getvalue())


def check_movie(path: str | Path) -> None:
    """Raise an error for an unknown suffix, or for an MP4 without ffmpeg, before any frame is rendered."""
    suffix = Path(path).suffix.lower()
    if suffix not in MOVIES:
        raise BadInput(
            f"A movie cannot be written to {path}.",
            hint=f"Name a file that ends in {show_choices(MOVIES)}.",
        )
    if suffix == ".mp4":
        _ffmpeg()


def save_movie(path: str | Path, frames: Sequence[np.ndarray], *, fps: float) -> Path:
    """Write frames as an endlessly looping GIF, or as an MP4."""
    check_movie(path)
    return write_bytes(path, _gif(frames, fps) if Path(path).suffix.lower() == ".gif" else _mp4(frames, fps))


def _gif(frames: Sequence[np.ndarray], fps: float) -> bytes:
    image = pillow().Image
    # One palette for all frames: with one per frame, the colours of a static background flicker.
    palette = image.fromarray(np.concatenate(list(frames[:: max(1, len(frames) // 8)]))).quantize(_COLOURS)
    first, *others = [image.fromarray(frame).quantize(palette=palette, dither=0) for frame in frames]
    data = io.BytesIO()
    first.save(
        data,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        disposal=1,
    )
    return data.getvalue()


def _mp4(frames: Sequence[np.ndarray], fps: float) -> bytes:
    """Encode as MP4. H.264 needs even sides, so an odd side gets one more line of white."""
    high, wide = frames[0].shape[:2]
    full = [np.pad(frame, ((0, high % 2), (0, wide % 2), (0, 0)), constant_values=255) for frame in frames]
    size = f"{wide + wide % 2}x{high + high % 2}"
    with tempfile.TemporaryDirectory(prefix="pinchpoint-radiance-") as folder:
        movie = Path(folder) / "movie.mp4"
        command = [
            _ffmpeg(),
            "-v",
            "error",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            size,
            "-r",
            f"{fps:g}",
            "-i",
            "-",
            "-pix_fmt",
            "yuv420p",
            str(movie),
        ]
        result = subprocess.run(
            command, input=b"".join(frame.tobytes() for frame in full), capture_output=True, check=False
        )
        if result.returncode:
            raise BadInput(
                f"The movie could not be written by ffmpeg: {result.stderr.decode()[-200:].strip()}.",
                hint="Write a .gif instead.",
            )
        return movie.read_bytes()


def _ffmpeg() -> str:
    path = shutil.which("ffmpeg")
    if path:
        return path
    try:
        import imageio_ffmpeg  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise Missing(
            "Writing an MP4 needs ffmpeg, which is not installed.",
            hint='Write a .gif, or run: pip install "pinchpoint[mp4]"',
        ) from error
    return imageio_ffmpeg.get_ffmpeg_exe()
