"""Images from the points that matter equal those from all points, and need few of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from tests.systems.radiance.export.known_fields import CODE, RADIUS, Veil, make_ball  # noqa: E402

from pinchpoint.systems.radiance.model import objective  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.objective import (  # noqa: E402
    Generator,
    draw_codes,
    where_occupied,
    whole_images,
)
from pinchpoint.systems.radiance.settings import PRESETS, Settings  # noqa: E402

CELLS = 40  # of the grid, along a diameter
U, V = torch.tensor([0.13]), torch.tensor([0.3])


def count_points(field: Any) -> list[int]:
    counts: list[int] = []
    field.register_forward_pre_hook(lambda _field, values: counts.append(len(values[0])))
    return counts


def test_the_occupied_nodes_are_those_near_the_object() -> None:
    occupied = where_occupied(make_ball(), CODE)
    assert occupied is not None and len(occupied) == 1
    directions = torch.nn.functional.normalize(
        torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), dim=1
    )
    for distance, expected in ((RADIUS - 0.02, True), (RADIUS - 0.28, True), (RADIUS + 0.2, False)):
        # the speck is outside the ball
        away = directions[:, :2].norm(dim=1) > 0.5 if distance > RADIUS else slice(None)
        assert bool((occupied[0].at(distance * directions)[away] == expected).all()), distance
    assert not occupied[0].at(torch.tensor([[0.0, 0.0, 0.0], [5.0, 0.0, 0.0]])).any()


def test_an_image_from_the_points_that_matter_equals_that_from_all_points() -> None:
    generator = make_ball()
    everything = whole_images(generator, CODE, U, V, size=24)
    occupied, counts = where_occupied(generator, CODE), count_points(generator.field)
    some = whole_images(generator, CODE, U, V, size=24, occupied=occupied)
    for name in ("low", "depth", "acc"):
        assert torch.allclose(getattr(some, name), getattr(everything, name), atol=4e-3), name
    assert float(some.acc.max()) > 0.99 and 0 < sum(counts) < 0.15 * 24 * 24 * 4 * generator.settings.samples


@pytest.mark.parametrize(
    ("opacity", "most"), [(0.009, 1e-5), (0.0011, 1e-5), (0.0009, 1 - 0.999**CELLS)], ids=str
)
def test_a_faint_veil_is_rendered_up_to_the_documented_opacity(opacity: float, most: float) -> None:
    generator, veil = make_ball(), Veil(opacity, thickness=2 / CELLS)
    veil.config = generator.field.config  # pyright: ignore[reportArgumentType]
    generator.field = veil  # pyright: ignore[reportAttributeAccessIssue]
    generator.settings = replace(generator.settings, haze=0.0)
    everything = whole_images(generator, CODE, U, V, size=8)
    some = whole_images(generator, CODE, U, V, size=8, occupied=where_occupied(generator, CODE))
    # along a diameter
    assert float(everything.acc.max()) == pytest.approx(1 - (1 - opacity) ** CELLS, rel=0.05)
    assert float((some.acc - everything.acc).abs().max()) <= most < 0.04


def test_a_large_image_is_rendered_in_blocks_of_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = make_ball()
    occupied = where_occupied(generator, CODE)
    counts: list[int] = []

    def render_near(self: Generator, request: Any, occupancy: Any) -> Any:
        counts.append(request.places.shape[1])
        return render(self, request, occupancy)

    render = Generator.render_near
    monkeypatch.setattr(Generator, "render_near", render_near)
    large = whole_images(generator, CODE, U, V, size=48, occupied=occupied)
    assert counts == [2048, 48 * 48 - 2048]
    counts.clear()
    generator.settings = replace(generator.settings, chunk=4 * 500)  # for training with less memory
    small = whole_images(generator, CODE, U, V, size=48, occupied=occupied)
    assert counts == [500] * 4 + [48 * 48 - 2000]
    monkeypatch.setattr(objective, "_RAYS", 48 * 48)
    generator.settings = replace(generator.settings, chunk=0)
    whole = whole_images(generator, CODE, U, V, size=48, occupied=occupied)
    assert counts[5:] == [48 * 48]
    for name in ("low", "depth", "acc"):
        assert torch.allclose(getattr(large, name), getattr(whole, name), atol=1e-6), name
        assert torch.allclose(getattr(small, name), getattr(whole, name), atol=1e-6), name


def test_features_and_enlarged_images_are_the_same() -> None:
    """A field of random weights, made denser, so that something is seen."""
    settings = replace(Settings(**PRESETS["tiny"]), size=16, samples=6, bound=1.0, superres=2, sr_width=4)
    generator = Generator(FieldConfig.preset("tiny"), settings)
    with torch.no_grad():
        generator.field.density.weight.mul_(300)
    codes = draw_codes(generator.field.config, 1, generator=torch.Generator().manual_seed(0))
    everything = whole_images(generator, codes, U, V)
    some = whole_images(generator, codes, U, V, occupied=where_occupied(generator, codes))
    assert float(everything.acc.mean()) > 0.05 and everything.high is not None and some.high is not None
    assert float((some.high - everything.high).abs().mean()) < 4e-3
    assert float((some.low - everything.low).abs().mean()) < 4e-3


def test_without_a_bound_all_points_are_computed() -> None:
    generator = make_ball()
    generator.settings = replace(generator.settings, bound=0.0)
    assert where_occupied(generator, CODE) is None
