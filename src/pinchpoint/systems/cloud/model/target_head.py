"""Regression of targets, such as language features: the loss, and predictions for whole scenes.

Letters: M points, N points of a scene, D columns of a target. The prediction is a direction, of length 1. The
loss of a point is that of the point-cloud report's trainer: the squared distance of the prediction from the
target, plus 1 - the cosine of the angle between them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.model.model import CloudModel, scene_inputs
from pinchpoint.systems.cloud.model.views import Batch
from pinchpoint.systems.cloud.model.voxels import groups_of

_CHUNK = 2**16  # points whose targets are predicted together


def target_loss(predictions: Tensor, points: Batch, *, groups: int) -> Tensor:
    """Return the mean over groups of the mean over their points with a target.

    predictions: (M, D) of length 1; groups: the number of groups.
    """
    assert points.targets is not None and points.has_target is not None
    wide = torch.promote_types(predictions.dtype, torch.float32)
    predictions, targets = predictions.to(wide), points.targets.to(wide)
    each = (predictions - targets).square().sum(1) + 1 - functional.cosine_similarity(predictions, targets)
    valid = points.has_target
    # As in the loss of the classes: sums of integers up to where groups begin.
    before = functional.pad(valid.cumsum(0), (1, 0))
    counts = before.index_select(0, points.offsets).diff().clamp(min=1)
    shares = torch.where(valid, each, 0) / counts.index_select(0, groups_of(points.offsets, len(each)))
    return shares.sum() / groups


def predict_targets(
    model: CloudModel, scene: Scene, *, device: str | torch.device | None = None
) -> np.ndarray:
    """Return (N, D) float32: the predicted target of each point of a scene, of length 1."""
    return np.concatenate([part.cpu().numpy() for _, part in _predictions(model, scene, device)])


def target_cosines(
    model: CloudModel, scene: Scene, *, device: str | torch.device | None = None
) -> np.ndarray:
    """Return (V,) float32: the cosines of the V points of a scene that have a target."""
    if scene.targets is None or scene.has_target is None:
        return np.zeros(0, np.float32)
    parts = []
    for rows, part in _predictions(model, scene, device):
        truth = torch.from_numpy(np.array(scene.targets[rows])).to(part)
        cosines = functional.cosine_similarity(part, truth).cpu().numpy()
        parts.append(cosines[scene.has_target[rows]])
    return np.concatenate(parts)


@torch.no_grad()
def _predictions(
    model: CloudModel, scene: Scene, device: str | torch.device | None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield the predictions (m, D) for chunks of points."""
    if model.regress is None:
        raise BadInput(
            "The network was trained without a target.", hint="Train one with --target, such as lang_feat."
        )
    check_scene(scene)
    was_training = model.training
    model.eval()
    try:
        inputs, voxels = scene_inputs(model, scene, device)
        points = model.embed(inputs)
        cells = model.voxel_features(points, voxels)
        for start in range(0, scene.points, _CHUNK):
            rows = slice(start, min(start + _CHUNK, scene.points))
            of_voxels = cells.index_select(0, voxels.of_point[rows])
            yield rows, model.predict_target(model.point_features(points[rows], of_voxels)).float()
    finally:
        model.train(was_training)
