"""GRAF's conditional radiance field as published; `folded` computes the same with less work.

Letters: B images, N points, Q rays, F features. Every image has the same number of points; the points of a
ray are adjacent, and so are the rays and points of an image. Every point carries its codes and its direction
through the network: 3,380 numbers per point are stored for the backward pass (preset graf), which is 13,520 B
in fp32, or 13,560 B including compositing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.model.config import FieldConfig


class Field(nn.Module):
    """Computes colour and density, both before their activation, at points viewed along directions."""

    def __init__(self, config: FieldConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width, half = config.width, config.width // 2
        read = config.encoded_point + config.z_shape
        widths = [read] + [width + read * (at == config.skip + 1) for at in range(1, config.depth)]
        with torch.random.fork_rng(devices=[]):  # leave the caller's random state untouched
            torch.manual_seed(seed)
            self.trunk = nn.ModuleList(nn.Linear(wide, width) for wide in widths)
            self.density = nn.Linear(width, 1)
            self.remap = nn.Linear(width, width)
            self.view = nn.Linear(width + config.encoded_direction + config.z_app, half)
            self.colour = nn.Linear(half, 3)

    def forward(
        self, points: Tensor, directions: Tensor, z_shape: Tensor, z_app: Tensor, *, features: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """points: (N, 3); directions: (N, 3) or (Q, 3); codes: (B, z_shape), (B, z_app).

        Returns colour (N, 3), density (N, 1), and features (N, F) or None.
        """
        count, images = len(points), len(z_shape)
        check_groups(count, len(directions), images)
        if len(directions) != count:
            directions = directions.repeat_interleave(count // len(directions), dim=0)
        config = self.config
        # One tensor with all inputs of a point, as published: codes and directions are copied to every point.
        read = torch.cat(
            (
                encode(points, config.point_octaves),
                _to_points(z_shape, count),
                encode(directions, config.direction_octaves),
                _to_points(z_app, count),
            ),
            dim=1,
        )
        of_shape, of_view = read.split(
            (config.encoded_point + config.z_shape, config.encoded_direction + config.z_app), dim=1
        )
        hidden = of_shape
        for at, layer in enumerate(self.trunk):
            hidden = torch.relu(layer(hidden))
            if at == config.skip:
                hidden = torch.cat((of_shape, hidden), dim=1)
        density = self.density(hidden)
        view = torch.relu(self.view(torch.cat((self.remap(hidden), of_view), dim=1)))
        return self.colour(view), density, view if features else None


def encode(values: Tensor, octaves: int, *, out: Tensor | None = None) -> Tensor:
    """Positional encoding of values (..., 3): the values, the sines of 1, 2, 4, ... times them, and the
    cosines.

    Returns (..., 3 + 6 octaves). out: (..., at least as many columns) of any floating type; the encoding is
    written to its first columns, which avoids a copy. With octaves=-1 the encoding is empty: (..., 0).
    """
    if octaves < 0:
        return values.new_empty(*values.shape[:-1], 0) if out is None else out
    wide = 3 * octaves
    if out is None:
        out = values.new_empty(*values.shape[:-1], 3 + 2 * wide)
    out[..., :3] = values
    if octaves:
        steps = 2.0 ** torch.arange(octaves, dtype=values.dtype, device=values.device)
        angles = (values[..., None, :] * steps[:, None]).flatten(-2)
        torch.sin(angles, out=out[..., 3 : 3 + wide])
        torch.cos(angles, out=out[..., 3 + wide : 3 + 2 * wide])
    return out


def check_groups(points: int, directions: int, images: int) -> None:
    """Raise an error unless points divide evenly among images and rays.

    Otherwise a code or direction would be applied to the wrong point.
    """
    if not images or points % images:
        raise BadInput(
            f"{points:,} points cannot be divided evenly among {images:,} codes.",
            hint="Give every image the same number of points.",
        )
    if not directions or points % directions or directions % images:
        raise BadInput(
            f"{directions:,} directions do not match {points:,} points of {images:,} images.",
            hint="Give one direction per point, or one per ray.",
        )


def _to_points(codes: Tensor, count: int) -> Tensor:
    """Repeat codes for every point: (B, Z) -> (N, Z); a view for a single image."""
    return codes[:, None].expand(-1, count // len(codes), -1).reshape(count, codes.shape[1])
