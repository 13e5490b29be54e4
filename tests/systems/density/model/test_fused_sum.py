"""Sums over neighbours and the read-out by our own kernels: where they are used, what they cost, and on a
GPU that they are the same.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from pinchpoint.backends.torch.measurement import account
from pinchpoint.systems.density.model import fused_readout, fused_sum
from pinchpoint.systems.density.model import model as model_module
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel, TabulatedModel
from pinchpoint.systems.density.model.radial import RadialPolynomials, RadialSpline

ATOMS = 7
RADIUS_A = 0.17


def model_of(lmax: int, *, device: str = "cpu", mul: int = 40) -> DensityModel:
    return (
        DensityModel(DensityConfig.preset("small", ("H", "C"), mul=mul, lmax=lmax), seed=1).eval().to(device)
    )


def inputs(
    config: DensityConfig, tiles: int, probes: int, slots: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(tiles + 10 * probes + 100 * slots)
    fields = torch.randn(ATOMS, config.field_width, generator=generator)
    near = torch.randint(ATOMS, (tiles, slots), generator=generator)
    vectors = torch.randn(tiles, probes, slots, 3, generator=generator) * 2
    return (
        fields.to(device),
        torch.zeros(ATOMS, dtype=torch.int64, device=device),
        near.to(device),
        vectors.to(device),
    )


def apart(one: Tensor, other: Tensor) -> float:
    """Relative; of what is zero in both, as where no neighbour is within the cutoff, nothing."""
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-30))


def test_only_float32_without_gradients_in_small_tiles_of_two_to_the_n_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fields = torch.zeros(2, 3)
    with torch.no_grad():
        assert not fused_sum.is_fused(fields, 64), "no GPU"
    monkeypatch.setattr(fused_sum, "own_kernels", lambda _: True)
    assert not fused_sum.is_fused(fields, 64), "gradients are kept"
    with torch.no_grad():
        assert all(fused_sum.is_fused(fields, probes) for probes in (1, 2, 8, 64))
        assert not any(fused_sum.is_fused(fields, probes) for probes in (3, 40, 128, 4096))
        assert not fused_sum.is_fused(fields.double(), 64)


@pytest.mark.parametrize("own_kernel", [True, False], ids=["fused", "sampled"])
@pytest.mark.parametrize("lmax", [1, 2, 4, 5, 6])
def test_a_pair_takes_no_more_than_tiles_reckon_with(
    lmax: int, own_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_sum, "own_kernels", lambda _: True)
    for module in (fused_sum, fused_readout):  # nothing is launched, all is allocated
        monkeypatch.setattr(module, "is_fake", lambda _: True)
        monkeypatch.setattr(module, "on_device", lambda _: nullcontext())
    monkeypatch.setattr(model_module, "is_sampled", lambda _: True)
    monkeypatch.setattr(fused_sum, "is_sampled", lambda _: True)
    model = model_of(lmax).tabulate(64, own_kernel=own_kernel)
    peaks = [account(lambda t=t: model(*inputs(model.config, t, 64, 32, "cpu"))) or 0 for t in (8, 16)]
    sums = model.config.interactions * model.config.aggregates / 32  # of a probe, which 32 pairs share
    floats = (peaks[1] - peaks[0]) / (8 * 64 * 32) / 4 - sums
    with torch.no_grad():
        reckoned = fused_sum.pair_floats(model.config, torch.zeros(1), 64, own_kernel=own_kernel)
    assert reckoned is not None
    assert 0.5 * reckoned < floats < reckoned


def compact_inputs(
    config: DensityConfig, tiles: int, probes: int, slots: int, device: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Like `inputs`, with all probes of a tile within RADIUS_A of one point."""
    fields, species, near, vectors = inputs(config, tiles, probes, slots, "cpu")
    offsets = torch.rand(tiles, probes, 1, 3, generator=torch.Generator().manual_seed(probes)) - 0.5
    vectors = vectors[:, :1] + 2 / 3**0.5 * RADIUS_A * offsets
    return fields.to(device), species.to(device), near.to(device), vectors.to(device)


def error_of(own: TabulatedModel, cases: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> float:
    """Of all cases together, because a single density may be a small difference of large terms."""
    values = [own(*case).flatten() for case in cases]
    exact = own.model.double()
    with torch.no_grad():
        truth = [
            exact(fields.double(), species, near, vectors.double()).flatten()
            for fields, species, near, vectors in cases
        ]
    own.model.float()
    return apart(torch.cat(values), torch.cat(truth))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lmax", [0, 4, 6])
def test_on_a_gpu_splines_give_what_the_networks_give_in_float64(lmax: int) -> None:
    own = model_of(lmax, device="cuda").tabulate(64)
    assert isinstance(own.pieces, RadialSpline)
    shapes = ((1, 1, 1), (3, 1, 5), (3, 8, 2), (1, 8, 28), (2, 64, 5), (3, 64, 28))
    assert error_of(own, [inputs(own.config, *shape, "cuda") for shape in shapes]) < 5e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lmax", [0, 2, 4])
def test_on_a_gpu_polynomials_give_what_the_networks_give_in_float64(lmax: int) -> None:
    config = DensityConfig.preset("original", ("H", "C"), mul=90, lmax=lmax)
    own = DensityModel(config, seed=1).eval().cuda().tabulate(64, radius_a=RADIUS_A)
    assert isinstance(own.pieces, RadialPolynomials)
    shapes = ((3, 8, 5), (1, 64, 1), (5, 64, 28))
    assert error_of(own, [compact_inputs(config, *shape, "cuda") for shape in shapes]) < 5e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_probes_that_do_not_fit_a_window_become_nan() -> None:
    config = DensityConfig.preset("original", ("H", "C"), mul=20, lmax=1)
    own = DensityModel(config, seed=1).eval().cuda().tabulate(64, radius_a=RADIUS_A)
    fields, species, near, vectors = compact_inputs(config, 2, 8, 3, "cuda")
    vectors[0, 0] += 3 * RADIUS_A
    values = own(fields, species, near, vectors)
    assert torch.isnan(values[0]).any()
    assert torch.isfinite(values[1]).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernel_takes_any_strides() -> None:
    own = model_of(4, device="cuda").tabulate(64)
    fields, species, near, vectors = inputs(own.config, 3, 8, 6, "cuda")
    wanted = own(fields, species, near, vectors)

    def difference(fields: Tensor, near: Tensor, vectors: Tensor) -> float:
        return apart(own(fields, species, near, vectors), wanted)

    assert difference(fields, near.T.contiguous().T, vectors) == 0
    assert difference(fields.T.contiguous().T, near.int(), vectors) < 1e-7
    for order in ((0, 2, 1, 3), (3, 0, 2, 1)):
        back = [order.index(axis) for axis in range(4)]
        assert difference(fields, near, vectors.permute(order).contiguous().permute(back)) < 1e-6
