"""An estimate of the error of a predicted density, from the distance of its atoms to training atoms.

The atom network describes every atom by numbers that do not change under rotations: the scalars that the
probes read. Their main directions, by species, give every atom a place; its distance is that to the nearest
training atom of its species, and the distance of a structure is the mean over its atoms, weighted by their
electrons. A structure is unfamiliar if it is farther away than most training structures are from all
structures of other molecules. Molecules are also checked for bonds that add up (`data/valences.py`): the
network sees neither charges nor spins. The error itself is a power of the distance, fitted to systems with
known errors (`benchmarks/density/estimate.py`). Letters: A atoms, D scalars, K directions, M training atoms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.domain import valence_electrons
from pinchpoint.systems.density.data.molecules import VALENCE
from pinchpoint.systems.density.data.valences import Valences, check_valences
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.config import DensityConfig

if TYPE_CHECKING:
    from pinchpoint.systems.density.model.atom_network import AtomGraph

DIRECTIONS = 32
QUANTILE = 0.95  # of the training structures are within the limit
LARGEST = 0.3  # of an estimate: a density cannot be much more wrong than superposed atoms
PREFIX = "estimate."  # of the tensors in a file of weights
LIKELY_WRONG = "the density is likely wrong"  # how the note begins
_PARTS = ("centre", "directions", "places")
_AT_ONCE = 256  # atoms compared with all places at one time


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The training atoms of one species. centre: (D,); directions: (D, K); places: (M, K), all float32."""

    centre: Tensor
    directions: Tensor
    places: Tensor


@dataclass(frozen=True)
class Estimate:
    """The estimated error of one structure, beside the usual error of the weights."""

    nmae: float
    usual: float
    likely_wrong: bool
    reason: str = ""  # why it is likely wrong

    def notes(self) -> tuple[str, ...]:
        """Return the note of a density that is likely wrong."""
        if not self.likely_wrong:
            return ()
        return (
            f"{LIKELY_WRONG}: {self.reason}; the estimated error is {self.nmae:.1%}, the usual one is "
            f"{self.usual:.1%}",
        )


@dataclass(frozen=True, eq=False)
class ErrorEstimate:
    """What is needed to estimate errors.

    usual: mean error of the weights on molecules never trained on, or on new cells of trained crystals.
    limit: of the distance. power: (a, b), the error is exp(a) distance^b. ions: (a, b, c), for bonds that do
    not add up, the error is exp(a) distance^b electrons^c; None if bonds say nothing about these weights.
    """

    species: Mapping[str, Surroundings]
    usual: float
    limit: float
    power: tuple[float, float]
    ions: tuple[float, float, float] | None = None

    def of(self, structure: Structure, scalars: Tensor) -> Estimate:
        """Return the estimate for a structure. scalars: (A, D)."""
        apart = self.distances(structure.species, scalars)
        distance = mean_distance(structure.species, apart)
        nmae = math.exp(self.power[0]) * distance ** self.power[1]
        valences = Valences(()) if self.ions is None else check_valences(structure)
        reason = ""
        if self.ions is not None and valences.atoms and not valences.radical:
            electrons = max(1, valence_electrons(structure.species) or 1)
            nmae = math.exp(self.ions[0]) * distance ** self.ions[1] * electrons ** self.ions[2]
            reason = (
                f"the bonds of {_names(structure.species, valences.atoms)} do not add up to a neutral "
                "molecule with closed shells, so this is an ion, a radical, or a geometry far from rest"
            )
        elif distance > self.limit:
            far = tuple(int(at) for at in np.flatnonzero(apart > self.limit))
            reason = (
                f"the surroundings of {_names(structure.species, far) or 'its atoms'} are unlike those in "
                "the training data"
            )
        return Estimate(min(max(nmae, self.usual), LARGEST), self.usual, bool(reason), reason)

    def distances(self, symbols: Sequence[str], scalars: Tensor) -> np.ndarray:
        """Return the distance (A,) of every atom from the training data."""
        apart, names = np.zeros(len(symbols)), np.array(symbols)
        for symbol in sorted(set(symbols)):
            own = np.flatnonzero(names == symbol)
            known = self.species.get(symbol)
            if known is None:
                apart[own] = np.inf
                continue
            places = (scalars[torch.from_numpy(own)].float() - known.centre) @ known.directions
            parts = [torch.cdist(part, known.places).amin(1) for part in places.split(_AT_ONCE)]
            apart[own] = torch.cat(parts).double().numpy()
        return apart

    def tensors(self) -> dict[str, Tensor]:
        """Return what a file of weights holds besides the weights; matrices are in half precision."""
        parts = {
            f"{PREFIX}{symbol}.{name}": getattr(known, name)
            for symbol, known in self.species.items()
            for name in _PARTS
        }
        return {name: part.half() if part.dim() > 1 else part for name, part in parts.items()}

    def about(self) -> dict[str, Any]:
        """Return the numbers for the JSON beside the weights."""
        ions = None if self.ions is None else list(self.ions)
        return {"usual_nmae": self.usual, "limit": self.limit, "power": list(self.power), "ions": ions}


