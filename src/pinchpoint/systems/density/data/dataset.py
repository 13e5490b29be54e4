"""Datasets on disk: structures with valence densities, made in parallel, resumable, and checked when read.

`DIR/index.json` describes the set and holds a sha256 of every sample's file. Molecules are stored as
`MOLECULE-NUMBER.npz`: training geometries are numbered from 0 and hold probes; test geometries, and those of
held-out molecules, are numbered from 900,000 and hold full grids. Samples of a user's files (see `collect`)
are `FILE-SHA256.npz`. A sample that breaks a limit stays on disk with its faults and is left out of the
splits. Files are written whole or not at all, and each records what it was made from: a lost or damaged index
is rebuilt from them.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices, show_count
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.density.data.data_settings import (
    DECIDING,
    PRESETS,
    DataSettings,
    FileSettings,
    check_seed,
    check_settings,
    orders_of,
)
from pinchpoint.systems.density.data.file_samples import OXIDES, entry_of, file_sample_of, unpack_file_sample
from pinchpoint.systems.density.data.molecules import molecule
from pinchpoint.systems.density.data.quantum import require_pyscf
from pinchpoint.systems.density.data.sample import (
    GENERATOR,
    Order,
    Sample,
    StoredSample,
    sample_of,
    unpack,
    unpack_arrays,
)
from pinchpoint.systems.density.data.workers import PROGRAM

Split = Literal["train", "test", "heldout"]
SPLITS: tuple[Split, ...] = get_args(Split)
FORMAT = "pinchpoint density data"


@dataclass(frozen=True)
class Dataset:
    """Samples on disk. A file is read, and its sha256 compared, when its sample is requested."""

    path: Path
    seed: int
    settings: DataSettings | FileSettings
    splits: dict[str, tuple[str, ...]]  # names of the samples without faults
    samples: dict[str, dict[str, Any]]  # per name: sha256, atoms, probes, attempts, quality, faults
    check: bool = True
    notes: tuple[str, ...] = ()  # warnings for the user
    missing: int = 0  # samples of a set that was stopped before its end

    @property
    def sha256(self) -> str:
        """Hash of the dataset, which changes with any sample."""
        entries = "".join(f"{name} {entry['sha256']}\n" for name, entry in sorted(self.samples.items()))
        return hashlib.sha256(entries.encode()).hexdigest()

    @property
    def species(self) -> tuple[str, ...]:
        """The elements of the training samples, in alphabetical order."""
        if isinstance(self.settings, FileSettings):
            return tuple(
                sorted({symbol for name in self.splits["train"] for symbol in self.samples[name]["species"]})
            )
        return tuple(sorted({symbol for name in self.settings.training for symbol in molecule(name).species}))

    @property
    def spin(self) -> bool:
        """Whether every sample has a spin density, test samples included."""
        names = [name for split in self.splits.values() for name in split]
        return bool(names) and all(self.samples[name].get("spin", False) for name in names)

    def names(self, split: Split) -> list[str]:
        return samples.split_names(self.splits, split)

    def sample(self, name: str) -> Sample:
        if isinstance(self.settings, FileSettings):
            return file_sample_of(unpack_file_sample(self._bytes(name), where=self._where(name)))
        return sample_of(self.stored(name))

    def stored(self, name: str) -> StoredSample:
        """Return the contents of the file of a molecule's sample."""
        return unpack(self._bytes(name), where=self._where(name))

    def _bytes(self, name: str) -> bytes:
        return samples.read_sample(self.path, SET, self.samples, name, check=self.check)

    def _where(self, name: str) -> str:
        return str(self.path / samples.file_of(name))

    def missing_in(self, split: Split) -> int:
        """Return how many samples of a split were not made yet, of a set that was stopped before its end."""
        if not self.missing or isinstance(self.settings, FileSettings):
            return 0
        orders = orders_of(self.settings, self.seed)
        return sum(
            order.name not in self.samples and split_of(order, self.settings) == split for order in orders
        )

    def faulty_samples(self) -> dict[str, list[str]]:
        """Return the samples that broke a limit, and their faults."""
        return samples.faults_of(self.samples)


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
    progress: samples.Progress | None = None,
    resume: bool = True,
) -> Dataset:
    """Add the missing samples of this dataset to `output`, and return the set.

    A folder with an earlier, interrupted or damaged run of the same settings and seed is continued: whole
    samples stay, with or without an index, and more geometries and molecules may be added. resume=False
    refuses such a folder. progress(done, total) is called before the first sample and after each, including
    existing ones.
    """
    if preset not in PRESETS:
        raise BadInput(f"There is no preset {preset!r}.", hint=f"Give --preset {show_choices(PRESETS)}.")
    overrides = {
        "molecules": molecules,
        "heldout": heldout,
        "geometries": geometries,
        "tests": tests,
        "probes": probes,
        "heldout_geometries": heldout_geometries,
        "spacing_a": spacing_a,
        "padding_a": padding_a,
        "rattle_a": rattle_a,
        "singles": None if molecules is None else (),  # the named molecules are all
    }
    settings = replace(
        PRESETS[preset], **{key: value for key, value in overrides.items() if value is not None}
    )
    folder = Path(output)
    orders = {order.name: order for order in orders_of(check_settings(settings), check_seed(seed))}
    samples.check_jobs(jobs)
    identity = {
        "format": FORMAT,
        "generator": GENERATOR,
        "seed": seed,
        **{key: getattr(settings, key) for key in DECIDING},
    }
    refuse_other_source(folder, GENERATOR)

    def count_processes() -> int:
        require_pyscf()
        return jobs or samples.cores()

    samples.make_missing(
        folder,
        SET,
        identity,
        PROGRAM,
        list(orders.values()),
        processes=count_processes,
        save=lambda entries: _save(folder, identity, settings, entries, orders),
        progress=progress,
        resume=resume,
    )
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True, accept_unfinished: bool = False) -> Dataset:
    """Return the dataset of a folder. check=False skips the comparison of sha256 when a sample is read.

    accept_unfinished: also open a set of computed molecules that was stopped early, if it has training
    samples. Files of a user that are missing may be bad ones, which must be dealt with first.
    """
    folder = Path(path)

    def accept(index: dict[str, Any]) -> bool:
        return (
            accept_unfinished and not isinstance(index["generator"], str) and bool(index["splits"]["train"])
        )

    with samples.finished_index(folder, SET, accept=accept) as index:
        seed = index["seed"]
        kind = FileSettings if "grid_points" in index["settings"] else DataSettings
        return samples.checked(
            Dataset(
                folder,
                seed,
                kind.from_json(index["settings"]),
                {split: tuple(names) for split, names in index["splits"].items()},
                index["samples"],
                check,
                tuple(index.get("notes", ())),
                index["missing"],
            )
        )


