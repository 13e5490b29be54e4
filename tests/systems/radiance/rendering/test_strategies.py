"""Every form and memory strategy gives the image and the gradients of the baseline."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering import passes
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays, draw_patches, draw_poses, patches
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, draw, generator_for, render
from pinchpoint.systems.radiance.rendering.strategies import parts_of
from pinchpoint.systems.radiance.training.budget import build

BATCH, SIDE, SAMPLES = 3, 5, 7


def scene(config: FieldConfig, dtype: torch.dtype) -> tuple[Field, Rays, Codes, Draws]:
    generator = generator_for(0, 1, "test")
    u, v = draw_poses(BATCH, v_range=(0.0, 0.45), generator=generator)
    scale, shift = draw_patches(BATCH, least=0.3, generator=generator)
    rays = Camera().rays(u.to(dtype), v.to(dtype), patches(SIDE, scale.to(dtype), shift.to(dtype)))
    codes = Codes(
        *(
            torch.randn(BATCH, wide, generator=generator, dtype=dtype)
            for wide in (config.z_shape, config.z_app)
        )
    )
    draws = draw(BATCH, SIDE * SIDE, SAMPLES, noise=1.0, generator=generator)
    assert draws.noise is not None
    return Field(config).to(dtype), rays, codes, Draws(draws.offsets.to(dtype), draws.noise.to(dtype))


def image_and_gradients(
    inputs: tuple[Field, Rays, Codes, Draws], *, features: bool = True, **options: Any
) -> dict[str, Tensor]:
    """The image, and the gradients of all parameters and codes."""
    field, rays, codes, draws = inputs
    field.zero_grad()
    own = Codes(*(code.clone().requires_grad_() for code in codes))
    result = render(field, rays, own, draws, features=features, **options)
    loss = result.rgb.sin().sum() + 0.1 * result.depth.sum() + (result.acc**3).sum()
    if result.features is not None:
        loss = loss + result.features.square().sum()
    loss.backward()
    actual = {name: value.detach() for name, value in result._asdict().items() if value is not None}
    actual |= {f"of {name}": parameter.grad for name, parameter in field.named_parameters()}
    return actual | {"of shape": own.shape.grad, "of app": own.app.grad}


class OperationCounter(TorchDispatchMode):
    """Counts the dispatched operations."""

    operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


OTHERS: list[dict[str, Any]] = [
    {"white": False},
    {"endless": True},
    {"white": False, "endless": True, "features": False},
]


def worst(value: dict[str, Tensor], truth: dict[str, Tensor]) -> float:
    assert value.keys() == truth.keys()
    return max(float((value[name] - truth[name]).norm() / truth[name].norm()) for name in truth)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_images_and_gradients_match_those_of_the_baseline(
    preset: str, dtype: torch.dtype, least: float
) -> None:
    inputs = scene(FieldConfig.preset(preset), dtype)
    truth = image_and_gradients(inputs, form="eager")
    for form in ("eager", "folded"):
        for memory in ("none", "checkpoint", "deferred"):
            for chunk in (
                (None, 20) if preset == "small" else (None, 20, 2)
            ):  # 2 is less than one ray per image
                assert (
                    worst(image_and_gradients(inputs, form=form, memory=memory, chunk=chunk), truth) <= least
                ), (
                    form,
                    memory,
                    chunk,
                )


def test_without_directions_all_forms_have_the_same_gradients_and_colours_do_not_depend_on_the_view() -> None:
    inputs = scene(FieldConfig.preset("tiny", direction_octaves=-1), torch.float64)
    truth = image_and_gradients(inputs, form="eager")
    for memory in ("none", "checkpoint", "deferred"):
        assert worst(image_and_gradients(inputs, form="folded", memory=memory, chunk=20), truth) <= 1e-10
    points, codes = torch.rand(6, 3).double(), inputs[2]
    one, other = (inputs[0](points, torch.rand(6, 3).double(), *codes)[0] for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("options", OTHERS)
@pytest.mark.parametrize("noisy", [True, False])
def test_gradients_match_the_baseline_for_every_background_and_last_interval(
    options: dict[str, Any], noisy: bool
) -> None:
    field, rays, codes, draws = scene(FieldConfig.preset("tiny"), torch.float64)
    field.density.bias.data += 0.5  # so that something is visible without noise too
    inputs = field, rays, codes, draws if noisy else Draws(draws.offsets)
    truth = image_and_gradients(inputs, form="eager", **options)
    for memory in ("none", "deferred"):
        assert (
            worst(image_and_gradients(inputs, form="folded", memory=memory, chunk=20, **options), truth)
            <= 1e-10
        )


@pytest.mark.parametrize("what", ["rgb", "depth", "acc", "features"])
def test_the_gradient_of_a_single_output_matches_the_baseline(what: str) -> None:
    field, rays, codes, draws = scene(FieldConfig.preset("tiny"), torch.float64)
    value: list[dict[str, Tensor]] = []
    for form in ("eager", "folded"):
        field.zero_grad()
        result = render(field, rays, codes, draws, form=form, features=True)  # type: ignore[arg-type]
        getattr(result, what).square().sum().backward()
        grads = {
            name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in field.named_parameters()
        }
        value.append(
            {
                name: grad
                for name, grad in grads.items()
                if name not in ("colour.weight", "colour.bias") or what == "rgb"
            }
        )
    assert worst(value[1], value[0]) <= 1e-10


@pytest.mark.slow
def test_forms_agree_in_fp32_at_the_published_size_without_features() -> None:
    inputs = scene(FieldConfig.preset("graf"), torch.float32)
    truth = image_and_gradients(inputs, form="eager", features=False)
    for options in (
        {"memory": "none"},
        {"memory": "checkpoint", "chunk": 30},
        {"memory": "deferred", "chunk": 30},
    ):
        assert worst(image_and_gradients(inputs, form="folded", features=False, **options), truth) <= 1e-5


@pytest.mark.parametrize("form", ["eager", "folded"])
@pytest.mark.parametrize("memory", ["checkpoint", "deferred"])
def test_autocast_is_restored_when_a_render_is_recomputed(form: str, memory: str) -> None:
    inputs = scene(FieldConfig.preset("tiny"), torch.float32)
    plain, half = (
        image_and_gradients(inputs, form=form),
        image_and_gradients(inputs, form=form, precision="bf16"),
    )
    assert worst(half, plain) > 1e-3, "the gradients show the rounding of bf16"
    assert worst(image_and_gradients(inputs, form=form, memory=memory, precision="bf16"), half) <= 1e-6
    # Enabled around the forward pass only, as in training; the backward pass must restore it.
    field, rays, codes, draws = inputs
    field.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        result = render(field, rays, codes, draws, form=form, memory=memory, features=True)
    loss = (
        result.rgb.sin().sum()
        + 0.1 * result.depth.sum()
        + (result.acc**3).sum()
        + result.features.square().sum()
    )
    loss.backward()
    for name, parameter in field.named_parameters():
        torch.testing.assert_close(parameter.grad, half[f"of {name}"], rtol=1e-4, atol=1e-6)


def test_bf16_chunks_differ_from_the_whole_only_by_the_order_of_summation() -> None:
    inputs = scene(FieldConfig.preset("tiny"), torch.float32)
    whole = image_and_gradients(inputs, precision="bf16")
    assert worst(image_and_gradients(inputs, precision="bf16", memory="deferred", chunk=20), whole) < 0.01


@pytest.mark.parametrize("form", ["eager", "folded"])
@pytest.mark.parametrize("memory", ["none", "checkpoint", "deferred"])
def test_every_trainable_parameter_gets_a_gradient_from_the_colours(form: Any, memory: Any) -> None:
    field, rays, codes, draws = scene(FieldConfig.preset("tiny"), torch.float32)
    render(field, rays, codes, draws, form=form, memory=memory, chunk=20).rgb.square().sum().backward()
    without = [name for name, p in field.named_parameters() if p.grad is None or not bool(p.grad.any())]
    assert without == []


@pytest.mark.parametrize("memory", ["checkpoint", "deferred"])
def test_a_hook_on_a_parameter_sees_its_whole_gradient_once(memory: Any) -> None:
    """Data-parallel training relies on this."""
    field, rays, codes, draws = scene(FieldConfig.preset("tiny"), torch.float32)
    observed: list[Tensor] = []
    field.trunk[1].weight.register_hook(lambda gradient: observed.append(gradient.clone()))
    render(field, rays, codes, draws, memory=memory, chunk=20).rgb.square().sum().backward()
    assert len(observed) == 1 and observed[0].equal(field.trunk[1].weight.grad)


def test_frozen_parameters_get_no_gradient() -> None:
    field, rays, codes, draws = scene(FieldConfig.preset("tiny"), torch.float32)
    field.view.requires_grad_(False)
    for form in ("eager", "folded"):
        for memory in ("none", "checkpoint", "deferred"):
            field.zero_grad()
            render(field, rays, codes, draws, form=form, memory=memory, chunk=20).rgb.sum().backward()
            assert field.view.weight.grad is None and field.remap.weight.grad is not None, (form, memory)


@pytest.mark.parametrize(
    ("memory", "chunk", "most"), [("none", None, 500), ("checkpoint", 8, 850), ("deferred", 8, 850)]
)
def test_a_step_with_the_triton_kernels_takes_few_operations(
    memory: str, chunk: int | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every operation, including views, costs the host microseconds; with too many the GPU waits. The kernels
    themselves are skipped, as for fake tensors.
    """
    monkeypatch.setattr("pinchpoint.systems.radiance.rendering.passes.own_kernels", lambda _: True)
    for module in ("points", "shading"):
        monkeypatch.setattr(f"pinchpoint.systems.radiance.rendering.{module}.is_fake", lambda _: True)
    config = FieldConfig.preset("graf", width=16)
    settings = {
        "config": config.to_json(),
        "batch": "2",
        "samples": "4",
        "form": "folded",
        "precision": "bf16",
        "features": "no",
    }
    case = build(
        32,
        device="cpu",
        mode="train",
        variant=memory,
        seed=0,
        chunk=chunk,
        settings=settings | {"walked": "all"},
    )
    case.step()
    with OperationCounter() as counted:
        case.step()
    assert counted.operations <= most