def split_estimate(
    weights: Mapping[str, Tensor], about: Mapping[str, Any]
) -> tuple[dict[str, Tensor], ErrorEstimate | None]:
    """Return the weights of a file without the tensors of its estimate, and the estimate, if it has one."""
    own = {name: value for name, value in weights.items() if not name.startswith(PREFIX)}
    if "estimate" not in about:
        return own, None
    numbers = about["estimate"]
    symbols = sorted({name[len(PREFIX) :].split(".")[0] for name in weights if name.startswith(PREFIX)})
    species = {
        symbol: Surroundings(*(weights[f"{PREFIX}{symbol}.{part}"] for part in _PARTS)) for symbol in symbols
    }
    slope, power = numbers["power"]
    ions = numbers["ions"]
    return own, ErrorEstimate(
        species,
        float(numbers["usual_nmae"]),
        float(numbers["limit"]),
        (float(slope), float(power)),
        None if ions is None else (float(ions[0]), float(ions[1]), float(ions[2])),
    )


def scalars_of(config: DensityConfig, fields: Tensor) -> Tensor:
    """Return the part of the fields (A, W) that does not change under rotations: (A, D) on the CPU."""
    return fields[:, : config.interactions * config.channels(0)].detach().float().cpu()


def mean_distance(symbols: Sequence[str], apart: np.ndarray) -> float:
    """Return the mean of the atoms' distances, weighted by their electrons."""
    electrons = np.array([VALENCE.get(symbol, 1) for symbol in symbols], dtype=float)
    return float((apart * electrons).sum() / electrons.sum())


def describe(
    config: DensityConfig,
    fields_of: Callable[[AtomGraph], Tensor],
    structures: Iterable[tuple[str, AtomGraph]],
) -> tuple[dict[str, Surroundings], np.ndarray]:
    """Return the surroundings of training atoms, and the distance (S,) of each structure from other groups.

    fields_of: `DensityModel.fields`. structures: each with the name of its group, such as a molecule;
    geometries of one molecule say nothing about how far a new one may be.
    """
    groups: list[str] = []
    kinds: list[np.ndarray] = []
    scalars: list[Tensor] = []
    for group, graph in structures:
        with torch.no_grad():
            scalars.append(scalars_of(config, fields_of(graph)))
        kinds.append(graph.species.cpu().numpy())
        groups.append(group)
    if len(set(groups)) < 2:
        raise BadInput(
            "The training data has one kind of structure only, so no distance can be called unusual.",
            hint="Give structures of at least two molecules or crystals.",
        )
    group_of = torch.from_numpy(np.unique(np.array(groups), return_inverse=True)[1])
    at = torch.from_numpy(np.repeat(np.arange(len(groups)), [len(kind) for kind in kinds]))
    kind, values = torch.from_numpy(np.concatenate(kinds)), torch.cat(scalars).double()
    apart = np.zeros(len(values))
    species: dict[str, Surroundings] = {}
    for index, symbol in enumerate(config.species):
        own = torch.nonzero(kind == index)[:, 0]
        if not len(own):
            continue
        known = _surroundings(values[own])
        species[symbol] = known
        places, group = known.places, group_of[at[own]]
        nearest = []
        for part, mine in zip(places.split(_AT_ONCE), group.split(_AT_ONCE), strict=True):
            distance = torch.cdist(part, places)
            distance[mine[:, None] == group] = math.inf
            nearest.append(distance.amin(1))
        apart[own.numpy()] = torch.cat(nearest).double().numpy()
    # An element of one group only has nothing to be compared with.
    apart = np.where(np.isfinite(apart), apart, 0.0)
    symbols = [[config.species[at] for at in kind] for kind in kinds]
    parts = np.split(apart, np.cumsum([len(kind) for kind in kinds])[:-1])
    return species, np.array([mean_distance(*pair) for pair in zip(symbols, parts, strict=True)])


def _surroundings(values: Tensor) -> Surroundings:
    """Return the places of training atoms. values: (M, D) float64.

    Directions are scaled to the fourth root of their variance, between plain and whitened distances; then the
    mean square of all places is one.
    """
    centre = values.mean(0)
    covariance = (values - centre).T @ (values - centre) / len(values)
    variances, vectors = torch.linalg.eigh(covariance)
    best = torch.argsort(variances, descending=True)[:DIRECTIONS]
    directions = vectors[:, best] / variances[best].clamp(min=1e-12) ** 0.25
    places = (values - centre) @ directions
    scale = places.square().sum(1).mean().sqrt().clamp(min=1e-12)
    parts = (centre, directions / scale, places / scale)
    # Rounded as in a file, so that the distances are those of an estimate that was read from one.
    centre, directions, _ = (part.half().float() if part.dim() > 1 else part.float() for part in parts)
    places = ((values.float() - centre) @ directions).half().float()
    return Surroundings(centre, directions, places)


def _names(species: Sequence[str], atoms: Sequence[int]) -> str:
    """Return `C 1, O 3 and 2 more` for some atoms, numbered from 1."""
    shown = [f"{species[at]} {at + 1}" for at in atoms[:4]]
    return ", ".join(shown) + (f" and {len(atoms) - 4} more" if len(atoms) > 4 else "")
