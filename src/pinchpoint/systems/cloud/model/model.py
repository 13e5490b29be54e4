"""CloudModel: classes and features for the points of a batch of scenes, from a U-Net over their voxels.

Letters: M points in B groups (a scene, or one view of a scene), F features per point, C voxels, K classes, D
output features. Each point is embedded on its own (features, position in its voxel, height above the lowest
point of the group), each voxel averages its points, the U-Net processes the voxels, and the head reads voxel
and point together. With the layer norm, the result for a group does not depend on the other groups of the
batch.
For the backward pass, each finest voxel of a surface stores about 6 kB with the preset small and 22 kB with
base, in float32, including its share of coarser voxels and points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.reduce import segment_mean, segment_sum
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.streaming.stream import stream
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.model.attention import Windows
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.unet import UNet
from pinchpoint.systems.cloud.model.voxels import Voxels, group_least, voxelise


@dataclass(frozen=True)
class Tables:
    """What the network reads of a batch, which does not depend on its weights.

    windows: of the attention layers of every level; inputs: (M, point_inputs), the numbers read at each
    point.
    """

    voxels: Voxels
    windows: tuple[tuple[Windows, ...], ...]
    inputs: Tensor


class CloudModel(nn.Module):
    """Map xyz (M, 3), features (M, F) and offsets (B + 1,) to logits (M, K) and features (M, D)."""

    shift: Tensor
    scale: Tensor

    def __init__(self, config: CloudConfig) -> None:
        super().__init__()
        self.config = config
        wide, finest = config.point_width, config.widths[0]
        self.embed = nn.Sequential(nn.Linear(config.point_inputs, wide), nn.GELU(), nn.Linear(wide, wide))
        self.enter = nn.Linear(wide, finest)
        self.unet = UNet(config)
        self.mix = nn.Linear(finest + wide, config.features)
        self.classify = nn.Linear(config.features, config.classes) if config.classes else None
        self.regress = nn.Linear(config.features, config.targets) if config.targets else None
        self.register_buffer(
            "shift", torch.tensor(config.feature_shift or [0.0] * config.in_features), persistent=False
        )
        self.register_buffer(
            "scale", torch.tensor(config.feature_scale or [1.0] * config.in_features), persistent=False
        )

    def forward(
        self,
        xyz: Tensor,
        features: Tensor,
        offsets: Tensor,
        view: Tensor | None = None,
        tables: Tables | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the network.

        view: the number of the view of each group (B,) or point (M,), which selects the statistics of the
        norm per-view. tables: those of this batch, if they were made before.
        """
        tables = self.tables(xyz, features, offsets) if tables is None else tables
        voxels = tables.voxels
        points = self.embed(tables.inputs)
        voxel_features = self.voxel_features(points, voxels, view, tables.windows)
        return self.point_outputs(points, _ToPoints.apply(voxel_features, voxels.segments, voxels.of_point))  # pyright: ignore[reportArgumentType]

    def tables(self, xyz: Tensor, features: Tensor, offsets: Tensor) -> Tables:
        """Return what the network reads of a batch.

        This waits for the device; the rest of a step does not.
        """
        voxels = voxelise(xyz, offsets, cell=self.config.cell, levels=len(self.config.widths))
        return Tables(voxels, self.unet.windows(voxels), self.inputs(xyz, features, voxels))

    def inputs(self, xyz: Tensor, features: Tensor, voxels: Voxels) -> Tensor:
        """Return (M, point_inputs): the numbers read at each point."""
        if features.dim() != 2 or features.shape != (xyz.shape[0], self.config.in_features):
            raise BadInput(
                f"The features have shape {tuple(features.shape)}, which does not match"
                f" {xyz.shape[0]:,} points.",
                hint=f"Give features of shape ({xyz.shape[0]}, {self.config.in_features}).",
            )
        dtype = self.shift.dtype
        columns = [(features.to(dtype) - self.shift) / self.scale, voxels.inside.to(dtype)]
        if self.config.height:
            height = xyz[:, 2:]
            columns.append(
                (height - group_least(height, voxels.group, voxels.groups)[voxels.group]).to(dtype)
            )
        return torch.cat(columns, dim=1)

    def voxel_features(
        self,
        points: Tensor,
        voxels: Voxels,
        view: Tensor | None = None,
        windows: Sequence[Sequence[Windows]] | None = None,
    ) -> Tensor:
        """Map embedded points (M, point_width) to voxel features (C, widths[0])."""
        numbers = _view_of_groups(view, voxels) if self.config.views > 1 else _view_of_groups(None, voxels)
        voxel_inputs = self.enter(segment_mean(points, voxels.segments)).to(self.enter.weight.dtype)
        return self.unet(voxel_inputs, voxels, numbers, windows)

    def point_outputs(self, points: Tensor, voxel_features: Tensor) -> tuple[Tensor, Tensor]:
        """Map points (M, point_width) and their voxels' features (M, widths[0]) to logits (M, K) and
        features (M, D).
        """
        features = self.point_features(points, voxel_features)
        if self.classify is not None:
            return self.classify(functional.gelu(features)), features
        if not self.training:
            raise BadInput(
                "The network has no classes: it was trained for a target alone.",
                hint="Train it with labels, too, or read its target with `predict_targets`.",
            )
        return features.new_zeros(len(features), 0), features

    def point_features(self, points: Tensor, voxel_features: Tensor) -> Tensor:
        """Map points (M, point_width) and their voxels' features (M, widths[0]) to features (M, D)."""
        return self.mix(torch.cat([points, voxel_features.to(points.dtype)], dim=1))

    def predict_target(self, features: Tensor) -> Tensor:
        """Map features (M, D) to the predicted target (M, config.targets), of length 1."""
        assert self.regress is not None
        return functional.normalize(self.regress(functional.gelu(features)), dim=1)


