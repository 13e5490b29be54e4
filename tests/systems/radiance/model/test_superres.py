"""Super-resolution: its averages are the render, and it is equal at 0 and 360 degrees."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.backends.torch import compat  # noqa: E402
from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.model.losses import check_gradients  # noqa: E402
from pinchpoint.systems.radiance.model.superres import (  # noqa: E402
    SuperRes,
    ViewCodes,
    confine,
    enlarge,
    project,
    residual,
    stack_pair,
)


@pytest.mark.parametrize("factor", [2, 4])
def test_the_residual_of_the_projection_is_only_rounding(factor: int) -> None:
    generator = torch.Generator().manual_seed(factor)
    low = torch.rand(3, 3, 32, 32, generator=generator) * 2 - 1
    high = torch.rand(3, 3, 32 * factor, 32 * factor, generator=generator) * 2 - 1
    assert residual(high, low) > 0.1
    assert residual(project(high, low), low) <= 1e-6


def test_the_projection_is_the_nearest_image_with_the_given_averages() -> None:
    """The reference is constrained least squares, solved with Lagrange multipliers for a block of 2 x 2."""
    high, low = torch.rand(1, 1, 2, 2, dtype=torch.float64), torch.rand(1, 1, 1, 1, dtype=torch.float64)
    average = torch.full((1, 4), 0.25, dtype=torch.float64)
    system = torch.cat(
        [
            torch.cat([torch.eye(4, dtype=torch.float64), average.T], 1),
            torch.cat([average, torch.zeros(1, 1)], 1),
        ]
    )
    solution = torch.linalg.solve(system, torch.cat([high.flatten(), low.flatten()]))[:4]
    assert torch.allclose(project(high, low).flatten(), solution, atol=1e-12)
    assert (
        torch.equal(project(project(high, low), low), project(high, low))
        or residual(project(high, low), low) < 1e-15
    )
    with pytest.raises(BadInput, match="whole multiple"):
        project(torch.rand(1, 1, 3, 3), torch.rand(1, 1, 2, 2))


def test_a_forecast_counts_the_copy_that_a_gpu_convolves() -> None:
    layouts = []

    def note(_: Any, given: tuple[Any, ...]) -> None:
        layouts.append(given[0].is_contiguous(memory_format=torch.channels_last))

    for mode in (nullcontext, compat.fake_mode):
        with mode():
            network = SuperRes(2, features=4, width=8)
            network.read.register_forward_pre_hook(note)
            network(torch.zeros(1, 3, 8, 8))
    assert layouts == [False, True]


def repeat_pixels(low: Any, factor: int) -> Any:
    """Repeat every pixel f x f times."""
    return low.repeat_interleave(factor, 2).repeat_interleave(factor, 3)


@pytest.mark.parametrize("factor", [2, 4])
def test_no_confined_pixel_exceeds_black_or_white_and_the_averages_stay(factor: int) -> None:
    generator = torch.Generator().manual_seed(factor)
    low = torch.rand(2, 3, 16, 16, generator=generator) * 2 - 1
    low[:, :, :4], low[:, :, 4:8] = 1.0, -1.0
    free = project(
        repeat_pixels(low, factor) + torch.randn(2, 3, 16 * factor, 16 * factor, generator=generator), low
    )
    images = confine(free, low)
    assert (
        float(free.abs().max()) > 1.5
        and float(images.abs().max()) <= 1 + 1e-6
        and residual(images, low) <= 1e-6
    )
    assert bool((images[:, :, : 4 * factor] == 1).all()) and bool(
        (images[:, :, 4 * factor : 8 * factor] == -1).all()
    )


@pytest.mark.parametrize("factor", [2, 4])
def test_pixels_well_between_black_and_white_are_unchanged(factor: int) -> None:
    low = torch.rand(1, 3, 8, 8) - 0.5
    stripes = 0.1 * torch.arange(8 * factor).remainder(2).sub(0.5)  # 0 on average over every pixel of `low`
    high = repeat_pixels(low, factor) + stripes
    torch.testing.assert_close(confine(high, low), high, atol=1e-6, rtol=0)


@pytest.mark.parametrize("factor", [2, 4])
@pytest.mark.parametrize("half", [False, True])
def test_every_parameter_learns_and_the_averages_equal_the_render(factor: int, half: bool) -> None:
    net = SuperRes(factor, features=5, width=8, depth=2, views=4, code=3)
    low, features = torch.rand(2, 3, 8, 8, requires_grad=True), torch.rand(2, 5, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        high = net(low, features, torch.tensor([0.1, 0.9]))
    assert high.shape == (2, 3, 8 * factor, 8 * factor) and high.dtype == torch.float32
    assert residual(high.detach(), low.detach()) <= 1e-6
    (high * torch.rand_like(high)).sum().backward()
    check_gradients(net, what="super-resolution")
    assert low.grad is not None and features.grad is not None and bool(features.grad.any())


def test_view_codes_are_equal_at_0_and_360_degrees_and_linear_in_between() -> None:
    codes = ViewCodes(4, 3)
    at = codes(torch.tensor([0.0, 1.0, -1e-9, 0.25, 0.125, 0.875, 1.125]))
    table = codes.codes.detach()
    assert torch.equal(at[0], table[0]) and torch.equal(at[1], table[0])
    assert torch.allclose(at[2], table[0], atol=1e-5)
    assert torch.equal(at[3], table[1])
    assert torch.allclose(at[4], (table[0] + table[1]) / 2)
    assert torch.allclose(at[5], (table[3] + table[0]) / 2), "after the last code comes the first"
    assert torch.allclose(at[6], at[4])
    around = codes(torch.linspace(0, 2, 400)).detach()
    assert float((around[1:] - around[:-1]).abs().max()) < 0.05, "there are no jumps"


def test_no_detail_is_added_where_nothing_is_covered() -> None:
    net = SuperRes(2, features=4, width=8)
    cover = torch.zeros(1, 16, 16)
    cover[:, 4:6, 4:6] = 1.0
    low = torch.ones(1, 3, 16, 16)
    low[:, :, 4:6, 4:6] = 0.0
    high = net(low, torch.rand(1, 4, 16, 16), torch.zeros(1), cover=cover).detach()
    plain = project(enlarge(low, 2), low)
    assert torch.equal(high[:, :, 16:, 16:], plain[:, :, 16:, 16:]) and residual(high, low) <= 1e-6
    assert not torch.equal(high[:, :, 6:14, 6:14], plain[:, :, 6:14, 6:14])


def test_images_with_features_and_view_give_the_same_result_alone_and_in_a_mixed_batch() -> None:
    net = SuperRes(2, features=4, width=8)
    low, features, turns = torch.rand(5, 3, 16, 16), torch.rand(2, 4, 16, 16), torch.tensor([0.0, 0.3])
    with torch.no_grad():
        net.view.codes.mul_(10)  # so that a view code would be visible where there should be none
        beside = net(low, features, turns, cover=torch.ones(5, 16, 16))
        alone = [net(low[:2], features, turns), net(low[2:])]
        at_0 = net(low[2:], turns=torch.zeros(3))
    torch.testing.assert_close(beside, torch.cat(alone), atol=1e-6, rtol=0)
    assert float((at_0 - alone[1]).abs().max()) > 0.001


def test_the_second_discriminator_sees_the_render_beside_its_enlargement() -> None:
    low, high = torch.rand(1, 3, 8, 8), torch.rand(1, 3, 16, 16)
    assert torch.equal(stack_pair(high, low)[:, :3], high) and torch.equal(
        stack_pair(high, low)[:, 3:], enlarge(low, 2)
    )


def test_other_factors_are_refused() -> None:
    with pytest.raises(BadInput, match="Super-resolution x3") as excinfo:
        SuperRes(3, features=4)
    assert "x2, x4" in excinfo.value.hint
