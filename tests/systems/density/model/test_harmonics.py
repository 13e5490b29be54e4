"""Spherical harmonics and their couplings: e3nn's order and signs, as polynomials."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pinchpoint.systems.density.model.harmonics import Exact, Harmonics, coupling, is_rounded, polar_factors

o3 = pytest.importorskip("e3nn.o3", reason="the truth is e3nn's")


def directions(count: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.nn.functional.normalize(
        torch.randn(count, 3, dtype=torch.float64, generator=generator), dim=1
    )


@pytest.mark.parametrize("degree", range(1, 7))
def test_harmonics_are_those_of_e3nn(degree: int) -> None:
    vectors = directions()
    wanted = o3.spherical_harmonics(degree, vectors, normalize=False, normalization="component")
    found = Harmonics(degree)(vectors.t())[degree - 1].t()
    assert torch.allclose(found, wanted, rtol=0, atol=1e-13)


def test_degree_two_is_the_closed_form() -> None:
    x, y, z = vectors = directions().t()
    wanted = 15**0.5 * torch.stack(
        [x * z, x * y, (2 * y * y - x * x - z * z) / 12**0.5, y * z, (z * z - x * x) / 2]
    )
    assert torch.allclose(Harmonics(2)(vectors)[1], wanted, rtol=0, atol=1e-14)


def test_harmonics_are_products_of_polar_and_azimuthal_parts() -> None:
    x, y, z = vectors = directions().t() * 0.7
    factors, square = polar_factors(5), (vectors**2).sum(0)
    for degree, wanted in enumerate(Harmonics(5)(vectors), start=1):
        for order in range(degree + 1):
            terms = range((degree - order) // 2 + 1)
            polar = sum(factors[degree, order, k] * y ** (degree - order - 2 * k) * square**k for k in terms)
            around = torch.complex(z, x) ** order
            assert torch.allclose(polar * around.real, wanted[degree + order], rtol=0, atol=1e-13)
            if order:
                assert torch.allclose(polar * around.imag, wanted[degree - order], rtol=0, atol=1e-13)


def test_a_vector_of_another_length_scales_degree_l_by_its_power() -> None:
    vectors = directions().t()
    for degree, (one, two) in enumerate(
        zip(Harmonics(4)(vectors), Harmonics(4)(vectors * 0.3), strict=True), start=1
    ):
        assert torch.allclose(two, one * 0.3**degree, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("first", range(5))
def test_couplings_are_those_of_e3nn_in_value_and_sign(first: int) -> None:
    for second in range(5):
        for third in range(abs(first - second), first + second + 1):
            wanted = o3.wigner_3j(first, second, third, dtype=torch.float64).numpy()
            assert np.allclose(coupling(first, second, third), wanted, rtol=0, atol=1e-13)


def test_a_triangle_that_does_not_close_couples_to_nothing() -> None:
    assert not coupling(1, 1, 3).any()


def test_exact_numbers_outlive_a_cast_to_float32_and_back() -> None:
    numbers = np.sqrt(np.arange(5.0))
    kept = Exact(numbers).float().double()
    assert np.array_equal(kept(torch.zeros(1, dtype=torch.float64)).numpy(), numbers)


class Products(TorchDispatchMode):
    """The types of the factors of every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            self.types |= {factor.dtype for factor in args}
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("precision", "factors"), [("highest", torch.float32), ("high", torch.float64), ("medium", torch.float64)]
)
def test_products_of_geometry_keep_their_digits_where_others_may_be_rounded(
    precision: str, factors: torch.dtype
) -> None:
    vectors = directions().t()
    usual = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with Products() as seen:
            found = Harmonics(4)(vectors.float())
    finally:
        torch.set_float32_matmul_precision(usual)
    assert seen.types == {factors}
    for degree, values in enumerate(found, start=1):
        wanted = o3.spherical_harmonics(degree, vectors.t(), normalize=False, normalization="component").t()
        assert values.dtype == torch.float32
        assert torch.allclose(values.double(), wanted, rtol=0, atol=3e-6)


def test_precision_set_through_the_other_interface_of_torch_counts_as_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_rounded()

    def refuse() -> str:
        raise RuntimeError("a mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert is_rounded()
