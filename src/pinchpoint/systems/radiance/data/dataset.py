"""Datasets of cars on disk: sheets of images, created in parallel, resumable, and verified when read.

`DIR/index.json` describes the set and holds a sha256 of every sheet file, `DIR/cars-FIRST-COUNT.npz`. Car
NUMBER of a seed is the same in sets of every length. Files appear whole or not at all, and each records its
own origin, so a lost or damaged index is rebuilt from them.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.common.folders import image_files, refuse_others
from pinchpoint.systems.radiance.data.cars import BODIES, GENERATOR
from pinchpoint.systems.radiance.data.sheets import BODY, FACTORS, Sheet, making_bytes, sheet_name, unpack
from pinchpoint.systems.radiance.data.workers import PROGRAM, Order

FORMAT = "pinchpoint radiance data"
SHEET = 50  # images per file
LARGEST = 1024  # pixels per side


@dataclass(frozen=True)
class Dataset:
    """Images on disk. A file is read, and its sha256 verified, on access."""

    path: Path
    seed: int
    size: int
    images: int
    factors_are: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    sheets: dict[str, dict[str, Any]]  # per name: sha256, images, faults (always empty)
    check: bool = True
    classes: tuple[str, ...] = ()  # body types, in a set that has them

    def sheet(self, name: str) -> Sheet:
        data = samples.read_sample(self.path, SET, self.sheets, name, check=self.check)
        return unpack(data, where=str(self.path / samples.file_of(name)))

    def pixels(self) -> np.ndarray:
        """All images, (images, size, size, 3) uint8."""
        return np.concatenate([self.sheet(name).pixels for name in self.splits["all"]])

    def factors(self) -> np.ndarray:
        """The factors of each image, (images, len(factors_are))."""
        return np.concatenate([self.sheet(name).factors for name in self.splits["all"]])

    def factor(self, name: str) -> np.ndarray:
        """One factor of each image, (images,)."""
        return self.factors()[:, self.factors_are.index(name)]

    def labels(self) -> np.ndarray | None:
        """The index of each image's class, (images,) int64, or None in a set without classes."""
        return self.factor(BODY).astype(np.int64) if self.classes else None


def make_dataset(
    output: str | Path,
    *,
    images: int,
    size: int = 64,
    seed: int = 0,
    jobs: int | None = None,
    device: str = "cpu",
    bodies: bool = False,
    progress: samples.Progress | None = None,
) -> Dataset:
    """Create what `output` lacks of this dataset and return the set. bodies: with body types as classes.

    A folder with an earlier, interrupted or damaged run of the same size and seed is resumed: complete sheets
    stay, with or without an index. `progress(done, total)` counts images, including existing ones.
    """
    folder = Path(output)
    _check(images, size, seed, jobs, device)
    identity = {"format": FORMAT, "generator": GENERATOR, "seed": seed, "size": size, "bodies": bodies}
    refuse_others(folder, own=samples.INDEX)  # a run or an evaluation may hold images too
    if other := image_files(folder):
        raise BadInput(
            f"{folder} contains images that are not a `radiance data` set, such as "
            f"{other[0].relative_to(folder)}.",
            hint="Choose another folder with -o; or train on these images: "
            f"pinchpoint radiance train {shlex.quote(str(folder))} -o RUN",
        )
    orders = [
        Order(sheet_name(first, count), seed, first, count, size, device, bodies)
        for first in range(0, images, SHEET)
        if (count := min(SHEET, images - first))
    ]

    def report_images(done: int, total: int) -> None:
        if progress:
            progress(images * done // total, images)

    samples.make_missing(
        folder,
        SET,
        identity,
        PROGRAM,
        orders,
        processes=lambda: samples.count_processes(
            jobs,
            need_bytes=making_bytes(size, SHEET),
            what=f"Images of {size} pixels take",
            hint="Give a smaller --size, or use --device cuda.",
            device=device,
        ),
        save=lambda entries: _save(folder, identity | {"images": images}, entries, orders),
        progress=report_images,
    )
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True) -> Dataset:
    """Open the dataset in a folder. check=False skips the sha256 comparison when a sheet is read."""
    folder = Path(path)
    with samples.finished_index(folder, SET) as index:
        return samples.checked(
            Dataset(
                folder,
                index["seed"],
                index["size"],
                index["images"],
                tuple(index["factors"]),
                {split: tuple(names) for split, names in index["splits"].items()},
                index["sheets"],
                check,
                tuple(BODIES) if index.get("bodies", False) else (),
            )
        )


def _check(images: int, size: int, seed: int, jobs: int | None, device: str) -> None:
    if not 1 <= images <= 999_999:
        raise BadInput(
            f"A dataset of {images:,} images is not supported.", hint="Give --images 1 to 999,999."
        )
    if not 8 <= size <= LARGEST:
        raise BadInput(
            f"Images of {size} pixels per side are not supported.", hint=f"Give --size 8 to {LARGEST}."
        )
    if seed < 0:
        raise BadInput(f"The seed is {seed}, but it must not be negative.", hint="Give --seed 0 or more.")
    samples.check_jobs(jobs)
    samples.check_device(device)


def _save(folder: Path, about: dict[str, Any], entries: samples.Entries, orders: list[Order]) -> None:
    splits = {"all": [order.name for order in orders if order.name in entries]}
    factors = (*FACTORS, BODY) if about["bodies"] else FACTORS
    samples.write_index(
        folder, SET, about | {"factors": factors}, entries, [order.name for order in orders], splits
    )


def _look(data: bytes, where: str) -> samples.SampleInfo:
    origin = unpack(data, where=where).origin
    return samples.SampleInfo(
        sheet_name(origin.first, origin.count), asdict(origin), {"images": origin.count, "faults": []}
    )


SET = samples.Kind(
    FORMAT, "radiance data", "sheet", "sheets", "cars-*.npz", frozenset({"sha256", "images", "faults"}), _look
)
