"""What a model was trained on is found in its data, goes with its weights, and what is unlike it is told."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.domain import (
    REACH_A,
    TrainingDomain,
    merge_domains,
    sample_domain,
    unfamiliar_notes,
    valence_electrons,
)
from pinchpoint.systems.density.data.molecules import TRAINING, molecule
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.electron_counts import count_notes, grid_error, negative_notes
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.predict import predict
from pinchpoint.systems.density.train import train
from pinchpoint.systems.density.training.weights import export, load_weights

NOTHING = np.zeros((0, 3))
TINY = {"mul": 8, "lmax": 1, "gaussians": 6, "hidden": 8, "head": 8, "interactions": 2, "train_knots": 64}


def sample(
    species: str,
    positions: list[list[float]],
    *,
    lattice: np.ndarray | None = None,
    electrons: float | None = None,
) -> Sample:
    symbols = tuple(species.split())
    count = electrons if electrons is not None else float(valence_electrons(symbols) or 0)
    return Sample("a", "a", symbols, np.array(positions), lattice, NOTHING, np.zeros(0), np.zeros(0), count)


def boxed(species: str, positions: list[list[float]], side: float = 12.0) -> Structure:
    return Structure(np.eye(3) * side, tuple(species.split()), np.array(positions) / side + 0.5)


def domain_of(samples: list[Sample], reach_a: float = REACH_A) -> TrainingDomain:
    return functools.reduce(merge_domains, [sample_domain(one, reach_a=reach_a) for one in samples])


def water(scale: float = 1.0) -> list[list[float]]:
    return (np.array([[0, 0, 0.1173], [0, 0.7572, -0.4692], [0, -0.7572, -0.4692]]) * scale).tolist()


@pytest.fixture(scope="module")
def packaged() -> TrainingDomain:
    seen = load_weights().domain
    assert seen is not None
    return seen


def test_distances_are_those_of_every_pair_counted_one_by_one() -> None:
    rng = np.random.default_rng(0)
    drawn = [(rng.choice(["H", "C", "O"], 6), rng.random((6, 3)) * 4) for _ in range(5)]
    seen = domain_of([sample(" ".join(symbols), places.tolist()) for symbols, places in drawn], reach_a=2.5)
    closest: dict[str, float] = {}
    nearest: dict[str, list[float]] = {}
    for symbols, places in drawn:
        for a, b in itertools.combinations(range(6), 2):
            apart = float(np.linalg.norm(places[a] - places[b]))
            pair = "-".join(sorted((symbols[a], symbols[b])))
            if apart < 2.5:
                closest[pair] = min(apart, closest.get(pair, np.inf))
        for a in range(6):
            nearest.setdefault(symbols[a], []).append(
                min(float(np.linalg.norm(places[a] - places[b])) for b in range(6) if b != a)
            )
    assert seen.closest_a == pytest.approx(closest)
    for symbol, found in nearest.items():
        low, high = seen.nearest_a[symbol]
        assert low == pytest.approx(min(found)) and (
            high == pytest.approx(max(found)) if max(found) < 2.5 else high is None
        )
    assert seen.structures == 5 and not seen.periodic
    assert TrainingDomain.from_json(seen.to_json()) == seen


def test_a_box_with_a_molecule_is_no_crystal_wherever_it_lies_and_a_chain_is() -> None:
    split = sample("O H H", (np.array(water()) + 6.0).tolist(), lattice=np.eye(3) * 12)
    across = sample("O H H", water(), lattice=np.eye(3) * 12)  # through the walls of the box
    chain = sample(
        "C C", [[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]], lattice=np.diag([6.0, 20.0, 20.0])
    )  # no atom near its own image
    alone = sample("C C", [[0.0, 0.0, 0.0], [3.0, 0.0, 0.0]], lattice=np.diag([9.0, 20.0, 20.0]))
    domains = [sample_domain(one) for one in (split, across, chain, alone)]
    assert [domain.periodic for domain in domains] == [False, False, True, False]


def test_electrons_tell_open_shells_and_other_counts() -> None:
    drawn = [sample("O H H", water()), sample("O H", water()[:2]), sample("O H H", water(), electrons=7.0)]
    closed, odd, ion, other = (
        sample_domain(one) for one in (*drawn, sample("Hf", [[0.0, 0.0, 0.0]], electrons=4.0))
    )
    assert (closed.open_shells, odd.open_shells, ion.open_shells) == (False, True, True)
    assert (closed.neutral, odd.neutral, ion.neutral, other.neutral) == (True, True, False, False)


def test_molecules_like_those_trained_on_are_not_strange(packaged: TrainingDomain) -> None:
    for name in (*TRAINING, "ethanol", "acetaldehyde", "acetamide"):
        known = molecule(name)
        assert (
            unfamiliar_notes(boxed(" ".join(known.species), known.positions.tolist(), 16.0), packaged) == ()
        ), name


@pytest.mark.parametrize(
    ("structure", "said"),
    [
        (
            boxed("H H", [[0, 0, 0], [0.45, 0, 0]]),
            ["H-H at 0.45 angstrom: the closest in the training data is 0.57"],
        ),
        (
            boxed("N N", [[0, 0, 0], [0.9, 0, 0]]),
            ["N-N at 0.90 angstrom: the closest in the training data is 1.08"],
        ),
        (
            boxed("O H H", water(1.9)),
            ["H with its nearest neighbour at 1.82 angstrom", "O with its nearest neighbour at 1.82"],
        ),
        (boxed("O O", [[0, 0, 0], [5.0, 0, 0]]), ["O with no neighbour within 4 angstrom"]),
        (
            boxed("C H H H", [[0, 0, 0], [1.08, 0, 0], [-0.54, 0.935, 0], [-0.54, -0.935, 0]]),
            ["an odd number of electrons, 7"],
        ),
        (
            boxed("O H H", water(), 5.0),
            ["the training data has only molecules, but here atoms are close to periodic images"],
        ),
    ],
)
def test_what_was_never_seen_is_told(structure: Structure, said: list[str], packaged: TrainingDomain) -> None:
    notes = unfamiliar_notes(structure, packaged)
    assert len(notes) == len(said)
    for note, start in zip(sorted(notes), sorted(said), strict=True):
        assert note.startswith(start)


def test_the_packaged_model_notes_what_is_strange_and_nothing_of_water() -> None:
    made = predict(boxed("O H H", water(), 9.0), spacing_a=0.2, device="cpu")
    assert made.notes == () and made.electrons_neutral == 8
    strange = predict(boxed("H", [[0.0, 0.0, 0.0]], 8.0), spacing_a=0.2, device="cpu")
    assert any("no neighbour" in note for note in strange.notes) and any(
        "odd number" in note for note in strange.notes
    )
    assert any(
        "the neutral atoms have 1 (" in note and "grid is fine enough" in note for note in strange.notes
    )


def test_a_coarse_grid_is_named_as_the_cause_of_a_wrong_count_and_a_charge_too() -> None:
    made = predict(boxed("O H H", water(), 9.0), spacing_a=0.45, device="cpu", electrons=9.0)
    assert "9 electrons were requested, but the neutral atoms have 8" in made.notes[0]
    assert "the grid is too coarse for the peaks (0.45 angstrom): give --spacing 0.1" in made.notes[1]
    off = predict(boxed("O H H", water(), 9.0), spacing_a=0.45, device="cpu")
    assert off.electrons_raw - 8 == pytest.approx(grid_error(off.volume.structure, off.volume.grid), rel=0.3)


def test_the_grids_error_is_that_of_a_sum_over_superposed_atoms() -> None:
    from pinchpoint.systems.density.data.atomic import superpose
    from pinchpoint.systems.density.files.volume import grid_points

    lattice = np.array([[9.0, 0.0, 0.0], [2.0, 8.5, 0.0], [0.5, 1.0, 9.0]])
    held = Structure(
        lattice, ("O", "C", "H"), np.array([[0.13, 0.21, 0.33], [0.6, 0.5, 0.9], [0.3, 0.85, 0.55]])
    )
    for points in (16, 24):
        grid = (points, points + 2, points)
        whole = superpose(held.species, held.cartesian, grid_points(grid) @ lattice, lattice)
        wanted = float(whole.sum()) * held.volume / whole.size - 11
        assert grid_error(held, grid) == pytest.approx(wanted, abs=0.03 * abs(wanted) + 5e-4 * 11)


def test_counts_and_values_below_zero_are_told_beyond_rounding() -> None:
    cell = Structure(np.eye(3) * 2.0, ("O",), np.zeros((1, 3)))
    flat = np.full((20, 20, 20), 6 / 8)
    assert count_notes(Volume(cell, flat), 6.05, neutral=6, requested=None) == ()
    assert "differs by more than 5%" in count_notes(Volume(cell, flat), 6.0, neutral=None, requested=7.0)[0]
    assert count_notes(Volume(cell, flat), 6.0, neutral=None, requested=6.2) == ()
    assert negative_notes(Volume(cell, flat)) == ()
    rounding = flat.copy()
    rounding[0, 0, 0] = -1e-6
    assert negative_notes(Volume(cell, rounding)) == ()
    below = flat.copy()
    below[0, 0, :2] = -0.5
    assert negative_notes(Volume(cell, below)) == (
        "the density is negative at 2 of 8,000 grid points: down to -0.5 e/angstrom^3, -0.001 electrons in "
        "total",
    )


def test_a_run_and_its_exported_file_carry_what_was_seen(density_data: Path, tmp_path: Path) -> None:
    from pinchpoint.systems.density.data.dataset import open_dataset

    train(
        density_data,
        tmp_path / "run",
        steps=2,
        molecules=2,
        probes=16,
        validation=1,
        device="cpu",
        model=TINY,
    )
    data = open_dataset(density_data)
    wanted = domain_of([data.sample(name) for name in data.names("train")[:-1]])
    file = export(tmp_path / "run", tmp_path / "mine.pt")
    assert load_weights(tmp_path / "run").domain == load_weights(file).domain == wanted
    assert (
        TrainingDomain.from_json(json.dumps(json.loads((tmp_path / "mine.json").read_text())["seen"]))
        == wanted
    )
    (tmp_path / "run" / "seen.json").write_text("{}")
    with pytest.raises(BadInput, match="damaged"):
        load_weights(tmp_path / "run")
    (tmp_path / "run" / "seen.json").unlink()
    assert load_weights(tmp_path / "run").domain is None