def _save(
    folder: Path,
    identity: dict[str, Any],
    settings: DataSettings,
    entries: samples.Entries,
    orders: dict[str, Order],
) -> None:
    splits: dict[str, list[str]] = {split: [] for split in SPLITS}
    singles = set(settings.singles)
    # A run validates with the last training samples: those of molecules that it does not train on say more.
    for name, order in sorted(orders.items(), key=lambda pair: pair[1].molecule in singles):
        if name in entries and not entries[name]["faults"]:
            splits[split_of(order, settings)].append(name)
    about = identity | {"settings": asdict(settings), "notes": unknown_species(settings)}
    samples.write_index(folder, SET, about, entries, orders, splits)


def split_of(order: Order, settings: DataSettings) -> Split:
    """Return the split that a sample belongs to."""
    if order.kind == "probes":
        return "train"
    return "test" if order.molecule in settings.molecules else "heldout"


def unfinished_notes(dataset: Dataset, split: Split, *, use: str) -> tuple[str, ...]:
    """Return a note where samples of a split were not made yet. use: of the other samples."""
    missing = dataset.missing_in(split)
    if not missing:
        return ()
    return (
        f"the dataset is not finished: {show_count(missing, 'sample')} of the {split} split of "
        f"{dataset.path} {'is' if missing == 1 else 'are'} missing; {use}",
    )


def unknown_species(settings: DataSettings) -> list[str]:
    """Return a note for every held-out molecule that no model of this set can be scored on."""
    known = {symbol for name in settings.training for symbol in molecule(name).species}
    return [
        f"{name} is held out, and no training molecule has {', '.join(unknown_species)}: a model of this "
        "set cannot be scored on it"
        for name in settings.heldout
        if known and (unknown_species := sorted(set(molecule(name).species) - known))
    ]


def refuse_other_source(folder: Path, generator: Any) -> None:
    """Raise BadInput for a folder with a set of another kind: molecules, oxides, or a user's files."""
    try:
        index = samples.read_index(folder, SET)
    except BadInput:
        return
    there, here = _contents(index.get("generator")), _contents(generator)
    if "generator" in index and there != here:
        raise BadInput(f"{folder} holds a dataset of {there}, not of {here}.", hint="Choose another -o.")


def _contents(generator: Any) -> str:
    """Return what a dataset holds, by its generator: a number for molecules, a text for crystals."""
    if not isinstance(generator, str):
        return "computed molecules"
    return "computed oxides" if generator.startswith(OXIDES) else "your own files"


def _look(data: bytes, where: str) -> samples.SampleInfo:
    if "content" in unpack_arrays(data, where=where)[1].get("order", {}):
        sample = unpack_file_sample(data, where=where)
        return samples.SampleInfo(sample.order.name, asdict(sample.order), entry_of(sample))
    sample = unpack(data, where=where)
    entry = {
        "atoms": len(sample.positions),
        "probes": len(sample.codes),
        "attempts": sample.attempts,
        "quality": sample.quality,
        "faults": list(sample.faults),
    }
    return samples.SampleInfo(sample.order.name, asdict(sample.order), entry)


SET = samples.Kind(
    FORMAT,
    "density data",
    "sample",
    "samples",
    "*-*.npz",
    frozenset({"sha256", "atoms", "probes", "attempts", "quality", "faults"}),
    _look,
)
