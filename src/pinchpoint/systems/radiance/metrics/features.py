"""Image features of a network trained on ImageNet, from which distances between image sets are computed.

Images are first rounded to bytes, as in a file. The network always processes `_TOGETHER` images at a time,
with padding in the last batch, so that the features of an image do not depend on the images processed with
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.metrics import efficientnet, inception

_TOGETHER = 16


@dataclass(frozen=True)
class Extractor:
    """A network with its input size. name: efflite0 or inception."""

    name: Literal["efflite0", "inception"]
    side: int
    width: int
    network: Callable[[Tensor], Tensor]
    device: torch.device

    def __call__(self, images: Tensor) -> Tensor:
        """(N, 3, W, W) in [-1, 1] -> (N, width), on the CPU."""
        if images.dim() != 4 or images.shape[1] != 3 or not len(images):
            raise BadInput(
                f"Features cannot be computed for images of shape {tuple(images.shape)}.",
                hint="Give at least one image as (N, 3, W, W).",
            )
        features = []
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            for part in images.detach().split(_TOGETHER):
                inputs = self._prepare(part)
                batch = F.pad(inputs, (0, 0, 0, 0, 0, 0, 0, _TOGETHER - len(inputs)))
                features.append(
                    self.network(batch.contiguous(memory_format=torch.channels_last))[: len(inputs)].cpu()
                )
        return torch.cat(features)

    def _prepare(self, images: Tensor) -> Tensor:
        images = images.to(self.device).float().clamp(-1, 1)
        images = ((images + 1) * 127.5).round() / 127.5 - 1
        side = (self.side, self.side)
        if self.name == "inception":  # as in FID: bilinear at any size
            return F.interpolate(images, size=side, mode="bilinear", align_corners=False)
        return F.interpolate(images, size=side, mode="bicubic", align_corners=False, antialias=True).clamp(
            -1, 1
        )


def open_extractor(
    *, inception_file: str | Path | None = None, device: str | torch.device = "cpu"
) -> Extractor:
    """Load EfficientNet-Lite0, or FID's Inception if its weights file is given."""
    device = torch.device(device)
    if inception_file is not None:
        network = inception.load_inception(inception_file, device=device)
        return Extractor("inception", inception.SIDE, inception.FEATURES, network.features, device)
    return Extractor(
        "efflite0",
        efficientnet.SIDE,
        efficientnet.FEATURES,
        efficientnet.load_efflite(device=device).features,
        device,
    )
