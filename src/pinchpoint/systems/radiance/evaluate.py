"""Evaluation of a run: distances from generated to real images, their content, and
consistency between views.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core import machine as _machine
from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_count, show_seconds
from pinchpoint.systems.common.evaluations import (
    check_evaluation_folder,
    make_evaluation_folder,
    save_evaluation,
)
from pinchpoint.systems.common.folders import refuse_within
from pinchpoint.systems.common.training.precision import matmuls, usable_precision
from pinchpoint.systems.radiance.data.images import Images, open_images, pillow
from pinchpoint.systems.radiance.metrics.features import Extractor, open_extractor
from pinchpoint.systems.radiance.metrics.metrics import distances, hue_coverage, silhouette_area
from pinchpoint.systems.radiance.metrics.view_consistency import orbit_consistency
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator, draw_codes, whole_images
from pinchpoint.systems.radiance.model.superres import enlarge, residual
from pinchpoint.systems.radiance.orbit import STEEP, VIEWS, codes_of, save_sheet, tile_images
from pinchpoint.systems.radiance.rendering.rays import draw_poses
from pinchpoint.systems.radiance.rendering.render import Codes, generator_for
from pinchpoint.systems.radiance.training.runs import TrainedRun, Which, choose_labels, fingerprint
from pinchpoint.systems.radiance.training.weights import load_weights

SHEETS = ("made.png", "real.png", "orbits.png")
DEFINITION = (
    "KD: unbiased squared maximum mean discrepancy of ImageNet features with the kernel (x.y / D + 1)^3, "
    "times 1000; FD: Frechet distance of the same features; hue coverage: e^entropy over 12 hues, divided by "
    "12; silhouette area: fraction of an image that is not background (white or black, as trained); "
    "consistency of orbits: 0 is best"
)
_SHOWN = 64  # images on a sheet
IMAGES_PER_BATCH = 32  # images generated between two progress reports
_ORBIT = 24  # views


@dataclass(frozen=True)
class Evaluation(Record):
    """Scores of a run against a set of real images, stored as evaluation.json."""

    kind: ClassVar[str] = "radiance-evaluation"
    target: str  # folder of the run
    data: str
    step: int  # step of the checkpoint
    images: int  # made
    real: int  # real images compared with
    size: int  # width and height in pixels
    features: str  # efflite0 or inception
    distances: dict[str, float]  # generated to real images: KD-efflite0 and FD-efflite0, or KIDx1000 and FID
    # The same distances for the bicubically enlarged render, if there is a super-resolution.
    bicubic: dict[str, float] | None
    hue_coverage: dict[str, float]  # keys: made (generated), real
    silhouette_area: dict[str, float]  # mean and standard deviation: made, made_spread, real, real_spread
    consistency: dict[
        str, float | None
    ]  # Means over the orbits: area_roughness, hue_spread, depth_error, colour_error.
    orbits: int
    projection_residual: float | None  # largest difference between the averaged large images and the render
    seed: int
    seconds: float
    definition: str
    files: tuple[str, ...] = ()
    enlarged: int = 0  # images of the dataset that had to be enlarged
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("run", f"{self.target}, step {self.step:,}"),
            (
                "images",
                f"{self.images:,} generated against {self.real:,} of {self.data}, {self.size} x {self.size}",
            ),
        ]
        if self.real < self.images:
            rows.append(
                (
                    "note",
                    f"only {self.real:,} real images against {self.images:,} generated ones: "
                    "the distances are less certain",
                )
            )
        if self.enlarged:
            rows.append(
                (
                    "note",
                    f"{self.enlarged:,} of the images in {self.data} were smaller, "
                    "so they were enlarged and are blurred",
                )
            )
        for name, value in self.distances.items():
            beside = (
                "" if self.bicubic is None else f"   (bicubically enlarged render: {self.bicubic[name]:.1f})"
            )
            rows.append((name, f"{value:.1f}{beside}"))
        area = self.silhouette_area
        rows += [
            ("hue coverage", f"{self.hue_coverage['made']:.2f}   (real {self.hue_coverage['real']:.2f})"),
            (
                "silhouette area",
                f"{area['made']:.1%} +- {area['made_spread']:.1%}   "
                f"(real {area['real']:.1%} +- {area['real_spread']:.1%})",
            ),
        ]
        agreement = ", ".join(
            f"{name.replace('_', ' ')} {_show_number(value)}" for name, value in self.consistency.items()
        )
        rows.append((show_count(self.orbits, "orbit"), agreement))
        if self.projection_residual is not None:
            rows.append(
                ("projection", f"averages differ from the render by at most {self.projection_residual:.1e}")
            )
        return [*rows, ("time", show_seconds(self.seconds))]


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
    """Compare `images` generated images with as many real ones; write evaluation.json and sheets to `output`.

    inception: the weights file of FID's network, to report FID and KID under their own names; without it the
    features are those of EfficientNet-Lite0.
    """
    start = time.perf_counter()
    tell = progress or (lambda stage, done, total: None)
    if images < 2 or orbits < 1:
        raise BadInput(
            f"An evaluation needs at least 2 images and 1 orbit, not {images} and {orbits}.",
            hint="Give --images 2 or more and --orbits 1 or more.",
        )
    if pictures:
        pillow()
    refuse_within(Path(output), Path(data), hint="Choose a folder outside of it with -o.")
    check_evaluation_folder(output)
    device = resolve_device(device, backend("torch"))
    trained_run = load_weights(run, which=which, device=device)
    extract = open_extractor(inception_file=inception, device=device)
    settings = trained_run.settings
    dataset = open_images(data, size=settings.size * settings.superres, white=settings.white)
    if (
        fingerprint(choose_labels(dataset, settings, check=False)) != settings.data
    ):  # Distances to blurred images are meaningless, unless the run was trained on these very images.
        dataset.refuse_enlarged(
            "that the run generates, and enlarging would blur them",
            hint=f"Give images of at least {dataset.size} x {dataset.size} pixels.",
        )
    real = sample_real(dataset, images, seed=seed)
    folder = make_evaluation_folder(output)
    with matmuls(usable_precision(settings.precision, device)):
        high, low = generate_images(
            trained_run.model,
            trained_run.config,
            images,
            seed=seed,
            device=device,
            tell=lambda n: tell("images", n, images),
        )
        tell("features", 0, 3)
        of_real, of_generated = extract(real), extract(high)
        tell("features", 2, 3)
        smooth = None if low is None else extract(enlarge(low, settings.superres, mode="bicubic"))
        tell("features", 3, 3)
        agreement, views = _consistency(
            trained_run, orbits, seed=seed, device=device, tell=lambda n: tell("orbits", n, orbits)
        )
    files = [
        save_sheet(folder / name, tile_images(picture, columns=columns))
        for name, picture, columns in zip(
            SHEETS, (high[:_SHOWN], real[:_SHOWN], views), (8, 8, VIEWS), strict=True
        )
        if pictures
    ]
    evaluation = Evaluation(
        target=str(run),
        data=str(data),
        step=trained_run.step,
        images=len(high),
        real=len(real),
        size=high.shape[-1],
        features=extract.name,
        distances=distances(of_real, of_generated, features=extract.name),
        bicubic=None if smooth is None else distances(of_real, smooth, features=extract.name),
        hue_coverage={"made": hue_coverage(high), "real": hue_coverage(real)},
        silhouette_area=_areas(high, real, white=settings.white),
        consistency=agreement,
        orbits=orbits,
        projection_residual=None if low is None else residual(high, low),
        enlarged=dataset.enlarged_count,
        seed=seed,
        seconds=time.perf_counter() - start,
        definition=DEFINITION,
        files=tuple(file.name for file in files),
    )
    save_evaluation(evaluation, folder, own=SHEETS)
    return evaluation


def sample_real(images: Images, count: int, *, seed: int) -> Tensor:
    """`count` random images, or all if there are fewer: (N, 3, W, W) on the CPU."""
    numbers = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:count]
    if len(numbers) < 2:
        raise BadInput(
            f"{images.source} has {len(images)} image, but distances need at least two.",
            hint="Give a dataset of two or more images.",
        )
    return images.batch(numbers.to(images.pixels.device)).cpu()


def generate_images(
    generator: Generator,
    config: FieldConfig,
    count: int,
    *,
    seed: int,
    device: str,
    what: str = "images to evaluate",
    tell: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Generate images of new objects at poses from the prior, the same for a seed and purpose on every
    device.

    Returns (N, 3, f W, f W) on the CPU and, if a super-resolution enlarged them, the renders (N, 3, W, W).
    """
    settings = generator.settings
    large, small = [], []
    for first in range(0, count, IMAGES_PER_BATCH):
        some = min(IMAGES_PER_BATCH, count - first)
        source = generator_for(seed, first, what)
        codes = draw_codes(config, some, generator=source)
        u, v = draw_poses(some, v_range=(settings.v_low, settings.v_high), generator=source)
        images = whole_images(
            generator, Codes(codes.shape.to(device), codes.app.to(device)), u.to(device), v.to(device)
        )
        large.append(images.best.cpu())
        small.append(images.low.cpu())
        if tell is not None:
            tell(first + some)
    return torch.cat(large), torch.cat(small) if settings.superres > 1 else None