@pytest.mark.parametrize(
    ("form", "memory", "times"),
    [
        ("eager", "none", 5),
        ("eager", "checkpoint", 10),
        ("folded", "none", 5),
        ("folded", "checkpoint", 9),
        ("folded", "deferred", 10),
    ],
)
def test_chunks_are_rendered_twice_except_for_the_last_of_a_folded_field(
    form: str, memory: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = scene(FieldConfig.preset("tiny"), torch.float64)
    render_result = 0

    def count(*_: Any) -> None:
        nonlocal render_result
        render_result += 1

    if form == "eager":
        inputs[0].register_forward_pre_hook(count)
    else:
        state = passes._state
        monkeypatch.setattr(
            passes, "_state", lambda *settings, **request: (count(), state(*settings, **request))[1]
        )
    image_and_gradients(inputs, form=form, memory=memory, chunk=15)
    assert render_result == times


def test_a_second_backward_pass_renders_the_last_chunk_too() -> None:
    field, rays, codes, draws = scene(FieldConfig.preset("tiny"), torch.float64)
    loss = render(field, rays, codes, draws, form="folded", memory="checkpoint", chunk=15).rgb.sin().sum()
    first, second = (
        torch.autograd.grad(loss, list(field.parameters()), retain_graph=True, allow_unused=True)
        for _ in range(2)
    )
    for one, two in zip(first, second, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)


@pytest.mark.parametrize(
    ("images", "rays", "chunk"),
    [(3, 25, 20), (3, 25, 2), (1, 10, 4), (8, 1024, 8192), (8, 1024, None), (5, 7, 4)],
)
def test_parts_cover_every_ray_once_and_are_within_the_chunk(
    images: int, rays: int, chunk: int | None
) -> None:
    counts = torch.zeros(images, rays)
    for part in parts_of(images, rays, chunk):
        counts[part] += 1
        assert chunk is None or counts[part].numel() <= chunk
    assert bool((counts == 1).all())
    sizes = {counts[part].shape[1] for part in parts_of(images, rays, chunk)}
    assert max(sizes) - min(sizes) <= 1, "as even as possible"


def test_a_chunk_of_zero_rays_is_refused() -> None:
    with pytest.raises(BadInput):
        parts_of(1, 1, 0)
