"""Distances compared with closed forms for Gaussians; hues and areas compared with the factors of cars."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="metrics are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.data.cars import draw_car  # noqa: E402
from pinchpoint.systems.radiance.data.sphere_tracing import picture  # noqa: E402
from pinchpoint.systems.radiance.metrics.metrics import (  # noqa: E402
    distances,
    frechet_distance,
    hue_coverage,
    hues,
    kernel_distance,
    silhouette_area,
)


def normal(count: int, width: int, seed: int) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_mean_kernel_distance_of_one_distribution_is_zero_for_any_number_of_images() -> None:
    for count in (4, 30):
        value = torch.tensor(
            [kernel_distance(normal(count, 6, 2 * n), normal(count, 6, 2 * n + 1)) for n in range(600)]
        )
        assert value.min() < 0 < value.max()
        assert abs(value.mean()) < 3 * value.std() / math.sqrt(600)


def test_the_kernel_distance_of_gaussians_matches_its_closed_form() -> None:
    # One dimension, N(m, 1): E (x y + 1)^3 = sum over k of C(3, k) E[x^k] E[y^k].
    def moments(m: float) -> list[float]:
        return [1.0, m, m * m + 1, m**3 + 3 * m]

    def expected(a: float, b: float) -> float:
        return sum(math.comb(3, k) * moments(a)[k] * moments(b)[k] for k in range(4))

    target = 1000 * (expected(0, 0) + expected(0.5, 0.5) - 2 * expected(0, 0.5))
    value = torch.tensor(
        [kernel_distance(normal(200, 1, n), normal(300, 1, 500 + n) + 0.5) for n in range(100)]
    )
    assert abs(value.mean() - target) < 3 * value.std() / 10
    assert value.std() / 10 < 0.05 * target  # precise enough to detect a bias


def test_the_kernel_distance_equals_a_double_loop_over_all_pairs() -> None:
    one, two = normal(5, 3, 0), normal(4, 3, 1) + 1

    def kernel(a: torch.Tensor, b: torch.Tensor) -> float:
        return float((a @ b / 3 + 1) ** 3)

    own = sum(kernel(one[i], one[j]) for i in range(5) for j in range(5) if i != j) / 20
    other = sum(kernel(two[i], two[j]) for i in range(4) for j in range(4) if i != j) / 12
    across = sum(kernel(a, b) for a in one for b in two) / 20
    assert kernel_distance(one, two) == pytest.approx(1000 * (own + other - 2 * across), rel=1e-12)


def with_moments(count: int, mean: torch.Tensor, deviations: torch.Tensor, seed: int) -> torch.Tensor:
    """Points whose sample mean and covariance are exactly these (diagonal)."""
    draws = normal(count, len(mean), seed)
    draws = draws - draws.mean(dim=0)
    white = torch.linalg.qr(draws).Q * math.sqrt(count - 1)
    return white * deviations + mean


def test_the_frechet_distance_of_gaussians_matches_its_closed_form() -> None:
    m1, m2 = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([1.0, 1.0, 0.0]).double()
    s1, s2 = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([2.0, 1.0, 0.0]).double()
    expected = float((m1 - m2).square().sum() + (s1 - s2).square().sum())  # covariances that commute
    assert frechet_distance(with_moments(50, m1, s1, 0), with_moments(70, m2, s2, 1)) == pytest.approx(
        expected, rel=1e-9
    )


def test_the_frechet_distance_matches_the_matrix_root_even_with_fewer_images_than_features() -> None:
    for count in (40, 5):
        one, two = normal(count, 8, 3) @ normal(8, 8, 4), normal(count + 2, 8, 5) + 0.3
        first, second = torch.cov(one.T), torch.cov(two.T)
        values, vectors = torch.linalg.eigh(first)
        root = vectors * values.clamp_min(0).sqrt() @ vectors.T
        inner = torch.linalg.eigvalsh(root @ second @ root).clamp_min(0).sqrt().sum()
        expected = (one.mean(0) - two.mean(0)).square().sum() + first.trace() + second.trace() - 2 * inner
        assert frechet_distance(one, two) == pytest.approx(float(expected), rel=1e-6)
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-9)


def test_distances_are_named_after_their_features() -> None:
    one, two = normal(6, 4, 0), normal(6, 4, 1)
    assert set(distances(one, two, features="efflite0")) == {"KD-efflite0", "FD-efflite0"}
    assert set(distances(one, two, features="inception")) == {"KIDx1000", "FID"}


@pytest.mark.parametrize("measure", [kernel_distance, frechet_distance])
def test_features_without_a_distance_are_refused(measure) -> None:
    good = normal(4, 3, 0)
    for bad in (normal(1, 3, 1), normal(4, 2, 1), good[0], torch.full((4, 3), torch.nan)):
        with pytest.raises(BadInput):
            measure(good, bad)


@pytest.fixture(scope="module")
def cars():
    pairs = [draw_car(9, number) for number in range(60)]
    return pairs, picture([car for car, _ in pairs], [pose for _, pose in pairs], size=32)


def test_the_hue_of_a_picture_is_the_hue_factor_of_the_car(cars) -> None:
    pairs, images = cars
    value = hues(images.rgb.permute(0, 3, 1, 2) * 2 - 1)
    expected = torch.tensor([car.hue for car, _ in pairs])
    apart = ((value - expected + 0.5) % 1 - 0.5).abs()
    assert apart.median() < 0.01 and apart.max() < 0.06


def test_the_silhouette_area_matches_the_rendered_cover(cars) -> None:
    _, images = cars
    value = silhouette_area(images.rgb.permute(0, 3, 1, 2) * 2 - 1)
    expected = images.cover.mean(dim=(1, 2))
    dark = silhouette_area(
        (images.rgb - (1 - images.cover)[..., None]).permute(0, 3, 1, 2) * 2 - 1, white=False
    )
    assert (dark / value - 1).abs().max() < 0.3, "the same cars on black"
    # A pixel at the edge counts as a whole pixel, which adds up to half a pixel all around.
    assert (value >= expected - 1e-3).all() and (value / expected - 1).max() < 0.3


def test_hue_coverage_distinguishes_all_hues_from_few_and_from_none() -> None:
    def images_of(value: torch.Tensor) -> torch.Tensor:
        turn = (value[:, None] * 6 + torch.tensor([5.0, 3.0, 1.0])) % 6
        rgb = 1 - torch.minimum(turn, 4 - turn).clamp(0, 1)
        return (rgb * 2 - 1)[:, :, None, None].expand(-1, 3, 4, 4)

    even = torch.arange(120) / 120 + 1 / 240
    assert hues(images_of(even)) == pytest.approx(even, abs=1e-4)
    assert hue_coverage(images_of(even)) == pytest.approx(1.0, abs=1e-6)
    assert hue_coverage(images_of(even[:30])) == pytest.approx(3 / 12, abs=1e-6)
    assert hue_coverage(torch.zeros(5, 3, 4, 4)) == 0.0
