"""Weight updates: AdamW in two groups, clipped gradients, and optionally averaged weights."""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from pinchpoint.systems.common.settings import TrainSettings

Net = TypeVar("Net", bound=nn.Module)


class Updates(Generic[Net]):
    """A model, its optimizer and, if the settings ask for them, its averaged weights.

    recordable: everything that changes from step to step is a tensor on the model's device, so that a step
    can be recorded as a CUDA graph and replayed. fused: update all weights in one kernel.
    """

    def __init__(
        self, model: Net, settings: TrainSettings, *, recordable: bool = False, fused: bool = False
    ) -> None:
        self.model, self.settings = model, settings
        device = next(model.parameters()).device
        self._rate = torch.tensor(settings.lr, device=device) if recordable else None
        self._share = torch.ones((), device=device) if recordable else None  # of new weights in the average
        self.optimizer = torch.optim.AdamW(
            _groups(model, settings.weight_decay),
            lr=settings.lr if self._rate is None else self._rate,
            capturable=recordable and device.type == "cuda",
            fused=fused or None,
        )
        self.averaged = copy.deepcopy(model) if settings.ema else None

    def trained(self) -> Net:
        """Return the model to predict with: the one with averaged weights if there is one."""
        return self.model if self.averaged is None else self.averaged

    def begin(self, number: int) -> None:
        """Prepare for the gradients of step 1, 2, ..."""
        self.set_step(number)
        self.clear()

    def set_step(self, number: int) -> None:
        """Set what depends on the number of the step: the learning rate and the decay of the average."""
        if self._rate is None or self._share is None:
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.rate(number)
        else:
            self._rate.fill_(self.settings.rate(number))
            self._share.fill_(1 - average_decay(self.settings.ema, number))

    def clear(self) -> None:
        """Forget the gradients of the last step."""
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)

    def finish(self, number: int) -> Tensor:
        """Take the step with the current gradients. Returns their norm before clipping, shape ()."""
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()
        if self.averaged is None:
            pass
        elif self._share is None:
            update_average(self.averaged, self.model, ema=self.settings.ema, number=number)
        else:
            with torch.no_grad():
                for mean, value in zip(self.averaged.parameters(), self.model.parameters(), strict=True):
                    mean.lerp_(value, self._share)
        return norm.detach()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": None if self.averaged is None else self.averaged.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, of a run whose steps may have been recorded or not."""
        self.model.load_state_dict(state["model"])
        own = self.optimizer.param_groups
        groups = [
            {**group, "lr": self.settings.lr, "capturable": mine["capturable"], "fused": mine["fused"]}
            for group, mine in zip(state["optimizer"]["param_groups"], own, strict=True)
        ]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        if self._rate is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = self._rate
        if self.averaged is not None:
            self.averaged.load_state_dict(state["ema"])


def count_parameters(model: nn.Module) -> int:
    """Return the number of weights of a model."""
    return sum(parameter.numel() for parameter in model.parameters())


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, scales and the like do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


def average_decay(ema: float, number: int) -> float:
    """Return the decay of averaged weights at step 1, 2, ...

    Early averages decay quickly; otherwise the initial weights would stay in them for long.
    """
    return min(ema, number / (9 + number))


@torch.no_grad()
def update_average(averaged: nn.Module, model: nn.Module, *, ema: float, number: int) -> None:
    """Add the weights of a model after step 1, 2, ... to their average, which decays by `ema` per step."""
    decay = average_decay(ema, number)
    # One call for all parameters: on a GPU a launch for each would take longer than the work.
    get_ema_multi_avg_fn(decay)(list(averaged.parameters()), list(model.parameters()), 0)
