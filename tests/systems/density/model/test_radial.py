"""Radial functions: smooth at the nucleus, gone at the cutoff, and tables as good as their knots."""

from __future__ import annotations

import pytest
import torch

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.radial import (
    RadialNetworks,
    RadialPolynomials,
    RadialSpline,
    RadialTable,
    envelope,
    hidden_layer,
    pad_count,
    product_in_parts,
    soft_distance,
)

CONFIG = DensityConfig.preset("original", ("H", "O"))


def networks(channels: int = 12, config: DensityConfig = CONFIG) -> RadialNetworks:
    return RadialNetworks(config, 3, channels, torch.Generator().manual_seed(0)).double()


def at(distances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.zeros(3, len(distances), dtype=torch.float64)
    vectors[1] = distances
    return soft_distance(vectors, CONFIG)


def test_the_envelope_is_one_at_the_nucleus_and_ends_with_two_derivatives_of_zero() -> None:
    r = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
    value = envelope(r.square(), 4.0)
    (slope,) = torch.autograd.grad(value.sum(), r, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), r)
    y = 0.25  # (2 / 4)^2, by hand: 1 - 10 y^3 + 15 y^4 - 6 y^5
    assert value.tolist() == pytest.approx([1.0, 1 - 10 * y**3 + 15 * y**4 - 6 * y**5, 0.0])
    assert slope[[0, 2]].tolist() == pytest.approx([0.0, 0.0], abs=1e-12)
    assert bend[[0, 2]].tolist() == pytest.approx([0.0, 0.0], abs=1e-12)


def test_the_envelope_falls_without_noise_up_to_the_cutoff_in_float32() -> None:
    r = torch.linspace(3.9, 4.0, 2001)
    value, exact = envelope(r.square(), 4.0), envelope(r.double().square(), 4.0)
    assert (value >= 0).all() and (value.diff() <= 0).all()
    assert (value - exact).abs().max() < 5e-9


def test_no_distance_is_read_beyond_the_table() -> None:
    table = RadialTable.of(networks(), [5, 7], 64)
    row, _ = table.place(torch.tensor([float("nan"), float("inf"), -1.0, 0.2], dtype=torch.float64))
    assert row.min() >= 0 and row.max() <= 63
    assert torch.isnan(table.read(torch.tensor([float("nan")], dtype=torch.float64))[0]).all()


def test_every_channel_is_exactly_zero_at_the_cutoff_and_beyond() -> None:
    far = at(torch.tensor([4.0, 4.5, 100.0], dtype=torch.float64))
    assert not networks()(*far).any()
    table = RadialTable.of(networks(), [5, 7], 64)
    assert not any(part.any() for part in table.read(far[1]))


def test_a_network_is_its_sums_written_out() -> None:
    nets = networks(channels=2)
    (squared, soft) = at(torch.tensor([1.3], dtype=torch.float64))
    step = (16.04**0.5 - 0.2) / 9
    basis = [float(torch.exp(-(((soft[0] - 0.2) / step - n) ** 2))) / 1.12 for n in range(10)]
    hidden = nets.inner[1].detach() @ torch.tensor(basis, dtype=torch.float64)
    hidden = hidden * torch.sigmoid(hidden) * 1.6791767923989418
    wanted = envelope(squared, 4.0) * (hidden @ nets.outer[1])
    assert torch.allclose(nets(squared, soft)[1, 0], wanted, rtol=1e-12)


def test_twice_the_knots_leave_a_quarter_of_the_error_and_4096_some_1e_6() -> None:
    nets = networks()
    squared, soft = at(torch.linspace(0, 4.2, 5001, dtype=torch.float64))
    exact = nets(squared, soft).transpose(0, 1).detach()
    errors = []
    for knots in (512, 1024, 4096):
        read = torch.cat(RadialTable.of(nets, [5, 7], knots).read(soft), dim=2)
        errors.append(float((read.detach() - exact).abs().max() / exact.abs().max()))
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)
    assert errors[2] < 5e-6


