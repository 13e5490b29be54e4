"""Data sets on disk: molecules with their valence densities, made in parallel, continued where they stopped, checked when read.

`DIR/index.json` says what the set is and holds a sha256 of every sample's file, `DIR/MOLECULE-NUMBER.npz`. Geometries for
training are numbered from 0 and hold probes; those for testing, and of held-out molecules, are numbered from 900,000 and
are full grids. A sample that breaks a limit stays on disk with its faults and is left out of the splits. Files appear whole
or not at all, and each says by itself what it was made from: an index that is lost or damaged is made again from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_bytes, write_text
from pinchpoint.workloads.density.makers import made_samples
from pinchpoint.workloads.density.molecules import molecule
from pinchpoint.workloads.density.orders import DECIDING, PRESETS, DataSettings, check_seed, check_settings, orders_of
from pinchpoint.workloads.density.quantum import require_pyscf
from pinchpoint.workloads.density.sample import GENERATOR, Made, Order, Sample, sample_of, unpack

Split = Literal["train", "test", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
FORMAT = "pinchpoint density data"
_INDEX = "index.json"
_AGAIN = "run `pinchpoint density data` again with the same settings: it makes only what is missing"
_ENTRY = {"sha256", "atoms", "probes", "attempts", "quality", "faults"}  # what the index says of a sample


@dataclass(frozen=True)
class Dataset:
    """Samples on disk. A file is read, and its sha256 compared, when its sample is asked for."""

    path: Path
    seed: int
    settings: DataSettings
    splits: dict[str, tuple[str, ...]]  # the good samples
    samples: dict[str, dict[str, Any]]  # per name: sha256, atoms, probes, attempts, quality, faults
    check: bool = True

    @property
    def sha256(self) -> str:
        """Of the data set: changes with any sample of it."""
        entries = "".join(f"{name} {entry['sha256']}\n" for name, entry in sorted(self.samples.items()))
        return hashlib.sha256(entries.encode()).hexdigest()

    @property
    def species(self) -> tuple[str, ...]:
        """The elements of the training molecules, in order of the alphabet."""
        return tuple(sorted({symbol for name in self.settings.molecules for symbol in molecule(name).species}))

    def names(self, split: Split) -> list[str]:
        if split not in self.splits:
            raise BadInput(f"the data set has no split {split!r}", mend=f"choose {' or '.join(self.splits)}")
        return list(self.splits[split])

    def sample(self, name: str) -> Sample:
        return sample_of(self.made(name))

    def made(self, name: str) -> Made:
        """What the file of a sample holds."""
        if name not in self.samples:
            raise BadInput(f"{self.path} has no sample {name!r}", mend=f"its samples are listed in {self.path / _INDEX}")
        file = self.path / _file(name)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}", mend=_AGAIN) from error
        if self.check and hashlib.sha256(data).hexdigest() != self.samples[name]["sha256"]:
            raise BadInput(f"{file} is damaged: its sha256 is not that of the index", mend=_AGAIN)
        return unpack(data, where=str(file))

    def left_out(self) -> dict[str, list[str]]:
        """The samples that broke a limit, and which."""
        return {name: entry["faults"] for name, entry in self.samples.items() if entry["faults"]}

    def redrawn(self) -> dict[str, int]:
        """The samples whose first geometry did not converge, and how many were drawn."""
        return {name: entry["attempts"] for name, entry in self.samples.items() if entry["attempts"] > 1}


def make_data(
    output: str | Path,
    *,
    preset: str = "default",
    molecules: tuple[str, ...] | None = None,
    heldout: tuple[str, ...] | None = None,
    geometries: int | None = None,
    tests: int | None = None,
    heldout_geometries: int | None = None,
    probes: int | None = None,
    spacing_a: float | None = None,
    padding_a: float | None = None,
    rattle_a: float | None = None,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    resume: bool = True,
) -> Dataset:
    """Make what `output` lacks of this data set and give it back.

    A folder that holds an earlier, interrupted or damaged run of the same settings and seed is continued: whole samples
    stay, with or without an index; more geometries and molecules may be asked for. resume=False refuses such a folder.
    `progress(made, wanted)` is called before the first sample and after each, with those already there counted.
    """
    if preset not in PRESETS:
        raise BadInput(f"there is no preset {preset!r}", mend=f"choose {' or '.join(PRESETS)}")
    given = {
        "molecules": molecules, "heldout": heldout, "geometries": geometries, "tests": tests, "probes": probes,
        "heldout_geometries": heldout_geometries, "spacing_a": spacing_a, "padding_a": padding_a, "rattle_a": rattle_a,
    }  # fmt: skip
    settings = replace(PRESETS[preset], **{key: value for key, value in given.items() if value is not None})
    folder = Path(output)
    orders = {order.name: order for order in orders_of(check_settings(settings), check_seed(seed))}
    if jobs is not None and jobs < 1:
        raise BadInput(f"{jobs} jobs make nothing", mend="ask for one or more")
    identity = {"format": FORMAT, "generator": GENERATOR, "seed": seed, **{key: getattr(settings, key) for key in DECIDING}}
    held = _held(folder, identity)
    if held and not resume:
        raise BadInput(f"{folder} holds {len(held):,} samples of an earlier run", mend="choose another -o, or continue it")
    todo = [order for name, order in orders.items() if name not in held]
    if todo:
        require_pyscf()
    save_every = max(1, len(todo) // 50)
    made = len(orders) - len(todo)
    if progress:
        progress(made, len(orders))
    try:
        for order, data in made_samples(todo, jobs=jobs or _cores()):
            write_bytes(folder / _file(order.name), data)
            held[order.name] = _entry(data, unpack(data, where=order.name))
            made += 1
            if made % save_every == 0:
                _save(folder, identity, settings, held, orders)
            if progress:
                progress(made, len(orders))
    finally:
        # Also when it was stopped: what is whole is not made a second time.
        _save(folder, identity, settings, held, orders)
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True) -> Dataset:
    """The data set of a folder. check=False leaves out the comparison of sha256 when a sample is read."""
    folder = Path(path)
    if not (folder / _INDEX).exists():
        raise BadInput(f"{folder} holds no data set: there is no {_INDEX}", mend=f"make one: pinchpoint density data -o {folder}")
    index = _read_index(folder)
    try:
        if index["missing"]:
            raise BadInput(
                f"{folder} is not finished: {index['missing']:,} of {index['wanted']:,} samples are missing", mend=_AGAIN
            )
        return Dataset(
            folder, index["seed"], DataSettings.from_json(index["settings"]),
            {split: tuple(names) for split, names in index["splits"].items()}, index["samples"], check,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, f"it lacks {error}") from error


def _held(folder: Path, identity: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The whole samples an earlier run of the same set left in the folder, which is made where there is none."""
    make_folder(folder)
    known: dict[str, Any] = {}
    if (folder / _INDEX).exists():
        try:
            index = _read_index(folder)
        except BadInput:
            index = {}  # damaged: the files themselves tell what they are
        if identity.keys() <= index.keys():
            _require_same(folder, index, identity)
            known = index["samples"] if isinstance(index.get("samples"), dict) else {}
    held = {}
    for file in sorted(folder.glob("*-*.npz")):
        data = file.read_bytes()
        entry = known.get(file.stem)
        if isinstance(entry, dict) and entry.get("sha256") == hashlib.sha256(data).hexdigest() and entry.keys() >= _ENTRY:
            held[file.stem] = entry
            continue
        try:
            made = unpack(data, where=str(file))
        except BadInput:
            continue  # damaged: made again
        # An index that is damaged cannot tell whose folder it is; its samples can, and none of another set is written over.
        _require_same(folder, {"format": FORMAT} | asdict(made.order), identity)
        if made.order.name == file.stem:
            held[file.stem] = _entry(data, made)
    return held


