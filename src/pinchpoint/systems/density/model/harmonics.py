"""Real spherical harmonics as polynomials of a vector, and couplings of three of them.

Letters: N vectors, l degree, M = (l + 1)(l + 2) / 2 monomials. Order and signs are those of e3nn: degree l
has the components m = -l..l with y as the polar axis, so degree 1 is (x, y, z). Harmonics are
component-normalised: for a unit vector, the squares of the 2 l + 1 components add up to 2 l + 1. The
polynomials are homogeneous: for a vector u of any length they are |u|^l times those of its direction, smooth
at zero.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor, nn

Polynomial = dict[tuple[int, int, int], float]  # exponents of x, y, z -> coefficient


def in_full(like: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast, so that tensors keep their dtype.

    Geometry and long sums need full precision.
    """
    kind = like.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def is_rounded() -> bool:
    """Return whether torch may round the factors of float32 matrix products to TF32 or bfloat16."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # the precision was set through another interface of torch
        return True


def product_in_full(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right in the full precision of their dtype, whatever matmul precision is set.

    Where float32 products may be rounded to TF32 or bfloat16, the product is computed in float64.
    """
    kind = torch.float64 if is_rounded() else left.dtype
    with in_full(left):
        return (left.to(kind) @ right.to(kind)).to(left.dtype)


class Exact(nn.Module):
    """Constants that stay in float64 even if the module around them is cast.

    Calling the module returns them in the dtype of a tensor.
    """

    bits: Tensor

    def __init__(self, values: np.ndarray) -> None:
        super().__init__()
        # Stored as integers: `model.float().double()` would round a floating-point buffer to seven digits.
        self.register_buffer(
            "bits",
            torch.from_numpy(np.ascontiguousarray(values, np.float64)).view(torch.int64),
            persistent=False,
        )

    def forward(self, like: Tensor) -> Tensor:
        return self.bits.view(torch.float64).to(like.dtype)


class Harmonics(nn.Module):
    """Computes a tensor (2 l + 1, N) for each degree 1..lmax from vectors (3, N).

    Degree 0 is omitted, because it is always 1.
    """

    def __init__(self, lmax: int) -> None:
        super().__init__()
        self.lmax = lmax
        self.coefficients = nn.ModuleList(Exact(_coefficients(degree)) for degree in range(2, lmax + 1))
        for degree in range(2, lmax + 1):
            lower, axis = _products(degree)
            self.register_buffer(f"lower{degree}", torch.tensor(lower), persistent=False)
            self.register_buffer(f"axis{degree}", torch.tensor(axis), persistent=False)

    def forward(self, vectors: Tensor) -> list[Tensor]:
        harmonics = [vectors * math.sqrt(3.0)] if self.lmax else []
        monomials = vectors
        for degree, coefficients in enumerate(self.coefficients, start=2):
            # Rows of N numbers are selected, not columns, so that contiguous memory is copied.
            lower, axis = self.get_buffer(f"lower{degree}"), self.get_buffer(f"axis{degree}")
            monomials = monomials.index_select(0, lower) * vectors.index_select(0, axis)
            harmonics.append(product_in_full(coefficients(vectors), monomials))
        return harmonics


def harmonics_of(degree: int) -> list[Polynomial]:
    """Return the 2 l + 1 homogeneous polynomials of one degree, m = -l..l."""
    return [_harmonic(degree, m) for m in range(-degree, degree + 1)]


def polar_factors(lmax: int) -> np.ndarray:
    """Return (lmax + 1, lmax + 1, lmax + 1): by degree l, order m and k, the factor of a polynomial.

    The harmonics of order m and -m are the sum over k of factor * y^(l - m - 2k) |u|^(2k), times the real and
    the imaginary part of (z + i x)^m.
    """
    table = np.zeros((lmax + 1,) * 3)
    for degree in range(lmax + 1):
        for order in range(degree + 1):
            factors = _polar_factors(degree, order)
            table[degree, order, : len(factors)] = factors
    return table


def coupling(first: int, second: int, third: int) -> np.ndarray:
    """Return the coupling (2 l1 + 1, 2 l2 + 1, 2 l3 + 1) of degrees l1 and l2 to l3.

    Its squares add up to 1. Uses Racah's formula in the complex basis, transformed to the real basis. It is
    zero where the degrees violate the triangle inequality.
    """
    complex_ = np.zeros((2 * first + 1, 2 * second + 1, 2 * third + 1))
    for m1 in range(-first, first + 1):
        for m2 in range(-second, second + 1):
            if abs(m1 + m2) <= third:
                value = _clebsch_gordan(first, second, third, m1, m2)
                complex_[first + m1, second + m2, third + m1 + m2] = value
    real = np.einsum(
        "ia,jb,kc,abc->ijk",
        _real_basis(first).conj(),
        _real_basis(second).conj(),
        _real_basis(third),
        complex_,
        optimize=True,
    )
    return np.ascontiguousarray(real.real) / math.sqrt(2 * third + 1)


