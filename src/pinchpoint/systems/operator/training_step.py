"""One step of training an operator: the code a run takes and the one its peak is predicted from."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pinchpoint.systems.common.optimizer import Updates
from pinchpoint.systems.common.precision import autocast
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.settings import Settings


class Stepper:
    """A model and the updates of its weights, which follow from the seed."""

    def __init__(self, config: OperatorConfig, told: Settings, device: str) -> None:
        self.told, self.device = told, device
        torch.manual_seed(told.seed)
        made = Operator(config)
        self.model = (
            made if device == "cpu" else made.to(device)
        )  # fake weights are there already, and cannot be moved
        self.updates = Updates(self.model, told)
        self.scale = torch.tensor(config.target_scale or (1.0,) * config.out_features, device=device)

    def step(self, bodies: Iterable[tuple[Sample, Graph]], *, number: int) -> Tensor:
        """Step 1, 2, ...: gradients of `accumulate` bodies, one after the other. (2,): loss and norm of the gradient."""
        self.updates.begin(number)
        total = torch.zeros((), device=self.device)
        for sample, graph in bodies:
            loss = self._loss(sample.to(self.device), graph.to(self.device)) / self.told.accumulate
            loss.backward()
            total += loss.detach()
        return torch.stack([total, self.updates.finish(number)])

    @torch.no_grad()
    def predict(self, sample: Sample, graph: Graph) -> Tensor:
        """(P, T) in the units of the targets, by the averaged weights where there are some."""
        return forward(
            self.updates.trained().eval(), sample.to(self.device), graph.to(self.device), self.told
        ).float()

    def _loss(self, sample: Sample, graph: Graph) -> Tensor:
        """Of one body, over its surface: the mean of |error| or error², in units of the targets' spread."""
        output = forward(self.model, sample, graph, self.told)
        error = (output.float() - sample.target) / self.scale
        each = error.abs() if self.told.loss == "l1" else error.square()
        return (sample.areas @ each.mean(1)) / sample.areas.sum()


def forward(model: Operator, sample: Sample, graph: Graph, told: Settings) -> Tensor:
    """(P, T), with the precision, memory and chunk that are told."""
    with autocast(told.precision, sample.points.device.type):
        return model(
            sample.points,
            sample.features,
            sample.areas,
            graph,
            memory=told.memory,
            chunk=told.chunk or "auto",
        )  # pyright: ignore[reportArgumentType]
