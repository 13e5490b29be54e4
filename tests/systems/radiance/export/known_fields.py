"""Fields whose shape and colours are known."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator
from pinchpoint.systems.radiance.rendering.render import Codes
from pinchpoint.systems.radiance.settings import PRESETS, Settings

CODE = Codes(torch.zeros(1, 8), torch.zeros(1, 8))
RADIUS = 0.6


class Ball(torch.nn.Module):
    """A field: a hollow ball that is red above and blue below, with a speck beside it."""

    def forward(
        self, points: torch.Tensor, directions: torch.Tensor, *codes: torch.Tensor, features: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        distance = points.norm(dim=1)
        # at one of every fourth point of a grid with 32 points per side
        speck = (points - points.new_tensor([1.0, 1.0, 25.0]) / 31).norm(dim=1)
        shell = torch.minimum(RADIUS - distance, distance - RADIUS + 0.3)
        density = torch.maximum(400 * shell, 4000 * (0.055 - speck))
        red = torch.where(points[:, 2] > 0, 20.0, -20.0)
        return torch.stack([red, torch.full_like(red, -20.0), -red], dim=1), density[:, None], None


class Nothing(Ball):
    def forward(
        self, points: torch.Tensor, directions: torch.Tensor, *codes: torch.Tensor, features: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        return points, -torch.ones(len(points), 1), None


class Veil(Ball):
    """The same density everywhere. opacity: of a layer of the given thickness."""

    def __init__(self, opacity: float, *, thickness: float) -> None:
        super().__init__()
        self.density = -math.log1p(-opacity) / thickness

    def forward(
        self, points: torch.Tensor, directions: torch.Tensor, *codes: torch.Tensor, features: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        return points, points.new_full((len(points), 1), self.density), None


def make_ball() -> Generator:
    settings = replace(Settings(**PRESETS["tiny"]), size=32, samples=32, bound=1.0, form="eager")
    generator = Generator(FieldConfig.preset("tiny"), settings)
    field = Ball()
    field.config = generator.field.config  # pyright: ignore[reportArgumentType]
    generator.field = field  # pyright: ignore[reportAttributeAccessIssue]
    return generator
