"""Objective: a network and all its losses in one module, so that what wraps it sees every gradient.

M points drawn, B scenes, V views, C cells of the batch, K classes, D features. The loss of the classes is the mean over
every scene of every view of the mean over its labelled points: processes with as many scenes each then average to the loss
of all scenes in one batch. Views may pass together or one after another, in the second case with what the teacher said of
each cell; the gradient is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.cloud.breakdown import Parts
from pinchpoint.systems.cloud.data.scene import IGNORED
from pinchpoint.systems.cloud.model.consistency import Kind, cell_means, cells_held, distances
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.model.views import Batch, Drawn
from pinchpoint.systems.cloud.model.voxels import groups_of
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.precision import autocast

TEACHER = "dense"


@dataclass(frozen=True)
class Taught:
    """What the teacher said: means (C, D) over each cell, without a gradient, and which cells it holds (C,)."""

    means: Tensor
    present: Tensor


class Objective(nn.Module):
    """The loss of drawn points. What `forward` gives is what a backward pass is taken of, so DDP may wrap it."""

    def __init__(self, model: CloudModel, told: Settings) -> None:
        super().__init__()
        self.model, self.told = model, told

    def forward(
        self,
        batch: Batch,
        drawn: Drawn,
        parts: Parts,
        compared: Tensor | None = None,
        teacher: Taught | None = None,
    ) -> tuple[Tensor, Taught | None]:
        """The loss (), and what the teacher said where it is among the views drawn and others follow.

        compared: () how many cells are compared in all, see `compared_cells`; teacher: where it has passed before.
        """
        if not drawn.index.shape[0]:
            return self._nothing(), None
        with parts.part("forward"):
            points = drawn.take(batch)
            with autocast(self.told.precision, batch.xyz.device.type):
                logits, features = self.model(points.xyz, points.features, points.offsets, drawn.view)
            loss = class_loss(logits, points, groups=batch.scenes * len(self.told.views))
        if compared is None:
            return loss, None
        with parts.part("consistency"):
            values = logits if self.told.consistency == "kl" else features
            apart, taught = self._apart(values, drawn, teacher)
            return loss + self.told.consistency_weight * apart / compared.clamp(min=1), taught

    def _apart(self, values: Tensor, drawn: Drawn, teacher: Taught | None) -> tuple[Tensor, Taught | None]:
        """The sum of distances of the students from the teacher."""
        means, present = cell_means(values, drawn)
        names = [view.name for view in drawn.views]
        leader = names.index(TEACHER) if teacher is None else -1
        taught = teacher or Taught(means[leader].detach(), present[leader])
        total = values.new_zeros((), dtype=torch.float32)
        kind = cast("Kind", self.told.consistency)
        for number in range(len(names)):
            if number != leader:
                both = present[number] & taught.present
                total = total + torch.where(both, distances(means[number], taught.means, kind=kind), 0).sum()
        return total, taught if teacher is None else None

    def _nothing(self) -> Tensor:
        """Zero, with a gradient of zero for every weight: other processes wait for one."""
        return sum(
            (weight.sum() * 0 for weight in self.model.parameters()), torch.zeros((), device=self._device())
        )

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def class_loss(logits: Tensor, points: Batch, *, groups: int) -> Tensor:
    """Cross-entropy, the mean over groups of the mean over the labelled points of each. logits: (M, K)."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    each = functional.cross_entropy(wide, points.labels, ignore_index=IGNORED, reduction="none")
    group = groups_of(points.offsets, len(each))
    # A running sum of whole numbers, read where groups begin: adding up by group would have all points write to a few places.
    known = functional.pad((points.labels != IGNORED).cumsum(0), (1, 0))
    counts = known.index_select(0, points.offsets).diff().clamp(min=1)
    return (each / counts.index_select(0, group)).sum() / groups


@torch.no_grad()
def compared_cells(drawn: Drawn) -> Tensor:
    """() float32: the cells that the teacher and another view both hold, counted for every such view. Nothing is waited for."""
    present = cells_held(drawn)
    leader = [view.name for view in drawn.views].index(TEACHER)
    return (present & present[leader]).sum().float() - present[leader].sum()