def _require_same(folder: Path, found: dict[str, Any], identity: dict[str, Any]) -> None:
    for key, wanted in identity.items():
        if found.get(key) != wanted:
            raise BadInput(
                f"{folder} holds a data set whose {key} is {found.get(key)!r}, not {wanted!r}",
                mend="choose another -o, or the same settings",
            )


def _entry(data: bytes, made: Made) -> dict[str, Any]:
    """What the index says of a sample and its file's bytes."""
    return {
        "sha256": hashlib.sha256(data).hexdigest(), "atoms": len(made.positions), "probes": len(made.codes),
        "attempts": made.attempts, "quality": made.quality, "faults": list(made.faults),
    }  # fmt: skip


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
        mend=f"run `pinchpoint density data -o {folder}` again with the same settings: it keeps the samples that are whole",
    )


def _save(
    folder: Path,
    identity: dict[str, Any],
    settings: DataSettings,
    held: dict[str, dict[str, Any]],
    orders: dict[str, Order],
) -> None:
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    for name, order in orders.items():
        if name in held and not held[name]["faults"]:
            splits["train" if order.kind == "probes" else "test" if order.molecule in settings.molecules else "heldout"].append(
                name
            )
    index = identity | {
        "settings": asdict(settings),
        "wanted": len(orders),
        "missing": sum(name not in held for name in orders),
        "splits": splits,
        "samples": dict(sorted(held.items())),
    }
    write_text(folder / _INDEX, json.dumps(index, indent=1) + "\n")


def _file(name: str) -> str:
    return f"{name}.npz"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
