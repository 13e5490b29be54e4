"""One step of training over point clouds: the code a run takes and the one its peak is predicted from.

Views pass together ("batched") or one after another with their gradients summed ("accumulate"), which keeps the activations
of one view at a time; with a consistency loss the teacher passes first, and what it said of each cell is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pinchpoint.systems.cloud.breakdown import Parts
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.model.objective import TEACHER, Objective, TeacherMeans, compared_cells
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw, draw_views, parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.distributed import Ranks
from pinchpoint.systems.common.optimizer import Updates


class Stepper:
    """A model and the updates of its weights, which follow from the seed."""

    def __init__(
        self,
        config: CloudConfig,
        told: Settings,
        device: str,
        *,
        parts: Parts | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.told, self.device = told, device
        self.ranks, self.parts = ranks or Ranks(), parts or Parts(device)
        self.views, self.cell = parse_views(told.views), told.cell or config.cell
        torch.manual_seed(told.seed)
        self.model = CloudModel(config).to(device)
        self.updates = Updates(self.model, told)
        self.objective = self.ranks.wrap(Objective(self.model, told), device)
        self.points_seen = 0  # points that have passed, of all views, in this process

    def step(self, scenes: Sequence[Scene], *, number: int) -> Tensor:
        """Step 1, 2, ...: (2,), the loss and the norm of its gradient."""
        with self.parts.part("data"):
            batch = Batch.from_scenes(scenes, device=self.device)
        with self.parts.part("sampling"):
            drawn = self.draw(batch, number=number)
        return self.step_on(batch, drawn, number=number)

    def draw(self, batch: Batch, *, number: int) -> ViewDraw:
        """The views of step 1, 2, ..."""
        return draw_views(
            batch, self.views, cell=self.cell, seed=self.told.seed, step=number, rank=self.ranks.rank
        )

    def step_on(self, batch: Batch, drawn: ViewDraw, *, number: int) -> Tensor:
        """The same, from points that lie on the device and are drawn."""
        self.updates.begin(number)
        loss = self.gradients(batch, drawn)
        with self.parts.part("optimizer"):
            norm = self.updates.finish(number)
            self._keep_statistics()
        self.points_seen += sum(drawn.sizes)
        return torch.stack([self.ranks.mean(loss), norm])

    def gradients(self, batch: Batch, drawn: ViewDraw) -> Tensor:
        """Add those of all views to the weights'. (): the loss of this process."""
        compared = None
        if self.told.consistency != "none":
            with self.parts.part("consistency"):
                # As many as all processes have on average: theirs then average to the mean over the cells of all.
                compared = self.ranks.mean(compared_cells(drawn))
        losses: list[Tensor] = []
        teacher: TeacherMeans | None = None
        passes = self._passes(drawn)
        for place, some in enumerate(passes):
            with self.ranks.unsynchronised(self.objective, when=place < len(passes) - 1):
                loss, taught = self.objective(batch, some, self.parts, compared, teacher)
                teacher = teacher or taught
                with self.parts.part("backward"):
                    loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def _passes(self, drawn: ViewDraw) -> list[ViewDraw]:
        """All views at once, or each alone, the teacher first."""
        if self.told.views_mode != "accumulate":
            return [drawn]
        numbers = sorted(range(len(self.views)), key=lambda number: self.views[number].name != TEACHER)
        return [drawn.only(number) for number in numbers]

    @torch.no_grad()
    def _keep_statistics(self) -> None:
        """Running statistics are not averaged, as weights are, but taken over: they are averages already."""
        if self.updates.averaged is not None:
            for kept, found in zip(self.updates.averaged.buffers(), self.model.buffers(), strict=True):
                kept.copy_(found)
