"""The density as a workload: listed without torch, the same answers from all variants, exactly the probes
asked for.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pinchpoint.core.discovery import load_workload
from pinchpoint.core.errors import BadInput
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.systems.density import workload as scaling
from pinchpoint.systems.density.grid.bricks import Bricks
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.grid.periodic_images import images_of
from pinchpoint.systems.density.grid.structure import check_structure
from pinchpoint.systems.density.workload import BRICK, GRID, Near, near_bricks

SMALL = {"mul": "20", "lmax": "1"}
pytestmark = pytest.mark.usefixtures("quick_workers")


def probe(variant: str, mode: str, size: int, chunk: int | None = None):
    case = load_workload("density").case(
        size, device="cpu", mode=mode, variant=variant, seed=4, chunk=chunk, settings=SMALL
    )  # type: ignore[arg-type]
    assert case.processed == size
    assert case.probe is not None
    return case.probe()


def test_it_grows_along_its_probes_and_the_original_comes_first() -> None:
    workload = load_workload("density")
    assert (workload.axis, [variant.name for variant in workload.variants]) == (
        "probes",
        ["original", "full", "scalar"],
    )


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_all_variants_give_the_same_densities_and_gradients(mode: str) -> None:
    pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")
    truth = probe("original", mode, 150, chunk=64)
    for variant in ("full", "scalar"):
        other = probe(variant, mode, 150, chunk=128)
        for name, wanted in truth.outputs.items():
            assert np.linalg.norm(other.outputs[name] - wanted) <= 1e-5 * np.linalg.norm(wanted)
        assert set(other.gradients) == set(truth.gradients) and (mode == "infer") == (not truth.gradients)
        for name, wanted in truth.gradients.items():
            assert np.linalg.norm(other.gradients[name] - wanted) <= 1e-4 * np.linalg.norm(wanted), name


def test_probes_go_round_the_grid_again_where_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "GRID", (20, 20, 20))
    monkeypatch.setattr(scaling, "SLOTS", 64)
    found = probe("scalar", "infer", 8_070).outputs["densities"]
    assert found.shape == (8_070, 1)
    assert np.allclose(found[8_000:], found[:70], rtol=1e-4, atol=1e-6)


def test_a_training_step_lowers_the_loss() -> None:
    case = load_workload("density").case(100, device="cpu", mode="train", variant="scalar", settings=SMALL)
    losses = [float(case.step()) for _ in range(6)]
    assert losses[-1] < losses[0]


def test_the_crystal_is_the_published_one() -> None:
    structure = check_structure(hafnia())
    assert structure.runs == (("Hf", 4), ("O", 8))
    assert structure.volume == pytest.approx(5.1156 * 5.1722 * 5.2948 * np.sin(np.radians(99.18)))
    images = images_of(structure, 2.6)
    apart = np.linalg.norm(images.positions[None] - images.home[:4, None], axis=2)
    is_oxygen = np.array(structure.species)[images.atom] == "O"
    # Hafnium has seven oxygen neighbours, 2.03 to 2.25 angstrom away.
    assert [int(((row < 2.4) & is_oxygen).sum()) for row in apart] == [7] * 4
    assert apart[:, is_oxygen].min() > 2.0


def test_no_neighbour_of_a_brick_is_missed() -> None:
    structure, bricks = hafnia(), Bricks(GRID, BRICK)
    _, apart, offsets = near_bricks(structure, bricks, 4.0)
    rng = np.random.default_rng(0)
    images = images_of(structure, 4.0)
    for brick in rng.integers(bricks.count, size=5).tolist():
        corner = np.array(np.unravel_index(brick, bricks.along)) * BRICK
        vectors = offsets[:, None] - apart[brick][None]
        counts = (np.linalg.norm(vectors, axis=2) < 4.0).sum(axis=1).tolist()
        for at in (0, 21, 63):
            point = (corner + np.unravel_index(at, BRICK)) / GRID @ structure.lattice
            assert counts[at] == (np.linalg.norm(images.positions - point, axis=1) < 4.0).sum()


def test_no_probes_and_chunks_of_none_are_refused() -> None:
    for size, chunk in ((0, None), (10, 0)):
        with pytest.raises(BadInput, match="at least 1"):
            probe("scalar", "infer", size, chunk)


def test_a_predicted_peak_is_that_of_all_chunks_though_few_are_looked_at() -> None:
    few, many = 64 * (scaling.TRACED_CHUNKS["scalar"] + 2), 64 * 200
    with Forecaster("density", card="24GiB") as forecaster:
        peaks = [
            forecaster.predict(
                size=size, mode="infer", variant="scalar", chunk=64, settings={"mul": "5", "lmax": "0"}
            ).peak_allocated_bytes
            for size in (few, many)
        ]
    # All chunks of the first were gone through; the second may add the longer answer alone, 4 bytes a probe.
    assert 0 <= peaks[1] - peaks[0] <= 4 * (many - few) + 512


def test_the_chunk_with_the_most_pairs_is_looked_at_after_the_first() -> None:
    bricks = Bricks(GRID, BRICK)
    near = Near(*map(torch.from_numpy, near_bricks(hafnia(), bricks, 4.0)))
    pieces = list(scaling._pieces(64 * 95, bricks.probes, 64 * 10))
    apart = near.offsets[:, None] - near.apart[:95, None]
    pairs = (apart.norm(dim=3) < 4.0).sum(dim=(1, 2)).split(10)
    most = max(range(1, 8), key=lambda at: int(pairs[at].sum()))
    assert most > 1  # the first chunks would not do
    of_bricks = scaling._pairs(near.apart.numpy(), near.offsets.numpy(), 4.0)
    assert of_bricks[:95].tolist() == (apart.norm(dim=3) < 4.0).sum(dim=(1, 2)).tolist()
    traced = scaling._traced(pieces, 1, of_bricks)
    assert traced == [pieces[0], pieces[most], *pieces[-2:]]
    assert scaling._traced(pieces, 1, None) == [pieces[0], *pieces[-2:]]
