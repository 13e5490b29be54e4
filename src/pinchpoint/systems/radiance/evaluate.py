"""Scores of a run: how far what it makes is from real images, what it shows, and whether it is one thing from all sides."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder
from pinchpoint.systems.common.folders import refuse_others, refuse_within
from pinchpoint.systems.common.precision import matmuls, usable
from pinchpoint.systems.radiance.data.images import Images, open_images, pillow
from pinchpoint.systems.radiance.metrics.features import Extractor, open_extractor
from pinchpoint.systems.radiance.metrics.metrics import distances, hue_coverage, silhouette_area
from pinchpoint.systems.radiance.metrics.view_consistency import orbit_consistency
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator, draw_codes, whole_images
from pinchpoint.systems.radiance.model.superres import enlarged, residual
from pinchpoint.systems.radiance.orbit import STEEP, VIEWS, codes_of
from pinchpoint.systems.radiance.plots import save_sheet, tiled
from pinchpoint.systems.radiance.records import Evaluation
from pinchpoint.systems.radiance.rendering.rays import draw_poses
from pinchpoint.systems.radiance.rendering.render import Codes, generator_for
from pinchpoint.systems.radiance.runs import Trained, Which, fingerprint, trained

RECORD = "evaluation.json"
SHEETS = ("made.png", "real.png", "orbits.png")
DEFINITION = (
    "KD: unbiased squared maximum mean discrepancy of ImageNet features with the kernel (x.y / D + 1)^3, times 1000; "
    "FD: Frechet distance of the same features; hue coverage: e^entropy over 12 hues, of 12; silhouette area: part of an image "
    "that is not background, white or black as it was trained; consistency of orbits: 0 is best"
)
_SHOWN = 64  # images on a sheet
TOGETHER = 32  # images between two words of progress
_ORBIT = 24  # views


def evaluate(
    run: str | Path,
    data: str | Path,
    output: str | Path,
    *,
    images: int = 512,
    orbits: int = 8,
    which: Which = "last",
    inception: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    pictures: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """Compare `images` made things with as many real images: evaluation.json and sheets of pictures in `output`.

    inception: the file of FID's network, for FID and KID under their own names; else features of EfficientNet-Lite0.
    """
    start = time.perf_counter()
    tell = progress or (lambda stage, done, total: None)
    if images < 2 or orbits < 1:
        raise BadInput(
            f"{images} images and {orbits} orbits", hint="give --images 2 or more and --orbits 1 or more"
        )
    if pictures:
        pillow()
    refuse_within(Path(output), Path(data), hint="choose a folder outside of it with -o")
    refuse_others(Path(output), own=RECORD)
    device = resolve_device(device, backend("torch"))
    found = trained(Path(run), which=which, device=device)
    extract = open_extractor(inception_file=inception, device=device)
    told = found.settings
    held = open_images(data, size=told.size * told.superres, white=told.white)
    if (
        fingerprint(held) != told.data
    ):  # distances to blurred images say nothing, but of a run that learned from these very ones
        held.refuse_enlarged(
            "that the run makes: enlarged they would be blurred",
            hint=f"give images of at least {held.size} x {held.size}",
        )
    real = some_real(held, images, seed=seed)
    folder = make_folder(output)
    earlier = _earlier(folder)
    with matmuls(usable(told.precision, device)):
        high, low = made_images(
            found.generator,
            found.config,
            images,
            seed=seed,
            device=device,
            tell=lambda n: tell("images", n, images),
        )
        tell("features", 0, 3)
        of_real, of_made = extract(real), extract(high)
        tell("features", 2, 3)
        smooth = None if low is None else extract(enlarged(low, told.superres, mode="bicubic"))
        tell("features", 3, 3)
        agreement, seen = _consistency(
            found, orbits, seed=seed, device=device, tell=lambda n: tell("orbits", n, orbits)
        )
    files = [
        save_sheet(folder / name, tiled(shown, columns=columns))
        for name, shown, columns in zip(
            SHEETS, (high[:_SHOWN], real[:_SHOWN], seen), (8, 8, VIEWS), strict=True
        )
        if pictures
    ]
    made = Evaluation(
        target=str(run),
        data=str(data),
        step=found.step,
        images=len(high),
        real=len(real),
        size=high.shape[-1],
        features=extract.name,
        distances=distances(of_real, of_made, features=extract.name),
        bicubic=None if smooth is None else distances(of_real, smooth, features=extract.name),
        hue_coverage={"made": hue_coverage(high), "real": hue_coverage(real)},
        silhouette_area=_areas(high, real, white=told.white),
        consistency=agreement,
        orbits=orbits,
        projection_residual=None if low is None else residual(high, low),
        enlarged=held.enlarged,
        seed=seed,
        seconds=time.perf_counter() - start,
        definition=DEFINITION,
        files=tuple(file.name for file in files),
    )
    made.save(folder / RECORD)
    for name in earlier - set(made.files):
        (folder / name).unlink(missing_ok=True)
    return made


def some_real(images: Images, count: int, *, seed: int) -> Tensor:
    """So many of them, or all where there are fewer: (N, 3, W, W) on the CPU."""
    numbers = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    if len(numbers) < 2:
        raise BadInput(
            f"{images.source} has {len(images)} image", hint="give a data set of two or more images"
        )
    return images.batch(numbers.to(images.pixels.device)).cpu()


def made_images(
    generator: Generator,
    config: FieldConfig,
    count: int,
    *,
    seed: int,
    device: str,
    what: str = "images to evaluate",
    tell: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Images of new things at poses of the prior, the same for a seed and a use on every device: (N, 3, f W, f W) on the CPU.

    Beside them the renders (N, 3, W, W) where a super-resolution enlarged them.
    """
    told = generator.told
    large, small = [], []
    for first in range(0, count, TOGETHER):
        some = min(TOGETHER, count - first)
        source = generator_for(seed, first, what)
        codes = draw_codes(config, some, generator=source)
        u, v = draw_poses(some, v_range=(told.v_low, told.v_high), generator=source)
        seen = whole_images(
            generator, Codes(codes.shape.to(device), codes.app.to(device)), u.to(device), v.to(device)
        )
        large.append(seen.best.cpu())
        small.append(seen.low.cpu())
        if tell is not None:
            tell(first + some)
    return torch.cat(large), torch.cat(small) if told.superres > 1 else None


