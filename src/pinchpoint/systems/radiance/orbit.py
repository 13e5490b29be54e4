"""Views of made things from all around, as a movie and a sheet.

Letters: K things, A views of each, W pixels a side.
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
from pinchpoint.systems.radiance.model.objective import Generator, Seen, draw_codes, whole_images
from pinchpoint.systems.radiance.plots import GAP, check_movie, save_movie, save_sheet, tiled
from pinchpoint.systems.radiance.records import Orbit
from pinchpoint.systems.radiance.rendering.render import Codes, generator_for
from pinchpoint.systems.radiance.runs import Which, trained

VIEWS = 8  # of each thing on a sheet
STEEP = 0.75  # how far towards the horizon the camera goes, of the heights of the run
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
    """Turn `things` new things once around: a movie (.gif or .mp4), and beside it NAME-sheet.png with some of the views.

    height: v of the camera's poses, 0 straight above and 0.5 the horizon; size: pixels a side before the super-resolution.
    """
    start = time.perf_counter()
    for name, value, least in (("things", things, 1), ("frames", frames, 2), ("size", size, 8)):
        if value is not None and value < least:
            raise BadInput(f"--{name} {value}", hint=f"give --{name} at least {least}")
    if not 0 < fps <= 100:
        raise BadInput(f"--fps {fps:g}", hint="give a number above 0 and up to 100")
    if height is not None and not 0 <= height <= 0.5:
        raise BadInput(f"--height {height:g}", hint="give 0 (straight above) to 0.5 (the horizon)")
    pillow()
    path = check_output(output)
    check_movie(path)
    device = resolve_device(device, backend("torch"))
    found = trained(Path(run), which=which, device=device)
    told = found.settings
    _check_room(things, frames, (size or told.size) * told.superres, gif=path.suffix.lower() == ".gif")
    codes = codes_of(found.config, things, seed=seed, device=device)
    rise = told.v_low + STEEP * (told.v_high - told.v_low) if height is None else height
    made: list[np.ndarray] = []
    shown: list[torch.Tensor] = []
    every = max(1, frames // VIEWS)
    with matmuls(usable(told.precision, device)):
        for number in range(frames):
            seen = views(found.generator, codes, number / frames, rise, size=size)
            made.append(tiled(seen.best, columns=things))
            if number % every == 0 and len(shown) < VIEWS:
                shown.append(seen.best.cpu())
            if progress is not None:
                progress(number + 1, frames)
    sheet = torch.stack(shown, dim=1).flatten(0, 1)  # a row of views for each thing
    files = [
        save_movie(path, made, fps=fps),
        save_sheet(path.with_name(f"{path.stem}-sheet.png"), tiled(sheet, columns=len(shown))),
    ]
    return Orbit(
        target=str(run),
        step=found.step,
        things=things,
        frames=frames,
        size=sheet.shape[-1],
        files=tuple(str(file) for file in files),
        seconds=time.perf_counter() - start,
    )


def held_bytes(things: int, frames: int, side: int) -> int:
    """Memory of the host that an orbit takes at least, when its movie or when its sheet is written; rendering is not counted.

    Movie: frames of bytes and again as colours of a palette; the sheet's views in fp32, one by one and together. Sheet: the
    frames, and its views in fp32 twice more as they become bytes.
    """
    views_bytes = min(VIEWS, frames) * 3 * 4
    return things * side**2 * max(frames * (3 + 1) + 2 * views_bytes, frames * 3 + 4 * views_bytes)


def _check_room(things: int, frames: int, side: int, *, gif: bool) -> None:
    """Refuse what cannot be held or written, before anything is rendered."""
    asked = f"{frames:,} frames of {things:,} things at {side:,} x {side:,}"
    need, free = held_bytes(things, frames, side), free_bytes()
    if need > free:
        raise BadInput(
            f"{asked} take at least {show_bytes(need)}; {show_bytes(free)} of memory are free",
            hint="give a smaller --size, or fewer --frames or --things",
        )
    wide = things * (side + GAP) - GAP
    if gif and wide > _WIDEST_GIF:
        raise BadInput(
            f"{asked} are {wide:,} pixels wide; a GIF has at most {_WIDEST_GIF:,}",
            hint="give a smaller --size, or fewer --things",
        )


def codes_of(config: FieldConfig, things: int, *, seed: int, device: str) -> Codes:
    """Of things to look at: the first of a seed are the same for every number of them."""
    drawn = [
        draw_codes(config, 1, generator=generator_for(seed, at, "things to look at")) for at in range(things)
    ]
    return Codes(
        torch.cat([one.shape for one in drawn]).to(device), torch.cat([one.app for one in drawn]).to(device)
    )


def views(generator: Generator, codes: Codes, u: float, v: float, *, size: int | None = None) -> Seen:
    """All things from one side."""
    like = codes.shape
    return whole_images(
        generator, codes, like.new_full((len(like),), u), like.new_full((len(like),), v), size=size
    )
