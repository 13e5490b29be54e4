"""Batches: every pair once, the same whatever the layout, and probes that follow from the seed and the
step.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.density.data import batches  # noqa: E402
from pinchpoint.systems.density.data.batches import Item, batch_of, choose_probes, item_of  # noqa: E402
from pinchpoint.systems.density.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.density.data.sample import Sample  # noqa: E402
from pinchpoint.systems.density.model.config import DensityConfig  # noqa: E402
from pinchpoint.systems.density.model.model import DensityModel  # noqa: E402

CONFIG = DensityConfig(("C", "H", "O"), mul=16, lmax=2, gaussians=6, hidden=8, head=8)


def model() -> DensityModel:
    return DensityModel(CONFIG, seed=1).double()


@pytest.fixture
def items(density_data: Path) -> list[Item]:
    data = open_dataset(density_data)
    return [item_of(data.sample(name), CONFIG, dtype=torch.float64) for name in data.names("train")[:2]]


def crystal(probes: int = 40) -> Sample:
    """Two atoms in a skewed cell smaller than the cutoff."""
    rng = np.random.default_rng(3)
    lattice = np.array([[2.9, 0.1, 0.0], [1.0, 3.1, 0.2], [-0.4, 0.3, 3.3]])
    fractions = np.array([[0.05, 0.1, 0.95], [0.55, 0.45, 0.4]])
    return Sample(
        "crystal",
        "",
        ("C", "O"),
        fractions @ lattice,
        lattice,
        rng.uniform(-1, 2, (probes, 3)) @ lattice,
        rng.random(probes).astype(np.float32),
        np.ones(probes),
        10.0,
    )


def test_structures_in_one_batch_have_the_density_each_has_alone(items: list[Item]) -> None:
    made = model()
    together = batch_of(items, CONFIG)
    found = made(made.fields(together.atoms), together.atoms.species, together.neighbours, together.vectors)
    for at, item in enumerate(items):
        alone = batch_of([item], CONFIG)
        wanted = made(made.fields(alone.atoms), alone.atoms.species, alone.neighbours, alone.vectors)
        torch.testing.assert_close(found[at], wanted[0], rtol=1e-12, atol=1e-14)


def test_tiles_of_one_probe_have_the_density_of_shared_tiles(
    items: list[Item], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, found = model(), []
    for shared in (32, 0):
        monkeypatch.setattr(batches, "SHARED", shared)
        batch = batch_of(items, CONFIG)
        found.append(
            made(made.fields(batch.atoms), batch.atoms.species, batch.neighbours, batch.vectors).reshape(
                -1, 1
            )
        )
        assert batch.vectors.shape[1] == (1 if shared == 0 else 500)
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


def test_a_crystal_has_every_image_within_the_cutoff_and_is_periodic() -> None:
    sample = crystal()
    batch = batch_of([item_of(sample, CONFIG, dtype=torch.float64)], CONFIG)
    assert sample.lattice is not None
    steps = np.array(np.meshgrid(*[np.arange(-6, 7)] * 3)).reshape(3, -1).T @ sample.lattice
    for at, probe in enumerate(sample.probes):
        apart = (probe - sample.positions[:, None] - steps).reshape(-1, 3)
        wanted = np.sort(np.linalg.norm(apart, axis=1))
        found = np.sort(np.linalg.norm(batch.vectors[at, 0].numpy(), axis=1))
        near = found[found < CONFIG.cutoff_a]
        np.testing.assert_allclose(near, wanted[wanted < CONFIG.cutoff_a], rtol=1e-9)
    moved = replace(sample, probes=sample.probes + 2 * sample.lattice[0] - sample.lattice[2])
    made = model()
    one, other = (
        made(made.fields(b.atoms), b.atoms.species, b.neighbours, b.vectors)
        for b in (batch, batch_of([item_of(moved, CONFIG, dtype=torch.float64)], CONFIG))
    )
    torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_molecules_and_crystals_go_into_one_batch(items: list[Item]) -> None:
    both = [items[0], item_of(crystal(), CONFIG, dtype=torch.float64)]
    batch = batch_of(both, CONFIG, probe_indices=[torch.arange(7), torch.arange(30)])
    made = model()
    found = made(made.fields(batch.atoms), batch.atoms.species, batch.neighbours, batch.vectors)
    alone = batch_of(both[1:], CONFIG, probe_indices=[torch.arange(30)])
    wanted = made(made.fields(alone.atoms), alone.atoms.species, alone.neighbours, alone.vectors)
    torch.testing.assert_close(found[7:], wanted, rtol=1e-12, atol=1e-14)


def test_a_part_of_the_probes_stands_for_all_of_them(items: list[Item]) -> None:
    def measured(batch: batches.Batch) -> float:
        return float((batch.weights[..., None] * batch.values).sum())

    whole = measured(batch_of(items, CONFIG))
    assert whole == pytest.approx(1.0, rel=0.1), "a density per electron"
    parts = [
        measured(
            batch_of(
                items, CONFIG, probe_indices=[choose_probes(item, 100, seed=0, step=step) for item in items]
            )
        )
        for step in range(200)
    ]
    assert np.mean(parts) == pytest.approx(whole, rel=0.02)


def test_the_probes_of_a_step_follow_from_seed_step_and_name(items: list[Item]) -> None:
    first = choose_probes(items[0], 50, seed=0, step=1)
    assert torch.equal(first, choose_probes(items[0], 50, seed=0, step=1))
    assert len(set(first.tolist())) == 50
    for other in (
        choose_probes(items[0], 50, seed=0, step=2),
        choose_probes(items[0], 50, seed=1, step=1),
        choose_probes(items[1], 50, seed=0, step=1),
    ):
        assert not torch.equal(first, other)
    assert len(choose_probes(items[0], 10_000, seed=0, step=1)) == 500, "there are no more"


def test_parts_cover_a_batch_once(items: list[Item], monkeypatch: pytest.MonkeyPatch) -> None:
    for shared in (32, 0):
        monkeypatch.setattr(batches, "SHARED", shared)
        batch = batch_of(items, CONFIG)
        parts = list(batch.chunks(300))
        assert all(part.probes <= 300 for part in parts)
        torch.testing.assert_close(
            torch.cat([part.weights.flatten() for part in parts]).sort().values,
            batch.weights.flatten().sort().values,
        )
        assert len(list(batch.chunks(None))) == 1


def test_what_the_model_cannot_know_is_refused(density_data: Path) -> None:
    data = open_dataset(density_data)
    sample = data.sample(data.names("train")[0])
    with pytest.raises(BadInput, match="not trained on O"):
        item_of(sample, replace(CONFIG, species=("C", "H")))
    with pytest.raises(BadInput, match="no spin density"):
        item_of(sample, replace(CONFIG, spin=True))