def kernel_distance_of(
    generator: Generator, config: FieldConfig, real: Tensor, extract: Extractor, *, count: int
) -> float:
    """Of new images to features (N, D) of real ones: what a run is judged by while it trains.

    Others than those it is evaluated with: weights that are chosen by these would be better at them than at any.
    """
    how: dict[str, Any] = {
        "seed": generator.told.seed,
        "device": str(extract.device),
        "what": "images to judge by",
    }
    high, _ = made_images(generator, config, count, **how)
    if not bool(torch.isfinite(high).all()):
        return math.nan
    found = distances(real, extract(high), features=extract.name)
    return next(iter(found.values()))


def _consistency(
    found: Trained, orbits: int, *, seed: int, device: str, tell: Callable[[int], None]
) -> tuple[dict[str, float | None], Tensor]:
    """Means over the orbits of new things, None where none has a value; and views of each for a sheet."""
    told = found.settings
    rise = told.v_low + STEEP * (told.v_high - told.v_low)
    codes = codes_of(found.config, orbits, seed=seed, device=device)
    u = torch.arange(_ORBIT, device=device) / _ORBIT
    v = torch.full_like(u, rise)
    rows, shown = [], []
    for at in range(orbits):
        same = Codes(*(part[at : at + 1].expand(_ORBIT, -1) for part in codes))
        seen = whole_images(found.generator, same, u, v)
        # Of what is seen: the render's depth counts what the background behind it lacks.
        depth = seen.depth / seen.acc.clamp_min(1e-6)
        rows.append(asdict(orbit_consistency(seen.low, depth, seen.acc, u, v, camera=found.generator.camera)))
        shown.append(seen.best[:: _ORBIT // VIEWS].cpu())
        tell(at + 1)
    means: dict[str, float | None] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if math.isfinite(row[name])]
        means[name] = sum(values) / len(values) if values else None
    return means, torch.cat(shown)


def _areas(made: Tensor, real: Tensor, *, white: bool) -> dict[str, float]:
    found = {}
    for name, images in (("made", made), ("real", real)):
        areas = silhouette_area(images, white=white)
        found |= {name: float(areas.mean()), f"{name}_spread": float(areas.std())}
    return found


def _earlier(folder: Path) -> set[str]:
    """The files an earlier evaluation says it left in the folder."""
    try:
        files = json.loads((folder / RECORD).read_text(encoding="utf-8"))["files"]
        return {name for name in files if name in SHEETS}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
