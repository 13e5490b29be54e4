"""What a model was trained on, as far as a structure can be held against it: how near atoms came, how far, and of which kind.

Pairs are looked at within a reach, the cutoff of the model. A structure that keeps within all of it may still be new to the
model; one that does not is told. Plain values, so that weights can carry them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.molecules import VALENCE
from pinchpoint.systems.density.grid.periodic_images import images_of, pairs_within
from pinchpoint.systems.density.grid.structure import Structure

if TYPE_CHECKING:
    from pinchpoint.systems.density.data.sample import Sample

REACH_A = 4.0
_SLACK = 0.02  # of a distance: what is so little beyond what was seen is not strange
_SAME_COUNT = 0.01  # of the electrons: densities on a grid are not counted better


@dataclass(frozen=True)
class Seen:
    """Of all structures of a data set."""

    structures: int
    reach_a: float
    closest_a: dict[str, float]  # by pair, "C-H": the least distance; no entry: no such pair within reach
    nearest_a: dict[
        str, tuple[float, float | None]
    ]  # by species: least and most to the nearest neighbour; None: none in reach
    periodic: bool  # whether in any the atoms reach images of themselves
    open_shells: bool  # any with a spin density or an odd number of electrons
    neutral: bool  # all have the valence electrons of their atoms, where these are known

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Seen:
        try:
            held = json.loads(text)
            nearest = {
                str(key): (float(low), None if high is None else float(high))
                for key, (low, high) in held["nearest_a"].items()
            }
            closest = {str(key): float(value) for key, value in held["closest_a"].items()}
            flags = {name: bool(held[name]) for name in ("periodic", "open_shells", "neutral")}
            return cls(int(held["structures"]), float(held["reach_a"]), closest, nearest, **flags)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BadInput(
                f"what the model has seen is damaged ({type(error).__name__}: {error})",
                hint="restore the weights, or train again",
            ) from error


def seen_of(samples: Iterable[Sample], *, reach_a: float = REACH_A) -> Seen | None:
    """Of all samples; None where there are none."""
    found: Seen | None = None
    for sample in samples:
        found = joined(found, look_at(sample, reach_a=reach_a))
    return found


def look_at(sample: Sample, *, reach_a: float = REACH_A) -> Seen:
    """Of one sample."""
    near = _Near(_boxed(sample, reach_a), reach_a)
    neutral = valence_electrons(sample.species)
    odd = round(sample.electrons) % 2 == 1
    spin = sample.spin is not None and bool(np.abs(sample.spin).max(initial=0.0) > 1e-6)
    kept = neutral is not None and abs(sample.electrons - neutral) <= _SAME_COUNT * neutral
    return Seen(1, reach_a, near.closest(), near.nearest(), near.is_periodic(), odd or spin, kept)


def joined(one: Seen | None, other: Seen) -> Seen:
    """Of the structures of both."""
    if one is None:
        return other
    closest = {
        pair: min(one.closest_a.get(pair, math.inf), other.closest_a.get(pair, math.inf))
        for pair in sorted({*one.closest_a, *other.closest_a})
    }
    nearest: dict[str, tuple[float, float | None]] = {}
    for symbol in sorted({*one.nearest_a, *other.nearest_a}):
        held = [seen.nearest_a[symbol] for seen in (one, other) if symbol in seen.nearest_a]
        highs = [high for _, high in held if high is not None]
        nearest[symbol] = min(low for low, _ in held), None if len(highs) < len(held) else max(highs)
    return Seen(
        one.structures + other.structures,
        min(one.reach_a, other.reach_a),
        closest,
        nearest,
        one.periodic or other.periodic,
        one.open_shells or other.open_shells,
        one.neutral and other.neutral,
    )


def valence_electrons(species: Iterable[str]) -> int | None:
    """Of the neutral atoms, outside their pseudopotentials; None where the table lacks one of them."""
    symbols = list(species)
    return sum(VALENCE[symbol] for symbol in symbols) if set(symbols) <= set(VALENCE) else None


def strangeness(structure: Structure, seen: Seen, *, electrons: float | None = None) -> tuple[str, ...]:
    """A sentence for everything about a structure that the model never saw; empty where all is within.

    electrons: those asked for; an even number of them has no open shell.
    """
    near, notes = _Near(structure, seen.reach_a), []
    for pair, apart in near.closest().items():
        least = seen.closest_a.get(pair)
        if least is None:
            notes.append(
                f"{pair} at {apart:.2f} angstrom: the training data has no such pair within {seen.reach_a:g}"
            )
        elif apart < least * (1 - _SLACK):
            notes.append(
                f"{pair} at {apart:.2f} angstrom: the training data has none nearer than {least:.2f}"
            )
    for symbol, (_, far) in near.nearest().items():
        most = seen.nearest_a.get(symbol, (0.0, 0.0))[1]
        if most is None or (far is not None and far <= most * (1 + _SLACK)):
            continue
        alone = (
            f"no neighbour within {seen.reach_a:g} angstrom"
            if far is None
            else f"its nearest neighbour at {far:.2f} angstrom"
        )
        notes.append(f"{symbol} with {alone}: in the training data that is {most:.2f} at most")
    if not seen.periodic and near.is_periodic():
        notes.append(
            "the model saw molecules alone; here atoms touch images of one another: a crystal, or too small a box"
        )
    count = valence_electrons(structure.species)
    if seen.neutral and not seen.open_shells and count is not None:
        held = round(count - structure.charge)
        if held % 2 and (electrons is None or round(electrons) % 2):
            notes.append(
                f"an odd number of electrons, {held}: the model saw neutral structures with closed shells alone"
            )
    return tuple(notes)


def charge_notes(structure: Structure, *, electrons: float | None) -> tuple[str, ...]:
    """A sentence where the structure says a charge, which no model here knows of. electrons: those asked for."""
    if structure.charge == 0:
        return ()
    count = valence_electrons(structure.species)
    told = f"the structure has a charge of {structure.charge:+g}, which the model does not know of: this is the density of "
    if electrons is not None:
        return (f"{told}neutral atoms, scaled to {electrons:g} electrons",)
    wanted = "N" if count is None else f"{count - structure.charge:g}"
    return (f"{told}neutral atoms; --electrons {wanted} scales it to another count",)


class _Near:
    """The pairs of a structure within reach, images too."""

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
        found = np.full((len(names), len(names)), np.inf)
        np.minimum.at(found, (low, high), self.apart)
        return {f"{names[a]}-{names[b]}": float(found[a, b]) for a, b in np.argwhere(np.isfinite(found))}

    def nearest(self) -> dict[str, tuple[float, float | None]]:
        """By species, the least and the most to the nearest neighbour; the least is the reach at most."""
        each = np.full(len(self.species), np.inf)
        np.minimum.at(each, self.to, self.apart)
        symbols, found = np.array(self.species), {}
        for symbol in sorted(set(self.species)):
            own = each[symbols == symbol]
            high = float(own.max())
            found[symbol] = (min(float(own.min()), self.reach_a), high if math.isfinite(high) else None)
        return found

    def is_periodic(self) -> bool:
        """Whether a way from neighbour to neighbour leads from an atom to an image of itself."""
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
                    there = (x + right, y + back, z + up)
                    if other not in cell:
                        cell[other] = there
                        waiting.append(other)
                    elif cell[other] != there:
                        return True
        return False


def _boxed(sample: Sample, reach_a: float) -> Structure:
    """A molecule in a box so wide that no image is within reach."""
    lattice = sample.lattice
    if lattice is None:
        lattice = np.diag(np.ptp(sample.positions, axis=0) + 2 * reach_a)
    return Structure(lattice, sample.species, sample.positions @ np.linalg.inv(lattice))
