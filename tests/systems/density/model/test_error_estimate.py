"""The estimated error of a density: distances to training atoms, and notes on what is likely wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data.molecules import VALENCE, draw_geometry, molecule  # noqa: E402
from pinchpoint.systems.density.grid.periodic_images import atom_graph  # noqa: E402
from pinchpoint.systems.density.grid.structure import Structure  # noqa: E402
from pinchpoint.systems.density.model.config import DensityConfig  # noqa: E402
from pinchpoint.systems.density.model.error_estimate import (  # noqa: E402
    LIKELY_WRONG,
    ErrorEstimate,
    describe,
    scalars_of,
    split_estimate,
)
from pinchpoint.systems.density.model.model import DensityModel  # noqa: E402
from pinchpoint.systems.density.predict import predict  # noqa: E402
from pinchpoint.systems.density.training.weights import load_weights  # noqa: E402


def boxed(species: tuple[str, ...], positions: np.ndarray) -> Structure:
    lattice = np.diag(np.ptp(positions, axis=0) + 8.0)
    return Structure(lattice, species, (positions - positions.min(axis=0)) @ np.linalg.inv(lattice))


def scalars(model: DensityModel, structure: Structure):
    with torch.no_grad():
        return scalars_of(model.config, model.fields(atom_graph(structure, model.config)))


@pytest.fixture(scope="module")
def small() -> tuple[DensityModel, list[tuple[str, Structure]]]:
    config = DensityConfig(("C", "H", "O"), mul=24, lmax=1, gaussians=8, hidden=8, head=8, interactions=2)
    structures = []
    for name in ("water", "methane", "methanol"):
        for number in range(2):
            drawn = draw_geometry(molecule(name), seed=0, number=number)
            structures.append((name, boxed(drawn.species, drawn.positions)))
    return DensityModel(config), structures


def test_a_training_structure_has_no_distance_and_others_that_of_the_nearest_atoms(small) -> None:
    model, structures = small
    graphs = [(name, atom_graph(structure, model.config)) for name, structure in structures]
    species, distances = describe(model.config, model.fields, graphs)
    estimate = ErrorEstimate(species, 0.01, 1.0, (0.0, 1.0))
    places = {symbol: known.places for symbol, known in species.items()}
    assert {symbol: len(part) for symbol, part in places.items()} == {"C": 4, "H": 20, "O": 4}
    values = [scalars(model, structure) for _, structure in structures]
    for number, (name, structure) in enumerate(structures):
        own = estimate.distances(structure.species, values[number])
        assert own.max() < 2e-2  # places are rounded to half precision
        # The distance from other molecules, atom by atom.
        total = 0.0
        for at, symbol in enumerate(structure.species):
            known = species[symbol]
            mine = (values[number][at] - known.centre) @ known.directions
            others = [
                (values[which][place] - known.centre) @ known.directions
                for which, (group, other) in enumerate(structures)
                if group != name
                for place, kind in enumerate(other.species)
                if kind == symbol
            ]
            nearest = min((float((mine - other).norm()) for other in others), default=0.0)
            total += VALENCE[symbol] * nearest
        electrons = sum(VALENCE[symbol] for symbol in structure.species)
        assert distances[number] == pytest.approx(total / electrons, abs=2e-2)
    with pytest.raises(BadInput, match="one kind of structure only"):
        describe(model.config, model.fields, graphs[:2])


def test_the_error_is_a_power_of_the_distance_and_at_least_the_usual_one(small) -> None:
    model, structures = small
    graphs = [(name, atom_graph(structure, model.config)) for name, structure in structures]
    estimate = ErrorEstimate(
        describe(model.config, model.fields, graphs)[0], 0.01, 0.5, (math.log(0.02), 1.5)
    )
    known = molecule("dimethyl-ether")
    near, far = (boxed(known.species, known.positions * scale) for scale in (1.0, 1.6))
    estimates = [estimate.of(one, scalars(model, one)) for one in (structures[0][1], near, far)]
    assert estimates[0].nmae == 0.01 and not estimates[0].likely_wrong and estimates[0].notes() == ()
    apart = estimate.distances(far.species, scalars(model, far))
    electrons = np.array([VALENCE[symbol] for symbol in far.species])
    distance = float((apart * electrons).sum() / electrons.sum())
    assert estimates[2].nmae == pytest.approx(min(0.3, 0.02 * distance**1.5))
    assert replace(estimate, limit=distance * 1.01).of(far, scalars(model, far)).likely_wrong is False
    wrong = replace(estimate, limit=distance * 0.99).of(far, scalars(model, far))
    assert wrong.notes()[0].startswith(LIKELY_WRONG) and "1.0%" in wrong.notes()[0]


def test_an_estimate_survives_a_file_of_weights(small) -> None:
    model, structures = small
    graphs = [(name, atom_graph(structure, model.config)) for name, structure in structures]
    estimate = ErrorEstimate(
        describe(model.config, model.fields, graphs)[0], 0.01, 0.5, (-3.0, 1.5), (-1.0, 0.5, -0.4)
    )
    stored = {name: value.float() for name, value in {**model.state_dict(), **estimate.tensors()}.items()}
    weights, again = split_estimate(stored, {"estimate": estimate.about()})
    assert set(weights) == set(model.state_dict()) and again is not None
    assert again.about() == estimate.about()
    for name, structure in structures:
        values = scalars(model, structure)
        assert again.of(structure, values) == estimate.of(structure, values), name
    assert split_estimate(stored, {})[1] is None


def test_the_packaged_weights_know_molecules_and_note_ions_radicals_and_broken_bonds() -> None:
    model = load_weights("molecules")
    assert model.estimate is not None
    ethanol, water = molecule("ethanol"), molecule("water")
    turn = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    estimates = [
        model.estimate.of(one, scalars(model, one))
        for one in (
            boxed(ethanol.species, ethanol.positions),
            boxed(ethanol.species, ethanol.positions @ turn),
        )
    ]
    assert not estimates[0].likely_wrong and estimates[0].nmae < 0.02
    assert estimates[1].nmae == pytest.approx(estimates[0].nmae, rel=1e-3)
    prediction = predict(boxed(water.species[:2], water.positions[:2]), weights=model, grid=12, device="cpu")
    assert prediction.estimate is not None and prediction.estimate.likely_wrong
    assert prediction.estimate.nmae > 3 * prediction.estimate.usual
    assert prediction.notes[0].startswith(LIKELY_WRONG) and "O 1" in prediction.notes[0]
    stretched = boxed(ethanol.species, ethanol.positions * 1.3)
    assert model.estimate.of(stretched, scalars(model, stretched)).likely_wrong
