"""Data sets on disk: many bodies with their fields, made in parallel, continued where they stopped, checked when read.

`DIR/index.json` says what the set is and holds a sha256 of every body's file, `DIR/body-NUMBER.npz`. Bodies for training
are numbered from 0, bodies for testing from 900,000, so the same test bodies belong to sets of every size. A body whose
solution breaks a limit stays on disk with its faults and is left out of the splits. Files appear whole or not at all, and
each says by itself what it was made from: an index that is lost or damaged is made again from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import make_folder, write_bytes, write_text
from pinchpoint.core.ram import free_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.workloads.operator import cars, harmonic
from pinchpoint.workloads.operator.body import (
    FEATURES,
    GENERATOR,
    KINDS,
    TARGETS,
    Body,
    Kind,
    body_sample,
    making_bytes,
    unpack,
)
from pinchpoint.workloads.operator.folders import refuse_others
from pinchpoint.workloads.operator.makers import Order, made_bodies
from pinchpoint.workloads.operator.sample import Sample, check_sample
from pinchpoint.workloads.operator.triangulation import counts_for

Split = Literal["train", "test"]
FORMAT = "pinchpoint operator data"
FIRST_TEST = 900_000
_INDEX = "index.json"
_AGAIN = "run `pinchpoint operator data` again with the same settings: it makes only what is missing"
_ENTRY = {"sha256", "panels", "quality", "faults"}  # what the index says of a body
_MARGIN = 0.05  # of the box, on every side


@dataclass(frozen=True)
class Dataset:
    """Bodies on disk. A file is read, and its sha256 compared, when its body is asked for."""

    path: Path
    kind: Kind
    seed: int
    panels: int
    low: tuple[float, float, float]  # corners of a box that holds every body of this kind, also those not drawn yet
    high: tuple[float, float, float]
    features: tuple[str, ...]
    targets: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]  # the good bodies
    bodies: dict[str, dict[str, Any]]  # per name: sha256, panels, quality, faults
    check: bool = True

    def names(self, split: Split) -> list[str]:
        if split not in self.splits:
            raise BadInput(f"the data set has no split {split!r}", mend=f"choose {' or '.join(self.splits)}")
        return list(self.splits[split])

    def body(self, name: str) -> Body:
        if name not in self.bodies:
            raise BadInput(f"{self.path} has no body {name!r}", mend=f"its bodies are listed in {self.path / _INDEX}")
        file = self.path / _file(name)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}", mend=_AGAIN) from error
        if self.check and hashlib.sha256(data).hexdigest() != self.bodies[name]["sha256"]:
            raise BadInput(f"{file} is damaged: its sha256 is not that of the index", mend=_AGAIN)
        return unpack(data, where=str(file))

    def sample(self, name: str) -> Sample:
        return check_sample(body_sample(self.body(name)))

    def left_out(self) -> dict[str, list[str]]:
        """The bodies that broke a limit, and which."""
        return {name: entry["faults"] for name, entry in self.bodies.items() if entry["faults"]}

    def beyond(self) -> list[str]:
        """Sound bodies of a larger set that was made here before; in neither split."""
        taken = {name for names in self.splits.values() for name in names}
        return [name for name, entry in self.bodies.items() if name not in taken and not entry["faults"]]


def make_dataset(
    output: str | Path,
    *,
    kind: Kind,
    train: int,
    test: int,
    panels: int,
    seed: int = 0,
    jobs: int | None = None,
    device: str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Dataset:
    """Make what `output` lacks of this data set and give it back.

    A folder that holds an earlier, interrupted or damaged run of the same kind, panels and seed is continued: whole bodies
    stay, with or without an index. `progress(made, wanted)` is called before the first body and after each, with those
    already there counted.
    """
    folder = Path(output)
    _check(kind, train, test, panels, seed, jobs, device)
    identity = {"format": FORMAT, "generator": GENERATOR, "kind": kind, "seed": seed, "panels": panels}
    held = _held(folder, identity)
    numbers = {_name(number): number for number in (*range(train), *range(FIRST_TEST, FIRST_TEST + test))}
    orders = [Order(kind, name, seed, number, panels, device) for name, number in numbers.items() if name not in held]
    processes = _processes(kind, panels, jobs, device) if orders else 1
    save_every = max(1, len(orders) // 50)
    made = len(numbers) - len(orders)
    if progress:
        progress(made, len(numbers))
    try:
        for order, data in made_bodies(orders, jobs=processes):
            write_bytes(folder / _file(order.name), data)
            held[order.name] = _entry(data, unpack(data, where=order.name))
            made += 1
            if made % save_every == 0:
                _save(folder, identity, held, numbers)
            if progress:
                progress(made, len(numbers))
    finally:
        # Also when it was stopped: what is whole is not made a second time.
        _save(folder, identity, held, numbers)
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True) -> Dataset:
    """The data set of a folder. check=False leaves out the comparison of sha256 when a body is read."""
    folder = Path(path)
    if not (folder / _INDEX).exists():
        refuse_others(folder, own=_INDEX, mend="name the folder that `operator data` made")
        raise BadInput(
            f"{folder} holds no data set: there is no {_INDEX}", mend=f"make one: pinchpoint operator data -o {folder}"
        )
    index = _read_index(folder)
    try:
        if index["missing"]:
            raise BadInput(
                f"{folder} is not finished: {index['missing']:,} of {index['wanted']:,} bodies are missing", mend=_AGAIN
            )
        return Dataset(
            folder, index["kind"], index["seed"], index["panels"], tuple(index["low"]), tuple(index["high"]),
            tuple(index["features"]), tuple(index["targets"]),
            {split: tuple(names) for split, names in index["splits"].items()}, index["bodies"], check,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, f"it lacks {error}") from error


def _check(kind: str, train: int, test: int, panels: int, seed: int, jobs: int | None, device: str) -> None:
    if kind not in KINDS:
        raise BadInput(f"there is no kind of data {kind!r}", mend=f"choose {' or '.join(KINDS)}")
    if train < 0 or test < 0 or train + test == 0 or train > FIRST_TEST:
        raise BadInput(
            f"cannot make {train:,} bodies to train and {test:,} to test",
            mend=f"ask for at least one in all, and for at most {FIRST_TEST:,} to train",
        )
    if seed < 0:
        raise BadInput(f"a seed of {seed}", mend="give 0 or more")
    if jobs is not None and jobs < 1:
        raise BadInput(f"{jobs} jobs make nothing", mend="ask for one or more")
    counts_for(panels, length=1.0, girth=1.0)  # refuses a count too small before any process is started
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise BadInput(f"cannot make data on {device!r}", mend="choose cpu or cuda")
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise Missing("there is no CUDA device here", mend="make the data with --device cpu")


def _held(folder: Path, identity: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The whole bodies an earlier run of the same set left in the folder, which is made where there is none."""
    refuse_others(folder, own=_INDEX)
    make_folder(folder)
    known: dict[str, Any] = {}
    if (folder / _INDEX).exists():
        try:
            index = _read_index(folder)
        except BadInput:
            index = {}  # damaged: the files themselves tell what they are
        if identity.keys() <= index.keys():
            _require_same(folder, index, identity)
            known = index["bodies"] if isinstance(index.get("bodies"), dict) else {}
    held = {}
    for file in sorted(folder.glob("body-*.npz")):
        data = file.read_bytes()
        entry = known.get(file.stem)
        if isinstance(entry, dict) and entry.get("sha256") == hashlib.sha256(data).hexdigest() and entry.keys() >= _ENTRY:
            held[file.stem] = entry
            continue
        try:
            body = unpack(data, where=str(file))
        except BadInput:
            continue  # damaged: made again
        # An index that is damaged cannot tell whose folder it is; its bodies can, and none of another set is written over.
        _require_same(folder, {"format": FORMAT} | asdict(body.origin), identity)
        if _name(body.origin.number) == file.stem:
            held[file.stem] = _entry(data, body)
    return held


