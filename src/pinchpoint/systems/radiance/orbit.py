"""Orbits around generated objects, as a movie and a sheet.

Letters: K objects, A views of each, W pixels per side.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.common.precision import matmuls, usable
from pinchpoint.systems.radiance.data.images import pillow
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import GeneratedImages, Generator, draw_codes, whole_images
from pinchpoint.systems.radiance.plots import GAP, check_movie, save_movie, save_sheet, tile_images
from pinchpoint.systems.radiance.records import Orbit
from pinchpoint.systems.radiance.rendering.render import Codes, generator_for
from pinchpoint.systems.radiance.runs import Which, load_trained

VIEWS = 8  # views of each object on a sheet
STEEP = 0.75  # camera height as a fraction of the way from v_low to v_high
_WIDEST_GIF = 65535


def orbit(
    run: str | Path,
    output: str | Path,
    *,
    things: int = 4,
    frames: int = 48,
    size: int | None = None,
    fps: float = 16,
    height: float | None = None,
    which: Which = "last",
    seed: int = 0,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Orbit:
    """Render one full turn around `things` new objects.

    Writes a movie (.gif or .mp4) and, beside it, NAME-sheet.png with some of the views. height: v of the
    camera's poses, 0 straight above and 0.5 at the horizon; size: pixels per side before the
    super-resolution.
    """
    start = time.perf_counter()
    for name, value, least in (("things", things, 1), ("frames", frames, 2), ("size", size, 8)):
        if value is not None and value < least:
            raise BadInput(
                f"--{name} is {value}, but it must be at least {least}.",
                hint=f"Give --{name} a value of at least {least}.",
            )
    if not 0 < fps <= 100:
        raise BadInput(
            f"--fps is {fps:g}, but it must be above 0 and at most 100.",
            hint="Give --fps a value such as 16.",
        )
    if height is not None and not 0 <= height <= 0.5:
        raise BadInput(
            f"--height is {height:g}, but it must be between 0 and 0.5.",
            hint="Give --height a value from 0 (straight above) to 0.5 (the horizon).",
        )
    pillow()
    path = check_output(output)
    check_movie(path)
    device = resolve_device(device, backend("torch"))
    model = load_trained(Path(run), which=which, device=device)
    settings = model.settings
    _check_room(
        things, frames, (size or settings.size) * settings.superres, gif=path.suffix.lower() == ".gif"
    )
    codes = codes_of(model.config, things, seed=seed, device=device)
    rise = settings.v_low + STEEP * (settings.v_high - settings.v_low) if height is None else height
    movie_frames: list[np.ndarray] = []
    sheet_views: list[torch.Tensor] = []
    every = max(1, frames // VIEWS)
    with matmuls(usable(settings.precision, device)):
        for number in range(frames):
            images = views(model.generator, codes, number / frames, rise, size=size)
            movie_frames.append(tile_images(images.best, columns=things))
            if number % every == 0 and len(sheet_views) < VIEWS:
                sheet_views.append(images.best.cpu())
            if progress is not None:
                progress(number + 1, frames)
    sheet = torch.stack(sheet_views, dim=1).flatten(0, 1)  # one row of views per object
    files = [
        save_movie(path, movie_frames, fps=fps),
        save_sheet(path.with_name(f"{path.stem}-sheet.png"), tile_images(sheet, columns=len(sheet_views))),
    ]
    return Orbit(
        target=str(run),
        step=model.step,
        things=things,
        frames=frames,
        size=sheet.shape[-1],
        files=tuple(str(file) for file in files),
        seconds=time.perf_counter() - start,
    )


def held_bytes(things: int, frames: int, side: int) -> int:
    """Host memory an orbit needs at least while its movie or its sheet is written; rendering is not counted.

    Movie: the frames as bytes and again as palette indices; the sheet's views in fp32, one by one and
    stacked. Sheet: the frames, and its views in fp32 twice more while they are converted to bytes.
    """
    views_bytes = min(VIEWS, frames) * 3 * 4
    return things * side**2 * max(frames * (3 + 1) + 2 * views_bytes, frames * 3 + 4 * views_bytes)


def _check_room(things: int, frames: int, side: int, *, gif: bool) -> None:
    """Refuse an orbit that does not fit in memory or in a GIF, before anything is rendered."""
    request = f"{frames:,} frames of {things:,} objects at {side:,} x {side:,}"
    need, free = held_bytes(things, frames, side), free_bytes()
    if need > free:
        raise BadInput(
            f"{request} take at least {show_bytes(need)}, but only {show_bytes(free)} of memory are free.",
            hint="Give a smaller --size, or fewer --frames or --things.",
        )
    wide = things * (side + GAP) - GAP
    if gif and wide > _WIDEST_GIF:
        raise BadInput(
            f"{request} are {wide:,} pixels wide, but a GIF can have at most {_WIDEST_GIF:,}.",
            hint="Give a smaller --size, or fewer --things.",
        )


def codes_of(config: FieldConfig, things: int, *, seed: int, device: str) -> Codes:
    """Codes of objects to render: the first ones of a seed are the same however many are requested."""
    codes = [
        draw_codes(config, 1, generator=generator_for(seed, at, "things to look at")) for at in range(things)
    ]
    return Codes(
        torch.cat([one.shape for one in codes]).to(device), torch.cat([one.app for one in codes]).to(device)
    )


def views(
    generator: Generator, codes: Codes, u: float, v: float, *, size: int | None = None
) -> GeneratedImages:
    """Images of all objects from one pose."""
    like = codes.shape
    return whole_images(
        generator, codes, like.new_full((len(like),), u), like.new_full((len(like),), v), size=size
    )
