"""Views of baked objects are close to exact ones, and later views compute little."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from tests.systems.radiance.export.known_fields import CODE, RADIUS, make_ball  # noqa: E402

from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.field import Field  # noqa: E402
from pinchpoint.systems.radiance.model.objective import (  # noqa: E402
    Generator,
    draw_codes,
    where_occupied,
    whole_images,
)
from pinchpoint.systems.radiance.orbit import bake, codes_of  # noqa: E402
from pinchpoint.systems.radiance.rendering import baked as baked_module  # noqa: E402
from pinchpoint.systems.radiance.rendering.baked import BakedObject  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes  # noqa: E402
from pinchpoint.systems.radiance.rendering.sparse import evaluate_points  # noqa: E402
from pinchpoint.systems.radiance.settings import PRESETS, Settings  # noqa: E402
from pinchpoint.systems.radiance.training.weights import load_weights  # noqa: E402

U, V = torch.tensor([0.13]), torch.tensor([0.3])


def decibels(one: Any, other: Any) -> float:
    """PSNR of images in [-1, 1]."""
    return -10 * math.log10(float(((one.clamp(-1, 1) - other.clamp(-1, 1)) / 2).square().mean()))


def random_generator(**settings: Any) -> tuple[Generator, Codes]:
    """A field of random weights, made denser, so that something is seen."""
    config = FieldConfig.preset("tiny", direction_octaves=-1)
    own = replace(Settings(**PRESETS["tiny"]), size=16, samples=6, bound=1.0, superres=2, sr_width=4)
    generator = Generator(config, replace(own, **settings))
    with torch.no_grad():
        generator.field.density.weight.mul_(300)
    return generator, draw_codes(config, 1, generator=torch.Generator().manual_seed(0))


def test_a_packaged_car_has_more_than_35_decibels_beside_the_exact_image() -> None:
    trained = load_weights("packaged", which="last", device="cpu")
    code = codes_of(trained.config, 1, seed=0, device="cpu")
    baked = bake(trained.model, code, views=64)
    assert baked is not None
    images = whole_images(trained.model, code, U, V, size=12, occupied=baked)
    exact = whole_images(trained.model, code, U, V, size=12, occupied=where_occupied(trained.model, code))
    assert decibels(images.best, exact.best) > 35 and decibels(images.low, exact.low) > 35
    assert float((images.acc - exact.acc).abs().mean()) < 0.01
    solid = (exact.acc > 0.5) & (images.acc > 0.5)
    assert int(solid.sum()) > 20
    assert float((images.depth / images.acc - exact.depth / exact.acc)[solid].abs().mean()) < 0.02


def test_features_and_enlarged_images_are_close_to_the_exact_ones() -> None:
    generator, codes = random_generator()
    everything = whole_images(generator, codes, U, V)
    some = whole_images(generator, codes, U, V, occupied=bake(generator, codes, views=999))
    assert float(everything.acc.mean()) > 0.05 and everything.high is not None and some.high is not None
    assert decibels(some.high, everything.high) > 40 and decibels(some.low, everything.low) > 40


def test_a_ball_is_at_its_distance_and_later_views_compute_less() -> None:
    generator = make_ball()
    points: list[int] = []
    generator.field.register_forward_pre_hook(lambda _field, values: points.append(len(values[0])))
    baked, computed, views = BakedObject(generator.field, CODE, 1.0, features=False), [], []
    for u in (0.1, 0.1, 0.2, 0.15):
        points.clear()
        views.append(whole_images(generator, CODE, torch.tensor([u]), V, size=32, occupied=[baked]))
        computed.append(sum(points))
    assert torch.equal(views[0].low, views[1].low) and computed[1] == 0
    assert computed[0] > computed[2] > computed[3] > 0
    exact = whole_images(generator, CODE, torch.tensor([0.15]), V, size=32)
    assert decibels(views[3].low, exact.low) > 30, "the colours change at an edge"
    deep = (math.pi / (2 * 400)) ** 0.5  # mean depth that light reaches where density grows by 400 per length
    assert float(views[3].depth[0, 15:17, 15:17].mean()) == pytest.approx(4 - RADIUS + deep, abs=0.02)


def test_rays_that_miss_the_ball_and_an_empty_object_are_white() -> None:
    generator, codes = random_generator(fov=60.0)
    whole = whole_images(generator, codes, U, V, size=24, occupied=bake(generator, codes, views=999))
    assert bool((whole.low[0, :, 0] == 1).all())
    with torch.no_grad():
        generator.field.density.bias.fill_(-1e6)
    empty = whole_images(generator, codes, U, V, size=24, occupied=bake(generator, codes, views=999))
    assert bool((empty.low == 1).all()) and bool((empty.acc == 0).all())


def test_an_image_does_not_depend_on_the_rays_that_are_processed_together() -> None:
    generator, codes = random_generator(fov=60.0)
    whole = whole_images(generator, codes, U, V, size=24, occupied=bake(generator, codes, views=999))
    generator.settings = replace(generator.settings, chunk=4 * 24)  # one line of pixels at a time
    by_lines = whole_images(generator, codes, U, V, size=24, occupied=bake(generator, codes, views=999))
    for name in ("low", "depth", "acc"):
        torch.testing.assert_close(getattr(by_lines, name), getattr(whole, name), rtol=1e-5, atol=1e-5)


def test_too_many_nodes_leave_coarse_values(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = make_ball()
    fine = BakedObject(generator.field, CODE, 1.0, features=False)
    images = [whole_images(generator, CODE, U, V, size=24, occupied=[fine])]
    monkeypatch.setattr(baked_module, "_MOST_NODES", 45_000)
    limited = BakedObject(generator.field, CODE, 1.0, features=False)
    images.append(whole_images(generator, CODE, U, V, size=24, occupied=[limited]))
    assert limited.is_limited and not fine.is_limited
    exact = whole_images(generator, CODE, U, V, size=24)
    off = [float((image.acc - exact.acc).abs().mean()) for image in images]
    assert off[0] < off[1] < 0.05


def test_few_small_views_are_not_baked() -> None:
    generator, codes = random_generator()  # 24 points per ray
    assert bake(generator, codes, views=150) is None, "16 x 16 pixels"
    assert bake(generator, codes, views=152) is not None
    assert bake(generator, codes, views=9, size=64) is None
    assert bake(generator, codes, views=10, size=64) is not None


def test_the_folded_field_gives_the_values_of_the_field() -> None:
    generator, codes = random_generator()
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(1)) * 2 - 1
    assert isinstance(generator.field, Field)
    with torch.no_grad():
        colour, density, view = generator.field(points, torch.zeros(1, 3), *codes, features=True)
        values = evaluate_points(generator.field, codes, points, features=True)
    for value, expected in zip(values, (colour, density[:, 0], view), strict=True):
        assert value is not None and torch.allclose(value, expected, rtol=1e-4, atol=1e-4)


def test_objects_without_a_bound_or_with_colours_that_depend_on_the_view_are_not_baked() -> None:
    generator, codes = random_generator()
    assert bake(generator, codes, views=999) is not None
    generator.settings = replace(generator.settings, bound=0.0)
    assert bake(generator, codes, views=999) is None
    assert bake(make_ball(), CODE, views=999) is None
