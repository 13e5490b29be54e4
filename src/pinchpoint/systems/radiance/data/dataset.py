"""Data sets of cars on disk: sheets of pictures, made in parallel, continued where they stopped, checked when read.

`DIR/index.json` says what the set is and holds a sha256 of every sheet's file, `DIR/cars-FIRST-COUNT.npz`. Car NUMBER of a
seed is the same in sets of every length. Files appear whole or not at all, and each says by itself what it was made from: an
index that is lost or damaged is made again from them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.common import dataset_folder as samples
from pinchpoint.systems.common.folders import image_files, refuse_others
from pinchpoint.systems.radiance.data.cars import GENERATOR
from pinchpoint.systems.radiance.data.sheets import FACTORS, Sheet, making_bytes, sheet_name, unpack
from pinchpoint.systems.radiance.data.workers import Order, made_sheets

FORMAT = "pinchpoint radiance data"
SHEET = 50  # images a file
LARGEST = 1024  # pixels a side


@dataclass(frozen=True)
class Dataset:
    """Pictures on disk. A file is read, and its sha256 compared, when it is asked for."""

    path: Path
    seed: int
    size: int
    images: int
    factors_are: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    sheets: dict[str, dict[str, Any]]  # per name: sha256, images, faults (none)
    check: bool = True

    def sheet(self, name: str) -> Sheet:
        data = samples.read_sample(self.path, SET, self.sheets, name, check=self.check)
        return unpack(data, where=str(self.path / samples.file_of(name)))

    def pixels(self) -> np.ndarray:
        """All pictures, (images, size, size, 3) uint8."""
        return np.concatenate([self.sheet(name).pixels for name in self.splits["all"]])

    def factors(self) -> np.ndarray:
        """What each picture was made from, (images, len(factors_are))."""
        return np.concatenate([self.sheet(name).factors for name in self.splits["all"]])


def make_dataset(
    output: str | Path,
    *,
    images: int,
    size: int = 64,
    seed: int = 0,
    jobs: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Make what `output` lacks of this data set and give it back.

    A folder that holds an earlier, interrupted or damaged run of the same size and seed is continued: whole sheets stay, with
    or without an index. `progress(made, wanted)` counts images, those already there too.
    """
    folder = Path(output)
    _check(images, size, seed, jobs, device)
    identity = {"format": FORMAT, "generator": GENERATOR, "seed": seed, "size": size}
    refuse_others(folder, own=samples.INDEX)
    if other := image_files(folder):
        raise BadInput(
            f"{folder} holds images that are no data set of ours, such as {other[0].relative_to(folder)}",
            hint=f"choose another folder with -o; or train on these: pinchpoint radiance train {shlex.quote(str(folder))} -o RUN",
        )
    held = samples.held_samples(folder, SET, identity)
    wanted = [
        Order(sheet_name(first, count), seed, first, count, size, device)
        for first in range(0, images, SHEET)
        if (count := min(SHEET, images - first))
    ]
    orders = [order for order in wanted if order.name not in held]
    processes = _processes(size, jobs, device) if orders else 1

    def told(made: int, all_sheets: int) -> None:
        if progress:
            progress(images * made // all_sheets, images)

    samples.add_samples(
        folder,
        SET,
        held,
        lambda: made_sheets(orders, jobs=processes),
        missing=len(orders),
        wanted=len(wanted),
        save=lambda: _save(folder, identity | {"images": images}, held, wanted),
        progress=told,
    )
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True) -> Dataset:
    """The data set of a folder. check=False leaves out the comparison of sha256 when a sheet is read."""
    folder = Path(path)
    with samples.finished_index(folder, SET) as index:
        return Dataset(
            folder,
            index["seed"],
            index["size"],
            index["images"],
            tuple(index["factors"]),
            {split: tuple(names) for split, names in index["splits"].items()},
            index["sheets"],
            check,
        )


def _check(images: int, size: int, seed: int, jobs: int | None, device: str) -> None:
    if not 1 <= images <= 999_999:
        raise BadInput(f"cannot make {images:,} images", hint="ask for 1 to 999,999")
    if not 8 <= size <= LARGEST:
        raise BadInput(f"images of {size} pixels a side", hint=f"ask for 8 to {LARGEST}")
    if seed < 0:
        raise BadInput(f"a seed of {seed}", hint="give 0 or more")
    samples.check_jobs(jobs)
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise BadInput(f"cannot make data on {device!r}", hint="choose cpu or cuda")
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise Missing("there is no CUDA device here", hint="make the data with --device cpu")


def _save(folder: Path, about: dict[str, Any], held: samples.Entries, wanted: list[Order]) -> None:
    splits = {"all": [order.name for order in wanted if order.name in held]}
    samples.write_index(
        folder, SET, about | {"factors": FACTORS}, held, [order.name for order in wanted], splits
    )


def _look(data: bytes, where: str) -> samples.Found:
    origin = unpack(data, where=where).origin
    return samples.Found(
        sheet_name(origin.first, origin.count), asdict(origin), {"images": origin.count, "faults": []}
    )


def _processes(size: int, jobs: int | None, device: str) -> int:
    """How many sheets are made at one time."""
    if device != "cpu":
        return 1
    return samples.processes(
        jobs,
        need_bytes=making_bytes(size, SHEET),
        what=f"images of {size} pixels take",
        hint="ask for a smaller --size, or make them with --device cuda",
    )


SET = samples.Kind(
    FORMAT, "radiance data", "sheet", "sheets", "cars-*.npz", frozenset({"sha256", "images", "faults"}), _look
)
