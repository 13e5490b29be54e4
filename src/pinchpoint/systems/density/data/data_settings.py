"""DataSettings and FileSettings: what a data set of densities holds, checked, and the orders it comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import LARGEST_SEED
from pinchpoint.systems.density.data.molecules import HELD_OUT, RATTLE_A, TRAINING, molecule
from pinchpoint.systems.density.data.quantum import LEVEL
from pinchpoint.systems.density.data.sample import Kind, Order

FIRST_TEST = 900_000
FILE_DECIDING = ("probes", "grid_points")
DECIDING = (
    "probes",
    "spacing_a",
    "padding_a",
    "rattle_a",
    "level",
)  # settings that decide the numbers of a sample


@dataclass(frozen=True)
class DataSettings:
    """What a data set holds."""

    molecules: tuple[str, ...] = TRAINING
    heldout: tuple[str, ...] = HELD_OUT
    geometries: int = 30  # of each molecule, to train
    tests: int = 2  # of each molecule, to test
    heldout_geometries: int = 4  # of each held-out molecule
    probes: int = 20_000  # of each geometry to train
    spacing_a: float = 0.25  # of a full grid
    padding_a: float = 3.0
    rattle_a: float = RATTLE_A
    level: int = LEVEL  # of the exchange-correlation grid

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> DataSettings:
        values: dict[str, Any] = data | {
            "molecules": tuple(data["molecules"]),
            "heldout": tuple(data["heldout"]),
        }
        return cls(**values)


@dataclass(frozen=True)
class FileSettings:
    """What a data set of a user's files holds."""

    probes: int = 20_000  # of each file to train on
    grid_points: int = 1_000_000  # of a file to test on: of a larger grid every second point or so is kept
    test: float = 0.1  # fraction of the files

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FileSettings:
        return cls(**data)


PRESETS: dict[str, DataSettings] = {
    "default": DataSettings(),
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
    """The settings themselves where they make a data set; else BadInput."""
    for name in (*settings.molecules, *settings.heldout):
        molecule(name)  # refuses one that is not known
    if both := set(settings.molecules) & set(settings.heldout):
        raise BadInput(
            f"{', '.join(sorted(both))} cannot be trained on and held out", hint="name each molecule once"
        )
    counts = {key: getattr(settings, key) for key in ("geometries", "tests", "heldout_geometries")}
    if min(counts.values()) < 0 or settings.geometries > FIRST_TEST or not orders_of(settings, 0):
        shown = ", ".join(f"{key} {value}" for key, value in counts.items())
        raise BadInput(
            f"cannot make a data set of {shown}",
            hint=f"ask for one or more in all, at most {FIRST_TEST:,} to train",
        )
    if settings.molecules and settings.geometries < 1:
        raise BadInput(
            "a data set with nothing to train on",
            hint="give --geometries 1 or more, or name heldout molecules only",
        )
    if settings.probes < 1 or not (
        settings.spacing_a > 0 and settings.padding_a >= 0 and settings.rattle_a >= 0
    ):
        raise BadInput(
            f"{settings.probes} probes, spacing {settings.spacing_a:g}, padding {settings.padding_a:g}, "
            f"rattle {settings.rattle_a:g}",
            hint="give one probe or more, a spacing above 0, and a padding and a rattle of 0 or more, in angstrom",
        )
    return settings


def check_file_settings(settings: FileSettings) -> FileSettings:
    """The same for a set of files."""
    if settings.probes < 1 or settings.grid_points < 8:
        raise BadInput(
            f"{settings.probes} probes, {settings.grid_points} grid points",
            hint="give one probe or more of each file to train on, and 8 grid points or more of each to test on",
        )
    if not 0 <= settings.test < 1:
        raise BadInput(
            f"a fraction of {settings.test:g} to test", hint="give one of 0 or more and below 1, such as 0.1"
        )
    return settings


def check_seed(seed: int) -> int:
    if not 0 <= seed <= LARGEST_SEED:
        raise BadInput(f"a seed of {seed}", hint=f"give 0 or more, and at most {LARGEST_SEED}")
    return seed


def orders_of(settings: DataSettings, seed: int) -> list[Order]:
    """Grids first, then by number: a run that was stopped has some of every molecule."""
    train = [(number, name) for number in range(settings.geometries) for name in settings.molecules]
    test = [(FIRST_TEST + number, name) for number in range(settings.tests) for name in settings.molecules]
    held = [
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

    return [*(order(*each, "grid") for each in test + held), *(order(*each, "probes") for each in train)]
