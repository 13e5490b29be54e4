"""Objective: a network and all its losses in one module, so that a wrapper such as DDP sees every gradient.

Letters: M drawn points, B scenes, V views, C cells of the batch, K classes, D features. The class loss is the
mean over all scenes of all views of a step of the mean over the labelled points of each. Processes with
equally many scenes therefore average to the loss of all scenes in one batch. Views are processed together, or
one after another with the teacher's cell means passed along; the gradient is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.cloud.data.scene import IGNORED
from pinchpoint.systems.cloud.model.consistency import Kind, cell_means, distances, occupied_cells
from pinchpoint.systems.cloud.model.model import CloudModel
from pinchpoint.systems.cloud.model.target_head import target_loss
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw
from pinchpoint.systems.cloud.model.voxels import groups_of
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.breakdown import Parts
from pinchpoint.systems.common.training.precision import autocast

TEACHER = "dense"


@dataclass(frozen=True)
class TeacherMeans:
    """The teacher's means (C, D) over each cell, without a gradient, and which cells have points (C,)."""

    means: Tensor
    present: Tensor


class Objective(nn.Module):
    """Loss of drawn points.

    The backward pass starts from the result of `forward`, so DDP can wrap this module.
    """

    def __init__(self, model: CloudModel, settings: Settings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        # DDP reads this name and does not write to these buffers. They are the same in every process, and the
        # next step's inputs are computed from them on another stream during a step.
        self._ddp_params_and_buffers_to_ignore = ["model.shift", "model.scale"]

    def forward(
        self,
        batch: Batch,
        draw: ViewDraw,
        parts: Parts,
        compared: Tensor | None = None,
        teacher: TeacherMeans | None = None,
    ) -> tuple[Tensor, TeacherMeans | None]:
        """Return the loss (), and the teacher's means if the teacher is among these views.

        compared: (), the total number of compared cells, see `compared_cells`; without it there is no
        consistency loss. teacher: the teacher's means if it was processed before.
        """
        if not draw.index.shape[0]:
            return self._zero_loss(), None
        with parts.part("forward"):
            points = draw.take(batch)
            with autocast(self.settings.precision, batch.xyz.device.type):
                logits, features = self.model(
                    points.xyz, points.features, points.offsets, draw.view, draw.tables
                )
                predictions = self.model.predict_target(features) if points.targets is not None else None
            groups = batch.scenes * self.settings.views_per_step
            loss = class_loss(logits, points, groups=groups) if logits.shape[1] else features.new_zeros(())
            if predictions is not None:
                weight = self.settings.target_weight
                loss = loss + weight * target_loss(predictions, points, groups=groups)
        if compared is None:
            return loss, None
        with parts.part("consistency"):
            values = logits if self.settings.consistency == "kl" else features
            distance, means_of_teacher = self._distance(values, draw, teacher)
            return loss + self.settings.consistency_weight * distance / compared.clamp(
                min=1
            ), means_of_teacher

    def _distance(
        self, values: Tensor, draw: ViewDraw, teacher: TeacherMeans | None
    ) -> tuple[Tensor, TeacherMeans | None]:
        """Return the sum of the students' distances from the teacher."""
        means, present = cell_means(values, draw)
        names = [view.name for view in draw.views]
        leader = names.index(TEACHER) if teacher is None else -1
        means_of_teacher = teacher or TeacherMeans(means[leader].detach(), present[leader])
        total = values.new_zeros((), dtype=torch.float32)
        kind = cast("Kind", self.settings.consistency)
        for number in range(len(names)):
            if number != leader:
                shared = present[number] & means_of_teacher.present
                total = (
                    total
                    + torch.where(
                        shared, distances(means[number], means_of_teacher.means, kind=kind), 0
                    ).sum()
                )
        return total, means_of_teacher if teacher is None else None

    def _zero_loss(self) -> Tensor:
        """Return zero with a zero gradient for every weight, because other processes wait for the
        gradients.
        """
        return sum(
            (weight.sum() * 0 for weight in self.model.parameters()), torch.zeros((), device=self._device())
        )

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def class_loss(logits: Tensor, points: Batch, *, groups: int) -> Tensor:
    """Return the cross-entropy: the mean over groups of the mean over their labelled points.

    logits: (M, K); groups: the number of groups.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    each = functional.cross_entropy(wide, points.labels, ignore_index=IGNORED, reduction="none")
    group = groups_of(points.offsets, len(each))
    # Take a running sum of integers and read it where groups begin: a sum per group would make all points
    # write to a few addresses.
    labelled = functional.pad((points.labels != IGNORED).cumsum(0), (1, 0))
    counts = labelled.index_select(0, points.offsets).diff().clamp(min=1)
    return (each / counts.index_select(0, group)).sum() / groups


@torch.no_grad()
def compared_cells(draw: ViewDraw) -> Tensor:
    """Return () float32: cells with points of the teacher and of another view, counted once per such view.

    Does not wait for the device.
    """
    present = occupied_cells(draw)
    leader = [view.name for view in draw.views].index(TEACHER)
    return (present & present[leader]).sum().float() - present[leader].sum()
