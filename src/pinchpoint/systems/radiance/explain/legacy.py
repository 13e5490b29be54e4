"""The super-resolution of the GRAF memory guide, for comparison only: its weights are never trained.

A latent image per view is added to the enlarged render, a few convolutions run at the large size, a pixel
shuffle enlarges the result once more, and it is shrunk to the patch size of the discriminator. All of this
runs under no_grad, and requires_grad is then set on the result: the gradient from the discriminator ends
there, and neither these weights nor the field get a gradient. Letters: B images, h side of the render.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.radiance.model.superres import enlarge

FACTOR = 4  # factor of the pixel shuffle


class LegacySuperRes(nn.Module):
    """Enlarges by 8 for the convolutions and by 4 after them, and shrinks back to h."""

    def __init__(
        self, side: int, *, width: int = 64, views: int = 72, up: int = 8, no_grad: bool = True
    ) -> None:
        super().__init__()
        self.up, self.no_grad = up, no_grad
        self.latents = nn.Parameter(0.1 * torch.randn(views, 3, side * up, side * up))
        self.convs = nn.Sequential(
            nn.Conv2d(6, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 3 * FACTOR**2, 3, padding=1),
        )

    def forward(self, low: Tensor, view: Tensor) -> Tensor:
        """low: (B, 3, h, h); view: (B,) index of the latent image -> (B, 3, h, h)."""
        if not self.no_grad:
            return self._enlarge(low, view)
        with torch.no_grad():
            image = self._enlarge(low, view)
        return image.requires_grad_(True)

    def _enlarge(self, low: Tensor, view: Tensor) -> Tensor:
        wide = enlarge(low, self.up)
        fine = functional.pixel_shuffle(self.convs(torch.cat([wide, self.latents[view]], dim=1)), FACTOR)
        high = enlarge(wide, FACTOR) + fine
        return functional.interpolate(high, size=low.shape[2:], mode="bilinear", align_corners=False)
