"""The memory tricks of the GRAF memory guide, and some of our own, as changes to one iteration of its GAN.

The iteration is the guide's: GRAF's field as published, its super-resolution with a gradient, a patch
discriminator, R1, two RMSprops, a loader, and a preview image. A trick changes nothing but the options in its
`Ways`. All randomness follows from the seed, so that gradients can be compared. Letters: B images, p side of
a patch, S points per ray.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from pinchpoint.systems.radiance.explain.legacy import LegacySuperRes
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.discriminator import Discriminator
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.losses import loss_as_generated, loss_as_real, slope_penalty
from pinchpoint.systems.radiance.rendering.rays import Camera, draw_patches, draw_poses, patches
from pinchpoint.systems.radiance.rendering.render import Codes, Form, draw, generator_for, render
from pinchpoint.systems.radiance.rendering.strategies import Memory

WORKERS = 0  # loader workers, as in the guide's configuration
R1 = 10.0
SCALE = 2.0**8  # loss scale for fp16, at which a scaler that starts at 2^16 settles
SHOWN = 512  # rays per chunk of a preview image


@dataclass(frozen=True)
class Ways:
    """Options of an iteration; the defaults are those of the baseline."""

    form: Form = "eager"
    memory: Memory = "none"
    parts: int = 8  # chunks of rays, if `memory` uses chunks
    cast: torch.dtype | None = None  # autocast around both networks; R1 stays in fp32, as in the guide
    scalers: int = 0  # loss scalers
    sr_no_grad: bool = False  # the super-resolution under no_grad, then requires_grad_(True)
    sr_by_image: bool = False  # the super-resolution one image at a time, recomputed in the backward pass
    eval_no_grad: bool = False  # a second no_grad around the preview
    delete: bool = False  # delete locals as soon as they are unused
    empty_cache: bool = False  # and gc.collect(), after the preview
    set_to_none: bool = False  # passed explicitly
    loader: bool = False  # pinned, prefetching, persistent if it has workers
    non_blocking: bool = False
    global_type: bool = False  # tensors without a device are created on the GPU; the guide removes this
    new_losses: bool = False  # a loss object is created every iteration; the guide removes this
    fewer_rays: bool = False  # a quarter of the rays of a patch
    half_batch: bool = False  # half of the images of a step

    def side(self, patch: int) -> int:
        """Rays per side of the rendered patch."""
        return patch // 2 if self.fewer_rays else patch


@dataclass(frozen=True)
class Trick:
    """A trick. about: what it does; of: `guide`, `advice` (in the guide, but not applied there) or `instead`
    (ours).
    """

    name: str
    about: str
    of: str
    ways: Ways


_GUIDE = {
    "sr_no_grad": True,
    "eval_no_grad": True,
    "delete": True,
    "empty_cache": True,
    "set_to_none": True,
    "loader": True,
    "non_blocking": True,
    "cast": torch.float16,
    "scalers": 2,
}
TRICKS: tuple[Trick, ...] = (
    Trick("baseline", "the iteration before any trick", "-", Ways()),
    Trick(
        "amp",
        "autocast to fp16 around both networks, with loss scaling",
        "guide",
        Ways(cast=torch.float16, scalers=1),
    ),
    Trick("two-scalers", "a loss scaler for each network, without autocast", "guide", Ways(scalers=2)),
    Trick(
        "no-grad-sr",
        "super-resolution under no_grad, then requires_grad_(True)",
        "guide",
        Ways(sr_no_grad=True),
    ),
    Trick("no-grad-eval", "no_grad around sampling, which already has it", "guide", Ways(eval_no_grad=True)),
    Trick("del-locals", "del of local variables after each network's step", "guide", Ways(delete=True)),
    Trick("empty-cache", "empty_cache() and gc.collect() after sampling", "guide", Ways(empty_cache=True)),
    Trick(
        "set-to-none", "zero_grad(set_to_none=True), which is the default", "guide", Ways(set_to_none=True)
    ),
    Trick("loader", "pin_memory, prefetch_factor, persistent_workers", "guide", Ways(loader=True)),
    Trick(
        "non-blocking",
        "non-blocking copies from pinned memory",
        "guide",
        Ways(loader=True, non_blocking=True),
    ),
    Trick(
        "global-tensor-type",
        "with the GPU as default device, which the guide removes",
        "guide",
        Ways(global_type=True),
    ),
    Trick(
        "loss-once",
        "with a new loss object per step, which the guide removes",
        "guide",
        Ways(new_losses=True),
    ),
    Trick("together", "all tricks of the guide", "guide", Ways(**_GUIDE)),
    Trick("fewer-rays", "a quarter of the rays of a patch", "advice", Ways(fewer_rays=True)),
    Trick(
        "checkpoint",
        "rays in 8 chunks, rendered again in the backward pass",
        "advice",
        Ways(memory="checkpoint"),
    ),
    Trick("deferred", "rendered without a graph, then again in 8 chunks", "instead", Ways(memory="deferred")),
    Trick("folded", "codes and directions as biases, with merged layers", "instead", Ways(form="folded")),
    Trick("bf16", "autocast to bf16 around both networks, no scaler", "instead", Ways(cast=torch.bfloat16)),
    Trick(
        "instead",
        "bf16, folded, rays in 16 chunks, super-resolution per image, both recomputed",
        "instead",
        Ways(form="folded", memory="deferred", parts=16, cast=torch.bfloat16, sr_by_image=True),
    ),
)
NAMES = tuple(trick.name for trick in TRICKS)
# What the guide advises to change about the training itself, so that gradients cannot be compared.
CHANGES: tuple[Trick, ...] = (
    Trick("half-batch", "half of the images per step", "advice", Ways(half_batch=True)),
)
EVERY = (*TRICKS, *CHANGES)


@dataclass(frozen=True)
class Scale:
    """Size of an iteration. up, views: options of the super-resolution."""

    field: str = "graf"
    batch: int = 8
    patch: int = 32
    samples: int = 64
    critic: int = 64
    width: int = 64
    up: int = 8
    views: int = 72
    images: int = 64  # pixels per side of the data


FULL = Scale()  # the guide's size
SMALL = Scale(field="tiny", batch=2, samples=8, critic=8, width=8, up=2, views=8)


class Players(nn.Module):
    """The field, the super-resolution and the discriminator."""

    def __init__(self, scale: Scale, ways: Ways, *, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):  # leave the caller's random state untouched
            torch.manual_seed(seed)
            self.field = Field(FieldConfig.preset(scale.field), seed=seed)
            self.superres = LegacySuperRes(
                ways.side(scale.patch),
                width=scale.width,
                views=scale.views,
                up=scale.up,
                no_grad=ways.sr_no_grad,
            )
            self.critic = Discriminator(scale.patch, width=scale.critic, bias=False)


class Iteration:
    """One GAN iteration: `step` runs it repeatedly, `gradients` runs the first one without an update."""

    def __init__(self, scale: Scale, ways: Ways, *, device: str, seed: int = 0) -> None:
        if ways.half_batch:
            scale = replace(scale, batch=max(1, scale.batch // 2))
        self.scale, self.ways, self.device, self.seed = scale, ways, device, seed
        self.players = Players(scale, ways, seed=seed)
        if device != "cpu":  # fake parameters cannot be moved to the device they are on
            self.players = self.players.to(device)
        parameters = [*self.players.field.parameters(), *self.players.superres.parameters()]
        self.optimizer_g = torch.optim.RMSprop(parameters, lr=5e-4, alpha=0.99, eps=1e-8)
        self.optimizer_d = torch.optim.RMSprop(
            self.players.critic.parameters(), lr=1e-4, alpha=0.99, eps=1e-8
        )
        scalers = [
            torch.amp.GradScaler(device, init_scale=SCALE, enabled=ways.scalers > 0)
            for _ in range(max(1, ways.scalers))
        ]
        self.scaler_d, self.scaler_g = scalers[0], scalers[-1]
        self.real, self.numbers = self._real_batches(), 0
        # The local variables of a training loop live until the next iteration assigns them again.
        self.locals: dict[str, Any] = {}

    def step(self) -> Tensor:
        """Train the discriminator, then the generator, and render the preview. Returns the generator's loss,
        ().
        """
        self.numbers += 1
        self._turn_of_critic(self.numbers)
        self._update(self.optimizer_d, self.scaler_d, last=self.scaler_d is not self.scaler_g)
        loss = self._turn_of_generator(self.numbers)
        self._update(self.optimizer_g, self.scaler_g, last=True)
        self._look()
        return loss

    def gradients(self) -> dict[str, Tensor | None]:
        """Gradients of every parameter at the first iteration, unscaled; None where missing."""
        self._turn_of_critic(1)
        self.scaler_d.unscale_(self.optimizer_d)
        gradients = {f"critic.{name}": p.grad for name, p in self.players.critic.named_parameters()}
        self._turn_of_generator(1)
        if _any_gradient(self.optimizer_g):
            self.scaler_g.unscale_(self.optimizer_g)
        for part in ("field", "superres"):
            module: nn.Module = getattr(self.players, part)
            gradients |= {f"{part}.{name}": p.grad for name, p in module.named_parameters()}
        return gradients

    def _turn_of_critic(self, number: int) -> None:
        local = self.locals
        self._zero(self.optimizer_d)
        self.players.critic.refresh()
        local["x_real"] = self._to_device(next(self.real)[0])
        with torch.no_grad():  # as published
            local["x_fake"] = self._generate(number, "for the discriminator")
        reg, _ = slope_penalty(self.players.critic, local["x_real"], reduction="graf")
        with self._cast():
            local["d_real"], local["d_fake"] = (
                self.players.critic(local[name]) for name in ("x_real", "x_fake")
            )
        loss_of_real, loss_of_generated = self._losses()
        local["reg"] = R1 * reg
        local["dloss"] = loss_of_real(local["d_real"]) + loss_of_generated(local["d_fake"]) + local["reg"]
        self.scaler_d.scale(local["dloss"]).backward()
        if self.ways.delete:
            local.clear()

    def _turn_of_generator(self, number: int) -> Tensor:
        local = self.locals
        self._zero(self.optimizer_g)
        self.players.critic.requires_grad_(False)
        try:
            local["x_fake"] = self._generate(number, "for the generator")
            with self._cast():
                local["d_fake"] = self.players.critic(local["x_fake"])
            local["gloss"] = self._losses()[0](local["d_fake"])
            self.scaler_g.scale(local["gloss"]).backward()
        finally:
            self.players.critic.requires_grad_(True)
        loss = local["gloss"].detach()
        if self.ways.delete:
            local.clear()
        return loss

    def _generate(self, number: int, what: str, *, look: bool = False) -> Tensor:
        """Generate patches of B images: (B, 3, p, p) in [-1, 1]."""
        scale, ways, field = self.scale, self.ways, self.players.field
        side = ways.side(scale.patch)
        draws_from = generator_for(self.seed, number, what, device=self.device)
        # Poses and codes are created as in the guide: without a device, then sent to it. The numbers come
        # from the host in either case, so that gradients can be compared.
        host, home = generator_for(self.seed, number, what), self.device if ways.global_type else "cpu"
        u, v = (pose.to(home) for pose in draw_poses(scale.batch, v_range=(0.0, 0.45), generator=host))
        wide = (field.config.z_shape, field.config.z_app)
        codes_drawn = (torch.empty(scale.batch, each).normal_(generator=host).to(home) for each in wide)
        codes = Codes(*(self._to_device(code) for code in codes_drawn))
        where = patches(side, *draw_patches(scale.batch, least=0.5, generator=draws_from))
        rays = Camera().rays(self._to_device(u), self._to_device(v), where)
        draws = draw(
            scale.batch, side * side, scale.samples, noise=0.0 if look else 1.0, generator=draws_from
        )
        chunk = scale.batch * side * side // ways.parts if ways.memory != "none" else None
        with self._cast():
            output = render(
                field, rays, codes, draws, form=ways.form, memory=ways.memory, chunk=SHOWN if look else chunk
            )
            low = output.rgb.mT.unflatten(2, (side, side)).contiguous() * 2 - 1
            view = self._to_device((u * scale.views).long() % scale.views)
            return self._enlarge(low, view)

    def _enlarge(self, low: Tensor, view: Tensor) -> Tensor:
        if not self.ways.sr_by_image:
            return self.players.superres(low, view)
        parts = zip(low.split(1), view.split(1), strict=True)
        return torch.cat([checkpoint(self.players.superres, *part, use_reentrant=False) for part in parts])  # pyright: ignore[reportCallIssue, reportArgumentType]

    def _look(self) -> None:
        """Render a preview image, without gradients as published."""
        with torch.no_grad() if self.ways.eval_no_grad else nullcontext(), torch.no_grad():
            self._generate(0, "to look at", look=True)
        if self.ways.empty_cache:
            torch.cuda.empty_cache()
            gc.collect()

    def _update(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, *, last: bool) -> None:
        # A scaler raises an error for a network without any gradient, as `no-grad-sr` leaves one.
        if _any_gradient(optimizer):
            scaler.step(optimizer)
            if last:
                scaler.update()

    def _zero(self, optimizer: torch.optim.Optimizer) -> None:
        if self.ways.set_to_none:
            optimizer.zero_grad(set_to_none=True)
        else:
            optimizer.zero_grad()

    def _losses(self) -> tuple[Any, Any]:
        if self.ways.new_losses:
            return _Loss(real=True), _Loss(real=False)
        return loss_as_real, loss_as_generated

    def _cast(self) -> AbstractContextManager[object]:
        kind = torch.device(self.device).type
        return nullcontext() if self.ways.cast is None else torch.autocast(kind, self.ways.cast)

    def _to_device(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, non_blocking=self.ways.non_blocking)

    def _real_batches(self) -> Iterator[list[Tensor]]:
        """Yield batches of real patches endlessly."""
        scale, ways = self.scale, self.ways
        data = torch.empty(2 * scale.batch, 3, scale.patch, scale.patch)
        data.uniform_(-1, 1, generator=generator_for(self.seed, 0, "real"))
        order = generator_for(self.seed, 0, "order")
        options: dict[str, Any] = {}
        if ways.loader:
            options = {
                "pin_memory": self.device != "cpu",
                "prefetch_factor": 2 if WORKERS else None,
                "persistent_workers": WORKERS > 0,
                "num_workers": min(WORKERS, 4),
            }
        loader = DataLoader(
            TensorDataset(data), batch_size=scale.batch, shuffle=True, generator=order, **options
        )
        while True:
            yield from loader


def _any_gradient(optimizer: torch.optim.Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


class _Loss(nn.Module):
    """A loss as a module, as in the guide."""

    def __init__(self, *, real: bool) -> None:
        super().__init__()
        self.of = loss_as_real if real else loss_as_generated

    def forward(self, logits: Tensor) -> Tensor:
        return self.of(logits)
