"""The radiance field as a workload: the field's part of one GAN iteration over exactly `size` rays.

B images, R = size / B rays of each, S points of a ray; B is the most images, up to those asked for, that share the rays
evenly, so that every size is met. A training step renders once without gradients, as
the discriminator's turn does, once with, takes the backward pass of a loss of the pixels, and RMSprop's step; inference
renders once. What is random follows from the seed and the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe
from pinchpoint.workloads.radiance import CHUNK
from pinchpoint.workloads.radiance.config import FieldConfig
from pinchpoint.workloads.radiance.field import Field
from pinchpoint.workloads.radiance.rays import Camera, draw_poses
from pinchpoint.workloads.radiance.render import Codes, Form, Precision, Rendered, draw, generator_for, render
from pinchpoint.workloads.radiance.strategies import Memory

WAYS: dict[str, tuple[Form, Memory]] = {
    "eager": ("eager", "none"),
    "folded": ("folded", "none"),
    "checkpoint": ("eager", "checkpoint"),
    "deferred": ("eager", "deferred"),
    "folded+checkpoint": ("folded", "checkpoint"),
}


@dataclass(frozen=True)
class Part:
    """A field and how it is rendered. codes: of the probe, whose gradients are compared too."""

    field: Field
    codes: Codes
    image: Callable[[int, str, Codes | None], Rendered]  # of a step and a use, with these codes or drawn ones
    rays: int


def build(
    size: int, *, device: str, mode: str, variant: str, seed: int, settings: dict[str, str], chunk: int | None = None
) -> Case:
    """One case. `eager` and `folded` take all rays at once in training, as their memory would not fall by chunks."""
    if chunk is not None and chunk < 1:
        raise BadInput(f"a chunk of {chunk} rays", mend="give a chunk of at least 1 ray")
    if size < 1:
        raise BadInput(f"{size} rays", mend="give a size of at least 1 ray")
    batch, samples = int(settings["batch"]), int(settings["samples"])
    batch = next(images for images in range(min(batch, size), 0, -1) if size % images == 0)
    form, memory = WAYS[variant]
    config = FieldConfig.preset(settings["field"])
    field = Field(config, seed=seed)
    if device != "cpu":  # fake parameters cannot be moved to where they are
        field = field.to(device)
    at_once = (chunk or CHUNK) if memory != "none" else None
    camera, precision = Camera(), cast(Precision, settings["precision"])

    def codes_of(generator: torch.Generator) -> Codes:
        wide = (config.z_shape, config.z_app)
        return Codes(*(torch.empty(batch, each, device=device).normal_(generator=generator) for each in wide))

    def image(step: int, what: str, codes: Codes | None) -> Rendered:
        generator = generator_for(seed, step, what, device=device)
        places = torch.empty(batch, size // batch, 2, device=device).uniform_(-1, 1, generator=generator)
        rays = camera.rays(*draw_poses(batch, v_range=(0.0, 0.45), generator=generator), places)
        codes = codes_of(generator) if codes is None else codes
        draws = draw(batch, size // batch, samples, noise=1.0, generator=generator)
        return render(field, rays, codes, draws, form=form, memory=memory, chunk=at_once, precision=precision)

    part = Part(field, codes_of(generator_for(seed, 0, "codes", device=device)), image, size)
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
            part.image(steps, "for the discriminator", None)
        loss = part.image(steps, "for the generator", None).rgb.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _infer(part: Part) -> Callable[[], Tensor]:
    def step() -> Tensor:
        with torch.no_grad():
            return part.image(1, "to look at", None).rgb

    return step


def _probe(part: Part, *, gradients: bool) -> Probe:
    """Pixels, depths, a loss, and the gradients of every weight and of the codes."""
    part.field.zero_grad()
    codes = Codes(*(code.detach().clone().requires_grad_(gradients) for code in part.codes))
    with torch.set_grad_enabled(gradients):
        made = part.image(1, "probe", codes)
        # Every output takes part, and the loss is odd in the colours, so that a wrong sign shows.
        loss = (made.rgb + 0.25 * made.rgb.square()).mean() + 0.1 * made.depth.mean() + 0.1 * made.acc.mean()
    named: dict[str, Tensor | None] = {}
    if gradients:
        loss.backward()
        named = {name: p.grad for name, p in part.field.named_parameters()}
        named |= {"z_shape": codes.shape.grad, "z_app": codes.app.grad}
    return Probe(
        outputs={"rgb": _array(made.rgb), "depth": _array(made.depth), "acc": _array(made.acc), "loss": _array(loss)},
        gradients={name: None if gradient is None else _array(gradient) for name, gradient in named.items()},
    )


def _array(tensor: Tensor) -> Any:
    return tensor.detach().float().cpu().numpy().copy()
