"""Bricks cover a grid once, and each finds all atoms near its probes: against every probe with every
image, one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.backends.torch.measurement import account
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import GIB, MIB
from pinchpoint.systems.density.files.volume import grid_points
from pinchpoint.systems.density.grid import sweep as sweeping
from pinchpoint.systems.density.grid.bricks import (
    SLOTS,
    Bricks,
    bricks_of,
    classes_of,
    radius_a,
    surroundings_of,
)
from pinchpoint.systems.density.grid.grids import choose_grid, is_smooth, parse_grid
from pinchpoint.systems.density.grid.periodic_images import images_of
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.grid.sweep import TILE_BYTES, SweepResult, sweep
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel

CELLS = {
    "skewed": np.array([[4.0, 0.0, 0.0], [3.1, 2.4, 0.0], [-2.2, 1.9, 3.0]]),
    "smaller than the cutoff": np.array([[1.3, 0.0, 0.2], [0.0, 1.6, 0.0], [0.4, 0.0, 2.1]]),
    "with empty space": np.diag([16.0, 13.0, 12.0]),
}
CUTOFF = 2.5


def drawn(cell: str) -> Structure:
    rng = np.random.default_rng(4)
    return Structure(
        CELLS[cell], ("H", "O", "H"), rng.uniform(-0.6, 1.4, (3, 3)) * (0.3 if "empty" in cell else 1)
    )


def bump(
    fields: torch.Tensor, species: torch.Tensor, neighbours: torch.Tensor, vectors: torch.Tensor
) -> torch.Tensor:
    """A stand-in for the model whose sum is known: charge times (1 - r/c)^3 of each atom, and r_z times
    it; and a constant.
    """
    length = vectors.norm(dim=-1)  # (T, B, K)
    weight = (1 - length / CUTOFF).clamp(min=0) ** 3 * fields[neighbours][:, None, :, 0]
    return torch.stack([weight.sum(-1) + 0.25, (weight * vectors[..., 2]).sum(-1)], dim=-1)


def slow(structure: Structure, grid: tuple[int, int, int], charges: np.ndarray) -> np.ndarray:
    """(nx, ny, nz, 2) the same by every probe and image at once."""
    images = images_of(structure, CUTOFF)
    probes = grid_points(grid) @ structure.lattice
    made = []
    for part in np.array_split(probes, 50):
        apart = part[:, None] - images.positions
        weight = np.clip(1 - np.linalg.norm(apart, axis=-1) / CUTOFF, 0, None) ** 3 * charges[images.atom]
        made.append(np.stack([weight.sum(1) + 0.25, (weight * apart[..., 2]).sum(1)], axis=-1))
    return np.concatenate(made).reshape(*grid, 2)


@pytest.mark.parametrize("grid", [(8, 8, 8), (7, 9, 10), (2, 3, 5), (80, 4, 6)])
def test_bricks_hold_every_grid_point_once(grid: tuple[int, int, int]) -> None:
    bricks = Bricks(grid, (4, 4, 4))
    structure = drawn("skewed")
    near = surroundings_of(structure, bricks, CUTOFF, dtype=torch.float64)
    places = near._centres(torch.arange(bricks.count))[:, None] + near.offsets
    points = bricks.on_grid(places.numpy()).reshape(-1, 3)
    np.testing.assert_allclose(points, grid_points(grid) @ structure.lattice, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_neighbours_of_a_brick_are_all_images_near_its_probes(cell: str) -> None:
    structure, grid = drawn(cell), (11, 10, 12)
    bricks = bricks_of(grid, structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF, dtype=torch.float64)
    numbers = torch.arange(bricks.count)
    slots = int(near.counts(numbers).max())
    atoms, vectors = near.neighbours(numbers, slots)
    lengths = vectors.norm(dim=-1)
    images = images_of(structure, CUTOFF)
    probes = (grid_points(grid) @ structure.lattice).reshape(*grid, 3)
    weights = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)[atoms][:, None].expand_as(lengths)
    within = lengths < CUTOFF
    # How many of each atom (in digits), and the sum of their distances, by probe.
    made = torch.stack([(weights * within).sum(-1), torch.where(within, lengths, 0).sum(-1)], dim=-1)
    made = bricks.on_grid(made.numpy())
    apart = np.linalg.norm(probes.reshape(-1, 1, 3) - images.positions, axis=-1)
    wanted = np.stack(
        [((apart < CUTOFF) * 10.0**images.atom).sum(1), np.where(apart < CUTOFF, apart, 0).sum(1)], axis=-1
    )
    np.testing.assert_allclose(made.reshape(-1, 2), wanted, rtol=0, atol=1e-9)


def test_a_slot_not_in_use_lies_beyond_the_cutoff_and_a_brick_may_have_none() -> None:
    structure = drawn("with empty space")
    bricks = bricks_of((30, 30, 30), structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF)
    numbers = torch.arange(bricks.count)
    counts = near.counts(numbers)
    assert counts.min() == 0
    _, vectors = near.neighbours(numbers, int(counts.max()) + 5)
    lengths = vectors.norm(dim=-1)
    used = torch.arange(lengths.shape[-1]) < counts[:, None]
    assert (lengths.amin(dim=1)[~used] >= CUTOFF).all() and lengths.isfinite().all()
    atoms, none = near.neighbours(numbers[counts == 0][:3], 0)
    assert atoms.shape == (3, 0) and none.shape == (3, bricks.probes, 0, 3)


def test_classes_give_every_brick_enough_slots_and_join_the_small_ones() -> None:
    structure = drawn("with empty space")
    bricks = bricks_of((30, 26, 24), structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF)
    numbers = torch.arange(bricks.count)
    counts = near.counts(numbers)
    for least in (1, 40, 10**6):
        classes = classes_of(near, numbers, least=least)
        rows = torch.cat([kind.rows for kind in classes])
        assert rows.sort().values.tolist() == list(range(bricks.count))
        for kind in classes:
            assert kind.slots % SLOTS == 0 and (counts[kind.rows] <= kind.slots).all()
            assert (kind.slots == 0) == bool((counts[kind.rows] == 0).any())
        assert [kind.slots for kind in classes] == sorted({kind.slots for kind in classes}, reverse=True)
        assert all(len(kind.rows) >= least for kind in classes[1:] if kind.slots)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_a_sweep_is_the_slow_sum_over_all_images(cell: str, dtype: torch.dtype, bar: float) -> None:
    structure, grid, charges = drawn(cell), (18, 15, 14), np.array([1.0, -2.0, 0.5])
    bricks = bricks_of(grid, structure.lattice, CUTOFF)
    fields = torch.from_numpy(charges).to(dtype)[:, None]
    near = surroundings_of(structure, bricks, CUTOFF, dtype=dtype)
    swept = sweep(bump, lambda: fields, torch.zeros(3, dtype=torch.int64), near, outputs=2)
    wanted = slow(structure, grid, charges)
    assert np.abs(bricks.on_grid(swept.values) - wanted).max() <= bar * np.abs(wanted).max()
    few = np.array([7, 3, 3, 40])
    part = sweep(bump, lambda: fields, torch.zeros(3, dtype=torch.int64), near, outputs=2, numbers=few)
    assert np.abs(part.values - swept.values[few]).max() <= bar * np.abs(wanted).max()


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_any_chunk_gives_the_same_and_any_of_at_least_a_tile_the_same_bits(
    dtype: torch.dtype, bar: float, monkeypatch
) -> None:
    monkeypatch.setattr("pinchpoint.systems.density.grid.sweep.TILE_BYTES", {"cpu": 2**16})
    structure, charges = drawn("with empty space"), np.array([1.0, -2.0, 0.5])
    torch.manual_seed(0)
    mixing = torch.randn(16, 16, dtype=dtype)

    def network(*args: torch.Tensor) -> torch.Tensor:
        # Matrix products, whose bits depend on the shape.
        return torch.sin(bump(*args) @ mixing[:2]) @ mixing[:, :2]

    bricks = bricks_of((33, 26, 24), structure.lattice, CUTOFF)
    fields = torch.from_numpy(charges).to(dtype)[:, None]
    near = surroundings_of(structure, bricks, CUTOFF, dtype=dtype)

    def by(**options) -> SweepResult:
        return sweep(network, lambda: fields, torch.zeros(3, dtype=torch.int64), near, outputs=2, **options)

    whole = by()
    assert 1 < whole.tile < bricks.count // 4 and len(whole.slots) > 1
    tile = whole.tile * bricks.probes
    for chunk in (tile, 2 * tile, 7 * tile, tile + 13, 10**9):
        assert np.array_equal(by(chunk=chunk).values, whole.values), chunk
    assert np.array_equal(by(budget="1GiB").values, whole.values)
    for chunk in (1, bricks.probes, 3 * bricks.probes + 5, tile // 2):
        assert np.abs(by(chunk=chunk).values - whole.values).max() <= bar * np.abs(whole.values).max(), chunk


def test_a_small_budget_makes_tiles_smaller_and_is_kept_and_a_smaller_one_is_refused() -> None:
    structure = drawn("skewed")
    bricks = bricks_of((40, 40, 40), structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF)
    fields = torch.ones(3, 1)

    def by(budget: str) -> SweepResult:
        return sweep(bump, lambda: fields, torch.zeros(3, dtype=torch.int64), near, outputs=2, budget=budget)

    large, small = by("2GiB"), by("1MiB")
    assert large.halvings == 0 < small.halvings and small.tile < large.tile
    assert (small.peak_bytes or 0) <= 2**20 < (large.peak_bytes or 0)
    np.testing.assert_allclose(small.values, large.values, rtol=0, atol=1e-6)
    with pytest.raises(DoesNotFit, match="Even a chunk of 8 probes") as caught:
        by("4KiB")
    assert "--budget" in caught.value.hint


def test_memory_that_runs_out_late_costs_no_finished_brick_and_the_reported_tile_did_run(
    monkeypatch,
) -> None:
    monkeypatch.setattr("pinchpoint.systems.density.grid.sweep.TILE_BYTES", {"cpu": 2**14})
    monkeypatch.setattr("gc.collect", lambda: 0)  # run after every failure, it takes most of the time
    structure = drawn("skewed")
    bricks = bricks_of((28, 28, 28), structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF)
    ran, told = [], []

    def scarce(fields, species, neighbours, vectors):
        # From its 30th call of some 54 on, memory is enough for 3 bricks.
        if len(ran) >= 30 and len(vectors) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        ran.append(len(vectors))
        return bump(fields, species, neighbours, vectors)

    def by(forward, **options) -> SweepResult:
        return sweep(
            forward, lambda: torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), near, outputs=2, **options
        )

    made = by(scarce, progress=lambda done, total: told.append(done))
    whole = by(bump)
    np.testing.assert_allclose(made.values, whole.values, rtol=0, atol=1e-6)
    assert made.halvings > 0 and told == sorted(told)
    assert made.tile == max(ran)
    assert by(bump, chunk=5 * bricks.probes).tile == 5
    # Only what was under way is computed again, and tiles are filled up.
    assert sum(ran) <= 1.1 * bricks.count + 16 * made.tile


@pytest.mark.parametrize("cell", ["skewed", "with empty space"])
def test_classes_computed_at_once_are_the_same(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    structure = drawn(cell)
    bricks = bricks_of((24, 24, 24), structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF)
    fields, species = torch.ones(3, 1), torch.zeros(3, dtype=torch.int64)
    numbers = torch.arange(bricks.count)
    classes = classes_of(near, numbers)
    assert len(classes) > 1 and (classes[-1].slots == 0) == (cell == "with empty space")
    swept = sweep(bump, lambda: fields, species, near, outputs=2)
    run = sweeping._Runner(bump, lambda: fields, species, near, 1, 2)
    tiles = sweeping._Tiles(width=4 * bricks.probes, device="cpu")
    at_once = sweeping._sweep_at_once(run, numbers, classes, tiles)
    assert at_once is not None
    np.testing.assert_allclose(at_once.values, swept.values, rtol=1e-6, atol=1e-7)
    assert at_once.slots == tuple(kind.slots for kind in classes)
    assert at_once.pairs == sum(len(kind.rows) * kind.slots for kind in classes) * bricks.probes
    assert at_once.chunk == max(len(kind.rows) for kind in classes if kind.slots) * bricks.probes
    with monkeypatch.context() as patch:
        patch.setattr(sweeping, "TILES", 0)
        assert sweeping._sweep_at_once(run, numbers, classes, tiles) is None, "more than one chunk"

    def full(*_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    assert sweeping._sweep_at_once(replace(run, forward=full), numbers, classes, tiles) is None


def test_memory_that_cannot_be_pinned_is_not_memory_of_the_gpu_that_ran_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = torch.empty

    def refuse(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return empty(*shape, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    values = sweeping._host_memory(torch.Size((2, 3)), torch.float32, pinned=True)
    assert values.shape == (2, 3) and values.dtype is torch.float32


def test_the_peak_does_not_grow_with_the_grid() -> None:
    structure = drawn("skewed")
    peaks = []
    for n in (48, 64):
        near = surroundings_of(structure, Bricks((n, n, n), (4, 4, 4)), CUTOFF)
        swept = sweep(
            bump, lambda: torch.ones(3, 1), torch.zeros(3, dtype=torch.int64), near, outputs=2, budget="64MiB"
        )
        peaks.append(swept.peak_bytes)
    assert peaks[1] <= 1.1 * peaks[0]


def test_a_tile_of_a_gpu_stays_below_a_gibibyte_at_the_original_width() -> None:
    model = DensityModel(DensityConfig.preset("original", ("Hf", "O"))).tabulate(4096)
    fields, species = torch.randn(12, model.config.field_width), torch.zeros(12, dtype=torch.int64)

    def peak(bricks: int) -> int:
        slots = torch.zeros(bricks, 32, dtype=torch.int64)
        return account(lambda: model(fields, species, slots, torch.ones(bricks, 64, 32, 3))) or 0

    few, more = peak(4), peak(8)
    bricks = TILE_BYTES["cuda"] // (model.config.field_width * 4 * 64 * 32)
    # On a line, as nothing grows faster than the bricks; cuBLAS takes 32 MiB on its own.
    assert 0.5 * GIB < few + (more - few) * (bricks - 4) / 4 + 32 * MIB < GIB


def test_tiles_have_room_for_what_probes_take_besides_their_pairs() -> None:
    pair, probes = 100, 100_000  # bytes of a brick
    for slots in (4, 32):
        bricks = sweeping._Tiles(width=pair, fixed=probes, device="cpu").bricks(slots)
        brick = slots * pair + probes
        assert bricks * brick <= TILE_BYTES["cpu"] < (bricks + 1) * brick


def test_progress_counts_probes_up_to_all_of_them() -> None:
    structure, seen = drawn("with empty space"), []
    bricks = bricks_of((30, 26, 24), structure.lattice, CUTOFF)
    near = surroundings_of(structure, bricks, CUTOFF)
    sweep(
        bump,
        lambda: torch.ones(3, 1),
        torch.zeros(3, dtype=torch.int64),
        near,
        outputs=2,
        chunk=150,
        progress=lambda done, total: seen.append((done, total)),
    )
    every = bricks.count * bricks.probes
    assert seen[-1] == (every, every) and seen == sorted(seen) and len(seen) > 10


def test_a_brick_on_a_coarse_grid_is_smaller_and_keeps_its_neighbours_few() -> None:
    fine, coarse = (bricks_of((n, n, n), np.eye(3) * 8.0, 4.0) for n in (80, 16))
    assert fine.sides == (4, 4, 4) and coarse.sides == (2, 2, 2)
    assert radius_a(fine, np.eye(3) * 8.0) == pytest.approx(0.15 * 3**0.5)


def test_a_spacing_becomes_the_coarsest_even_smooth_grid_within_it() -> None:
    lattice = np.array([[10.0, 0, 0], [1.0, 8.0, 0], [0, 0, 5.15]])
    for spacing in (0.06, 0.1, 0.37):
        grid = choose_grid(lattice, spacing_a=spacing)
        for n, length in zip(grid, np.linalg.norm(lattice, axis=1), strict=True):
            assert is_smooth(n) and n % 2 == 0 and length / n <= spacing * (1 + 1e-9)
            assert not any(is_smooth(m) and length / m <= spacing for m in range(2, n, 2))
    assert choose_grid(lattice) == choose_grid(lattice, spacing_a=0.1) and choose_grid(lattice)[0] == 100
    assert (
        parse_grid("80,72,64") == (80, 72, 64)
        and parse_grid("80x72x64") == (80, 72, 64)
        and parse_grid("80") == (80, 80, 80)
    )
