"""The Triton kernels of the folded field on a GPU, compared with plain torch: values, gradients, sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field, encode
from pinchpoint.systems.radiance.rendering import passes, points
from pinchpoint.systems.radiance.rendering.compositing import Scene, depths_of, points_of
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, draw, generator_for, midpoints, render

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here"),
]
DEVICE = "cuda"
TINY = FieldConfig.preset("tiny")
Inputs = tuple[Field, Rays, Codes, Draws]


def scene(config: FieldConfig, batch: int, rays: int, samples: int) -> Inputs:
    generator = generator_for(0, samples, "kernels")
    poses = torch.rand(2, batch, generator=generator)
    images = Camera().rays(poses[0], poses[1] / 2, 2 * torch.rand(batch, rays, 2, generator=generator) - 1)
    codes = Codes(
        *(torch.randn(batch, wide, generator=generator).to(DEVICE) for wide in (config.z_shape, config.z_app))
    )
    draws = draw(batch, rays, samples, noise=1.0, generator=generator)
    assert draws.noise is not None
    field = Field(config).to(DEVICE)
    field.density.bias.data += 0.3  # so that something is visible without noise too
    on = Rays(images.origins.to(DEVICE), images.directions.to(DEVICE), images.near, images.far)
    return field, on, codes, Draws(draws.offsets.to(DEVICE), draws.noise.to(DEVICE))


def image_and_gradients(inputs: Inputs, **options: Any) -> dict[str, Tensor]:
    """The pixels, and the gradients of parameters and codes."""
    field, rays, codes, draws = inputs
    field.zero_grad()
    own = Codes(*(code.clone().requires_grad_() for code in codes))
    result = render(field, rays, own, draws, form="folded", **options)
    loss = result.rgb.sin().sum() + 0.1 * result.depth.sum() + (result.acc**3).sum()
    if result.features is not None:
        loss = loss + result.features.square().sum()
    loss.backward()
    actual = {name: value.detach() for name, value in result._asdict().items() if value is not None}
    actual |= {f"of {name}": parameter.grad for name, parameter in field.named_parameters()}
    return actual | {"of shape": own.shape.grad, "of app": own.app.grad}  # type: ignore[dict-item]


def worst(value: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    assert value.keys() == truth.keys()
    return max(
        float((value[name] - truth[name]).norm() / truth[name].norm().clamp_min(1e-20)) for name in truth
    )


@pytest.fixture
def plain_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Tensor]]:
    """A function like `image_and_gradients` that uses plain torch."""

    def run(inputs: Inputs, **options: Any) -> dict[str, Tensor]:
        with monkeypatch.context() as patched:
            patched.setattr("pinchpoint.systems.radiance.rendering.render.runs_own", lambda *_: False)
            return image_and_gradients(inputs, **options)

    return run


def test_kernels_run_for_supported_scenes_only() -> None:
    _, rays, _, draws = scene(TINY, 2, 3, 4)
    images = Scene(rays, draws.offsets, draws.noise, white=True, endless=False)
    assert passes.runs_own(TINY, images, torch.bfloat16) and not passes.runs_own(TINY, images, torch.float64)
    long = images._replace(offsets=torch.rand(2, 3, 1025, device=DEVICE), noise=None)
    assert not passes.runs_own(TINY, long, torch.float32)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"features": True},
        {"white": False},
        {"endless": True},
        {"features": True, "endless": True, "white": False},
        {"memory": "checkpoint", "chunk": 24, "features": True},
        {"memory": "deferred", "chunk": 2},
        {"chunk": 24},
    ],
)
@pytest.mark.parametrize(
    "config",
    [
        TINY,
        FieldConfig.preset("small"),
        FieldConfig.preset("tiny", width=34, depth=2, skip=0),
        FieldConfig.preset("tiny", point_octaves=0, direction_octaves=0, width=2),
        FieldConfig.preset("tiny", direction_octaves=-1),
    ],
    ids=["tiny", "small", "odd", "least", "undirected"],
)
def test_images_and_gradients_match_those_of_plain_torch(
    config: FieldConfig, options: dict[str, Any], plain_torch: Any
) -> None:
    inputs = scene(config, 3, 17, 13)
    assert worst(image_and_gradients(inputs, **options), plain_torch(inputs, **options)) <= 1e-5


@pytest.mark.parametrize("first", [1, 33, 65, 97])
def test_results_match_for_every_number_of_points_per_ray(first: int, plain_torch: Any) -> None:
    for samples in range(first, first + 32):
        inputs = scene(TINY, 2, 5, samples)
        assert (
            worst(image_and_gradients(inputs, features=True), plain_torch(inputs, features=True)) <= 1e-5
        ), samples


@pytest.mark.parametrize("samples", [256, 1000, 1024, 1025])
def test_results_match_for_many_points_per_ray(samples: int, plain_torch: Any) -> None:
    inputs = scene(TINY, 1, 7, samples)
    assert (
        worst(
            image_and_gradients(inputs, features=True, endless=True),
            plain_torch(inputs, features=True, endless=True),
        )
        <= 1e-5
    )


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("options", [{}, {"features": True}, {"memory": "checkpoint", "chunk": 100}])
def test_half_precision_errors_are_no_larger_than_those_of_plain_torch(
    precision: str, options: dict[str, Any], plain_torch: Any
) -> None:
    inputs = scene(FieldConfig.preset("small"), 4, 96, 32)
    truth = plain_torch(inputs, precision="fp32", **options)
    tolerance = 1.3 * worst(plain_torch(inputs, precision=precision, **options), truth) + 1e-4
    assert 1e-5 < worst(image_and_gradients(inputs, precision=precision, **options), truth) <= tolerance


@pytest.mark.parametrize("rays", [3, 17])
@pytest.mark.parametrize("options", [{}, {"features": True}])
def test_gradients_match_where_a_program_has_several_rays(
    rays: int, options: dict[str, Any], plain_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for thousands of rays, with two or more tiles each; with 3 x 3 of them, two programs have none."""
    monkeypatch.setattr(points, "PROGRAMS", 7)
    inputs = scene(FieldConfig.preset("small"), 3, rays, 70)
    assert worst(image_and_gradients(inputs, **options), plain_torch(inputs, **options)) <= 1e-5


