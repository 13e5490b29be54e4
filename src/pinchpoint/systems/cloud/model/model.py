"""CloudModel: classes and features at the points of a batch of scenes, through a U-Net over their voxels.

M points in B groups (a scene, or one view of a scene), F features of a point, C voxels, K classes, D features given.
A point is read by itself (features, where in its voxel, height over the group's lowest point), its voxel takes the mean,
the U-Net works on voxels, and the head reads the voxel and the point together. With the layer norm a group's answer does
not depend on the others of the batch. For the backward pass a finest voxel of a surface keeps about 6 kB with the preset small
and 22 kB with base, in float32 and with what its coarser voxels and its points keep.
"""

from __future__ import annotations

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
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.unet import UNet
from pinchpoint.systems.cloud.model.voxels import Voxels, group_least, voxelise


class CloudModel(nn.Module):
    """xyz (M, 3), features (M, F), offsets (B + 1,) -> logits (M, K), features (M, D)."""

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
        self.classify = nn.Linear(config.features, config.classes)
        self.register_buffer(
            "shift", torch.tensor(config.feature_shift or [0.0] * config.in_features), persistent=False
        )
        self.register_buffer(
            "scale", torch.tensor(config.feature_scale or [1.0] * config.in_features), persistent=False
        )

    def forward(
        self, xyz: Tensor, features: Tensor, offsets: Tensor, view: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """view: whole numbers, of each group (B,) or of each point (M,): which statistics a group uses, with norm per-view."""
        voxels = voxelise(xyz, offsets, cell=self.config.cell, levels=len(self.config.widths))
        points = self.embed(self.inputs(xyz, features, voxels))
        known = self.of_voxels(points, voxels, view)
        return self.of_points(points, _ToPoints.apply(known, voxels.segments, voxels.of_point))  # pyright: ignore[reportArgumentType]

    def inputs(self, xyz: Tensor, features: Tensor, voxels: Voxels) -> Tensor:
        """(M, point_inputs): what is read at each point."""
        if features.dim() != 2 or features.shape != (xyz.shape[0], self.config.in_features):
            raise BadInput(
                f"The features have shape {tuple(features.shape)}, which does not match {xyz.shape[0]:,} points.",
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

    def of_voxels(self, points: Tensor, voxels: Voxels, view: Tensor | None = None) -> Tensor:
        """points (M, point_width), as embedded -> (C, widths[0])."""
        chosen = _view_of_groups(view, voxels) if self.config.views > 1 else _view_of_groups(None, voxels)
        entered = self.enter(segment_mean(points, voxels.segments)).to(self.enter.weight.dtype)
        return self.unet(entered, voxels, chosen)

    def of_points(self, points: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """points (M, point_width) and what their voxels know (M, widths[0]) -> logits (M, K), features (M, D)."""
        features = self.mix(torch.cat([points, known.to(points.dtype)], dim=1))
        return self.classify(functional.gelu(features)), features


@torch.no_grad()
def predict_labels(
    model: CloudModel,
    scene: Scene,
    *,
    budget: str | int | None = None,
    device: str | torch.device | None = None,
) -> np.ndarray:
    """(N,) int32, the class of each point of one scene. The voxels are worked on whole, the points stream in chunks.

    budget: bytes for all that lies on the device while points stream; beside the voxels, each of which takes about
    200 B of tables and a few hundred numbers, a point takes 4 (point_inputs + 1) B.
    """
    check_scene(scene)
    place = next(model.parameters())
    device = torch.device(device) if device is not None else place.device
    was_training = model.training
    model.eval()
    try:
        xyz = torch.from_numpy(np.ascontiguousarray(scene.xyz)).to(device, place.dtype)
        features = torch.from_numpy(np.ascontiguousarray(scene.features)).to(device, place.dtype)
        offsets = torch.tensor([0, scene.points], device=device)
        voxels = voxelise(xyz, offsets, cell=model.config.cell, levels=len(model.config.widths))
        inputs = model.inputs(xyz, features, voxels)
        known = model.of_voxels(model.embed(inputs), voxels)

        def label(chunk: Tensor, cells: Tensor, known: Tensor) -> Tensor:
            logits, _ = model.of_points(model.embed(chunk), known.index_select(0, cells))
            return logits.argmax(1).to(torch.int32)

        given = inputs, voxels.of_point
        del voxels, xyz, features  # the tables are not needed any more: the chunk may take their bytes
        found: Tensor = stream(label, given, extra=(known,), budget=budget, device=device.type)
    finally:
        model.train(was_training)
    return found.cpu().numpy()


class _ToPoints(torch.autograd.Function):
    """values (C, F) to (M, F): to each point what its voxel has. The gradient is summed in the order of the cells."""

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
    """(B,) int64."""
    if view is None:
        return torch.zeros(voxels.groups, dtype=torch.int64, device=voxels.group.device)
    if view.shape == (voxels.groups,):
        return view.long()
    if view.shape != voxels.group.shape:
        raise BadInput(
            f"The view numbers have shape {tuple(view.shape)}, which matches neither groups nor points.",
            hint=f"Give one for each of the {voxels.groups} groups or the {len(voxels.group):,} points.",
        )
    chosen = torch.zeros(voxels.groups, dtype=torch.int64, device=view.device)
    return chosen.scatter_(0, voxels.group, view.long())
