"""Datasets on disk: labelled rooms, made in parallel, resumed after an interruption, checked when read.

`DIR/index.json` describes the dataset and has the sha256 of every room's file, `DIR/room-NUMBER.npz`. Files
are written atomically, and each records what it was made from, so a lost or damaged index is rebuilt from
them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pinchpoint.systems.cloud.data.data_settings import FIRST_TEST, Order, orders_of
from pinchpoint.systems.cloud.data.room_layout import CLASSES
from pinchpoint.systems.cloud.data.rooms import (
    GENERATOR,
    Room,
    feature_names,
    making_bytes,
    room_name,
    unpack,
)
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.data.workers import PROGRAM
from pinchpoint.systems.common.data import dataset_folder as samples

Split = Literal["train", "test"]
FORMAT = "pinchpoint cloud data"


@dataclass(frozen=True)
class Dataset:
    """Rooms on disk. A room's file is read, and its sha256 compared, on access."""

    path: Path
    seed: int
    points: int
    gaussians: bool
    features: tuple[str, ...]
    classes: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    rooms: dict[str, dict[str, Any]]  # per name: sha256, points, faults (none)
    check: bool = True

    def names(self, split: Split) -> list[str]:
        return samples.split_names(self.splits, split)

    def room(self, name: str) -> Room:
        data = samples.read_sample(self.path, SET, self.rooms, name, check=self.check)
        return unpack(data, where=str(self.path / samples.file_of(name)))

    def scene(self, name: str) -> Scene:
        return self.room(name).scene


def make_dataset(
    output: str | Path,
    *,
    train: int = 80,
    test: int = 16,
    points: int = 20_000,
    seed: int = 0,
    gaussians: bool = False,
    jobs: int | None = None,
    progress: samples.Progress | None = None,
) -> Dataset:
    """Make the rooms that are missing in `output` and return the dataset.

    A folder with an interrupted or damaged dataset of the same points and seed is resumed: intact rooms stay,
    with or without an index. `progress(done, total)` is called before the first room and after each, and
    counts existing rooms.
    """
    folder = Path(output)
    orders = orders_of(train=train, test=test, points=points, seed=seed, gaussians=gaussians)
    samples.check_jobs(jobs)
    identity = {
        "format": FORMAT,
        "generator": GENERATOR,
        "seed": seed,
        "points": points,
        "gaussians": gaussians,
    }
    samples.make_missing(
        folder,
        SET,
        identity,
        PROGRAM,
        orders,
        processes=lambda: samples.count_processes(
            jobs,
            need_bytes=making_bytes(points),
            what=f"A room of {points:,} points takes",
            hint="Give fewer --points.",
        ),
        save=lambda entries: _save(folder, identity, entries, orders),
        progress=progress,
    )
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True) -> Dataset:
    """Open the dataset of a folder. check=False skips the sha256 comparison when a room is read."""
    folder = Path(path)
    with samples.finished_index(folder, SET) as index:
        return samples.checked(
            Dataset(
                folder,
                index["seed"],
                index["points"],
                index["gaussians"],
                tuple(index["features"]),
                tuple(index["classes"]),
                {split: tuple(names) for split, names in index["splits"].items()},
                index["rooms"],
                check,
            )
        )


def _save(folder: Path, identity: dict[str, Any], entries: samples.Entries, orders: list[Order]) -> None:
    about = identity | {"features": feature_names(identity["gaussians"]), "classes": CLASSES}
    existing = [order for order in orders if order.name in entries]
    splits = {
        "train": [order.name for order in existing if order.number < FIRST_TEST],
        "test": [order.name for order in existing if order.number >= FIRST_TEST],
    }
    samples.write_index(folder, SET, about, entries, [order.name for order in orders], splits)


def _look(data: bytes, where: str) -> samples.SampleInfo:
    room = unpack(data, where=where)
    return samples.SampleInfo(
        room_name(room.origin.number), asdict(room.origin), {"points": room.scene.points, "faults": []}
    )


SET = samples.Kind(
    FORMAT, "cloud data", "room", "rooms", "room-*.npz", frozenset({"sha256", "points", "faults"}), _look
)
