"""One iteration of the GAN: discriminators, then generator, each in parts of the batch whose gradients are summed.

Everything random follows from the seed and the step. The draws are those of all processes' images, of which each takes its
own: two processes of 4 images take the step one of 8 does.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from pinchpoint.backends.torch import compat
from pinchpoint.systems.common.distributed import Ranks
from pinchpoint.systems.radiance import cuda_graphs
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.data.patches import Real, real_patches, rows_among, whole_rows
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.losses import check_gradients
from pinchpoint.systems.radiance.model.objective import Critics, Generator, Request, draw_request
from pinchpoint.systems.radiance.rendering.render import generator_for
from pinchpoint.systems.radiance.rendering.strategies import wider
from pinchpoint.systems.radiance.settings import Settings

_HOPELESS = 1e-4  # a scale of fp16 below this has been halved for what is no overflow


class _Turns(NamedTuple):
    """Each turn as one graph."""

    refresh: cuda_graphs.Replayed
    discriminate: cuda_graphs.Replayed
    penalise: cuda_graphs.Replayed  # the same with R1
    generate: cuda_graphs.Replayed


class Stepper:
    """Both players, their optimizers, the scaler that fp16 needs, and the averaged generator."""

    def __init__(
        self, config: FieldConfig, told: Settings, images: Images, device: str, *, ranks: Ranks | None = None
    ) -> None:
        self.config, self.told, self.images, self.device = config, told, images, device
        self.ranks = ranks or Ranks()
        self.generator, self.critics = Generator(config, told), Critics(told)
        if device != "cpu":  # where they are made; weights on fake tensors cannot be moved
            self.generator, self.critics = self.generator.to(device), self.critics.to(device)
        self.averaged = copy.deepcopy(self.generator).requires_grad_(False) if told.ema else None
        self.optimizer_g = _optimizer(self.generator, told, told.lr)
        self.optimizer_d = _optimizer(self.critics, told, told.lr_d)
        # One for both: it only guards the range of fp16, which the two losses share.
        self.scaler = torch.amp.GradScaler(device, enabled=told.precision == "fp16")
        self._turns = self._replayed() if replays(told, device) else None
        self._looked_at: tuple[int, Real] | None = None

    def trained(self) -> Generator:
        """What to make images with: the averaged weights where there are some."""
        return self.generator if self.averaged is None else self.averaged

    def step(self, number: int) -> Tensor:
        """Step 1, 2, ...: (4,) the generator's loss, the norm of both gradients, the discriminators' loss, R1's part in it."""
        share = self.told.share_of_rate(number)
        for optimizer, rate in ((self.optimizer_g, self.told.lr), (self.optimizer_d, self.told.lr_d)):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        (self.critics.refresh if self._turns is None else self._turns.refresh)()
        loss_d, slope = self.discriminate(number)
        counted = (
            self.told.r1_every if self.told.penalty_at(number) else 1
        )  # times that a penalty counts, and so its slope
        norm_d = self._update(
            self.critics, self.optimizer_d, first=number == 1, most=self.told.clip * counted
        )
        loss_g = self.generate(number)
        norm_g = self._update(self.generator, self.optimizer_g, first=number == 1, most=self.told.clip)
        self.scaler.update()
        self._average(number)
        found = self.ranks.mean(torch.stack([loss_g, loss_d, slope]))
        return torch.stack(
            [found[0], self._told_norm(torch.hypot(norm_g, norm_d), found[1]), found[1], found[2]]
        )

    def discriminate(self, number: int) -> tuple[Tensor, Tensor]:
        """Add the gradients of the discriminators' loss to theirs. (), (): the loss, and R1's part in it."""
        self.optimizer_d.zero_grad(set_to_none=True)
        asked = self.request(number, "made for the discriminator")
        real = self.real(number)
        weight = self.told.penalty_at(number)
        penalty = torch.full((), weight, device=self.device) if weight else None
        if self._turns is not None:
            given = *real.tensors(), *_noisy(asked).tensors()
            loss, slope = (
                self._turns.discriminate(*given) if penalty is None else self._turns.penalise(penalty, *given)
            )
            return loss, slope
        total = torch.zeros(2, device=self.device)
        for images, share in self._parts():
            total += torch.stack(self._discriminated(real.part(images), asked.part(images), penalty, share))
        return total[0], total[1]

    def _discriminated(
        self, real: Real, asked: Request, penalty: Tensor | None, share: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Of some of the images: (), () the share of the loss and of R1's part, their gradients added to the discriminators'."""
        with torch.no_grad():
            seen = self.generator(asked, memory="none", chunk=wider(self.told.chunk, self.told.form))
        loss, slope = self.critics.loss(seen, asked, real, penalty=penalty)
        self.scaler.scale(share * loss).backward()
        return share * loss.detach(), share * slope

    def generate(self, number: int) -> Tensor:
        """Add the gradients of the generator's loss to its own. (): the loss."""
        self.optimizer_g.zero_grad(set_to_none=True)
        asked = self.request(number, "made for the generator")
        real = self.real(number) if self.generator.learns_from_pairs else None
        if self._turns is not None:
            return self._turns.generate(*(() if real is None else real.tensors()), *_noisy(asked).tensors())[
                0
            ]
        total = torch.zeros((), device=self.device)
        for images, share in self._parts():
            total += self._generated(None if real is None else real.part(images), asked.part(images), share)
        return total

    def _generated(self, real: Real | None, asked: Request, share: float = 1.0) -> Tensor:
        """Of some of the images: () the share of the loss, its gradients added to the generator's."""
        self.critics.requires_grad_(False)
        try:
            if real is None:
                loss = self.critics.deceived(self.generator(asked), asked)
            else:
                seen, unlike, strayed = self.generator.shown_with_pairs(
                    self.generator.rendered(asked), asked, real
                )
                loss = self.critics.deceived(seen, asked) + self.told.sr_pairs * (unlike + strayed)
            self.scaler.scale(share * loss).backward()
        finally:
            self.critics.requires_grad_(True)
        return share * loss.detach()

    def _replayed(self) -> _Turns:
        cut = 1 if self.told.superres == 1 else 2  # tensors of real patches
        paired = cut if self.generator.learns_from_pairs else 0
        whole = self._whole_rows()
        # Held by its own turns it would stay, with all their graphs' memory, until Python looks for such circles.
        own = weakref.proxy(self)

        def refresh() -> tuple[Tensor, ...]:
            own.critics.refresh()
            return ()

        def discriminate(*tensors: Tensor, penalty: Tensor | None = None) -> tuple[Tensor, ...]:
            return own._discriminated(Real(*tensors[:cut]), Request.of(*tensors[cut:], whole=whole), penalty)

        def penalise(penalty: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            return discriminate(*tensors, penalty=penalty)

        def generate(*tensors: Tensor) -> tuple[Tensor, ...]:
            real = Real(*tensors[:paired]) if paired else None
            return (own._generated(real, Request.of(*tensors[paired:], whole=whole)),)

        shared = cuda_graphs.new_pool()
        return _Turns(
            cuda_graphs.Replayed(refresh, pool=shared),
            cuda_graphs.Replayed(discriminate, self.critics.parameters(), pool=shared),
            cuda_graphs.Replayed(penalise, self.critics.parameters(), pool=shared),
            cuda_graphs.Replayed(generate, self.generator.parameters(), pool=shared),
        )

    def request(self, number: int, what: str) -> Request:
        """The patches this process makes."""
        every = draw_request(
            self.config, self.told, step=number, what=what, device=self.device, batch=self._every
        )
        if self.ranks.world == 1:
            return every
        own = every.part(self._own())
        return Request.of(
            *(tensor.clone() for tensor in own.tensors()), whole=own.whole
        )  # the others' are let go

    def real(self, number: int) -> Real:
        """The patches of real images this process looks at: both players' turns the same."""
        if self._looked_at is not None and self._looked_at[0] == number:
            return self._looked_at[1]
        generator = generator_for(self.told.seed, number, "real images", device=self.device)
        own = self._own()
        numbers = torch.randint(len(self.images), (self._every,), generator=generator, device=self.device)[
            own
        ]
        shown = self.images.batch(numbers)
        found = real_patches(
            shown, self.told, step=number, what="real patches", every=self._every, first=own.start
        )
        self._looked_at = number, found
        return found

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
        """Images of a step, in all processes."""
        return self.told.batch * self.ranks.world

    def _whole_rows(self) -> tuple[int, ...]:
        """Which of this process's patches are of whole pixels, in every step."""
        return rows_among(whole_rows(self._every, self.told), range(self._every)[self._own()])

    def _own(self) -> slice:
        return slice(self.ranks.rank * self.told.batch, (self.ranks.rank + 1) * self.told.batch)

    def _parts(self) -> Iterator[tuple[slice, float]]:
        """Images that pass at one time and their share of the batch; the last part may be smaller, and counts for less."""
        batch = self.told.batch
        most = min(batch, self.told.micro or batch)
        for first in range(0, batch, most):
            last = min(batch, first + most)
            yield slice(first, last), (last - first) / batch

    def _update(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, *, first: bool, most: float
    ) -> Tensor:
        """Take the step of one player. (): the norm of its gradient before it was clipped."""
        self.ranks_mean(module)
        self.scaler.unscale_(optimizer)
        if first:
            check_gradients(module, what="generator" if module is self.generator else "discriminator")
        norm = nn.utils.clip_grad_norm_(module.parameters(), most)
        self.scaler.step(optimizer)
        return norm.detach()

    @torch.no_grad()
    def ranks_mean(self, module: nn.Module) -> None:
        """Gradients averaged over the processes, all in one message: after the last part, whatever made them."""
        if self.ranks.world == 1:
            return
        gradients: list[Tensor] = []
        for parameter in module.parameters():
            if (
                parameter.grad is None
            ):  # of the super-resolution, where none of this process's patches is of whole pixels
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = self.ranks.mean(torch.cat([gradient.flatten() for gradient in gradients]))
        for gradient, mean in zip(
            gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(mean.view_as(gradient))

    def _told_norm(self, norm: Tensor, loss_d: Tensor) -> Tensor:
        """The norm, not finite where the run is lost. An overflow of fp16 is no loss: the scaler leaves the step out."""
        if not self.scaler.is_enabled():
            return norm
        # All on the device, for which every step would wait otherwise. A loss that is finite less itself is 0, any other is none.
        lost = (loss_d - loss_d).masked_fill(compat.loss_scale(self.scaler) < _HOPELESS, torch.nan)
        return torch.where(torch.isfinite(norm), norm, lost)

    @torch.no_grad()
    def _average(self, number: int) -> None:
        if self.averaged is not None:
            # Early averages forget quickly, or the first weights would stay in them for good.
            decay = min(self.told.ema, number / (9 + number))
            get_ema_multi_avg_fn(decay)(
                list(self.averaged.parameters()), list(self.generator.parameters()), 0
            )


def replays(told: Settings, device: str) -> bool:
    """Is each turn one graph? On a GPU, where the batch passes at one time."""
    return told.graphs and device == "cuda" and (told.micro or told.batch) >= told.batch


def _noisy(asked: Request) -> Request:
    """With noise of 0 where there is none: a turn is then recorded once, and not again, beside the first, where noise ends."""
    if asked.draws.noise is not None:
        return asked
    return replace(asked, draws=replace(asked.draws, noise=torch.zeros_like(asked.draws.offsets)))


def _as_here(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """An optimizer's state with this machine's kernels for it: those of the machine that wrote it may not be here."""
    groups = zip(state["param_groups"], optimizer.param_groups, strict=True)
    return {
        **state,
        "param_groups": [
            {**group, **({"fused": own["fused"]} if "fused" in own else {})} for group, own in groups
        ],
    }


def _optimizer(module: nn.Module, told: Settings, rate: float) -> torch.optim.Optimizer:
    if told.optimizer == "adam":
        fused = (
            all(parameter.is_cuda for parameter in module.parameters()) or None
        )  # one kernel; a CPU keeps its own way
        return torch.optim.Adam(
            module.parameters(), lr=rate, betas=(0.0, 0.99), weight_decay=told.weight_decay, fused=fused
        )
    return torch.optim.RMSprop(
        module.parameters(), lr=rate, alpha=0.99, eps=1e-8, weight_decay=told.weight_decay
    )
