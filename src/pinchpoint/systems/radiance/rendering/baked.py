"""Several views of one object from values at the nodes of two grids, each computed once: for CPUs.

A coarse grid is enough where space is empty or hazy. Around what is denser, values come from nodes that are
three times as close, computed when a view first shows what is between them, up to a limit of memory. Between
nodes, all values are interpolated linearly: the density before its activation, colours and features after
theirs, so that a ray is a weighted sum of rows. Colours must not depend on the view. Letters: R rays, S
points per ray, P points that count, C colours and features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.compositing import depths_of, path_of, points_of
from pinchpoint.systems.radiance.rendering.rays import Rays
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, RenderOutput
from pinchpoint.systems.radiance.rendering.sparse import evaluate_points

_CELLS = 40  # of the coarse grid, per side
_FINE_PER_COARSE = 3  # fine cells per coarse cell, along a side
_SIDE = _CELLS * _FINE_PER_COARSE  # fine cells per side
_DENSE = 0.02  # opacity of a layer as thick as a coarse cell, from which space is not hazy but dense
_LEAST_REFINED = 5e-3  # share of a ray's light from which a point's fine cell is computed
_LEAST_ADDED = 2e-4  # share of a ray's light from which a point's colour is added
_ROUNDS = 4  # at most so many times, a view looks for cells that newly computed ones no longer hide
_MOST_NODES = 400_000  # with values: 210 MB with 128 features
_NODES_OF_BALL = round(math.pi / 6 * (_SIDE + 1) ** 3)  # of the fine grid


def is_worthwhile(points: int) -> bool:
    """Whether views of so many points in all have more of them than the ball has nodes.

    Otherwise the nodes around a hazy object could be more work than the views themselves.
    """
    return points > _NODES_OF_BALL


def can_bake(config: FieldConfig) -> bool:
    """Whether colours do not depend on the view."""
    return config.direction_octaves < 0


class _Points(NamedTuple):
    """Points of R of the rays of an image, `rows` (R,).

    places: (R, S, 3) in units of fine cells, from a corner of the grid; depths, noise: (R, S).
    """

    rows: Tensor
    places: Tensor
    depths: Tensor
    noise: Tensor
    far: float


class BakedObject:
    """One object inside a ball of radius `reach`. features: whether they are needed besides colours.

    is_limited: whether a view showed more than the limit of nodes allows; there, coarse values are used.
    """

    @torch.no_grad()
    def __init__(self, field: Field, code: Codes, reach: float, *, features: bool) -> None:
        self._field, self._code, self._reach, self._features = field, code, reach, features
        self.is_limited = False
        nodes, device = _CELLS + 1, code.shape.device
        line = torch.linspace(-reach, reach, nodes, device=device)
        grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij"), dim=3).view(-1, 3)
        cell = 2 * reach / _CELLS
        index = torch.nonzero(grid.norm(dim=1) <= reach + 3**0.5 * cell).squeeze(1)
        density, self._values = self._evaluate(grid[index])
        self._count = len(index)
        coarse = torch.full((nodes**3,), -1.0, device=device)
        coarse[index] = density
        coarse = coarse.view(1, nodes, nodes, nodes)
        side = (_SIDE + 1,) * 3
        self._density = functional.interpolate(coarse[None], size=side, mode="trilinear", align_corners=True)
        rows = torch.full((nodes**3,), -1, device=device)
        rows[index] = torch.arange(len(index), device=device)
        self._rows = torch.full(side, -1, device=device)  # of the values of nodes
        self._rows[::_FINE_PER_COARSE, ::_FINE_PER_COARSE, ::_FINE_PER_COARSE] = rows.view(
            nodes, nodes, nodes
        )
        opacity = -torch.expm1(-torch.relu(functional.max_pool3d(coarse, 2, 1)) * cell)
        self._dense = functional.max_pool3d((opacity > _DENSE).float(), 3, 1, 1).flatten() > 0  # coarse cells
        self._fine = torch.zeros(_SIDE**3, dtype=torch.bool, device=device)  # computed cells

    @torch.no_grad()
    def prepare_view(self, blocks: Callable[[], Iterable[tuple[Rays, Draws]]], *, endless: bool) -> None:
        """Compute all nodes that a view shows.

        blocks: gives the rays of the view in blocks, which change nothing but the memory that is needed.
        """
        rows_left: dict[int, Tensor] = {}  # of each block: rays that may show more than before
        for turn in range(_ROUNDS):
            missing_cells: list[Tensor] = []
            for at, (rays, draws) in enumerate(blocks()):
                points = (
                    None if turn and at not in rows_left else self._points_of(rays, draws, rows_left.get(at))
                )
                if points is not None:
                    numbers, rows_left[at] = self._missing_cells(points, endless=endless)
                    missing_cells.append(numbers)
            cells = torch.cat(missing_cells).unique() if missing_cells else None
            if cells is None or not len(cells):
                break
            self._refine(cells)

    @torch.no_grad()
    def render(self, rays: Rays, draws: Draws, *, white: bool, endless: bool) -> RenderOutput:
        """Render rays of one image, as `render` does, after `prepare_view`. rays, draws: (1, R, ...)."""
        like = draws.offsets[0]
        total, depth, acc = (like.new_zeros(len(like), *size) for size in ((self._values.shape[1],), (), ()))
        points = self._points_of(rays, draws)
        if points is not None:
            weights, rows = self._weigh(points, endless=endless), points.rows
            total[rows], depth[rows] = (
                self._composite(weights, points.places),
                (weights * points.depths).sum(1),
            )
            acc[rows] = weights.sum(dim=1)
        rgb = total[:, :3] + (1 - acc)[:, None] if white else total[:, :3]
        return RenderOutput(rgb[None], depth[None], acc[None], total[None, :, 3:] if self._features else None)

    def _points_of(self, rays: Rays, draws: Draws, only: Tensor | None = None) -> _Points | None:
        """The points of rays that pass through the ball; None if there are no such rays.

        only: rows of those that are wanted.
        """
        depths = depths_of(rays, draws.offsets)[0]
        noise = torch.zeros_like(depths) if draws.noise is None else draws.noise[0]
        # Noise makes points outside the ball vanish.
        rows = torch.nonzero((noise > -1).any(dim=1)).squeeze(1) if only is None else only
        if not len(rows):
            return None
        inside = Rays(rays.origins[:, rows], rays.directions[:, rows], rays.near, rays.far)
        places = points_of(inside, depths[None, rows])[0] + self._reach
        places = (places * (_SIDE / (2 * self._reach))).clamp_(0, _SIDE)
        return _Points(rows, places, depths[rows], noise[rows], rays.far)

    def _weigh(self, points: _Points, *, endless: bool) -> Tensor:
        """Weights of points, (R, S), as far as nodes are computed."""
        density = self._interpolate(points.places)
        return path_of(density, points.depths, far=points.far, noise=points.noise, endless=endless).weights

    def _missing_cells(self, points: _Points, *, endless: bool) -> tuple[Tensor, Tensor]:
        """Numbers of the fine cells that these points show and that are not computed yet, and their rays."""
        cells = _cells_of(points.places)
        numbers = _number(cells, _SIDE)
        missing = self._dense[_number(cells // _FINE_PER_COARSE, _CELLS)] & ~self._fine[numbers]
        missing &= self._weigh(points, endless=endless) > _LEAST_REFINED
        return numbers[missing], points.rows[missing.any(dim=1)]

    def _evaluate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Densities before their activation, (P,), and colours and features after theirs, (P, C)."""
        colour, density, view = evaluate_points(self._field, self._code, points, features=self._features)
        values = [torch.sigmoid(colour)] if view is None else [torch.sigmoid(colour), view]
        return density, torch.cat(values, dim=1)

    def _interpolate(self, places: Tensor) -> Tensor:
        """Densities before their activation at places (R, S, 3): (R, S)."""
        grid = places.flip(-1).mul_(2 / _SIDE).sub_(1)  # the last axis comes first
        return functional.grid_sample(self._density, grid[None, None], align_corners=True)[0, 0, 0]

    def _refine(self, numbers: Tensor) -> None:
        """Compute the corners of fine cells, up to the limit of nodes."""
        nodes = _number(_index(numbers, _SIDE)[:, None] + _corners(numbers.device), _SIDE + 1).flatten()
        nodes = nodes[self._rows.view(-1)[nodes] < 0].unique()
        if self._count + len(nodes) > _MOST_NODES:
            self.is_limited = True
            return
        self._fine[numbers] = True
        if not len(nodes):
            return
        places = _index(nodes, _SIDE + 1)
        density, values = self._evaluate(places * (2 * self._reach / _SIDE) - self._reach)
        self._density.view(-1)[nodes] = density
        self._rows.view(-1)[nodes] = torch.arange(self._count, self._count + len(nodes), device=nodes.device)
        if self._count + len(nodes) > len(self._values):  # with room for more, so that few copies are made
            room = min(_MOST_NODES, round(1.25 * (self._count + len(nodes))))
            larger = values.new_empty(room, values.shape[1])
            larger[: self._count] = self._values[: self._count]
            self._values = larger
        self._values[self._count : self._count + len(nodes)] = values
        self._count += len(nodes)

    def _composite(self, weights: Tensor, places: Tensor) -> Tensor:
        """Colours and features of rays, (R, C), from the weights (R, S) of their points."""
        ray, step = torch.nonzero(weights > _LEAST_ADDED).unbind(dim=1)
        places = places[ray, step]
        cells = _cells_of(places)
        stride = torch.where(self._fine[_number(cells, _SIDE)], 1, _FINE_PER_COARSE)[:, None]
        first = torch.div(cells, stride, rounding_mode="floor") * stride
        share = (places - first) / stride
        corners = _corners(ray.device)
        nodes = _number(first[:, None] + corners * stride[:, None], _SIDE + 1)
        shares = torch.where(corners > 0, share[:, None], 1 - share[:, None]).prod(dim=2)
        shares *= weights[ray, step][:, None]
        counts = torch.bincount(ray, minlength=len(weights))
        return functional.embedding_bag(
            self._rows.view(-1)[nodes].flatten(),
            self._values[: self._count],
            (counts.cumsum(0) - counts) * len(corners),
            mode="sum",
            per_sample_weights=shares.flatten(),
        )


def _number(index: Tensor, side: int) -> Tensor:
    """Numbers of cells or nodes (..., 3) in a cube: (...)."""
    return (index[..., 0] * side + index[..., 1]) * side + index[..., 2]


def _index(numbers: Tensor, side: int) -> Tensor:
    """The inverse of `_number`."""
    return torch.stack([numbers // side**2, numbers // side % side, numbers % side], dim=-1)


def _cells_of(places: Tensor) -> Tensor:
    return places.long().clamp_(max=_SIDE - 1)


def _corners(device: torch.device) -> Tensor:
    """The corners of a unit cube, (8, 3)."""
    return torch.cartesian_prod(*[torch.arange(2, device=device)] * 3)
