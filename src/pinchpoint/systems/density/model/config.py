"""DensityConfig: the configuration of a density model, as plain values that survive JSON.

Imports no framework. Lengths are in angstrom. `channels(l)` divides the width `mul` evenly among the degrees
0 to lmax, so that every degree costs about the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.common.settings import option
from pinchpoint.systems.density.grid.elements import SYMBOLS

_COUNTS = ("mul", "interactions", "gaussians", "hidden", "head")
_LENGTHS = ("cutoff_a", "softening_a", "mean_neighbours")
LARGEST_DEGREE = 6


@dataclass(frozen=True)
class DensityConfig(JsonConfig):
    """The configuration of one model. Invalid values raise BadInput on construction."""

    species: tuple[str, ...]  # in the order of the one-hot encoding
    mul: int = option(help="Channels of each parity, divided among the degrees.")
    lmax: int = option(help="Largest degree of the spherical harmonics.")
    gaussians: int = option(help="Number of Gaussians in the radial basis.")
    hidden: int = option(help="Hidden width of the radial networks.")
    interactions: int = option(3, "Number of interaction layers.")
    cutoff_a: float = option(4.0, "Cutoff radius in angstrom.")
    softening_a: float = option(
        0.2, "Softening length in angstrom: closer to a nucleus, the model is a smooth polynomial."
    )
    mean_neighbours: float = option(
        25.0,
        "Mean number of neighbours; sums over neighbours are divided by its square root.",
        default_text="measured on the data",
    )
    head: int = option(64, "Hidden width of the read-out.")
    train_knots: int = option(
        0,
        "Distances at which training evaluates the radial networks; 0: at the distance of every pair.",
    )
    spin: bool = option(
        False, "Add a second output: spin up minus spin down.", default_text="true if the data has spin"
    )
    prior: bool = option(
        False,
        "Add the density of superposed spherical atoms to the first output; the weights hold their table.",
        default_text="true if all atoms are in the table",
    )
    local: int = option(
        0,
        "Hidden width of a second, local network that corrects the density of each probe; 0: none.",
        default_text="0, or 64 with --first",
    )

    def __post_init__(self) -> None:
        self._check_kinds()
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise BadInput(
                    f"{name} = {getattr(self, name)} is too small.",
                    hint=f"Set {name} to at least 1.",
                )
        if self.train_knots < 0 or self.train_knots == 1:
            raise BadInput(
                f"train_knots = {self.train_knots} is not 0 or at least 2.",
                hint="Set train_knots to 0 to turn the table off, or to about 1,000.",
            )
        if self.local < 0:
            raise BadInput(
                f"The width local = {self.local} is below 0.",
                hint="Set local to 0 for no second network, or to its width, such as 64.",
            )
        if not 0 <= self.lmax <= LARGEST_DEGREE:
            raise BadInput(
                f"The degree lmax = {self.lmax} is out of range.",
                hint=f"Set lmax to a degree from 0 to {LARGEST_DEGREE}.",
            )
        for name in _LENGTHS:
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise BadInput(
                    f"{name} = {getattr(self, name)} is not a finite number above zero.",
                    hint=f"Set {name} to a finite number above zero.",
                )
        if self.softening_a >= self.cutoff_a:
            raise BadInput(
                f"softening_a = {self.softening_a:g} angstrom is not below the cutoff of {self.cutoff_a:g}.",
                hint="Set softening_a well below the cutoff, for example to 0.2.",
            )
        strange = [symbol for symbol in self.species if symbol not in SYMBOLS]
        if not self.species or strange or len(set(self.species)) < len(self.species):
            raise BadInput(
                f"The species {', '.join(self.species) or '(none)'} are not distinct elements.",
                hint="List element symbols, each once, such as H, C, N, O.",
            )

    def _check_kinds(self) -> None:
        for name in (*_COUNTS, "lmax", "train_knots", "local"):
            if type(getattr(self, name)) is not int:
                raise BadInput(
                    f"{name} = {getattr(self, name)!r:.40} is not a whole number.",
                    hint=f"Give {name} as a whole number.",
                )
        for name in _LENGTHS:
            if not isinstance(getattr(self, name), int | float):
                raise BadInput(
                    f"{name} = {getattr(self, name)!r:.40} is not a number.", hint=f"Give {name} as a number."
                )
        if not isinstance(self.species, tuple) or not all(isinstance(symbol, str) for symbol in self.species):
            raise BadInput(
                f"The species {self.species!r:.40} are not a tuple of symbols.",
                hint='Give a tuple of symbols, such as ("H", "C", "N", "O").',
            )

    @property
    def outputs(self) -> int:
        """The number of outputs: 1, or 2 with the spin density."""
        return 2 if self.spin else 1

    def channels(self, degree: int) -> int:
        """Return the multiplicity of each irrep of this degree."""
        return max(1, round(self.mul / (self.lmax + 1) / (2 * degree + 1)))

    @property
    def aggregates(self) -> int:
        """The number of channels that a probe sums in each interaction: 178 for the preset `original`."""
        return sum(self.channels(degree) for degree in range(self.lmax + 1))

    @property
    def field_width(self) -> int:
        """Floats per atom that the probes need: 1,488 for the preset `original`."""
        return self.interactions * sum(
            (2 * degree + 1) * self.channels(degree) for degree in range(self.lmax + 1)
        )

    def index_of(self, species: Sequence[str]) -> list[int]:
        """Return the index of each symbol in the one-hot encoding.

        Raises BadInput for species that are not in the training data.
        """
        unseen = sorted(set(species) - set(self.species))
        if unseen:
            raise BadInput(
                f"This model was not trained on {', '.join(unseen)}; it knows {', '.join(self.species)}.",
                hint="Use weights trained on these species, or train a model on them.",
            )
        return [self.species.index(symbol) for symbol in species]

    @classmethod
    def preset(cls, name: str, species: Sequence[str], **changes: Any) -> Self:
        """Return a tested configuration. changes: fields to override."""
        if name not in PRESETS:
            raise BadInput(
                f"There is no preset {name!r}.", hint=f"Set --preset to one of {', '.join(PRESETS)}."
            )
        return cls(species=tuple(species), **{**PRESETS[name], **changes})


# `original` has the widths of the ChargE3Net-style density report.
PRESETS: dict[str, dict[str, Any]] = {
    "original": {"mul": 500, "lmax": 4, "gaussians": 10, "hidden": 100, "head": 100},
    "small": {
        "mul": 128,
        "lmax": 3,
        "gaussians": 20,
        "hidden": 64,
        "head": 128,
        "mean_neighbours": 8.0,
        "train_knots": 1024,
    },
}
