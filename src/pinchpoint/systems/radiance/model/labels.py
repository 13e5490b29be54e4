"""Labels of a run: the class of an object, which its codes say, and the sector of a view.

Labels are rows of ones and zeros, so that a step recorded as a CUDA graph reads them like any other numbers.
Letters: B images, K classes, V sectors of a turn.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.rendering.render import Codes

# Size of the entry that says the class, in both codes. It is larger than the others, which have a standard
# deviation of 1, so that classes differ from the first step on.
MARK = 4.0


def draw_classes(
    config: FieldConfig, batch: int, *, generator: torch.Generator, only: str | None = None
) -> Tensor:
    """Draw classes as often as they occur in the training images: (B, K). only: every one is of this class.

    The same random numbers are drawn in both cases, so that an object keeps its other properties.
    """
    check_class(config, only)
    at = torch.rand(batch, generator=generator, device=generator.device)
    if only is not None:
        return torch.stack([torch.full_like(at, float(name == only)) for name in config.classes], dim=1)
    total, first, rows = sum(config.class_images), 0, []
    for count in config.class_images:
        # Compared with numbers, not with a tensor, which would have to be copied to the device.
        rows.append((at >= first / total) & (at < (first + count) / total))
        first += count
    return torch.stack(rows, dim=1).to(at.dtype)


def check_class(config: FieldConfig, name: str | None) -> None:
    """Raise an error for a class that the run does not have."""
    if name is None or name in config.classes:
        return
    if not config.classes:
        raise BadInput(
            f"There is no class {name!r}: the run was trained without classes.",
            hint="Leave out --class, or train with --set label_weight=1 on images with classes.",
        )
    raise BadInput(f"There is no class {name!r}.", hint=f"Use {show_choices(config.classes)}.")


def mark_classes(codes: Codes, rows: Tensor) -> Codes:
    """Codes whose first K entries say the class. rows: (B, K)."""
    return Codes(*(torch.cat([MARK * rows, values[:, rows.shape[1] :]], dim=1) for values in codes))


def class_rows(labels: Tensor, classes: int) -> Tensor:
    """Classes as indices (B,) to rows (B, K)."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)).float()


def sector_rows(turns: Tensor, sectors: int) -> Tensor:
    """The sector of each azimuth (B,), in turns: (B, V). A whole turn is the same as none."""
    if not sectors:
        return turns.new_zeros(len(turns), 0)
    at = (turns * sectors).floor() % sectors
    return torch.stack([at == sector for sector in range(sectors)], dim=1).to(turns.dtype)
