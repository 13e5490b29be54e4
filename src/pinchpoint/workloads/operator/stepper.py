"""One step of training an operator: the code a run takes and the one its peak is predicted from."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.workloads.operator.config import OperatorConfig
from pinchpoint.workloads.operator.graph import Graph
from pinchpoint.workloads.operator.model import Operator
from pinchpoint.workloads.operator.precision import autocast
from pinchpoint.workloads.operator.sample import Sample
from pinchpoint.workloads.operator.settings import Settings


class Stepper:
    """A model, its optimizer and, where wanted, its averaged weights. Weights follow from the seed."""

    def __init__(self, config: OperatorConfig, told: Settings, device: str) -> None:
        self.told, self.device = told, device
        torch.manual_seed(told.seed)
        made = Operator(config)
        self.model = made if device == "cpu" else made.to(device)  # fake weights are there already, and cannot be moved
        self.optimizer = torch.optim.AdamW(_groups(self.model, told.weight_decay), lr=told.lr)
        self.averaged = copy.deepcopy(self.model) if told.ema else None
        self.scale = torch.tensor(config.target_scale or (1.0,) * config.out_features, device=device)

    def step(self, bodies: Iterable[tuple[Sample, Graph]], *, number: int) -> Tensor:
        """Step 1, 2, ...: gradients of `accumulate` bodies, one after the other. (2,): loss and norm of the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.told.rate(number)
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=self.device)
        for sample, graph in bodies:
            loss = self._loss(sample.to(self.device), graph.to(self.device)) / self.told.accumulate
            loss.backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.told.clip)
        self.optimizer.step()
        if self.averaged is not None:
            # Early averages forget quickly, or the first weights would stay in them for good.
            _average(self.averaged, self.model, min(self.told.ema, number / (9 + number)))
        return torch.stack([total, norm.detach()])

    @torch.no_grad()
    def predict(self, sample: Sample, graph: Graph) -> Tensor:
        """(P, T) in the units of the targets, by the averaged weights where there are some."""
        model = (self.averaged or self.model).eval()
        return forward(model, sample.to(self.device), graph.to(self.device), self.told).float()

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": None if self.averaged is None else self.averaged.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.averaged is not None:
            self.averaged.load_state_dict(state["ema"])

    def _loss(self, sample: Sample, graph: Graph) -> Tensor:
        """Of one body, over its surface: the mean of |error| or error², in units of the targets' spread."""
        output = forward(self.model, sample, graph, self.told)
        error = (output.float() - sample.target) / self.scale
        each = error.abs() if self.told.loss == "l1" else error.square()
        return (sample.areas @ each.mean(1)) / sample.areas.sum()


def forward(model: Operator, sample: Sample, graph: Graph, told: Settings) -> Tensor:
    """(P, T), with the precision, memory and chunk that are told."""
    with autocast(told.precision, sample.points.device.type):
        return model(sample.points, sample.features, sample.areas, graph, memory=told.memory, chunk=told.chunk or "auto")  # pyright: ignore[reportArgumentType]


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices decay; biases, scales and the like do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]


@torch.no_grad()
def _average(averaged: nn.Module, model: nn.Module, decay: float) -> None:
    for old, new in zip(averaged.parameters(), model.parameters(), strict=True):
        old.lerp_(new, 1 - decay)
