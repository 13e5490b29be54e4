"""Statistics of the points within a radius around a place, computed from sums.

Q places, S points, E edges. There are nine numbers per place, with lengths in units of the radius: the amount
of points or area, the mean and variance of the distance, the offset of the centroid (3) and the eigenvalues
of the covariance (3, largest first). All are zero if there are no points. They need only sums of products
along rows, so edges are processed in chunks and not saved; they have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pinchpoint.kit import Edges
from pinchpoint.kit.edges.row_chunks import row_chunks

COLUMNS = 9
# Columns after the nine if normals are known: the sum of the normals (3) and of offset times normal (9).
TURNING = 12
CHUNK = 262_144  # edges: about 60 MiB
# The faded statistics of a flat disc at its middle: amount, mean distance, variance, centroid, and
# eigenvalues along both axes and across.
FLAT = (1, 16 / 35, 1 / 4 - (16 / 35) ** 2, 0, 0, 0, 1 / 8, 1 / 8, 0)
# Scale of departures: bends and edges of a smooth body change its statistics by a tenth or two.
_SHARPER = 5.0
# Scales that bring the results of `turning_inputs` to a size of about one on cars, for balls from a few
# panels to the whole car.
_NORMALS, _TOTALS, _VECTORS = 2.5, 10.0, 30.0
_FAINT = 1e-3  # deviations well below this share of the radius count as zero


@torch.no_grad()
def statistics(
    x: Tensor,
    y: Tensor,
    edges: Edges,
    *,
    radius: float,
    weights: Tensor | None = None,
    fading: bool = False,
    chunk: int = CHUNK,
) -> Tensor:
    """(Q, 9) in the dtype of x. x: (Q, 3) places; y: (S, 3) points.

    weights: (S,), or None to count every point as one. With weights (areas) the statistics describe the
    surface at any resolution. `fading` also weights each point by 3 (1 - d^2)^2 with its distance d, so that
    points near the edge of the ball hardly count: without it, the statistics of a coarse mesh jump.
    """
    parts = []
    for rows in row_chunks(edges, chunk):
        sources = rows.sources()
        # In float64: a variance is a small difference of two large sums.
        offset = (y.index_select(0, sources) - x.index_select(0, rows.destinations())).double() / radius
        weight = (
            torch.ones_like(offset[:, 0]) if weights is None else weights.index_select(0, sources).double()
        )
        squares = (offset[:, :, None] * offset[:, None, :]).flatten(1)
        distance = squares[:, [0, 4, 8]].sum(1).sqrt()
        if fading:
            weight = weight * 3 * (1 - distance.square()).clamp_min(0).square()
        moments = torch.cat([torch.ones_like(distance)[:, None], distance[:, None], offset, squares], dim=1)
        parts.append(from_sums(rows.sum(moments * weight[:, None])))
    values = torch.cat(parts) if parts else x.new_zeros(0, COLUMNS, dtype=torch.float64)
    return values.to(x.dtype)


def readable(values: Tensor) -> Tensor:
    """Statistics scaled for a network, (..., 9) to (..., 9): log of the amount, deviations as lengths."""
    amount, distance, variance, centroid, spread = values.split([1, 1, 1, 3, 3], dim=-1)
    return torch.cat([amount.log1p(), distance, _root(variance), centroid, _root(spread)], dim=-1)


def _root(squares: Tensor) -> Tensor:
    """The square root, flattened at zero, where it would amplify rounding."""
    return (squares + _FAINT**2).sqrt() - _FAINT


def departure(values: Tensor) -> Tensor:
    """The difference of faded statistics from those of a flat disc, scaled for a network.

    (..., 9) to (..., 9). Columns after the nine are unchanged.
    """
    nine = _SHARPER * (readable(values[..., :COLUMNS]) - readable(values.new_tensor(FLAT)))
    return torch.cat([nine, values[..., COLUMNS:]], dim=-1)


def turning_inputs(sums: Tensor, normal: Tensor, others: Sequence[Tensor]) -> list[Tensor]:
    """How the normals vary around each point, as inputs of a network: each (P, R n).

    sums: (P, R, 12) for R radii, with m the sum of the normals and G that of offset times normal; normal: (P,
    3); others: (P, 3) each, such as the onset flow U. G U is the velocity that sources of strength n . U
    around a point, the first step of the panel method, induce there at the scale of a radius. All are zero on
    a plane.
    """
    n = normal[:, None]
    turns = sums[..., 3:].unflatten(-1, (3, 3))
    away, bent = sums[..., :3] - n, (turns * n[:, :, None]).sum(-1)
    across = (bent * n).sum(-1, keepdim=True)
    values = [
        _NORMALS * away,
        _NORMALS * (away * n).sum(-1, keepdim=True),
        _TOTALS * turns.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True),
        _TOTALS * across,
        _VECTORS * (bent - across * n),
    ]
    for other in others:
        u = other[:, None]
        induced, along = (turns * u[:, :, None]).sum(-1), u - (u * n).sum(-1, keepdim=True) * n
        both = (induced * n).sum(-1, keepdim=True), (induced * along).sum(-1, keepdim=True)
        values += [_VECTORS * part for part in (induced, *both)]
    return [part.flatten(1) for part in values]


def turning_columns(others: int) -> int:
    """The number of columns of `turning_inputs` for each radius."""
    return 9 + 5 * others


def eigenvalues(matrices: Tensor) -> Tensor:
    """(Q, 3) eigenvalues of symmetric matrices (Q, 3, 3), largest first, in closed form without a library."""
    middle = matrices.diagonal(dim1=1, dim2=2).mean(1)
    rest = matrices - middle[:, None, None] * torch.eye(3, dtype=matrices.dtype, device=matrices.device)
    size = (rest.square().sum((1, 2)) / 6).sqrt()
    unit = rest / size.clamp_min(torch.finfo(matrices.dtype).tiny)[:, None, None]
    a, b, c = unit.unbind(1)
    half = (torch.linalg.cross(a, b) * c).sum(1) / 2
    angle = torch.acos(half.clamp(-1, 1)) / 3
    turns = angle[:, None] + angle.new_tensor([0, -2 * math.pi / 3, 2 * math.pi / 3])
    return middle[:, None] + 2 * size[:, None] * torch.cos(turns)


def from_sums(sums: Tensor) -> Tensor:
    """Statistics (q, 9) from weighted sums (q, 14) of 1, distance, offset (3) and its products (9)."""
    amount = sums[:, :1]
    means = torch.where(amount > 0, sums / amount.clamp_min(torch.finfo(sums.dtype).tiny), 0)
    distance, centroid = means[:, 1:2], means[:, 2:5]
    products = means[:, 5:].reshape(-1, 3, 3)
    variance = products.diagonal(dim1=1, dim2=2).sum(1, keepdim=True) - distance.square()
    spread = eigenvalues(products - centroid[:, :, None] * centroid[:, None, :])
    return torch.cat([amount, distance, variance.clamp_min(0), centroid, spread.clamp_min(0)], dim=1)
