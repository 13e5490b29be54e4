"""One training step of an operator, used by a run and by the prediction of its peak."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from pinchpoint.systems.common.training.optimizer import Updates
from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training.recorded_steps import RecordedSteps


class Stepper:
    """A model and the updates of its weights, determined by the seed.

    recorded_steps: records the steps; None if all steps are eager.
    """

    def __init__(
        self,
        config: OperatorConfig,
        settings: Settings,
        device: str,
        *,
        recorded_steps: RecordedSteps | None = None,
    ) -> None:
        self.settings, self.device, self.recorded_steps = settings, device, recorded_steps
        torch.manual_seed(settings.seed)
        model = Operator(config)
        # Fake weights are on the device already and cannot be moved.
        self.model = model if device == "cpu" else model.to(device)
        self.updates = Updates(
            self.model, settings, recordable=recorded_steps is not None, fused=device == "cuda"
        )
        self.scale = torch.tensor(config.target_scale or (1.0,) * config.out_features, device=device)

    def step(self, bodies: Iterable[tuple[Sample, Graph]], *, number: int) -> Tensor:
        """Take step `number` with the gradients of `accumulate` bodies.

        The first step is number 1. Returns (2,): the loss and the norm of its gradient.
        """
        self.updates.set_step(number)
        if self.recorded_steps is None:
            return self._step(
                ((sample.to(self.device), graph.to(self.device)) for sample, graph in bodies), number
            )
        (body,) = bodies
        return self.recorded_steps.run(
            *body,
            lambda body_on_device: self._step([body_on_device], number),
            number=number,
            clear=self.updates.clear,
            device=self.device,
        )

    def replay(self, name: str, *, number: int) -> Tensor | None:
        """Take step `number` with the body of this name if its step is recorded: what `step` returns, or
        None.
        """
        if self.recorded_steps is None:
            return None
        self.updates.set_step(number)
        return self.recorded_steps.replay(name)

    def _step(self, bodies: Iterable[tuple[Sample, Graph]], number: int) -> Tensor:
        """Take a step with bodies on the device."""
        self.updates.clear()
        total = torch.zeros((), device=self.device)
        for sample, graph in bodies:
            loss = self._loss(sample, graph) / self.settings.accumulate
            loss.backward()
            total += loss.detach()
        return torch.stack([total, self.updates.finish(number)])

    @torch.no_grad()
    def predict(self, sample: Sample, graph: Graph) -> Tensor:
        """(P, T) in the units of the targets, with the averaged weights if there are any."""

        def run() -> Tensor:
            model = self.updates.trained().eval()
            return forward(model, sample.to(self.device), graph.to(self.device), self.settings).float()

        return run() if self.recorded_steps is None else self.recorded_steps.run_eagerly(run)

    def _loss(self, sample: Sample, graph: Graph) -> Tensor:
        """The loss of one body: the mean of |error| or error² in units of the targets' deviation.

        The mean is over the surface, or over the points with weighting="points".
        """
        output = forward(self.model, sample, graph, self.settings)
        error = (output.float() - sample.target) / self.scale
        each = error.abs() if self.settings.loss == "l1" else error.square()
        if self.settings.weighting == "points":
            return each.mean()
        return (sample.areas @ each.mean(1)) / sample.areas.sum()


def forward(model: Operator, sample: Sample, graph: Graph, settings: Settings) -> Tensor:
    """(P, T), with the precision, memory and chunk of the settings."""
    with autocast(settings.precision, sample.points.device.type):
        return model(
            sample.points,
            sample.features,
            sample.areas,
            graph,
            memory=settings.memory,
            chunk=settings.chunk or "auto",
        )  # pyright: ignore[reportArgumentType]
