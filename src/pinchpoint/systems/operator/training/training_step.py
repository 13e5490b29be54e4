"""One training step of an operator, used by a run and by the prediction of its peak."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pinchpoint.systems.common.training import recording
from pinchpoint.systems.common.training.optimizer import Updates
from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.operator.data.loading import tensor_bytes
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.model import Operator
from pinchpoint.systems.operator.settings import Settings

SHARE = 0.5  # of the free memory of a GPU, for recorded steps


class Stepper:
    """A model and the updates of its weights, determined by the seed.

    With `Settings.record_steps` on a GPU, every body has its own recorded step, because bodies differ in the
    numbers of their points and edges; the first step of each is eager.
    """

    def __init__(self, config: OperatorConfig, settings: Settings, device: str) -> None:
        self.settings, self.device = settings, device
        torch.manual_seed(settings.seed)
        model = Operator(config)
        # Fake weights are on the device already and cannot be moved.
        self.model = model if device == "cpu" else model.to(device)
        self.updates = Updates(self.model, settings, recordable=settings.record_steps)
        self.recorded_steps = RecordedSteps() if settings.record_steps and device == "cuda" else None
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
            *body, lambda own: self._step([own], number), clear=self.updates.clear, device=self.device
        )

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
        return forward(
            self.updates.trained().eval(), sample.to(self.device), graph.to(self.device), self.settings
        ).float()

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


class RecordedSteps:
    """Steps with one body each, recorded as CUDA graphs and replayed.

    Recorded bodies stay on the device. Bodies, graphs and the memory that graphs compute with are recorded
    until they take `most_bytes` together, by default a share of what is free before the first step; steps of
    the others are eager.
    """

    def __init__(self, most_bytes: int | None = None) -> None:
        self._left_bytes = most_bytes
        self._recordings: dict[str, recording.Recording] = {}
        self._bodies: dict[str, tuple[Sample, Graph]] = {}  # what the recordings read
        self._names: set[str] = set()  # of the bodies that were run
        self._aside = recording.SideStream()
        self._pool: Any = None

    def run(
        self,
        sample: Sample,
        graph: Graph,
        step: Callable[[tuple[Sample, Graph]], Tensor],
        *,
        clear: Callable[[], None],
        device: str,
    ) -> Tensor:
        """Return step(body) for a body, which is known by its name, on the device."""
        known = self._recordings.get(sample.name)
        if known is not None:
            return known.replay()
        own = sample.to(device), graph.to(device)
        size = tensor_bytes(*own)
        if self._left_bytes is None:
            self._left_bytes = int(SHARE * torch.cuda.mem_get_info()[0])
        if size > self._left_bytes:  # it will not be recorded
            return step(own)
        if sample.name not in self._names:
            self._names.add(sample.name)
            return self._aside.run(lambda: step(own))
        self._bodies[sample.name] = own
        recorded, self._pool = recording.record(lambda: step(own), clear=clear, pool=self._pool)
        self._left_bytes -= size + recorded.taken_bytes
        self._recordings[sample.name] = recorded
        return recorded.replay()


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
