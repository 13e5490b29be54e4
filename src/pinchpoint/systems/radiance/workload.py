"""The radiance field as a workload: the field's share of one GAN iteration over exactly `size` rays.

B images, R = size / B rays of each, S points per ray; B is the largest number of images, up to the requested
one, that divides the rays evenly, so that every size is possible. A training step renders once without
gradients, as in the discriminator's turn, once with them, runs the backward pass of a loss of the pixels, and
takes a step of RMSprop; inference renders once. All randomness follows from the seed and the step.

With precision fp32 the probe returns the pixels in fp32, and both pixels and gradients in float64. A gradient
jumps where rounding pushes a unit across zero, which happens at different units in two ways of computing the
same thing: in fp32 `eager` itself is 5e-4 away from its own float64 gradients (preset graf), which would hide
a wrong form and condemn a right one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe
from pinchpoint.systems.radiance import CHUNK
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.rays import Camera, draw_poses
from pinchpoint.systems.radiance.rendering.render import (
    Codes,
    Draws,
    Form,
    Precision,
    RenderOutput,
    draw,
    generator_for,
    render,
)
from pinchpoint.systems.radiance.rendering.strategies import Memory

WAYS: dict[str, tuple[Form, Memory]] = {
    "eager": ("eager", "none"),
    "folded": ("folded", "none"),
    "checkpoint": ("eager", "checkpoint"),
    "deferred": ("eager", "deferred"),
    "folded+checkpoint": ("folded", "checkpoint"),
}


@dataclass(frozen=True)
class Part:
    """A field and how it is rendered. codes: those of the probe, whose gradients are compared too."""

    field: Field
    codes: Codes
    image: Callable[
        [Field, int, str, Codes | None], RenderOutput
    ]  # (field, step, purpose, codes or None to draw them)
    rays: int
    exact: bool  # whether the probe's gradients are computed in float64


def build(
    size: int,
    *,
    device: str,
    mode: str,
    variant: str,
    seed: int,
    settings: dict[str, str],
    chunk: int | None = None,
) -> Case:
    """One case. In training, `eager` and `folded` take all rays at once: chunks would not
    lower their memory.
    """
    if chunk is not None and chunk < 1:
        raise BadInput(
            f"The chunk is {chunk} rays, but it must be at least 1.", hint="Give a chunk of at least 1 ray."
        )
    if size < 1:
        raise BadInput(
            f"The size is {size} rays, but it must be at least 1.", hint="Give a size of at least 1 ray."
        )
    batch, samples = int(settings["batch"]), int(settings["samples"])
    batch = next(images for images in range(min(batch, size), 0, -1) if size % images == 0)
    form, memory = WAYS[variant]
    config = FieldConfig.preset(settings["field"])
    field = Field(config, seed=seed)
    if device != "cpu":  # fake parameters cannot be moved to the device they are on
        field = field.to(device)
    # At least two chunks: a single one would be rendered again and save nothing.
    at_once = (chunk or min(CHUNK, -(-size // 2))) if memory != "none" else None
    camera, precision = Camera(), cast(Precision, settings["precision"])

    def codes_of(generator: torch.Generator) -> Codes:
        wide = (config.z_shape, config.z_app)
        return Codes(*(torch.empty(batch, each, device=device).normal_(generator=generator) for each in wide))

    def image(of: Field, step: int, what: str, codes: Codes | None) -> RenderOutput:
        generator = generator_for(seed, step, what, device=device)
        places = torch.empty(batch, size // batch, 2, device=device).uniform_(-1, 1, generator=generator)
        u, v = draw_poses(batch, v_range=(0.0, 0.45), generator=generator)
        codes = codes_of(generator) if codes is None else codes
        draws = draw(batch, size // batch, samples, noise=1.0, generator=generator)
        if of.colour.bias.dtype == torch.float64:  # the same numbers, whatever precision they are used in
            places, u, v = places.double(), u.double(), v.double()
            draws = Draws(draws.offsets.double(), None if draws.noise is None else draws.noise.double())
        rays = camera.rays(u, v, places)
        return render(of, rays, codes, draws, form=form, memory=memory, chunk=at_once, precision=precision)

    codes = codes_of(generator_for(seed, 0, "codes", device=device))
    part = Part(field, codes, image, size, exact=precision == "fp32")
    return Case(
        step=_train(part) if mode == "train" else _infer(part),
        processed=part.rays,
        probe=lambda: _probe(part, gradients=mode == "train"),
    )


def _train(part: Part) -> Callable[[], Tensor]:
    optimizer = torch.optim.RMSprop(part.field.parameters(), lr=5e-4, alpha=0.99, eps=1e-8)
    steps = 0

    def step() -> Tensor:
        nonlocal steps
        steps += 1
        optimizer.zero_grad()
        with torch.no_grad():
            part.image(part.field, steps, "for the discriminator", None)
        loss = part.image(part.field, steps, "for the generator", None).rgb.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _infer(part: Part) -> Callable[[], Tensor]:
    def step() -> Tensor:
        with torch.no_grad():
            return part.image(part.field, 1, "to look at", None).rgb

    return step


def _probe(part: Part, *, gradients: bool) -> Probe:
    """Pixels, depths, a loss, and the gradients of every weight and of the codes."""
    if not part.exact:
        return _probe_field(part.field, part, gradients=gradients)
    probe = _probe_field(part.field, part, gradients=False)
    exact = _probe_field(copy.deepcopy(part.field).double(), part, gradients=gradients)
    return Probe(
        outputs={**probe.outputs, **{f"{name} in float64": values for name, values in exact.outputs.items()}},
        gradients=exact.gradients,
    )


def _probe_field(field: Field, part: Part, *, gradients: bool) -> Probe:
    """The probe in the field's own type."""
    field.zero_grad()
    dtype = field.colour.bias.dtype
    codes = Codes(*(code.detach().clone().to(dtype).requires_grad_(gradients) for code in part.codes))
    with torch.set_grad_enabled(gradients):
        output = part.image(field, 1, "probe", codes)
        # Every output contributes, and the loss is odd in the colours, so that a wrong sign shows.
        loss = (
            (output.rgb + 0.25 * output.rgb.square()).mean()
            + 0.1 * output.depth.mean()
            + 0.1 * output.acc.mean()
        )
    named: dict[str, Tensor | None] = {}
    if gradients:
        loss.backward()
        named = {name: p.grad for name, p in field.named_parameters()}
        named |= {"z_shape": codes.shape.grad, "z_app": codes.app.grad}
    return Probe(
        outputs={
            "rgb": _array(output.rgb),
            "depth": _array(output.depth),
            "acc": _array(output.acc),
            "loss": _array(loss),
        },
        gradients={name: None if gradient is None else _array(gradient) for name, gradient in named.items()},
    )


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()
