"""The kernel that finds the atoms around bricks finds those that torch finds: with NumPy, and on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.systems.density.grid.test_bricks import CELLS, CUTOFF, drawn
from tests.systems.density.kernels_in_numpy import module_in_numpy
from torch import Tensor

from pinchpoint.systems.density.grid.bricks import Surroundings, bricks_of, surroundings_of

MODULE = "pinchpoint.systems.density.grid.bricks_triton"
DTYPES = [torch.float32, torch.float64]


def around(cell: str, grid: tuple[int, int, int], dtype: torch.dtype) -> tuple[Surroundings, Tensor]:
    """The surroundings of bricks, and the numbers of those up to the last one that has atoms around it."""
    structure = drawn(cell)
    bricks = bricks_of(grid, structure.lattice, CUTOFF)
    near, numbers = surroundings_of(structure, bricks, CUTOFF, dtype=dtype), torch.arange(bricks.count)
    return near, numbers[: 1 + int(near.counts(numbers).nonzero().max())]


def assert_same_neighbours(
    near: Surroundings, numbers: Tensor, kernels: Any, device: str, *, shift: int = 0
) -> None:
    """shift: so many other numbers lie in memory before these."""
    counts = near.counts(numbers)
    wanted_atoms, wanted_apart = near.nearby(numbers, int(counts.max()) + 3)
    near, numbers = near.to(device), torch.cat([numbers[:shift], numbers]).to(device)[shift:]
    found = torch.full_like(numbers, -1)
    kernels.write_counts(near.of_kernel, numbers, found)
    assert found.tolist() == counts.tolist()

    def nearby(slots: int) -> tuple[Tensor, Tensor]:
        atoms = torch.full((len(numbers), slots), -1, device=device)
        apart = torch.full((len(numbers), slots, 3), -1.0, dtype=near.offsets.dtype, device=device)
        kernels.write_nearby(near.of_kernel, numbers, atoms, apart)
        return atoms.cpu(), apart.cpu()

    atoms, apart = nearby(wanted_atoms.shape[1])
    assert atoms.equal(wanted_atoms)
    torch.testing.assert_close(apart, wanted_apart, rtol=1e-6, atol=1e-6)
    # Never some of the atoms: a brick with more than its slots has NaN.
    few = int(counts.max()) - 1
    if few:
        _, apart = nearby(few)
        assert apart.isnan().any(dim=2).any(dim=1).tolist() == (counts > few).tolist()


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_finds_the_neighbours_that_torch_finds(
    cell: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = module_in_numpy(MODULE, monkeypatch, is_late=False)
    kernels._IMAGES = 16  # in one step, so that there are several
    near, numbers = around(cell, (11, 10, 12), dtype)
    assert_same_neighbours(near, numbers.flip(0)[::17].flip(0), kernels, "cpu", shift=1)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_gpu_the_kernel_finds_the_neighbours_that_torch_finds(cell: str, dtype: torch.dtype) -> None:
    from pinchpoint.systems.density.grid import bricks_triton

    near, numbers = around(cell, (43, 40, 42), dtype)
    for shift in (0, 1):  # also numbers that are not aligned
        assert_same_neighbours(near, numbers, bricks_triton, "cuda", shift=shift)
