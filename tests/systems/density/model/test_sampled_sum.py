"""Sums over neighbours from the table read like an image: the same as from rows of it, and nothing where
nothing is.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.model.probe_network import sums_over_neighbours
from pinchpoint.systems.density.model.radial import RadialTable, soft_distance
from pinchpoint.systems.density.model.sampled_sum import sums_by_sampling

ATOMS = 5


def model_of(lmax: int, dtype: torch.dtype) -> DensityModel:
    return DensityModel(DensityConfig.preset("small", ("H", "C"), mul=20, lmax=lmax), seed=1).eval().to(dtype)


def given(
    model: DensityModel, tiles: int, probes: int, slots: int, reach: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tiles + 10 * probes + 100 * slots)
    dtype = model.probes.readout.dtype
    fields = torch.randn(ATOMS, model.config.field_width, generator=generator, dtype=dtype)
    near = torch.randint(ATOMS, (tiles, slots), generator=generator)
    vectors = torch.randn(3, tiles * slots * probes, generator=generator, dtype=dtype)
    flat = (
        vectors
        * (reach / vectors.norm(dim=0))
        * torch.rand(tiles * slots * probes, generator=generator, dtype=dtype)
    )
    return fields, near, flat, soft_distance(flat, model.config)[1]


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("lmax", [0, 1, 4])
def test_the_sums_are_those_from_rows_of_the_table(lmax: int, dtype: torch.dtype, bar: float) -> None:
    model = model_of(lmax, dtype)
    with torch.no_grad():
        table = RadialTable.of(model.probes.radial, model.probes.widths, 512)
        for tiles, probes, slots in product((1, 3), (1, 8, 27), (1, 2, 7)):
            fields, near, flat, soft = given(model, tiles, probes, slots, 1.2 * model.config.cutoff_a)
            harmonics = model.harmonics(flat / soft)
            sampled = sums_by_sampling(model.config, fields, near, harmonics, table, soft, probes)
            rows = sums_over_neighbours(model.config, fields, near, harmonics, table.read(soft), probes)
            assert (
                sampled.shape
                == rows.shape
                == (tiles * probes, model.config.interactions, model.config.aggregates)
            )
            assert (sampled - rows).norm() <= bar * rows.norm().clamp(min=1e-30), (tiles, probes, slots)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("knots", [4096, 1000, 37])
def test_a_neighbour_at_the_cutoff_or_beyond_adds_exactly_zero(knots: int, dtype: torch.dtype) -> None:
    model = model_of(2, dtype)
    with torch.no_grad():
        table = RadialTable.of(model.probes.radial, model.probes.widths, knots)
        fields, near, flat, _ = given(model, 2, 4, 3, 1.0)
        far = (
            flat
            / flat.norm(dim=0)
            * model.config.cutoff_a
            * torch.linspace(1.001, 9, flat.shape[1], dtype=dtype)
        )
        soft = soft_distance(far, model.config)[1]
        assert not sums_by_sampling(
            model.config, fields, near, model.harmonics(far / soft), table, soft, 4
        ).any()


def test_no_neighbours_are_no_sums() -> None:
    model = model_of(2, torch.float32)
    with torch.no_grad():
        table = RadialTable.of(model.probes.radial, model.probes.widths, 64)
        fields, near, flat, soft = given(model, 2, 4, 0, 1.0)
        found = sums_by_sampling(model.config, fields, near, model.harmonics(flat / soft), table, soft, 4)
    assert found.shape == (8, model.config.interactions, model.config.aggregates)
    assert not found.any()
