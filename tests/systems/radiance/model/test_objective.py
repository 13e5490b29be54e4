"""The two networks: renders and photographs have the same patches, and every weight learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.systems.radiance.data.patches import real_patches  # noqa: E402
from pinchpoint.systems.radiance.model import objective  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.losses import check_gradients  # noqa: E402
from pinchpoint.systems.radiance.model.objective import (  # noqa: E402
    Critics,
    Generator,
    draw_codes,
    draw_request,
    whole_images,
)
from pinchpoint.systems.radiance.model.superres import SuperRes, enlarge, residual  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes, RenderOutput, clear_haze, render  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402

CONFIG = FieldConfig.preset("tiny")
SETTINGS = Settings(
    preset="tiny", steps=10, size=32, patch=32, samples=6, batch=2, critic_width=4, sr_width=4, eval_images=0
)


def request_of(settings: Settings, *, step: int = 1, what: str = "test") -> Any:
    return draw_request(CONFIG, settings, step=step, what=what, device="cpu", batch=settings.batch)


def net_of(generator: Generator) -> SuperRes:
    assert generator.superres is not None
    return generator.superres


def any_gradient(module: torch.nn.Module) -> bool:
    return any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in module.parameters())


def pair_loss_of(generator: Generator) -> Any:
    request, side = request_of(generator.settings), 32 * generator.settings.superres
    real = real_patches(torch.rand(2, 3, side, side), generator.settings, step=5, what="real")
    return generator.to_images_with_pairs(generator.render_rays(request), request, real)[2]


def test_super_resolution_learns_only_from_patches_of_whole_pixels() -> None:
    settings = replace(SETTINGS, superres=2, size=64, batch=4)
    generator, critics = Generator(CONFIG, settings), Critics(settings)
    request, real = (
        request_of(settings),
        real_patches(torch.rand(4, 3, 128, 128), settings, step=5, what="real"),
    )
    assert real.high is not None and request.whole == (0, 2)
    assert residual(real.high[::2], real.low[::2]) <= 1e-6 < residual(real.high[1::2], real.low[1::2])
    render_result = generator.render_rays(request)
    images, *taught = generator.to_images_with_pairs(render_result, request, real)
    assert images.high is not None and images.high.shape == (2, 3, 64, 64)
    assert residual(images.high.detach(), images.low[::2].detach()) <= 1e-6
    plain = generator.to_images(render_result, request).high
    assert plain is not None and torch.allclose(plain, images.high, atol=1e-6)
    verdict_of, _ = critics.loss(images, request, real, penalty=torch.tensor(1.0))
    odd = torch.arange(4)[:, None, None, None] % 2 == 1  # the wide patches
    spoilt = real._replace(high=torch.where(odd, -real.high, real.high))
    again, _ = critics.loss(images, request, spoilt, penalty=torch.tensor(1.0))
    assert torch.equal(again, verdict_of)
    _, *same = generator.to_images_with_pairs(render_result, request, spoilt)
    assert [float(one.detach()) for one in same] == [float(one.detach()) for one in taught]
    near = real._replace(high=-real.high)
    assert float(generator.to_images_with_pairs(render_result, request, near)[1].detach()) > float(
        taught[0].detach()
    )


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_the_losses_of_micro_batches_average_to_that_of_the_batch(share: float) -> None:
    """Micro-batches have one image; some have a patch of whole pixels, some have none."""
    settings = replace(SETTINGS, superres=2, size=64, batch=4, whole=share)
    generator, critics = Generator(CONFIG, settings), Critics(settings)
    request, real = (
        request_of(settings),
        real_patches(torch.rand(4, 3, 128, 128), settings, step=5, what="real"),
    )

    def losses(request: Any, real: Any) -> Any:
        images, unlike, pair_loss = generator.to_images_with_pairs(
            generator.render_rays(request), request, real
        )
        told_apart, slope = critics.loss(images, request, real, penalty=torch.tensor(1.0))
        return torch.stack(
            [critics.generator_loss(images, request), unlike, pair_loss, told_apart, slope]
        ).detach()

    whole = losses(request, real)
    parts = [(request.part(slice(at, at + 1)), real.part(slice(at, at + 1))) for at in range(4)]
    assert {part.whole for part, _ in parts} == {(), (0,)}
    assert torch.allclose(torch.stack([losses(*part) for part in parts]).mean(dim=0), whole, rtol=1e-4)


def test_super_resolution_learns_from_real_pairs_and_the_field_does_not() -> None:
    settings = replace(SETTINGS, superres=2, sr_width=8)
    generator = Generator(CONFIG, settings)
    edge = (torch.linspace(-3, 3, 64)[:, None] + torch.linspace(-2, 1, 64) > 0).float().expand(4, 3, 64, 64)
    real = real_patches(edge * torch.linspace(0.3, 1, 12).view(4, 3, 1, 1), settings, step=5, what="real")
    smooth = enlarge(real.low, 2, mode="bicubic")
    request = request_of(replace(settings, batch=4))
    result = generator.render_rays(request)
    _, unlike, _ = generator.to_images_with_pairs(result, request, real)
    unlike.backward()
    assert bool(net_of(generator).read.weight.grad.any()) and not any_gradient(generator.field)
    still = type(result)(*(None if part is None else part.detach() for part in result))
    optimizer = torch.optim.Adam(net_of(generator).parameters(), lr=1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        generator.to_images_with_pairs(still, request, real)[1].backward()
        optimizer.step()
    assert real.high is not None
    assert float(generator.to_images_with_pairs(still, request, real)[1].detach()) < 0.8 * float(
        (smooth - real.high).abs().mean()
    )
    assert generator.learns_from_pairs
    for other in (SETTINGS, replace(settings, sr_pairs=0.0)):
        assert not Generator(CONFIG, other).learns_from_pairs


def test_the_second_pair_loss_measures_and_trains_only_the_effect_of_features_and_view() -> None:
    settings = replace(SETTINGS, superres=2)
    generator = Generator(CONFIG, settings)
    net = net_of(generator)
    pair_loss_of(generator).backward()
    assert bool(net.read.weight.grad[:, 3:].any())
    assert not any_gradient(generator.field), "the render gets no gradient from it"
    with torch.no_grad():
        net.read.weight[:, 3:] = 0  # ignore features and view
    assert float(pair_loss_of(generator).detach()) == pytest.approx(0, abs=1e-7)
    assert float(pair_loss_of(Generator(CONFIG, SETTINGS))) == 0


def test_draws_depend_only_on_seed_step_and_purpose() -> None:
    one, again = request_of(SETTINGS), request_of(SETTINGS)
    assert torch.equal(one.draws.offsets, again.draws.offsets) and torch.equal(
        one.codes.shape, again.codes.shape
    )
    for other in (
        request_of(SETTINGS, step=2),
        request_of(SETTINGS, what="else"),
        request_of(replace(SETTINGS, seed=1)),
    ):
        assert not torch.equal(one.codes.shape, other.codes.shape)
    assert float(one.draws.noise.std()) == pytest.approx(SETTINGS.noise_at(1), rel=0.05)
    assert request_of(SETTINGS, step=9).draws.noise is None


@pytest.mark.parametrize("superres", [1, 2, 4])
def test_every_weight_of_both_networks_gets_a_gradient(superres: int) -> None:
    settings = replace(SETTINGS, superres=superres)
    generator, critics = Generator(CONFIG, settings), Critics(settings)
    request = request_of(settings)
    images = generator(request)
    assert images.low.shape == (2, 3, 32, 32) and images.best.shape == (2, 3, 32 * superres, 32 * superres)
    critics.generator_loss(images, request).backward()
    check_gradients(generator, what="generator")
    critics.zero_grad(set_to_none=True)
    real = real_patches(torch.rand(2, 3, 32 * superres, 32 * superres), settings, step=1, what="real")
    loss, slope = critics.loss(images, request, real, penalty=torch.tensor(2.0))
    loss.backward()
    check_gradients(critics, what="discriminator")
    assert 0 < float(slope) < float(loss.detach())
    bare, none = critics.loss(images, request, real, penalty=None)
    assert float(none) == 0 and float(bare.detach()) == pytest.approx(float(loss.detach() - slope), rel=1e-5)


def test_a_generator_with_a_bound_is_empty_outside_and_learns_inside() -> None:
    settings = replace(SETTINGS, bound=0.5, noise=0.0)
    generator = Generator(CONFIG, settings)
    with torch.no_grad():
        generator.field.density.bias.fill_(3.0)  # fog everywhere
    request = request_of(settings)
    images = generator(request)
    corners = images.low[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert bool((corners == 1).all()) and bool((images.acc[:, 16, 16] > 0.5).all())
    Critics(settings).generator_loss(images, request).backward()
    check_gradients(generator, what="generator")


@pytest.mark.parametrize("white", [True, False])
def test_whole_images_lose_coverage_below_the_haze_and_keep_what_is_dense(white: bool) -> None:
    settings = replace(SETTINGS, superres=2, haze=0.05, white=white)
    generator = Generator(CONFIG, settings)
    result = RenderOutput(
        torch.full((1, 2, 3), 0.5), torch.full((1, 2), 4.0), torch.tensor([[0.04, 0.06]]), torch.ones(1, 2, 5)
    )
    clear = clear_haze(result, 0.05, white=white)
    assert clear.rgb.tolist() == [[[float(white)] * 3, [0.5] * 3]] and clear.acc.tolist() == [
        [0.0, pytest.approx(0.06)]
    ]
    assert (
        clear.depth.tolist() == [[0.0, 4.0]]
        and clear.features is not None
        and clear.features[0, :, 0].tolist() == [0.0, 1.0]
    )
    codes = Codes(torch.zeros(1, CONFIG.z_shape), torch.zeros(1, CONFIG.z_app))
    with torch.no_grad():
        generator.field.density.weight.zero_()
        generator.field.density.bias.fill_(0.01)  # coverage 0.02 over a path of two units
    hazy = whole_images(generator, codes, torch.zeros(1), torch.tensor([0.3]))
    assert bool((hazy.acc == 0).all()) and bool((hazy.low == (1 if white else -1)).all())
    generator.settings = replace(settings, haze=0.01)
    assert bool((whole_images(generator, codes, torch.zeros(1), torch.tensor([0.3])).acc > 0.01).all())


def test_whole_images_stay_between_black_and_white_and_are_white_where_the_render_is() -> None:
    settings = replace(SETTINGS, superres=2, bound=1.0)
    generator = Generator(CONFIG, settings)
    assert generator.superres is not None
    with torch.no_grad():
        generator.field.density.bias.fill_(2.0)
        generator.superres.write.weight.mul_(1000)  # far more contrast than fits between black and white
    codes = draw_codes(CONFIG, 1, generator=torch.Generator().manual_seed(0))
    images = whole_images(generator, codes, torch.zeros(1), torch.tensor([0.3]))
    assert (
        images.high is not None
        and float(images.high.abs().max()) <= 1 + 1e-6
        and residual(images.high, images.low) <= 1e-6
    )
    blank = (images.low == 1).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert 0.1 < float(blank.float().mean()) < 0.9 and bool((images.high[blank] == 1).all())
    free = generator(request_of(settings)).high
    assert free is not None and float(free.detach().abs().max()) > 1.5, "pixels are not limited in training"


def test_the_discriminators_loss_gives_the_generator_no_gradient() -> None:
    generator, critics = Generator(CONFIG, SETTINGS), Critics(SETTINGS)
    real = real_patches(torch.rand(2, 3, 32, 32), SETTINGS, step=1, what="real")
    request = request_of(SETTINGS)
    loss, _ = critics.loss(generator(request), request, real, penalty=None)
    loss.backward()
    assert all(parameter.grad is None for parameter in generator.parameters())


def test_a_whole_image_does_not_depend_on_the_other_images() -> None:
    settings = replace(SETTINGS, superres=2)
    generator = Generator(CONFIG, settings)
    with torch.no_grad():
        generator.field.density.bias.fill_(1.0)  # something to see
    codes = draw_codes(CONFIG, 3, generator=torch.Generator().manual_seed(0))
    u, v = torch.tensor([0.0, 0.3, 1.0]), torch.full((3,), 0.4)
    images = whole_images(generator, codes, u, v)
    one = whole_images(generator, type(codes)(codes.shape[1:2], codes.app[1:2]), u[1:2], v[1:2])
    assert (
        torch.equal(images.best[1], one.best[0])
        and images.best.shape == (3, 3, 64, 64)
        and float(images.best.std()) > 0.01
    )
    same = whole_images(generator, type(codes)(codes.shape[:1], codes.app[:1]), u[2:], v[2:])
    assert torch.allclose(images.best[0], same.best[0], atol=1e-4), (
        "360 degrees equal 0 degrees, also for the super-resolution"
    )
    assert residual(images.best, images.low) <= 1e-6


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_whole_images_use_at_most_as_many_points_at_a_time_as_a_training_chunk(
    bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, superres=2, bound=bound)
    generator = Generator(CONFIG, settings)
    codes = draw_codes(CONFIG, 1, generator=torch.Generator().manual_seed(0))
    at = torch.tensor([0.3]), torch.tensor([0.4])
    expected = whole_images(generator, codes, *at)
    points = []

    def counting_render(field: Any, rays: Any, codes: Any, draws: Any, **options: Any) -> Any:
        points.append(draws.offsets.numel())
        return render(field, rays, codes, draws, **options)

    monkeypatch.setattr(objective, "render", counting_render)
    generator.settings = replace(settings, memory="checkpoint", chunk=100)
    value = whole_images(generator, codes, *at)
    assert max(points) <= 100 * settings.samples and sum(points) == 4 * settings.samples * 32**2
    assert torch.allclose(value.best, expected.best, atol=1e-5)


class Shell(torch.nn.Module):
    """A shell thinner than the spacing of the points in training, as fields learn from jittered points."""

    config = CONFIG

    def forward(self, points: Any, *_: Any, **__: Any) -> Any:
        in_shell = (points.norm(dim=1, keepdim=True) - 0.6).abs() < 0.03
        return torch.zeros_like(points), torch.where(in_shell, 200.0, -1.0), None


def test_a_thin_shell_has_no_rings_in_a_whole_image() -> None:
    settings = replace(SETTINGS, samples=16, form="eager")
    assert (settings.far - settings.near) / settings.samples > 0.06, (
        "evenly spaced points as dense as in training would sometimes miss it"
    )
    generator = Generator(CONFIG, settings)
    generator.field = Shell()  # type: ignore[assignment]
    codes = draw_codes(CONFIG, 1, generator=torch.Generator().manual_seed(0))
    acc = whole_images(generator, codes, torch.tensor([0.3]), torch.tensor([0.3])).acc[0]
    assert acc[10:22, 10:22].min() > 0.99 and acc[0].max() == 0