def _monomials(degree: int) -> list[tuple[int, int, int]]:
    """Return the exponents of all monomials in a fixed order; degree 1 is x, y, z."""
    axis_choices = combinations_with_replacement(range(3), degree)
    return [(axes.count(0), axes.count(1), axes.count(2)) for axes in axis_choices]


def _products(degree: int) -> tuple[list[int], list[int]]:
    """Return, for each monomial, the monomial one degree lower and the axis to multiply it by."""
    below = _monomials(degree - 1)
    lower, axes = [], []
    for exponents in _monomials(degree):
        axis = max(a for a in range(3) if exponents[a])
        less = tuple(e - (a == axis) for a, e in enumerate(exponents))
        lower.append(below.index((less[0], less[1], less[2])))
        axes.append(axis)
    return lower, axes


def _coefficients(degree: int) -> np.ndarray:
    """Return the coefficients (2 l + 1, M) of the harmonics in the monomials."""
    monomials = _monomials(degree)
    return np.array([[poly.get(exponents, 0.0) for exponents in monomials] for poly in harmonics_of(degree)])


def _harmonic(degree: int, m: int) -> Polynomial:
    """Return one harmonic, normalised so that the squares of all m add up to 2 l + 1 on the unit sphere."""
    order = abs(m)
    round_axis = _azimuthal(order, sine=m < 0)
    total: Polynomial = {}
    for k, factor in enumerate(_polar_factors(degree, order)):
        part: Polynomial = {(0, degree - 2 * k - order, 0): factor}
        for _ in range(k):
            part = _times(part, {(2, 0, 0): 1.0, (0, 2, 0): 1.0, (0, 0, 2): 1.0})
        for exponents, value in _times(part, round_axis).items():
            total[exponents] = total.get(exponents, 0.0) + value
    return total


def _polar_factors(degree: int, order: int) -> list[float]:
    """Return the factors of y^(degree - order - 2k) |u|^(2k) in the harmonics of this order, for each k."""
    scale = math.sqrt(
        (2 * degree + 1)
        * math.factorial(degree - order)
        / math.factorial(degree + order)
        * (2 if order else 1)
    )
    factors = []
    for k in range((degree - order) // 2 + 1):
        weight = (-1) ** k * math.comb(degree, k) * math.comb(2 * degree - 2 * k, degree) / 2**degree
        weight *= math.factorial(degree - 2 * k) / math.factorial(degree - 2 * k - order)
        factors.append(weight * scale)
    return factors


def _azimuthal(order: int, *, sine: bool) -> Polynomial:
    """Return the real or imaginary part of (z + i x)^order, which rotates about the polar axis y."""
    polynomial: Polynomial = {}
    for power in range(order + 1):
        if power % 2 == int(sine):
            polynomial[(power, 0, order - power)] = math.comb(order, power) * (-1.0) ** (power // 2)
    return polynomial


def _times(a: Polynomial, b: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            key = (left[0] + right[0], left[1] + right[1], left[2] + right[2])
            product[key] = product.get(key, 0.0) + x * y
    return product


def _real_basis(degree: int) -> np.ndarray:
    """Return the real basis in terms of the complex one, (2 l + 1, 2 l + 1) complex.

    Includes a phase that makes the couplings real.
    """
    rows = np.zeros((2 * degree + 1, 2 * degree + 1), dtype=complex)
    rows[degree, degree] = 1
    for m in range(1, degree + 1):
        rows[degree + m, degree + m], rows[degree + m, degree - m] = (
            (-1) ** m / math.sqrt(2),
            1 / math.sqrt(2),
        )
        rows[degree - m, degree + m], rows[degree - m, degree - m] = (
            -1j * (-1) ** m / math.sqrt(2),
            1j / math.sqrt(2),
        )
    return rows * 1j**degree


def _clebsch_gordan(j1: int, j2: int, j3: int, m1: int, m2: int) -> float:
    """Return the Clebsch-Gordan coefficient <j1 m1 j2 m2 | j3 m1+m2>."""
    if not abs(j1 - j2) <= j3 <= j1 + j2:
        return 0.0
    f, m3 = math.factorial, m1 + m2
    outside = (2 * j3 + 1) * f(j3 + j1 - j2) * f(j3 - j1 + j2) * f(j1 + j2 - j3) / f(j1 + j2 + j3 + 1)
    outside *= f(j3 + m3) * f(j3 - m3) * f(j1 - m1) * f(j1 + m1) * f(j2 - m2) * f(j2 + m2)
    total = 0.0
    for k in range(max(0, j2 - j3 - m1, j1 - j3 + m2), min(j1 + j2 - j3, j1 - m1, j2 + m2) + 1):
        under = (
            f(k)
            * f(j1 + j2 - j3 - k)
            * f(j1 - m1 - k)
            * f(j2 + m2 - k)
            * f(j3 - j2 + m1 + k)
            * f(j3 - j1 - m2 + k)
        )
        total += (-1) ** k / under
    return math.sqrt(outside) * total
