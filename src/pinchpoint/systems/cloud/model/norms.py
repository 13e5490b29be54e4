"""Norms of voxel features: per voxel (layer), over the batch, or over the voxels of each view.

Letters: C voxels, F features, V views. A layer norm reads one voxel only, so the result for a scene depends
neither on other scenes nor on running statistics. Batch statistics of sparse and dense views together fit
neither kind; the norm per-view keeps one set of statistics per view, and shares the learned scale and shift.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.cloud.model.config import Norm

_MOMENTUM = 0.1
_EPS = 1e-5


class ViewNorm(nn.Module):
    """Batch norm of (C, F) with one set of statistics per view; evaluation uses the running statistics."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, views: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(views, features))
        self.register_buffer("running_var", torch.ones(views, features))

    def forward(self, values: Tensor, view: Tensor) -> Tensor:
        """Normalise values (C, F). view: (C,) integers below V."""
        with torch.autocast(values.device.type, enabled=False):
            values = values.to(self.weight.dtype)
            # Multiply by a one-hot matrix, because the backward pass of indexing is not deterministic on a
            # GPU.
            member = functional.one_hot(view.long(), self.running_mean.shape[0]).to(values.dtype)
            if not self.training:
                return self._scaled(values - member @ self.running_mean, member @ self.running_var)
            count = member.sum(0)[:, None]
            share = member / count.clamp(min=1).T
            mean = share.T @ values
            centred = values - member @ mean
            var = share.T @ centred.square()
            self._update(mean.detach(), var.detach(), count)
            return self._scaled(centred, member @ var)

    def _scaled(self, centred: Tensor, var: Tensor) -> Tensor:
        return centred * (var + _EPS).rsqrt() * self.weight + self.bias

    def _update(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Update the running statistics of views with at least two voxels; others have no variance."""
        weight = torch.where(count > 1, _MOMENTUM, 0.0).to(mean.dtype)
        with torch.no_grad():
            self.running_mean += weight * (mean - self.running_mean)
            self.running_var += weight * (var * count / (count - 1).clamp(min=1) - self.running_var)


class LayerNorm(nn.LayerNorm):
    """Layer norm with the call signature of `ViewNorm`."""

    def forward(self, input: Tensor, view: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(input)


def make_norm(kind: Norm, features: int, views: int) -> nn.Module:
    """Return a norm module that is called with values (C, F) and view (C,)."""
    if kind == "layer":
        return LayerNorm(features)
    return ViewNorm(features, views)
