"""One training step, used both by runs and to predict their peak.

Views are processed together ("batched") or one after another with summed gradients ("accumulate"), which
stores the activations of one view at a time. With a consistency loss the teacher comes first, and its cell
means are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.model.objective import TEACHER, Objective, TeacherMeans, compared_cells
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw, draw_views, parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.breakdown import Parts
from pinchpoint.systems.cloud.training.recorded_steps import MOVED_DRAWS, RecordedSteps
from pinchpoint.systems.common.training.distributed import Ranks
from pinchpoint.systems.common.training.optimizer import Updates
from pinchpoint.systems.common.training.recorder import Note


class Stepper:
    """A model and the updates of its weights, determined by the seed.

    prepares_ahead: whether a draw also prepares the points and what the network reads of them; by default on
    a GPU, where the draw of the next step runs beside this step. recordings_bytes: what recorded steps may
    take, by default half of the free memory. note: called with the reason if steps that should be recorded
    cannot be.
    """

    def __init__(
        self,
        config: CloudConfig,
        settings: Settings,
        device: str,
        *,
        parts: Parts | None = None,
        ranks: Ranks | None = None,
        prepares_ahead: bool | None = None,
        recordings_bytes: int | None = None,
        note: Note | None = None,
    ) -> None:
        self.settings, self.device = settings, device
        self.prepares_ahead = device == "cuda" if prepares_ahead is None else prepares_ahead
        self.ranks, self.parts = ranks or Ranks(), parts or Parts(device)
        self.views, self.cell = parse_views(settings.views), settings.cell or config.cell
        torch.manual_seed(settings.seed)
        self.model = CloudModel(config).to(device)
        self.recorded_steps = (
            RecordedSteps(
                compares_cells=settings.consistency != "none",
                first_draws=MOVED_DRAWS if settings.augment else 1,
                most_bytes=recordings_bytes,
                note=note,
            )
            if settings.record_steps and device == "cuda" and self.ranks.world == 1
            else None
        )
        self.updates = Updates(
            self.model, settings, recordable=self.recorded_steps is not None, fused=device == "cuda"
        )
        self.objective = self.ranks.wrap(Objective(self.model, settings), device)
        self.points_seen = 0  # points of all views in all steps of this process

    @property
    def recorded_sizes(self) -> int | None:
        """The number of sizes of steps that are replayed; None if steps are not recorded."""
        return None if self.recorded_steps is None else self.recorded_steps.recorded_sizes

    @property
    def recorded_bytes(self) -> int | None:
        """The bytes that recorded steps take beside eager ones; None if steps are not recorded."""
        return None if self.recorded_steps is None else self.recorded_steps.recorded_bytes

    def step(self, scenes: Sequence[Scene], *, number: int) -> Tensor:
        """Take step `number`, counted from 1; returns (2,): the loss and the norm of its gradient."""
        with self.parts.part("data"):
            batch = Batch.from_scenes(scenes, device=self.device)
        with self.parts.part("sampling"):
            draw = self.draw(batch, number=number)
        return self.step_on(batch, draw, number=number)

    def draw(self, batch: Batch, *, number: int) -> ViewDraw:
        """Return the views of step `number`: all of them, or one in turn."""
        views, first = self.views, 0
        if self.settings.schedule == "alternate":
            first = (number - 1) % len(self.views)
            views = self.views[first : first + 1]
        seed, rank = self.settings.seed, self.ranks.rank
        draw = draw_views(batch, views, cell=self.cell, seed=seed, step=number, rank=rank, first_view=first)
        if not self.prepares_ahead or not sum(draw.sizes) or len(self._passes(draw)) > 1:
            return draw
        points = draw.take(batch)
        tables = self.model.tables(points.xyz, points.features, points.offsets)
        return replace(draw, points=points, tables=tables)

    def step_on(self, batch: Batch, draw: ViewDraw, *, number: int) -> Tensor:
        """Take step `number` with a batch that is on the device and views that are drawn already."""
        self.updates.set_step(number)
        self.points_seen += sum(draw.sizes)
        if self.recorded_steps is None:
            return self._step_on(batch, draw, self.parts, number)
        # A recorded step has no parts that could be timed.
        untimed = Parts(self.device)
        return self.recorded_steps.run(
            draw, lambda views: self._step_on(batch, views, untimed, number), clear=self.updates.clear
        )

    def _step_on(self, batch: Batch, draw: ViewDraw, parts: Parts, number: int) -> Tensor:
        self.updates.clear()
        loss = self.gradients(batch, draw, parts)
        with parts.part("optimizer"):
            norm = self.updates.finish(number)
            self._keep_statistics()
        return torch.stack([self.ranks.mean(loss), norm])

    def gradients(self, batch: Batch, draw: ViewDraw, parts: Parts | None = None) -> Tensor:
        """Add the gradients of all views to those of the weights; returns (): the loss of this process."""
        parts = self.parts if parts is None else parts
        compared = None
        if self.settings.consistency != "none":
            with parts.part("consistency"):
                # Every process divides by the mean count of all processes: the mean of their losses is then
                # the mean over the cells of all of them.
                compared = self.ranks.mean(compared_cells(draw))
        losses: list[Tensor] = []
        teacher: TeacherMeans | None = None
        passes = self._passes(draw)
        for index, views in enumerate(passes):
            with self.ranks.unsynchronised(self.objective, when=index < len(passes) - 1):
                loss, teacher_means = self.objective(batch, views, parts, compared, teacher)
                teacher = teacher or teacher_means
                with parts.part("backward"):
                    loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _passes(self, draw: ViewDraw) -> list[ViewDraw]:
        """Return all views together, or each view alone with the teacher first."""
        if self.settings.views_mode != "accumulate" or len(draw.views) == 1:
            return [draw]
        numbers = sorted(range(len(self.views)), key=lambda number: self.views[number].name != TEACHER)
        return [draw.only(number) for number in numbers]

    @torch.no_grad()
    def _keep_statistics(self) -> None:
        """Copy the running statistics to the averaged model: they are averages already."""
        if self.updates.averaged is not None:
            for average, current in zip(self.updates.averaged.buffers(), self.model.buffers(), strict=True):
                average.copy_(current)