def _require_same(folder: Path, found: dict[str, Any], identity: dict[str, Any]) -> None:
    for key, wanted in identity.items():
        if found.get(key) != wanted:
            raise BadInput(
                f"{folder} holds a data set whose {key} is {found.get(key)!r}, not {wanted!r}",
                mend="choose another -o, or the same settings",
            )


def _entry(data: bytes, body: Body) -> dict[str, Any]:
    """What the index says of a body and its file's bytes."""
    digest = hashlib.sha256(data).hexdigest()
    return {"sha256": digest, "panels": len(body.mesh.faces), "quality": body.quality, "faults": list(body.faults)}


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _damaged(folder, str(error)) from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise _damaged(folder, "it is not the index of a data set")
    return index


def _damaged(folder: Path, why: str) -> BadInput:
    return BadInput(
        f"{folder / _INDEX} is damaged: {why}",
        mend=f"run `pinchpoint operator data -o {folder}` again with the same settings: it keeps the bodies that are whole",
    )


def _save(folder: Path, identity: dict[str, Any], held: dict[str, dict[str, Any]], numbers: dict[str, int]) -> None:
    kind: Kind = identity["kind"]
    low, high = (cars if kind == "flow" else harmonic).largest_box()
    margin = [_MARGIN * (b - a) for a, b in zip(low, high, strict=True)]
    good = [name for name in numbers if name in held and not held[name]["faults"]]
    index = identity | {
        "low": [a - m for a, m in zip(low, margin, strict=True)],
        "high": [b + m for b, m in zip(high, margin, strict=True)],
        "features": FEATURES[kind],
        "targets": TARGETS[kind],
        "wanted": len(numbers),
        "missing": sum(name not in held for name in numbers),
        "splits": {
            "train": [name for name in good if numbers[name] < FIRST_TEST],
            "test": [name for name in good if numbers[name] >= FIRST_TEST],
        },
        "bodies": dict(sorted(held.items())),
    }
    write_text(folder / _INDEX, json.dumps(index, indent=1) + "\n")


def _name(number: int) -> str:
    return f"body-{number:06d}"


def _file(name: str) -> str:
    return f"{name}.npz"


def _processes(kind: Kind, panels: int, jobs: int | None, device: str) -> int:
    """How many bodies are made at one time: as asked, else as many as there are cores and memory for."""
    if device != "cpu":
        return 1
    need, free = making_bytes(kind, panels), free_bytes()
    if need > free:
        raise BadInput(
            f"a body of {panels:,} panels takes {show_bytes(need)} to make; {show_bytes(free)} of memory are free",
            mend="ask for fewer --panels, or make it with --device cuda",
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return jobs or min(cores, free // need)
