"""The domain of a model's training data (species, distances, charge), and notes on structures outside it.

Pairs are considered within the reach, which is the cutoff of the model. A structure outside the domain gets a
note; one inside it may still be new to the model. The domain has only plain values, so that it can be stored
with the weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import parse_json
from pinchpoint.systems.density.data.molecules import VALENCE
from pinchpoint.systems.density.grid.periodic_images import images_of, pairs_within
from pinchpoint.systems.density.grid.structure import Structure

if TYPE_CHECKING:
    from pinchpoint.systems.density.data.sample import Sample

REACH_A = 4.0
_SLACK = 0.02  # fraction of a distance: smaller deviations from the domain get no note
_SAME_COUNT = 0.01  # fraction of the electrons: grids are not more accurate


@dataclass(frozen=True)
class TrainingDomain:
    """The species, distances and electron counts that occur in a dataset."""

    structures: int
    reach_a: float
    closest_a: dict[
        str, float
    ]  # by pair, such as "C-H": the smallest distance; no entry: no such pair within reach
    # By species: the smallest and largest distance to the nearest neighbour; None: an atom has none within
    # reach.
    nearest_a: dict[str, tuple[float, float | None]]
    periodic: bool  # whether the atoms of any structure reach their own images
    open_shells: bool  # whether any structure has a spin density or an odd number of electrons
    neutral: bool  # whether all have the valence electrons of their atoms, where these are known

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TrainingDomain:
        try:
            values = parse_json(text)
            nearest = {
                str(key): (float(low), None if high is None else float(high))
                for key, (low, high) in values["nearest_a"].items()
            }
            closest = {str(key): float(value) for key, value in values["closest_a"].items()}
            flags = {name: bool(values[name]) for name in ("periodic", "open_shells", "neutral")}
            return cls(int(values["structures"]), float(values["reach_a"]), closest, nearest, **flags)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(
                f"The domain of the training data is damaged ({type(error).__name__}: {error}).",
                hint="Restore the weights, or train again.",
            ) from error


def sample_domain(sample: Sample, *, reach_a: float = REACH_A) -> TrainingDomain:
    """Return the domain of one sample."""
    near = _NearPairs(_in_box(sample, reach_a), reach_a)
    neutral = valence_electrons(sample.species)
    odd = round(sample.electrons) % 2 == 1
    spin = sample.spin is not None and bool(np.abs(sample.spin).max(initial=0.0) > 1e-6)
    neutral_count = neutral is not None and abs(sample.electrons - neutral) <= _SAME_COUNT * neutral
    return TrainingDomain(
        1, reach_a, near.closest(), near.nearest(), near.is_periodic(), odd or spin, neutral_count
    )


def merge_domains(one: TrainingDomain | None, other: TrainingDomain) -> TrainingDomain:
    """Return the domain of the structures of both."""
    if one is None:
        return other
    closest = {
        pair: min(one.closest_a.get(pair, math.inf), other.closest_a.get(pair, math.inf))
        for pair in sorted({*one.closest_a, *other.closest_a})
    }
    nearest: dict[str, tuple[float, float | None]] = {}
    for symbol in sorted({*one.nearest_a, *other.nearest_a}):
        ranges = [domain.nearest_a[symbol] for domain in (one, other) if symbol in domain.nearest_a]
        highs = [high for _, high in ranges if high is not None]
        nearest[symbol] = min(low for low, _ in ranges), None if len(highs) < len(ranges) else max(highs)
    return TrainingDomain(
        one.structures + other.structures,
        min(one.reach_a, other.reach_a),
        closest,
        nearest,
        one.periodic or other.periodic,
        one.open_shells or other.open_shells,
        one.neutral and other.neutral,
    )


def valence_electrons(species: Iterable[str]) -> int | None:
    """Return the valence electrons of the neutral atoms; None if the table lacks one of the species."""
    symbols = list(species)
    return sum(VALENCE[symbol] for symbol in symbols) if set(symbols) <= set(VALENCE) else None


def unfamiliar_notes(
    structure: Structure, domain: TrainingDomain, *, electrons: float | None = None
) -> tuple[str, ...]:
    """Return a note for each property of a structure that lies outside the training data.

    electrons: the requested count; a structure with an even count has no open shell.
    """
    near, notes = _NearPairs(structure, domain.reach_a), []
    for pair, apart in near.closest().items():
        least = domain.closest_a.get(pair)
        if least is None:
            notes.append(
                f"{pair} at {apart:.2f} angstrom: the training data has no such pair within "
                f"{domain.reach_a:g} angstrom"
            )
        elif apart < least * (1 - _SLACK):
            notes.append(f"{pair} at {apart:.2f} angstrom: the closest in the training data is {least:.2f}")
    for symbol, (_, far) in near.nearest().items():
        most = domain.nearest_a.get(symbol, (0.0, 0.0))[1]
        if most is None or (far is not None and far <= most * (1 + _SLACK)):
            continue
        alone = (
            f"no neighbour within {domain.reach_a:g} angstrom"
            if far is None
            else f"its nearest neighbour at {far:.2f} angstrom"
        )
        notes.append(f"{symbol} with {alone}: in the training data the distance is at most {most:.2f}")
    if not domain.periodic and near.is_periodic():
        notes.append(
            "the training data has only molecules, but here atoms are close to periodic images: the "
            "structure is a crystal, or its box is too small"
        )
    count = valence_electrons(structure.species)
    if domain.neutral and not domain.open_shells and count is not None:
        electron_count = round(count - structure.charge)
        if electron_count % 2 and (electrons is None or round(electrons) % 2):
            notes.append(
                f"an odd number of electrons, {electron_count}: the training data has only neutral "
                "structures with closed shells"
            )
    return tuple(notes)


def charge_notes(structure: Structure, *, electrons: float | None) -> tuple[str, ...]:
    """Return a note if the structure has a charge, which no model takes into account.

    electrons: the requested count.
    """
    if structure.charge == 0:
        return ()
    count = valence_electrons(structure.species)
    text = (
        f"the structure has a charge of {structure.charge:+g}, which the model ignores: this is the density "
        "of neutral atoms"
    )
    if electrons is not None:
        return (f"{text}, scaled to {electrons:g} electrons",)
    number = "N" if count is None else f"{count - structure.charge:g}"
    return (f"{text}; --electrons {number} scales it to another count",)


class _NearPairs:
    """The pairs of atoms of a structure within reach, including periodic images."""

    def __init__(self, structure: Structure, reach_a: float) -> None:
        images = images_of(structure, reach_a)
        self.species, self.reach_a = structure.species, reach_a
        self.to, image = pairs_within(images.home, images.positions, reach_a)
        self.source = images.atom[image]
        self.apart = np.linalg.norm(images.positions[image] - images.home[self.to], axis=1)
        cells = (images.positions[image] - images.home[self.source]) @ np.linalg.inv(structure.lattice)
        self.shift = np.rint(cells).astype(int)  # (E, 3): the cell of the image

    def closest(self) -> dict[str, float]:
        names, kinds = np.unique(np.array(self.species), return_inverse=True)
        low, high = (
            (np.sort(np.stack([kinds[self.to], kinds[self.source]]), axis=0))
            if len(self.to)
            else np.zeros((2, 0), int)
        )
        distances = np.full((len(names), len(names)), np.inf)
        np.minimum.at(distances, (low, high), self.apart)
        return {
            f"{names[a]}-{names[b]}": float(distances[a, b]) for a, b in np.argwhere(np.isfinite(distances))
        }

    def nearest(self) -> dict[str, tuple[float, float | None]]:
        """Return, by species, the range of the distance to the nearest neighbour.

        The smallest is at most the reach; the largest is None if an atom has no neighbour within reach.
        """
        each = np.full(len(self.species), np.inf)
        np.minimum.at(each, self.to, self.apart)
        symbols, ranges = np.array(self.species), {}
        for symbol in sorted(set(self.species)):
            own = each[symbols == symbol]
            high = float(own.max())
            ranges[symbol] = (min(float(own.min()), self.reach_a), high if math.isfinite(high) else None)
        return ranges

    def is_periodic(self) -> bool:
        """Return whether a path from neighbour to neighbour connects an atom with its own image."""
        ends = np.searchsorted(self.to, np.arange(len(self.species) + 1))
        sources, shifts = self.source.tolist(), self.shift.tolist()
        cell: dict[int, tuple[int, int, int]] = {}
        for start in range(len(self.species)):
            waiting = [] if start in cell else [start]
            cell.setdefault(start, (0, 0, 0))
            while waiting:
                at = waiting.pop()
                x, y, z = cell[at]
                for edge in range(ends[at], ends[at + 1]):
                    other, (right, back, up) = sources[edge], shifts[edge]
                    cell_here = (x + right, y + back, z + up)
                    if other not in cell:
                        cell[other] = cell_here
                        waiting.append(other)
                    elif cell[other] != cell_here:
                        return True
        return False


def _in_box(sample: Sample, reach_a: float) -> Structure:
    """Return a molecule in a box so large that no image is within reach."""
    lattice = sample.lattice
    if lattice is None:
        lattice = np.diag(np.ptp(sample.positions, axis=0) + 2 * reach_a)
    return Structure(lattice, sample.species, sample.positions @ np.linalg.inv(lattice))
