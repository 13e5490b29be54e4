"""Datasets of oxides: strained and rattled cells, some with a vacancy or a surface, by plane waves.

A dataset has the same format as one of a user's files: samples hold probes at points of the cell's own grid,
test samples an even part of that grid. Cells are numbered from 0, which is the crystal at rest; test cells
are numbered from 900. Held-out polymorphs are only tested with.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.common.data.workers import Program
from pinchpoint.systems.density.data.crystals.polymorphs import polymorph
from pinchpoint.systems.density.data.data_settings import FileSettings, check_file_settings, check_seed
from pinchpoint.systems.density.data.dataset import FORMAT, SET, Dataset, open_dataset, refuse_other_source
from pinchpoint.systems.density.data.sample import Kind

GENERATOR = "oxides 1"
FIRST_TEST = 900
PROBES, GRID_POINTS = 16_000, 40_000
GPU_PROCESSES = 4  # at a time on one GPU: while one waits for the host, another computes
PROGRAM = Program(
    "pinchpoint.systems.density.data.crystals.oxide_samples",
    "oxides",
    hint="Run the command again with fewer --jobs; it makes only the missing samples.",
)


@dataclass(frozen=True)
class Counts:
    """How many cells of a polymorph a dataset has. A polymorph with none to train on is held out."""

    train: int
    test: int


@dataclass(frozen=True)
class OxidePreset:
    """The polymorphs of a dataset, and the cutoff of their plane waves in hartree, also by species."""

    cells: dict[str, Counts]
    cutoff: float
    cutoffs: tuple[tuple[str, float], ...] = ()
    probes: int = PROBES
    grid_points: int = GRID_POINTS


@dataclass(frozen=True)
class OxideOrder:
    """One sample to make: everything that determines its numbers, and the device that computes it."""

    name: str
    polymorph: str
    number: int
    kind: Kind
    seed: int
    probes: int
    grid_points: int
    cutoff_hartree: float
    device: str
    potentials: str  # path of the table of pseudopotentials
    generator: str = GENERATOR

    @property
    def content(self) -> str:
        """A hash that takes the place of that of a file."""
        recipe = f"{self.generator} {self.polymorph} {self.number} {self.seed} {self.cutoff_hartree:g}"
        return hashlib.sha256(recipe.encode()).hexdigest()


PRESETS: dict[str, OxidePreset] = {
    "default": OxidePreset(
        {
            "hfo2-monoclinic": Counts(16, 3),
            "hfo2-tetragonal": Counts(14, 3),
            "hfo2-monoclinic+Zr": Counts(6, 1),
            "hfo2-tetragonal+Zr": Counts(6, 1),
            "hfo2-tetragonal+2x1x1+vacancy": Counts(4, 1),
            "zro2-monoclinic": Counts(8, 2),
            "zro2-tetragonal": Counts(8, 2),
            "zro2-cubic": Counts(8, 2),
            "tio2-rutile": Counts(12, 2),
            "tio2-anatase": Counts(12, 2),
            "sio2-quartz": Counts(10, 2),
            "sio2-cristobalite": Counts(8, 2),
            "sio2-stishovite": Counts(6, 1),
            "al2o3-corundum": Counts(10, 2),
            "mgo-rocksalt": Counts(10, 2),
            "mgo-rocksalt+surface": Counts(4, 1),
            "mgo-rocksalt+2x1x1+vacancy": Counts(2, 1),
            "cao-rocksalt": Counts(8, 2),
            "cao-rocksalt+surface": Counts(3, 1),
            "zno-wurtzite": Counts(10, 2),
            "zno-zincblende": Counts(6, 1),
            "mgal2o4-spinel": Counts(5, 1),
            "catio3-cubic": Counts(8, 2),
            "cazro3-cubic": Counts(4, 1),
            "zrsio4-zircon": Counts(5, 1),
            "hfsio4-zircon": Counts(5, 1),
            "hfo2-cubic": Counts(0, 4),
            "hfo2-orthorhombic": Counts(0, 4),
            "tio2-brookite": Counts(0, 2),
            "catio3-orthorhombic": Counts(0, 2),
        },
        cutoff=60.0,
        cutoffs=(("Mg", 220.0), ("Ca", 70.0), ("Ti", 80.0), ("Zn", 80.0), ("Zr", 75.0), ("Hf", 90.0)),
    ),
    "tiny": OxidePreset(
        {"sio2-stishovite": Counts(2, 1), "sio2-quartz": Counts(0, 1)},
        cutoff=4.0,
        probes=500,
        grid_points=4_000,
    ),
}


def make_oxides(
    output: str | Path,
    *,
    preset: str = "default",
    probes: int | None = None,
    grid_points: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    potentials: str | Path | None = None,
    jobs: int | None = None,
    progress: samples.Progress | None = None,
) -> Dataset:
    """Add the missing samples of a dataset of oxides to `output`, and return the set.

    device: "cpu" or "cuda". potentials: a table of GTH pseudopotentials in CP2K's format, by default PySCF's.
    An earlier run with the same settings and seed is continued. progress(done, total) is called before the
    first sample and after each, including existing ones.
    """
    if preset not in PRESETS:
        raise BadInput(f"There is no preset {preset!r}.", hint=f"Give --preset {show_choices(PRESETS)}.")
    recipe = PRESETS[preset]
    settings = check_file_settings(
        FileSettings(
            recipe.probes if probes is None else probes,
            recipe.grid_points if grid_points is None else grid_points,
            0.0,
        )
    )
    check_seed(seed)
    samples.check_jobs(jobs)
    samples.check_device(device)
    folder = Path(output)
    generator = f"{GENERATOR} {recipe.cutoff:g}"
    refuse_other_source(folder, generator)
    table = _table(potentials)
    orders = orders_of(recipe, settings, seed, device=device, potentials=str(table), generator=generator)
    identity = {
        "format": FORMAT,
        "generator": generator,
        "seed": seed,
        "probes": settings.probes,
        "grid_points": settings.grid_points,
    }
    samples.make_missing(
        folder,
        SET,
        identity,
        PROGRAM,
        orders,
        processes=lambda: jobs or (GPU_PROCESSES if device != "cpu" else samples.cores()),
        save=lambda entries: _save(folder, identity, settings, entries, orders, recipe),
        progress=progress,
    )
    return open_dataset(folder)


def orders_of(
    recipe: OxidePreset, settings: FileSettings, seed: int, *, device: str, potentials: str, generator: str
) -> list[OxideOrder]:
    """Return the samples to make, those to test with first."""
    orders = []
    for name, counts in recipe.cells.items():
        species = set(polymorph(name).species)
        cutoff = max([recipe.cutoff, *(value for symbol, value in recipe.cutoffs if symbol in species)])
        tests = range(FIRST_TEST, FIRST_TEST + counts.test)
        if not counts.train:  # a held-out polymorph is also tested at rest
            tests = [0, *tests[:-1]]
        kinds: dict[int, Kind] = dict.fromkeys(tests, "grid")
        kinds |= dict.fromkeys(range(counts.train), "probes")
        orders += [
            OxideOrder(
                f"{name}-{number:03d}",
                name,
                number,
                kind,
                seed,
                settings.probes,
                settings.grid_points,
                cutoff,
                device,
                potentials,
                generator,
            )
            for number, kind in kinds.items()
        ]
    # Tests first, then by number: a run that is stopped early has some cells of every polymorph.
    return sorted(orders, key=lambda order: (order.kind == "probes", order.number, order.name))


def _table(potentials: str | Path | None) -> Path:
    if potentials is None:
        from pinchpoint.systems.density.data.crystals.gth import table_path

        return table_path()
    path = Path(potentials)
    if not path.is_file():
        raise BadInput(f"There is no file {path}.", hint="Give a table such as CP2K's GTH_POTENTIALS.")
    return path.resolve()


def _save(
    folder: Path,
    identity: dict[str, Any],
    settings: FileSettings,
    entries: samples.Entries,
    orders: list[OxideOrder],
    recipe: OxidePreset,
) -> None:
    splits: dict[str, list[str]] = {"train": [], "test": [], "heldout": []}
    # By number, so that the last ones, which training uses for validation, are of all polymorphs.
    for order in sorted(orders, key=lambda order: (order.number, order.name)):
        if order.name in entries and not entries[order.name]["faults"]:
            test = "test" if recipe.cells[order.polymorph].train else "heldout"
            splits["train" if order.kind == "probes" else test].append(order.name)
    about = identity | {"settings": asdict(settings), "notes": []}
    samples.write_index(folder, SET, about, entries, [order.name for order in orders], splits)
