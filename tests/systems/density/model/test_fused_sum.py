"""Sums over neighbours and the read-out by our own kernels: where they are used, what they cost, and on a
GPU that they are the same.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

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
    with torch.no_grad():
        of_pair = fused_sum.pair_floats(model.config, torch.zeros(1), 64, own_kernel=own_kernel)
    assert of_pair is not None
    sums = model.config.interactions * model.config.aggregates
    of_probe = model.probe_bytes // 4 if own_kernel else sums
    # With few atoms around, as in the corner of a molecule's box, most is not of pairs.
    for slots in (4, 32) if own_kernel else (32,):
        cases = [inputs(model.config, tiles, 64, slots, "cpu") for tiles in (8, 16)]
        peaks = [account(lambda case=case: model(*case)) or 0 for case in cases]
        floats = (peaks[1] - peaks[0]) / (8 * 64) / 4
        assert 0.5 * (slots * of_pair + of_probe) < floats < slots * of_pair + of_probe


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


@pytest.mark.parametrize(
    ("is_copied", "probes", "degree", "has_gluon", "capability"),
    [
        (True, 64, 12, True, (9, 0)),
        (True, 32, 15, True, (8, 0)),
        (False, 16, 12, True, (9, 0)),
        (False, 64, 16, True, (9, 0)),
        (False, 64, 12, False, (9, 0)),
        (False, 64, 12, True, (7, 5)),
    ],
)
def test_what_a_slot_needs_is_copied_ahead_where_it_can_be(
    is_copied: bool,
    probes: int,
    degree: int,
    has_gluon: bool,
    capability: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fused_sum, "has_gluon", lambda: has_gluon)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    pieces: Any = SimpleNamespace(degree=degree)
    assert fused_sum._is_copied_ahead(torch.zeros(1), pieces, probes) is is_copied


@pytest.mark.parametrize(
    ("version", "hip", "is_used"),
    [("3.6.0", None, True), ("3.5.1", None, False), ("3.8.0", None, False), ("3.6.0", "7.0", False)],
)
def test_gluon_is_used_only_in_the_version_that_the_kernel_is_written_for(
    version: str, hip: str | None, is_used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_sum, "import_module", lambda _: SimpleNamespace(__version__=version))
    monkeypatch.setattr(torch.version, "hip", hip)
    assert fused_sum.has_gluon.__wrapped__() is is_used


@pytest.fixture
def sums_written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Tensor]]:
    """Which kernel wrote sums, and the sums, launch after launch."""
    from pinchpoint.systems.density.model import fused_sum_gluon, fused_sum_triton

    written: list[tuple[str, Tensor]] = []

    def count(kernels: Any, name: str) -> None:
        write = kernels.write_sums

        def write_and_count(*tensors: Any) -> None:
            write(*tensors)
            written.append((name, tensors[-1].clone()))

        monkeypatch.setattr(kernels, "write_sums", write_and_count)

    count(fused_sum_gluon, "gluon")
    count(fused_sum_triton, "triton")
    return written


def kernel_of(probes: int) -> str:
    """The kernel that is expected to write sums of tiles with so many probes."""
    is_copied = probes >= 32 and fused_sum.has_gluon() and torch.cuda.get_device_capability() >= (8, 0)
    return "gluon" if is_copied else "triton"


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
def test_on_a_gpu_polynomials_give_what_the_networks_give_in_float64(
    lmax: int, sums_written: list[tuple[str, Tensor]]
) -> None:
    config = DensityConfig.preset("original", ("H", "C"), mul=90, lmax=lmax)
    own = DensityModel(config, seed=1).eval().cuda().tabulate(64, radius_a=RADIUS_A)
    assert isinstance(own.pieces, RadialPolynomials)
    shapes = ((3, 8, 5), (1, 64, 1), (5, 64, 28), (70, 64, 3))
    assert error_of(own, [compact_inputs(config, *shape, "cuda") for shape in shapes]) < 5e-6
    assert [name for name, _ in sums_written] == [kernel_of(probes) for _, probes, _ in shapes]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("probes", [8, 64])
@pytest.mark.parametrize("slots", [1, 5])
def test_on_a_gpu_neighbours_beyond_the_cutoff_add_nothing(
    probes: int, slots: int, sums_written: list[tuple[str, Tensor]]
) -> None:
    config = DensityConfig.preset("original", ("H", "C"), mul=90, lmax=4)
    own = DensityModel(config, seed=1).eval().cuda().tabulate(64, radius_a=RADIUS_A)
    fields, species, near, vectors = compact_inputs(config, 4, probes, slots, "cuda")
    first = vectors[:, :1]
    vectors += (config.cutoff_a / 2 / first.norm(dim=3, keepdim=True) - 1) * first  # all within the cutoff
    assert (vectors.norm(dim=3) < config.cutoff_a).all()
    vectors[0] += 2 * config.cutoff_a  # empty space
    beyond = [slot for slot in range(slots) if slot != slots // 2]
    vectors[1, :, beyond] += 2 * config.cutoff_a
    vectors[3] += 2 * config.cutoff_a
    assert error_of(own, [(fields, species, near, vectors)]) < 1e-5
    ((name, sums),) = sums_written
    assert name == kernel_of(probes) and sums.isfinite().all()
    assert not sums[0].any() and not sums[3].any()
    assert sums[1].any() and sums[2].any()
    middle = slice(slots // 2, slots // 2 + 1)
    own(fields, species, near[1:2, middle], vectors[1:2, :, middle])
    assert apart(sums_written[1][1][0], sums[1]) < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("probes", [8, 64])
def test_on_a_gpu_probes_that_do_not_fit_a_window_become_nan(
    probes: int, sums_written: list[tuple[str, Tensor]]
) -> None:
    config = DensityConfig.preset("original", ("H", "C"), mul=20, lmax=1)
    own = DensityModel(config, seed=1).eval().cuda().tabulate(64, radius_a=RADIUS_A)
    fields, species, near, vectors = compact_inputs(config, 2, probes, 3, "cuda")
    # Within the cutoff, beyond which no probe has to fit: one probe of a tile is farther than the others.
    vectors[0] = vectors.new_tensor([config.cutoff_a / 2, 0, 0])
    vectors[0, 0, :, 0] += 3 * RADIUS_A
    values = own(fields, species, near, vectors)
    assert [name for name, _ in sums_written] == [kernel_of(probes)]
    assert torch.isnan(values[0]).all()
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
