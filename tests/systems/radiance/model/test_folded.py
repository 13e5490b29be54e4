"""The folded field: the same values with fewer operations, and its memory for the backward pass."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.folded import FoldedField, _product_in_parts
from pinchpoint.systems.radiance.rendering import points, shading
from pinchpoint.systems.radiance.rendering.compositing import Scene
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, draw, generator_for, render
from pinchpoint.systems.radiance.rendering.strategies import wider

BATCH, SAMPLES = 2, 8
POINTS = BATCH * SAMPLES  # points per additional ray


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"point_octaves": 0, "direction_octaves": 0},
        {"direction_octaves": -1},
        {"skip": 0},
        {"skip": 2},
        {"width": 34, "depth": 2, "skip": 0},
    ],
)
def test_values_and_features_match_those_of_the_field(changes: dict[str, Any]) -> None:
    config = FieldConfig.preset("tiny", **changes)
    field = Field(config).double()
    torch.manual_seed(0)
    origins, directions, offsets = (
        torch.randn(2, 3, 3).double(),
        torch.randn(2, 3, 3).double(),
        torch.rand(2, 3, 4).double(),
    )
    shape, app = torch.randn(2, 8).double(), torch.randn(2, 8).double()
    scene = Scene(Rays(origins, directions, 3.0, 5.0), offsets, None, white=True, endless=False)
    at = origins[:, :, None] + directions[:, :, None] * (3 + 0.5 * (torch.arange(4) + offsets))[..., None]
    colour, density, features = field(at.reshape(-1, 3), directions.reshape(-1, 3), shape, app, features=True)

    part = slice(0, 2), slice(0, 3)
    with torch.no_grad():
        folded_field = FoldedField(config, dict(field.named_parameters()), shape, app, dtype=torch.float64)
        encoding = points.encoded_points(config, scene, part, torch.float64, own=False)
        towards = points.encoded_directions(config, scene, part, own=False)
        layers, images = points.forward(folded_field, encoding, part[0], keep=True)
        raw = shading.colour_points(
            folded_field, images, (towards @ folded_field.view).flatten(0, 1), write=True, own=False
        )
    torch.testing.assert_close(raw.t(), torch.cat((colour, density), dim=1), rtol=0, atol=1e-13)
    torch.testing.assert_close(images[:, : config.features], features, rtol=0, atol=1e-13)
    assert len(layers) == config.depth and images.shape[1] % 8 == encoding.shape[2] % 8 == 0


def test_every_weight_and_bias_is_cast() -> None:
    config = FieldConfig.preset("tiny")
    codes = torch.zeros(1, config.z_shape), torch.zeros(1, config.z_app)
    parameters = {name: value.detach() for name, value in Field(config).named_parameters()}
    for at in range(1, config.depth):
        field = FoldedField(config, parameters, *codes, dtype=torch.bfloat16)
        assert field.bias(at).equal(parameters[f"trunk.{at}.bias"].to(torch.bfloat16))
        skip_columns = config.encoded_point + config.z_shape if at == config.skip + 1 else 0
        own = parameters[f"trunk.{at}.weight"][:, skip_columns:]
        assert field.weight(at).equal(own.t().to(torch.bfloat16))


def render_inputs(rays: int, samples: int = SAMPLES) -> tuple[Any, ...]:
    generator = generator_for(0, 0, "held")
    images = Camera().rays(torch.rand(BATCH), torch.rand(BATCH) / 2, 2 * torch.rand(rays, 2) - 1)
    return (
        images,
        Codes(torch.randn(BATCH, 128), torch.randn(BATCH, 128)),
        draw(BATCH, rays, samples, noise=1.0, generator=generator),
    )


def saved_bytes(field: Field, rays: int, **options: Any) -> int:
    """Bytes that autograd stores after a render, without the parameters."""
    own = {compat.storage_key(parameter.untyped_storage()) for parameter in field.parameters()}
    storages: dict[int, Any] = {}  # keeps them alive: the address of a freed one could be reused

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[compat.storage_key(storage)] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        render(field, *render_inputs(rays), **options)
    return sum(storage.nbytes() for key, storage in storages.items() if key not in own)


def peak_bytes(field: Field, rays: int, **options: Any) -> int:
    """The peak of a step; fake tensors work too."""
    inputs = render_inputs(rays)

    def step() -> None:
        field.zero_grad()
        render(field, *inputs, **options).rgb.square().sum().backward()

    return measurement.account(step) or 0


def test_a_product_in_parts_is_that_of_the_whole_also_for_columns_of_a_wider_matrix() -> None:
    random = torch.Generator().manual_seed(0)
    wide, right = (torch.randn(*size, generator=random).double() for size in ((5, 27), (16, 7)))
    left = wide[:, 3:19]
    torch.testing.assert_close(_product_in_parts(left, right), left @ right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(_product_in_parts(right.t(), left.t()), right.t() @ left.t())


@pytest.mark.parametrize(
    ("form", "precision", "published"),
    [
        ("eager", "fp32", 13_560),
        ("eager", "bf16", 6_490),
        ("folded", "fp32", 9_006),
        ("folded", "bf16", 5_161),
    ],
)
def test_the_bytes_per_point_stored_for_the_backward_pass_match_the_documentation(
    form: str, precision: str, published: int
) -> None:
    field = Field(FieldConfig.preset("graf"))
    images = [saved_bytes(field, rays, form=form, precision=precision) for rays in (4, 8)]
    a_point = (images[1] - images[0]) / (4 * POINTS)
    if form == "eager":
        assert a_point == pytest.approx(published, rel=0.002)
    else:
        assert a_point <= published * 1.005, (
            "the encoding and the view layer are padded to multiples of eight"
        )


@pytest.mark.parametrize("memory", ["checkpoint", "deferred"])
def test_a_step_in_chunks_stores_one_chunk(memory: str) -> None:
    field = Field(FieldConfig.preset("graf"))
    options = {"form": "folded", "memory": memory, "chunk": 16}
    peaks = [peak_bytes(field, rays, **options) for rays in (16, 48)]
    assert (peaks[1] - peaks[0]) / (32 * POINTS) < 30, "only draws and pixels grow"
    assert peaks[0] < 0.8 * peak_bytes(field, 48, form="folded")


def test_a_render_without_gradients_stores_two_layers_per_point() -> None:
    field = Field(FieldConfig.preset("graf"))

    @torch.no_grad()
    def image(rays: int) -> int:
        inputs = render_inputs(rays)
        return measurement.account(lambda: render(field, *inputs)) or 0

    assert (image(32) - image(16)) / (16 * POINTS) < 3 * 256 * 4


@pytest.mark.parametrize("features", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("form", ["eager", "folded"])
def test_a_wider_chunk_without_gradients_needs_no_more_memory_than_a_chunk_with_them(
    form: Any, precision: Any, features: bool
) -> None:
    wide = wider(16, form)
    assert wide is not None and wide > 16
    options = {"form": form, "precision": precision, "features": features}
    with compat.fake_mode() if precision == "bf16" else nullcontext():  # a CPU is slow in bf16
        field, inputs = Field(FieldConfig.preset("graf")), render_inputs(wide)
        peak = peak_bytes(field, 16, **options)
        assert (measurement.account(lambda: torch.no_grad()(render)(field, *inputs, **options)) or 0) <= peak


KINK = 6e-5  # twice the rounding of units in fp32, most of which is in the angles of the encoding


def on_device(inputs: tuple[Any, ...], dtype: torch.dtype, device: str) -> tuple[Any, ...]:
    rays, codes, draws = inputs
    return (
        Rays(rays.origins.to(device, dtype), rays.directions.to(device, dtype), rays.near, rays.far),
        Codes(*(code.to(device, dtype) for code in codes)),
        Draws(draws.offsets.to(device, dtype), draws.noise.to(device, dtype)),
    )


def watch_units(field: Field) -> list[torch.Tensor]:
    """The list to which the field adds its units before activation, (points, width) for each layer."""
    units: list[torch.Tensor] = []
    for layer in (*field.trunk, field.view):
        layer.register_forward_hook(lambda _layer, _input, output: units.append(output.detach()))
    return units


@torch.no_grad()
def away_from_kinks(inputs: tuple[Any, ...], count: int, device: str) -> tuple[Any, ...]:
    """The same with the first `count` rays of each image whose units all are further than KINK from zero."""
    rays, codes, draws = inputs
    field = Field(FieldConfig.preset("graf")).to(device, torch.float64)
    units = watch_units(field)
    render(field, *on_device(inputs, torch.float64, device), form="eager", precision="fp32")
    assert len(units) == len(field.trunk) + 1
    nearest = (
        torch.stack([layer.abs().amin(1) for layer in units]).amin(0).view(BATCH, rays.origins.shape[1], -1)
    )
    clear = [image.nonzero()[:count, 0] for image in nearest.amin(2).cpu() > KINK]
    assert [len(image) for image in clear] == [count] * BATCH, "draw more rays"
    index = torch.stack(clear)[:, :, None]
    origins, directions, offsets, noise = (
        value.gather(1, index.expand(-1, -1, value.shape[2]))
        for value in (rays.origins, rays.directions, draws.offsets, draws.noise)
    )
    return Rays(origins, directions, rays.near, rays.far), codes, Draws(offsets, noise)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here")
@pytest.mark.parametrize(("precision", "count", "far"), [("fp32", 4, 1e-5), ("bf16", 256, 0.05)])
def test_gradients_on_a_gpu_match_those_of_the_field(
    precision: Any, count: int, far: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are as close to float64 as those of autograd.

    Where rounding moves a unit across the kink of its activation, the gradient jumps. Among millions of
    units, some are always that close to it, so fp32 is compared at few rays, where none is. On a GPU the
    layers use kernels that fuse bias and activation into the product.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inputs = render_inputs(4096, samples=4) if precision == "fp32" else render_inputs(count)
    if precision == "fp32":
        inputs = away_from_kinks(inputs, count, "cuda")
    layers_of_folded: list[torch.Tensor] = []
    forward = points.forward

    def watch_layers(*args: Any, **options: Any) -> Any:
        layers, view = forward(*args, **options)
        layers_of_folded.extend(layers)
        return layers, view

    monkeypatch.setattr(points, "forward", watch_layers)

    def gradients(
        form: Any, precision: Any, dtype: torch.dtype
    ) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        field = Field(FieldConfig.preset("graf")).to("cuda", dtype)
        units = watch_units(field)
        result = render(field, *on_device(inputs, dtype, "cuda"), form=form, precision=precision)
        result.rgb.square().sum().backward()
        values = {name: p.grad for name, p in field.named_parameters() if p.grad is not None}
        return {"rgb": result.rgb.detach()} | values, units

    truth, exact = gradients("eager", "fp32", torch.float64)
    ours, _ = gradients("folded", precision, torch.float32)
    autograd, plain = gradients("eager", precision, torch.float32)
    if precision == "fp32":
        assert len(exact) == len(plain) == len(layers_of_folded) + 1 == 9
        assert min(float(layer.abs().min()) for layer in exact) > KINK, "no unit is at its kink"
        for true, eager in zip(exact, plain, strict=True):
            assert float((eager - true).abs().max()) < KINK
        for true, folded in zip(exact, layers_of_folded, strict=False):  # without the view layer
            assert float((folded - true.relu()).abs().max()) < KINK
    for name, true in truth.items():
        off = [float((value[name] - true).norm() / true.norm()) for value in (ours, autograd)]
        assert off[0] <= max(far, 1.5 * off[1]), name