def predict_labels(
    model: CloudModel,
    scene: Scene,
    *,
    budget: str | int | None = None,
    device: str | torch.device | None = None,
) -> np.ndarray:
    """Return (N,) int32, the class of each point of one scene; see `predict_classes`."""
    return predict_classes(model, scene, budget=budget, device=device)[0]


def scene_inputs(model: CloudModel, scene: Scene, device: str | torch.device | None) -> tuple[Tensor, Voxels]:
    """Return the inputs (N, point_inputs) of one scene and its voxels, on the model's device by default."""
    place = next(model.parameters())
    device = torch.device(device) if device is not None else place.device
    xyz = torch.from_numpy(np.ascontiguousarray(scene.xyz)).to(device, place.dtype)
    features = torch.from_numpy(np.ascontiguousarray(scene.features)).to(device, place.dtype)
    offsets = torch.tensor([0, scene.points], device=device)
    voxels = voxelise(xyz, offsets, cell=model.config.cell, levels=len(model.config.widths))
    return model.inputs(xyz, features, voxels), voxels


@torch.no_grad()
def predict_classes(
    model: CloudModel,
    scene: Scene,
    *,
    budget: str | int | None = None,
    device: str | torch.device | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the class (N,) int32 of each point of one scene, and its probability (N,) float32.

    Voxels are processed at once, points in chunks. budget: bytes for everything on the device while points
    are processed. A point takes 4 (point_inputs + 1) B, and each voxel takes about 200 B of tables and a few
    hundred numbers.
    """
    check_scene(scene)
    was_training = model.training
    model.eval()
    try:
        inputs, voxels = scene_inputs(model, scene, device)
        voxel_features = model.voxel_features(model.embed(inputs), voxels)

        def label(chunk: Tensor, cells: Tensor, voxel_features: Tensor) -> tuple[Tensor, Tensor]:
            logits, _ = model.point_outputs(model.embed(chunk), voxel_features.index_select(0, cells))
            best = logits.argmax(1)
            probabilities = logits.float().softmax(1).gather(1, best[:, None])[:, 0]
            return best.to(torch.int32), probabilities

        point_data = inputs, voxels.of_point
        del voxels  # free their memory for the chunks
        labels, probabilities = stream(
            label, point_data, extra=(voxel_features,), budget=budget, device=inputs.device.type
        )
    finally:
        model.train(was_training)
    return labels.cpu().numpy(), probabilities.cpu().numpy()


class _ToPoints(torch.autograd.Function):
    """Copy the values (C, F) of voxels to their points (M, F).

    The gradient is summed in the order of the cells, so it is deterministic.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, segments: Segments, of_point: Tensor) -> Tensor:
        ctx.segments = segments
        return values.index_select(0, of_point)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None, None]:
        return segment_sum(grads[0], ctx.segments), None, None


def _view_of_groups(view: Tensor | None, voxels: Voxels) -> Tensor:
    """Return (B,) int64: the view number of each group."""
    if view is None:
        return torch.zeros(voxels.groups, dtype=torch.int64, device=voxels.group.device)
    if view.shape == (voxels.groups,):
        return view.long()
    if view.shape != voxels.group.shape:
        raise BadInput(
            f"The view numbers have shape {tuple(view.shape)}, which matches neither groups nor points.",
            hint=f"Give one for each of the {voxels.groups} groups or the {len(voxels.group):,} points.",
        )
    numbers = torch.zeros(voxels.groups, dtype=torch.int64, device=view.device)
    return numbers.scatter_(0, voxels.group, view.long())
