"""One iteration of the GAN: discriminators, then generator, each in micro-batches whose gradients are summed.

All randomness follows from the seed and the step. Every process draws for the images of all processes and
uses its own share: two processes with 4 images each take the same step as one with 8.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.systems.common.training.distributed import Ranks
from pinchpoint.systems.common.training.optimizer import update_average
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.data.patches import Real, real_patches, rows_among, whole_rows
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.labels import class_rows, sector_rows
from pinchpoint.systems.radiance.model.losses import check_gradients
from pinchpoint.systems.radiance.model.objective import Critics, Generator, Request, draw_request
from pinchpoint.systems.radiance.rendering.render import generator_for
from pinchpoint.systems.radiance.rendering.strategies import wider
from pinchpoint.systems.radiance.settings import Settings
from pinchpoint.systems.radiance.training import cuda_graphs

_FOR_DISCRIMINATOR = "made for the discriminator"
_HOPELESS = 1e-4  # an fp16 loss scale this small was halved for a reason other than overflow


class _Turns(NamedTuple):
    """Each turn as one graph."""

    refresh: cuda_graphs.ReplayedTurn
    discriminate: cuda_graphs.ReplayedTurn
    penalise: cuda_graphs.ReplayedTurn  # the discriminators' turn with R1
    generate: cuda_graphs.ReplayedTurn


class Stepper:
    """Both players, their optimizers, the scaler that fp16 needs, and the averaged generator."""

    def __init__(
        self,
        config: FieldConfig,
        settings: Settings,
        images: Images,
        device: str,
        *,
        ranks: Ranks | None = None,
        is_limited: bool = False,
    ) -> None:
        """is_limited: by a budget, within which graphs stay in the memory that it counts."""
        self.config, self.settings, self.images, self.device = config, settings, images, device
        self.ranks = ranks or Ranks()
        self.generator = Generator(config, settings)
        self.critics = Critics(settings, classes=len(config.classes))
        self.labels = label_rows(config, settings, images)
        if device != "cpu":  # fake weights cannot be moved to the device they are on
            self.generator, self.critics = self.generator.to(device), self.critics.to(device)
        self.averaged = copy.deepcopy(self.generator).requires_grad_(False) if settings.ema else None
        self.optimizer_g = _optimizer(self.generator, settings, settings.lr)
        self.optimizer_d = _optimizer(self.critics, settings, settings.lr_d)
        # One scaler for both players: it only guards the range of fp16, which the two losses share.
        self.scaler = torch.amp.GradScaler(device, enabled=settings.precision == "fp16")
        self._turns = self._record_turns(is_limited) if uses_graphs(settings, device) else None
        self._real_of_step: tuple[int, Real] | None = None
        self._request_ahead: tuple[int, Request] | None = None

    def averaged_generator(self) -> Generator:
        """The generator for images: with averaged weights if they are kept."""
        return self.generator if self.averaged is None else self.averaged

    def step(self, number: int) -> Tensor:
        """Take step 1, 2, ...: (4,) the generator's loss, the norm of both gradients, the discriminators'
        loss, R1's share of it.
        """
        share = self.settings.share_of_rate(number)
        for optimizer, rate in ((self.optimizer_g, self.settings.lr), (self.optimizer_d, self.settings.lr_d)):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        (self.critics.refresh if self._turns is None else self._turns.refresh)()
        loss_d, slope = self.discriminate(number)
        # a rarer penalty weighs more, and so does its gradient
        counted = self.settings.r1_every if self.settings.penalty_at(number) else 1
        norm_d = self._update(
            self.critics, self.optimizer_d, first=number == 1, most=self.settings.clip * counted
        )
        loss_g = self.generate(number)
        norm_g = self._update(self.generator, self.optimizer_g, first=number == 1, most=self.settings.clip)
        self.scaler.update()
        if self.averaged is not None:
            update_average(self.averaged, self.generator, ema=self.settings.ema, number=number)
        means = self.ranks.mean(torch.stack([loss_g, loss_d, slope]))
        result = torch.stack(
            [means[0], self._reported_norm(torch.hypot(norm_g, norm_d), means[1]), means[1], means[2]]
        )
        if self._turns is not None:
            self.draw_ahead(number + 1)
        return result

    def draw_ahead(self, number: int) -> None:
        """Draw what the first turn of a step reads, while the GPU is busy with the step before: at the start
        of a step it would wait for the host.
        """
        if number <= self.settings.steps:
            self._request_ahead = number, self.request(number, _FOR_DISCRIMINATOR)
            self.real(number)

    def discriminate(self, number: int) -> tuple[Tensor, Tensor]:
        """Add the gradients of the discriminators' loss to theirs. (), (): the loss, and R1's share of it."""
        self.optimizer_d.zero_grad(set_to_none=True)
        request = self._first_request(number)
        real = self.real(number)
        weight = self.settings.penalty_at(number)
        penalty = torch.full((), weight, device=self.device) if weight else None
        if self._turns is not None:
            inputs = *real.tensors(), *_noisy(request).tensors()
            loss, slope = (
                self._turns.discriminate(*inputs)
                if penalty is None
                else self._turns.penalise(penalty, *inputs)
            )
            return loss, slope
        total = torch.zeros(2, device=self.device)
        for images, share in self._parts():
            total += torch.stack(
                self._discriminator_part(real.part(images), request.part(images), penalty, share)
            )
        return total[0], total[1]

    def _discriminator_part(
        self, real: Real, request: Request, penalty: Tensor | None, share: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Process some of the images: (), () their share of the loss and of R1; gradients are added to the
        discriminators'.
        """
        with torch.no_grad():
            images = self.generator(
                request, memory="none", chunk=wider(self.settings.chunk, self.settings.form)
            )
        loss, slope = self.critics.loss(images, request, real, penalty=penalty)
        self.scaler.scale(share * loss).backward()
        return share * loss.detach(), share * slope

    def generate(self, number: int) -> Tensor:
        """Add the gradients of the generator's loss to its own. (): the loss."""
        self.optimizer_g.zero_grad(set_to_none=True)
        request = self.request(number, "made for the generator")
        real = self.real(number) if self.generator.learns_from_pairs else None
        if self._turns is not None:
            return self._turns.generate(
                *(() if real is None else real.tensors()), *_noisy(request).tensors()
            )[0]
        total = torch.zeros((), device=self.device)
        for images, share in self._parts():
            total += self._generator_part(
                None if real is None else real.part(images), request.part(images), share
            )
        return total

    def _generator_part(self, real: Real | None, request: Request, share: float = 1.0) -> Tensor:
        """Process some of the images: () their share of the loss; gradients are added to the generator's."""
        self.critics.requires_grad_(False)
        try:
            if real is None:
                loss = self.critics.generator_loss(self.generator(request), request)
            else:
                images, unlike, drift = self.generator.to_images_with_pairs(
                    self.generator.render_rays(request), request, real
                )
                loss = self.critics.generator_loss(images, request) + self.settings.sr_pairs * (
                    unlike + drift
                )
            self.scaler.scale(share * loss).backward()
        finally:
            self.critics.requires_grad_(True)
        return share * loss.detach()

    def _record_turns(self, is_limited: bool) -> _Turns:
        has_labels = self.labels is not None
        # number of tensors of real patches
        cut = (1 if self.settings.superres == 1 else 2) + has_labels
        paired = cut if self.generator.learns_from_pairs else 0
        whole = self._whole_rows()
        # A weak reference: a cycle through its own turns would keep the stepper, with all graph memory, until
        # Python collects cycles.
        own = weakref.proxy(self)

        def refresh() -> tuple[Tensor, ...]:
            own.critics.refresh()
            return ()

        def discriminate(*tensors: Tensor, penalty: Tensor | None = None) -> tuple[Tensor, ...]:
            return own._discriminator_part(
                Real.of(*tensors[:cut], has_labels=has_labels),
                Request.of(*tensors[cut:], whole=whole),
                penalty,
            )

        def penalise(penalty: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            return discriminate(*tensors, penalty=penalty)

        def generate(*tensors: Tensor) -> tuple[Tensor, ...]:
            real = Real.of(*tensors[:paired], has_labels=has_labels) if paired else None
            return (own._generator_part(real, Request.of(*tensors[paired:], whole=whole)),)

        shared = cuda_graphs.new_pool(is_limited=is_limited)
        return _Turns(
            cuda_graphs.ReplayedTurn(refresh, pool=shared),
            cuda_graphs.ReplayedTurn(discriminate, self.critics.parameters(), pool=shared),
            cuda_graphs.ReplayedTurn(penalise, self.critics.parameters(), pool=shared),
            cuda_graphs.ReplayedTurn(generate, self.generator.parameters(), pool=shared),
        )

    def request(self, number: int, what: str) -> Request:
        """The patches this process generates."""
        every = draw_request(
            self.config, self.settings, step=number, what=what, device=self.device, batch=self._every
        )
        if self.ranks.world == 1:
            return every
        own = every.part(self._own())
        # releases the draws of the other processes
        return Request.of(*(tensor.clone() for tensor in own.tensors()), whole=own.whole)

    def _first_request(self, number: int) -> Request:
        """The patches generated for the discriminators."""
        ahead, self._request_ahead = self._request_ahead, None
        if ahead is not None and ahead[0] == number:
            return ahead[1]
        return self.request(number, _FOR_DISCRIMINATOR)

    def real(self, number: int) -> Real:
        """The real patches this process uses: the same in both players' turns."""
        if self._real_of_step is not None and self._real_of_step[0] == number:
            return self._real_of_step[1]
        generator = generator_for(self.settings.seed, number, "real images", device=self.device)
        own = self._own()
        numbers = torch.randint(len(self.images), (self._every,), generator=generator, device=self.device)[
            own
        ]
        images = self.images.batch(numbers)
        real = real_patches(
            images, self.settings, step=number, what="real patches", every=self._every, first=own.start
        )
        if self.labels is not None:
            real = real._replace(labels=self.labels[numbers])
        self._real_of_step = number, real
        return real

    def state(self) -> dict[str, Any]:
        return {
            "generator": self.generator.state_dict(),
            "critics": self.critics.state_dict(),
            "optimizer_g": self.optimizer_g.state_dict(),
            "optimizer_d": self.optimizer_d.state_dict(),
            "ema": None if self.averaged is None else self.averaged.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        for name in ("generator", "critics", "scaler"):
            getattr(self, name).load_state_dict(state[name])
        for name in ("optimizer_g", "optimizer_d"):
            optimizer = getattr(self, name)
            optimizer.load_state_dict(_as_here(state[name], optimizer))
        if self.averaged is not None:
            self.averaged.load_state_dict(state["ema"])

    @property
    def _every(self) -> int:
        """Images per step over all processes."""
        return self.settings.batch * self.ranks.world

    def _whole_rows(self) -> tuple[int, ...]:
        """The patches of this process that consist of whole pixels, the same in every step."""
        return rows_among(whole_rows(self._every, self.settings), range(self._every)[self._own()])

    def _own(self) -> slice:
        return slice(self.ranks.rank * self.settings.batch, (self.ranks.rank + 1) * self.settings.batch)

    def _parts(self) -> Iterator[tuple[slice, float]]:
        """Micro-batches and their share of the batch; the last may be smaller and weighs less."""
        batch = self.settings.batch
        most = min(batch, self.settings.micro or batch)
        for first in range(0, batch, most):
            last = min(batch, first + most)
            yield slice(first, last), (last - first) / batch

    def _update(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, *, first: bool, most: float
    ) -> Tensor:
        """Take the optimizer step of one player. (): the norm of its gradient before clipping."""
        self.ranks_mean(module)
        self.scaler.unscale_(optimizer)
        if first:
            check_gradients(module, what="generator" if module is self.generator else "discriminator")
        norm = nn.utils.clip_grad_norm_(module.parameters(), most)
        self.scaler.step(optimizer)
        return norm.detach()

    @torch.no_grad()
    def ranks_mean(self, module: nn.Module) -> None:
        """Average the gradients over the processes in one message, after the last micro-batch."""
        if self.ranks.world == 1:
            return
        gradients: list[Tensor] = []
        for parameter in module.parameters():
            # The super-resolution gets no gradient if none of this process's patches consists of whole
            # pixels.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = self.ranks.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(
            gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def _reported_norm(self, norm: Tensor, loss_d: Tensor) -> Tensor:
        """The norm; not finite if the run has diverged. An fp16 overflow is harmless: the scaler skips the
        step.
        """
        if not self.scaler.is_enabled():
            return norm
        # Computed on the device, so that no step waits. A finite loss minus itself is 0, any other is NaN.
        diverged_mark = (loss_d - loss_d).masked_fill(compat.loss_scale(self.scaler) < _HOPELESS, torch.nan)
        return torch.where(torch.isfinite(norm), norm, diverged_mark)


def label_rows(config: FieldConfig, settings: Settings, images: Images) -> Tensor | None:
    """The labels of all images, (N, L), or None in a run without labels."""
    if not settings.label_weight:
        return None
    parts = []
    if config.classes:
        assert images.labels is not None
        parts.append(class_rows(images.labels, len(config.classes)))
    if settings.view_sectors:
        assert images.turns is not None
        parts.append(sector_rows(images.turns, settings.view_sectors))
    return torch.cat(parts, dim=1)


def uses_graphs(settings: Settings, device: str) -> bool:
    """Whether each turn is one graph: on a GPU, if the batch is processed at once."""
    return settings.graphs and device == "cuda" and (settings.micro or settings.batch) >= settings.batch


def _noisy(request: Request) -> Request:
    """Replace missing noise by zeros, so that a turn is recorded once and not again when the noise ends."""
    if request.draws.noise is not None:
        return request
    return replace(request, draws=replace(request.draws, noise=torch.zeros_like(request.draws.offsets)))


def _as_here(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state with the kernels of this machine: those of the machine that wrote it may be
    missing.
    """
    groups = zip(state["param_groups"], optimizer.param_groups, strict=True)
    return {
        **state,
        "param_groups": [
            {**group, **({"fused": own["fused"]} if "fused" in own else {})} for group, own in groups
        ],
    }


def _optimizer(module: nn.Module, settings: Settings, rate: float) -> torch.optim.Optimizer:
    if settings.optimizer == "adam":
        # one kernel on CUDA; on a CPU the default
        fused = all(parameter.is_cuda for parameter in module.parameters()) or None
        return torch.optim.Adam(
            module.parameters(), lr=rate, betas=(0.0, 0.99), weight_decay=settings.weight_decay, fused=fused
        )
    return torch.optim.RMSprop(
        module.parameters(), lr=rate, alpha=0.99, eps=1e-8, weight_decay=settings.weight_decay
    )
