"""Sums over neighbours by one kernel a degree: where they are taken, what they cost, and on a GPU that
they are the same.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from pinchpoint.backends.torch.measurement import account
from pinchpoint.systems.density.model import fused_sum
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel

ATOMS = 7


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
    monkeypatch.setattr(fused_sum, "is_fake", lambda _: True)  # nothing is launched, all is allocated
    monkeypatch.setattr(fused_sum, "is_sampled", lambda _: True)
    model = model_of(lmax).tabulate(64, own_kernel=own_kernel)
    peaks = [account(lambda t=t: model(*inputs(model.config, t, 64, 32, "cpu"))) or 0 for t in (8, 16)]
    floats = (peaks[1] - peaks[0]) / (8 * 64 * 32) / 4
    with torch.no_grad():
        reckoned = fused_sum.pair_floats(model.config, torch.zeros(1), 64, own_kernel=own_kernel)
    # What a probe sums, 32 pairs share.
    assert reckoned is not None
    assert 0.5 * reckoned < floats < reckoned


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("lmax", [0, 1, 4, 6])
def test_on_a_gpu_the_kernel_gives_what_plain_torch_gives(lmax: int) -> None:
    model = model_of(lmax, device="cuda")
    own, plain = model.tabulate(512), model.tabulate(512, own_kernel=False)
    for tiles, probes, slots in product((1, 3), (1, 2, 8, 64), (1, 2, 5, 28)):
        given = inputs(model.config, tiles, probes, slots, "cuda")
        assert apart(own(*given), plain(*given)) < 1e-5, (tiles, probes, slots)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_kernel_takes_any_strides() -> None:
    model = model_of(4, device="cuda")
    own, plain = model.tabulate(512), model.tabulate(512, own_kernel=False)
    fields, species, near, vectors = inputs(model.config, 3, 8, 6, "cuda")

    def both(fields: Tensor, near: Tensor, vectors: Tensor) -> float:
        return apart(own(fields, species, near, vectors), plain(fields, species, near, vectors))

    assert both(fields, near[:1].expand(3, 6), vectors) < 1e-5
    assert both(fields, near.T.contiguous().T, vectors) < 1e-5
    assert both(fields.T.contiguous().T, near, vectors) < 1e-5
    assert both(fields, near.int(), vectors.transpose(1, 2).contiguous().transpose(1, 2)) < 1e-5
