"""DataSettings and FileSettings: the contents of a dataset, checks, and the samples to make for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import LARGEST_SEED
from pinchpoint.systems.density.data.molecules import (
    HELD_OUT,
    RATTLE_A,
    TRAINING,
    WIDE_HELD_OUT,
    WIDE_TRAINING,
    enumerated_names,
    molecule,
)
from pinchpoint.systems.density.data.quantum import LEVEL
from pinchpoint.systems.density.data.sample import Kind, Order

FIRST_TEST = 900_000
FILE_DECIDING = ("probes", "grid_points")
# Settings that determine the numbers of a sample.
DECIDING = ("probes", "spacing_a", "padding_a", "rattle_a", "level")


@dataclass(frozen=True)
class DataSettings:
    """The contents of a dataset of molecules."""

    molecules: tuple[str, ...] = TRAINING
    heldout: tuple[str, ...] = HELD_OUT
    geometries: int = 30  # training geometries of each molecule
    tests: int = 2  # test geometries of each molecule
    heldout_geometries: int = 4  # test geometries of each held-out molecule
    probes: int = 20_000  # per training geometry
    spacing_a: float = 0.25  # of the full grids used for testing
    padding_a: float = 3.0
    rattle_a: float = RATTLE_A
    level: int = LEVEL  # of the exchange-correlation grid
    singles: tuple[str, ...] = ()  # further training molecules, with one geometry each

    @property
    def training(self) -> tuple[str, ...]:
        """All training molecules."""
        return (*self.molecules, *self.singles)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DataSettings:
        values: dict[str, Any] = data | {
            "molecules": tuple(data["molecules"]),
            "heldout": tuple(data["heldout"]),
            "singles": tuple(data.get("singles", ())),  # indices of earlier versions have none
        }
        return cls(**values)


@dataclass(frozen=True)
class FileSettings:
    """The contents of a dataset made from a user's files."""

    probes: int = 20_000  # per training file
    grid_points: int = 1_000_000  # most points per test file; a larger grid is thinned
    test: float = 0.1  # fraction of the files used for testing

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FileSettings:
        return cls(**data)


_WIDE = DataSettings(WIDE_TRAINING, WIDE_HELD_OUT, geometries=4, tests=0, heldout_geometries=2, probes=3_000)
PRESETS: dict[str, DataSettings] = {
    "default": DataSettings(),
    "wide": _WIDE,
    "wider": replace(_WIDE, singles=enumerated_names()),
    "tiny": DataSettings(
        ("water", "methane"),
        ("methanol",),
        geometries=2,
        tests=1,
        heldout_geometries=1,
        probes=500,
        spacing_a=0.3,
        level=0,
    ),
}


def check_settings(settings: DataSettings) -> DataSettings:
    """Return the settings if a dataset can be made from them; raise BadInput otherwise."""
    for name in (*settings.training, *settings.heldout):
        molecule(name)  # raises BadInput for an unknown name
    if both := set(settings.training) & set(settings.heldout):
        raise BadInput(
            f"{', '.join(sorted(both))} cannot be both training and held-out molecules.",
            hint="Name each molecule once.",
        )
    counts = {key: getattr(settings, key) for key in ("geometries", "tests", "heldout_geometries")}
    if min(counts.values()) < 0 or settings.geometries > FIRST_TEST or not orders_of(settings, 0):
        text = ", ".join(f"{key} {value}" for key, value in counts.items())
        raise BadInput(
            f"A dataset with {text} cannot be made.",
            hint=f"Use at least one geometry in total, and at most {FIRST_TEST:,} training geometries.",
        )
    if settings.molecules and settings.geometries < 1:
        raise BadInput(
            "The dataset has nothing to train on.",
            hint="Set --geometries to at least 1, or name only held-out molecules.",
        )
    if settings.probes < 1 or not (
        settings.spacing_a > 0 and settings.padding_a >= 0 and settings.rattle_a >= 0
    ):
        raise BadInput(
            f"A dataset cannot have {settings.probes} probes, spacing {settings.spacing_a:g}, padding "
            f"{settings.padding_a:g} and rattle {settings.rattle_a:g}.",
            hint="Give at least one probe, a spacing above 0, and a padding and a rattle of at least 0 "
            "angstrom.",
        )
    return settings


def check_file_settings(settings: FileSettings) -> FileSettings:
    """Return the settings if a dataset of files can be made from them; raise BadInput otherwise."""
    if settings.probes < 1 or settings.grid_points < 8:
        raise BadInput(
            f"A dataset cannot have {settings.probes} probes and {settings.grid_points} grid points per "
            "file.",
            hint="Set --probes to at least 1 and --grid-points to at least 8.",
        )
    if not 0 <= settings.test < 1:
        raise BadInput(
            f"The test fraction {settings.test:g} is not in [0, 1).",
            hint="Set --test to at least 0 and below 1, such as 0.1.",
        )
    return settings


def check_seed(seed: int) -> int:
    """Return the seed if it is in range; raise BadInput otherwise."""
    if not 0 <= seed <= LARGEST_SEED:
        raise BadInput(
            f"The seed {seed} is out of range.", hint=f"Set --seed to a number from 0 to {LARGEST_SEED}."
        )
    return seed


def orders_of(settings: DataSettings, seed: int) -> list[Order]:
    """Return the samples to make: grids, then one geometry of every molecule, then the others by number.

    A run that is stopped early then has some samples of every molecule, or of as many as possible.
    """
    train = [(number, name) for number in range(settings.geometries) for name in settings.molecules]
    first = len(settings.molecules) if settings.geometries else 0
    train[first:first] = [(0, name) for name in settings.singles]
    test = [(FIRST_TEST + number, name) for number in range(settings.tests) for name in settings.molecules]
    heldout = [
        (FIRST_TEST + number, name)
        for number in range(settings.heldout_geometries)
        for name in settings.heldout
    ]

    def order(number: int, name: str, kind: Kind) -> Order:
        return Order(
            f"{name}-{number:06d}",
            name,
            number,
            kind,
            seed,
            **{key: getattr(settings, key) for key in DECIDING},
        )

    return [*(order(*each, "grid") for each in test + heldout), *(order(*each, "probes") for each in train)]