def test_gradients_through_a_table_are_those_of_the_networks() -> None:
    nets = networks()
    squared, soft = at(torch.linspace(0.05, 3.9, 400, dtype=torch.float64))
    weight = torch.randn(400, 3, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    wanted = torch.autograd.grad(
        (nets(squared, soft).transpose(0, 1) * weight).sum(), [nets.inner, nets.outer]
    )
    read = torch.cat(RadialTable.of(nets, [5, 7], 2048).read(soft), dim=2)
    for got, truth in zip(
        torch.autograd.grad((read * weight).sum(), [nets.inner, nets.outer]), wanted, strict=True
    ):
        assert (got - truth).norm() < 1e-4 * truth.norm()


def test_the_hidden_layer_has_no_kink_at_the_nucleus() -> None:
    nets = networks()
    r = torch.tensor([0.0, 1e-4, 2e-4], dtype=torch.float64)
    low, mid, high = hidden_layer(nets.inner.detach(), *at(r), CONFIG).unbind(dim=2)
    # Even in r: from 0 to 2h it changes four times as much as from 0 to h. With a kink it would be twice.
    assert float((high - low).norm() / (mid - low).norm()) == pytest.approx(4.0, rel=1e-3)


def test_a_table_of_one_knot_is_refused() -> None:
    with pytest.raises(BadInput, match="1 knots"):
        RadialTable.of(networks(), [12], 1)


def test_a_product_in_parts_and_its_gradients_are_those_of_the_whole() -> None:
    draw = torch.Generator().manual_seed(1)
    left, right = (
        torch.randn(*shape, generator=draw, dtype=torch.float64) for shape in ((2, 24, 5), (2, 5, 3))
    )
    upstream = torch.randn(2, 24, 3, generator=draw, dtype=torch.float64)
    results = []
    for parts in (1, 8, 64, 7):  # 64 and 24 share the factor 8, 7 and 24 none
        factors = [left.clone().requires_grad_(), right.clone().requires_grad_()]
        value = product_in_parts(factors[0], factors[1], parts)
        value.backward(upstream)
        results.append([value.detach(), *(factor.grad for factor in factors)])
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert one is not None and two is not None and torch.allclose(one, two, rtol=1e-12)


def unpadded(values: torch.Tensor) -> torch.Tensor:
    """The columns of groups of 3 networks with 5 and 7 channels, in the order of a table."""
    assert values.shape[1] == pad_count(15) + pad_count(21) == 48
    assert not values[:, 15:16].any() and not values[:, 37:].any()
    return torch.cat([values[:, :15], values[:, 16:37]], dim=1)


def exact_columns(networks: RadialNetworks, soft: torch.Tensor) -> torch.Tensor:
    values = networks(soft.square() - CONFIG.softening_a**2, soft)
    return torch.cat([part.transpose(0, 1).flatten(1) for part in values.split([5, 7], dim=2)], dim=1)


def relative(values: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((values - wanted).norm() / wanted.norm()).item()


def test_a_spline_of_four_rows_gives_what_the_networks_give() -> None:
    spline = RadialSpline.of(networks(), [5, 7])
    soft = torch.linspace(0.2, 4.004, 3001, dtype=torch.float64)
    place = (soft - spline.low) / spline.step
    row = place.long()
    x = place - row
    weights = [(1 - x) ** 3, 4 - 6 * x**2 + 3 * x**3, 1 + 3 * x + 3 * x**2 - 3 * x**3, x**3]
    rows = [w[:, None] / 6 * spline.coefficients[row + i] for i, w in enumerate(weights)]
    values = torch.stack(rows).sum(0)
    assert relative(unpadded(values), exact_columns(networks(), soft)) < 1e-6


@pytest.mark.parametrize("radius", [0.1, 0.18])
def test_polynomials_give_what_the_networks_give_on_every_window(radius: float) -> None:
    pieces = RadialPolynomials.of(networks(), [5, 7], radius)
    assert pieces is not None
    coefficients = pieces.coefficients.view(-1, pieces.degree + 1, 48)
    centres = pieces.low + torch.arange(len(coefficients), dtype=torch.float64) * pieces.step
    # All distances of a tile around any middle are in the window whose centre is nearest to it.
    assert pieces.half >= radius + pieces.step / 2 * (1 - 1e-9)
    assert centres[0] - pieces.half == pytest.approx(0.2)
    assert centres[-1] + pieces.half == pytest.approx((16 + 0.04) ** 0.5)
    x = torch.linspace(-1, 1, 41, dtype=torch.float64)
    powers = x[:, None] ** torch.arange(pieces.degree + 1)
    values = unpadded((powers @ coefficients).flatten(0, 1))
    soft = (centres[:, None] + pieces.half * x).flatten()
    assert relative(values, exact_columns(networks(), soft)) < 5e-7


def test_the_degree_of_polynomials_grows_with_the_radius_until_splines_are_better() -> None:
    degrees = []
    for radius in (0.05, 0.1, 0.2):
        pieces = RadialPolynomials.of(networks(), [5, 7], radius)
        assert pieces is not None
        degrees.append(pieces.degree)
    assert degrees == sorted(set(degrees))
    assert RadialPolynomials.of(networks(), [5, 7], 0.8) is None
    assert RadialPolynomials.of(networks(), [5, 7], 3.0) is None, "a window is wider than the cutoff"


def test_a_forecast_leaves_no_tensor_without_data_to_later_runs() -> None:
    @torch.no_grad()
    def both() -> list[torch.Tensor]:
        own = RadialNetworks(CONFIG, 3, 12, torch.Generator().manual_seed(0))
        polynomials = RadialPolynomials.of(own, [5, 7], 0.1)
        assert polynomials is not None
        return [RadialSpline.of(own, [5, 7]).coefficients, polynomials.coefficients]

    with compat.fake_mode():
        predicted = both()
    real = both()
    assert not any(isinstance(tensor, compat.FakeTensor) for tensor in real)
    assert all(isinstance(tensor, compat.FakeTensor) for tensor in predicted)
    assert predicted[0].shape == real[0].shape and predicted[1].numel() >= real[1].numel(), "never too little"
