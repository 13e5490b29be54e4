"""Sums with coefficients in shared memory: without a GPU, their kernel runs with NumPy."""

from __future__ import annotations

import pytest
import torch
from tests.systems.density.kernels_in_numpy import module_in_numpy

from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.fused_sum import channel_plan, field_columns
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.model.radial import RadialPolynomials, pad_groups

MODULE = "pinchpoint.systems.density.model.fused_sum_gluon"
RADIUS_A = 0.17
TILES, PROBES, SLOTS, ATOMS = 4, 32, 4, 3


@pytest.mark.parametrize("is_late", [False, True])
def test_sums_are_those_of_the_networks_in_float64(is_late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = DensityConfig.preset("original", ("H", "C"), mul=90, lmax=2)
    model = DensityModel(config, seed=1).eval()
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(ATOMS, config.field_width, generator=generator)
    near = torch.randint(ATOMS, (TILES, SLOTS), generator=generator)
    centres = torch.randn(TILES, 1, SLOTS, 3, generator=generator) * 2
    vectors = centres + RADIUS_A * (torch.rand(TILES, PROBES, 1, 3, generator=generator) - 0.5)
    vectors[0, :, 2:] += 2 * config.cutoff_a  # unused slots, also at the end
    vectors[1, :, 1] += 2 * config.cutoff_a
    vectors[3] += 2 * config.cutoff_a  # empty space
    with torch.no_grad():
        pieces = RadialPolynomials.of(model.probes.radial, model.probes.widths, RADIUS_A)
        assert pieces is not None
        squared, soft, harmonics = model.geometry(vectors)
        soft, outside = (value.view(TILES, SLOTS, PROBES) for value in (soft, squared >= config.cutoff_a**2))
        middle = (soft.amin(2) + soft.amax(2)) / 2
        last = len(pieces.coefficients) // (pieces.degree + 1) - 1
        windows = ((middle - pieces.low) / pieces.step).round().clamp(0, last).int()
        place = (soft - (pieces.low + windows[..., None] * pieces.step)) / pieces.half
        assert (place[~outside].abs() <= 1).all()
        lines = [torch.where(outside, 2.0, place)[None]]
        lines += [torch.where(outside, 0.0, one.view(-1, *outside.shape)) for one in harmonics]
        geometry = torch.cat(lines).permute(1, 2, 0, 3).contiguous()
        used = torch.tensor([2, SLOTS, SLOTS, 0], dtype=torch.int32)
        out = torch.full((TILES, PROBES, config.interactions * config.aggregates), float("nan"))
        kernels = module_in_numpy(MODULE, monkeypatch, is_late=is_late)
        padded, plan = pad_groups(fields, field_columns(pieces)), channel_plan(pieces)
        kernels.write_sums(padded, near, windows, used, geometry, pieces, plan, out)
        exact = model.double()._sums(fields.double(), near, vectors.double())  # pyright: ignore[reportPrivateUsage]
    error = (out.double().view_as(exact) - exact).norm() / exact.norm()
    assert error < 1e-6
    assert not out[3].any()
    # A probe that does not fit its window.
    geometry[2, 1, 0, 5], again = float("nan"), torch.full_like(out, float("inf"))
    kernels.write_sums(padded, near, windows, used, geometry, pieces, plan, again)
    assert again[2, 5].isnan().all()
    again[2, 5] = out[2, 5]
    assert again.equal(out)