def test_expanded_offsets_and_missing_noise_are_read_correctly(plain_torch: Any) -> None:
    field, rays, codes, draws = scene(TINY, 2, 6, 5)
    assert draws.noise is not None
    middle = midpoints(2, 6, 5, device=DEVICE)
    wide = Rays(rays.origins, rays.directions.repeat(1, 2, 1)[:, ::2], rays.near, rays.far)
    part = Draws(
        draws.offsets.repeat(1, 2, 1)[:, 3:9], torch.cat((draws.noise, draws.noise), dim=2)[..., 2:7]
    )
    for images, sample in ((rays, middle), (wide, draws), (rays, part)):
        inputs = field, images, codes, sample
        assert worst(image_and_gradients(inputs), plain_torch(inputs)) <= 1e-5


def test_repeated_gradients_are_identical_to_the_bit() -> None:
    inputs = scene(FieldConfig.preset("small"), 4, 64, 32)
    options: dict[str, Any] = {"features": True, "precision": "bf16", "memory": "checkpoint", "chunk": 100}
    first, again = image_and_gradients(inputs, **options), image_and_gradients(inputs, **options)
    assert all(first[name].equal(again[name]) for name in first)


@pytest.mark.parametrize("octaves", [0, 1, 4, 10, 13])
def test_encoded_points_match_torch_to_the_last_bits(octaves: int) -> None:
    config = FieldConfig.preset("tiny", point_octaves=octaves)
    _, rays, _, draws = scene(config, 3, 11, 64)
    images = Scene(rays, draws.offsets, None, white=True, endless=False)
    part = slice(1, 3), slice(2, 11)
    value = points.encoded_points(config, images, part, torch.float32, own=True)
    plain = points_of(rays.part(*part), depths_of(rays, draws.offsets[part])).flatten(1, 2)
    assert value[..., :3].equal(plain), "the points themselves are the same"
    assert bool((value[..., config.encoded_point :] == 1).all())
    exact = encode(plain.double(), octaves)
    assert float((value[..., : config.encoded_point] - exact).abs().max()) <= 1.5e-7
    half = points.encoded_points(config, images, part, torch.bfloat16, own=True)
    assert half.equal(value.to(torch.bfloat16))