def measure_kernel_distance(
    generator: Generator, config: FieldConfig, real: Tensor, extract: Extractor, *, count: int
) -> float:
    """Kernel distance of new images to features (N, D) of real ones, by which a run is judged during
    training.

    The images differ from those of `evaluate`: weights selected on the same images would score better on them
    than on any others.
    """
    how: dict[str, Any] = {
        "seed": generator.settings.seed,
        "device": str(extract.device),
        "what": "images to judge by",
    }
    high, _ = generate_images(generator, config, count, **how)
    if not bool(torch.isfinite(high).all()):
        return math.nan
    scores = distances(real, extract(high), features=extract.name)
    return next(iter(scores.values()))


def _consistency(
    trained_run: TrainedRun, orbits: int, *, seed: int, device: str, tell: Callable[[int], None]
) -> tuple[dict[str, float | None], Tensor]:
    """Means over the orbits of new objects, None if no orbit has a value; and views of each orbit for a
    sheet.
    """
    settings = trained_run.settings
    rise = settings.v_low + STEEP * (settings.v_high - settings.v_low)
    codes = codes_of(trained_run.config, orbits, seed=seed, device=device)
    u = torch.arange(_ORBIT, device=device) / _ORBIT
    v = torch.full_like(u, rise)
    rows, views = [], []
    for at in range(orbits):
        same = Codes(*(part[at : at + 1].expand(_ORBIT, -1) for part in codes))
        images = whole_images(trained_run.model, same, u, v)
        # Depth of the visible part: the render's depth lacks the share of the background.
        depth = images.depth / images.acc.clamp_min(1e-6)
        rows.append(
            asdict(orbit_consistency(images.low, depth, images.acc, u, v, camera=trained_run.model.camera))
        )
        views.append(images.best[:: _ORBIT // VIEWS].cpu())
        tell(at + 1)
    means: dict[str, float | None] = {}
    for name in rows[0]:
        values = [row[name] for row in rows if math.isfinite(row[name])]
        means[name] = sum(values) / len(values) if values else None
    return means, torch.cat(views)


def _areas(generated: Tensor, real: Tensor, *, white: bool) -> dict[str, float]:
    areas_by_kind = {}
    for name, images in (("made", generated), ("real", real)):
        areas = silhouette_area(images, white=white)
        areas_by_kind |= {name: float(areas.mean()), f"{name}_spread": float(areas.std())}
    return areas_by_kind


def _show_number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