@pytest.mark.parametrize("count", [1, 17, 5000, 70_001])
@pytest.mark.parametrize("width", [2, 34, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_is_masked_and_summed(count: int, width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(count)
    slope = torch.randn(count, width, generator=generator).to(DEVICE, dtype)
    hidden = torch.randn(count, width, generator=generator).relu().to(DEVICE, dtype)
    truth = torch.where(hidden > 0, slope, 0)
    sums = torch.ones(points.PROGRAMS, width, device=DEVICE)
    alone, with_sums = slope.clone(), slope.clone()
    points.mask(alone, hidden, None, own=True)
    points.mask(with_sums, hidden, sums, own=True)
    assert alone.equal(truth) and with_sums.equal(truth)
    torch.testing.assert_close(
        sums.double().sum(0) - points.PROGRAMS, truth.double().sum(0), rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize("programs", [2, 132])
@pytest.mark.parametrize("encoded", [48, 64])
@pytest.mark.parametrize("each", [1, 64, 1000])
def test_kernels_of_whole_layers_match_float64(
    encoded: int, each: int, programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two programs each has many tiles, as for half a million points."""
    from pinchpoint.systems.radiance.rendering import layers_triton

    monkeypatch.setattr(layers_triton, "_PROGRAMS", programs)
    random, images, groups = torch.Generator().manual_seed(each), 3, 5

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).to(DEVICE, torch.bfloat16)

    def off(value: Tensor, truth: Tensor) -> float:
        return float((value.double() - truth).norm() / truth.norm())

    encoding, entry = numbers(images, each, encoded), numbers(images, encoded, 256)
    hidden = torch.empty(images * each, 256, device=DEVICE, dtype=torch.bfloat16)
    layers_triton.read(encoding, entry, hidden)
    assert off(hidden, (encoding.double() @ entry.double()).relu().flatten(0, 1)) < 4e-3
    weights, again = numbers(images, 256 + encoded, 256), torch.full_like(hidden, float("nan"))
    layers_triton.read_again(hidden, encoding, weights, again)
    both = torch.cat((hidden.view(images, each, 256), encoding), dim=2).double()
    assert off(again, (both @ weights.double()).relu().flatten(0, 1)) < 4e-3
    once_more = torch.full_like(hidden, float("nan"))
    layers_triton.read_again(hidden, encoding, weights, once_more)
    assert once_more.equal(again)
    for wide in (256, 136):
        slope, weight = numbers(images * each, wide), numbers(wide, 256)
        products = torch.full((groups, wide, 256), float("nan"), device=DEVICE)
        sums, out = torch.ones(groups, 256, device=DEVICE), torch.empty_like(hidden)
        layers_triton.back(slope, weight, hidden, out, products, sums)
        truth = torch.where(hidden > 0, slope.double() @ weight.double(), 0)
        assert off(out, truth) < 4e-3
        assert off(products.sum(0), slope.double().t() @ hidden.double()) < 1e-5
        assert off(sums.double().sum(0) - groups, truth.sum(0)) < 1e-4
    gathered = torch.full((images, groups, encoded, 256), float("nan"), device=DEVICE)
    layers_triton.gather(encoding, out, gathered)
    assert off(gathered.sum(1), encoding.double().mT @ out.double().view(images, each, 256)) < 1e-5


@pytest.mark.parametrize("wide", [256, 136])
def test_products_that_run_beside_loads_are_the_same_every_time(wide: int) -> None:
    """A product that read a tile while the next one overwrites it would differ from run to run."""
    from pinchpoint.systems.radiance.rendering import layers_triton

    random = torch.Generator(DEVICE).manual_seed(wide)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random, device=DEVICE, dtype=torch.bfloat16)

    slope, weight, hidden = numbers(65_536, wide), numbers(wide, 256), numbers(65_536, 256).relu()
    runs = []
    for _ in range(3):
        out = torch.full_like(hidden, float("nan"))
        products = torch.full((points.GROUPS, wide, 256), float("nan"), device=DEVICE)
        sums = torch.zeros(points.GROUPS, 256, device=DEVICE)
        layers_triton.back(slope, weight, hidden, out, products, sums)
        runs.append((out, products, sums))
    assert all(one.equal(first) for run in runs[1:] for one, first in zip(run, runs[0], strict=True))
    truth = slope.double().t() @ hidden.double()
    assert float((runs[0][1].double().sum(0) - truth).norm() / truth.norm()) < 1e-5


@pytest.mark.parametrize("programs", [7, points.PROGRAMS])
@pytest.mark.parametrize("options", [{}, {"features": True}, {"memory": "checkpoint", "chunk": 100}])
@pytest.mark.parametrize("preset", ["graf", "tuned"])
def test_errors_of_whole_layers_are_no_larger_than_those_of_plain_torch(
    preset: str, options: dict[str, Any], programs: int, plain_torch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(points, "PROGRAMS", programs)  # with seven, each has several rays
    inputs = scene(FieldConfig.preset(preset), 3, 96, 32)
    if torch.cuda.get_device_capability()[0] == 9:
        assert points.runs_fused(inputs[0].config, inputs[3].offsets, torch.bfloat16)
    truth = plain_torch(inputs, precision="fp32", **options)
    tolerance = 1.3 * worst(plain_torch(inputs, precision="bf16", **options), truth) + 1e-4
    value = image_and_gradients(inputs, precision="bf16", **options)
    assert 1e-5 < worst(value, truth) <= tolerance
    again = image_and_gradients(inputs, precision="bf16", **options)
    assert all(value[name].equal(again[name]) for name in value), "repeated gradients are identical"


def test_nan_is_not_hidden() -> None:
    field, rays, codes, draws = scene(TINY, 1, 3, 4)
    with torch.no_grad():
        field.density.bias.fill_(float("nan"))
        result = render(field, rays, codes, draws)
        assert bool(result.rgb.isnan().all()) and bool(result.acc.isnan().all())
