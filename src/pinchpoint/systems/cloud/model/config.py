"""CloudConfig: the configuration of one point-cloud network, as plain values that survive JSON.

Letters: F features per point, K classes. `cell` is in the units of the coordinates; there is one level per
entry of `widths`. This module imports no framework.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.common.settings import option

Norm = Literal["layer", "batch", "per-view"]


@dataclass(frozen=True)
class CloudConfig(JsonConfig):
    """Configuration of one network, built directly, with `preset` or with `from_json`.

    Invalid values raise BadInput.
    """

    in_features: int  # F, the number of features read at every point; 0 reads the geometry only
    classes: int  # K; 0 for a network that predicts a target only
    cell: float = option(0.05, "Edge of the finest voxels, in the units of the coordinates.")
    widths: tuple[int, ...] = option(
        (48, 96, 160, 256), "Features per voxel at each level, finest level first."
    )
    blocks: tuple[int, ...] = option(
        (1, 2, 2, 2), "Blocks per level on the way down; there is one on the way up."
    )
    attention: tuple[int, ...] = option((0, 0, 2, 4), "Attention layers per level.")
    heads: int = option(8, "Attention heads.")
    window: int = option(256, "Voxels that attend to each other.")
    point_width: int = option(32, "Width of the features computed from each point alone.")
    features: int = option(64, "Features D returned at every point in addition to the classes.")
    norm: Norm = option("layer", "Normalisation: layer, batch or per-view.")
    targets: int = 0  # columns of the target that is predicted beside the classes; 0: none
    views: int = 1  # sets of statistics, for norm "per-view"
    height: bool = option(True, "Also read the height above the lowest point of the group.")
    # (F,) each. The shift is subtracted, then the result is divided by the scale. If both are empty, the
    # features stay unchanged.
    feature_shift: tuple[float, ...] = ()
    feature_scale: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.in_features < 0:
            raise BadInput(
                f"in_features is {self.in_features}, but must not be negative.", hint="Give 0 or more."
            )
        if self.targets < 0:
            raise BadInput(
                f"The setting targets is {self.targets}, but must not be negative.", hint="Give 0 or more."
            )
        if self.classes < 2 and not (self.classes == 0 and self.targets):
            raise BadInput(
                f"The setting classes is {self.classes}, but a network needs at least 2 classes.",
                hint="Give at least 2 classes.",
            )
        for name in ("heads", "window", "point_width", "features", "views"):
            if getattr(self, name) < 1:
                raise BadInput(
                    f"{name} is {getattr(self, name)}, but must be at least 1.",
                    hint=f"Set {name} to 1 or more.",
                )
        if not (math.isfinite(self.cell) and self.cell > 0):
            raise BadInput(
                f"The setting cell is {self.cell}, but must be a positive number.",
                hint="Give the edge of a voxel in the units of the coordinates, such as 0.05.",
            )
        if self.norm not in get_args(Norm):
            raise BadInput(
                f"The norm {self.norm!r} is unknown.", hint=f"Use one of: {', '.join(get_args(Norm))}."
            )
        if self.views > 1 and self.norm != "per-view":
            raise BadInput(
                f"The setting views is {self.views}, but the norm {self.norm} keeps no statistics per view.",
                hint="Use norm per-view, or views 1.",
            )
        self._check_levels()
        for name in ("feature_shift", "feature_scale"):
            if len(getattr(self, name)) not in (0, self.in_features) or len(self.feature_shift) != len(
                self.feature_scale
            ):
                raise BadInput(
                    f"{name} has {len(getattr(self, name))} numbers, but there are"
                    f" {self.in_features} features.",
                    hint=f"Give {self.in_features} numbers for feature_shift and feature_scale, or none.",
                )
        if any(not scale > 0 for scale in self.feature_scale):
            raise BadInput(
                f"feature_scale is {self.feature_scale}, but all scales must be positive.",
                hint="Give scales above zero.",
            )

    @property
    def statistics(self) -> int:
        """Number of sets of statistics that each norm keeps."""
        return self.views

    @property
    def point_inputs(self) -> int:
        """Numbers read per point: its features, its position within its voxel, and its height."""
        return self.in_features + 3 + int(self.height)

    @classmethod
    def preset(cls, name: str, *, in_features: int, classes: int, **changes: Any) -> Self:
        """Return the configuration of a preset. `changes` replaces individual fields."""
        if name not in PRESETS:
            raise BadInput(f"The preset {name!r} is unknown.", hint=f"Use one of: {', '.join(PRESETS)}.")
        return cls(in_features=in_features, classes=classes, **{**PRESETS[name], **changes})

    def _check_levels(self) -> None:
        levels = len(self.widths)
        if not 1 <= levels <= 8 or min(self.widths) < 1:
            raise BadInput(
                f"The setting widths is {self.widths}, which is not a list of 1 to 8 positive widths.",
                hint="Give 1 to 8 widths of at least 1, the finest level first.",
            )
        for name in ("blocks", "attention"):
            counts = getattr(self, name)
            if len(counts) != levels or min(counts) < 0:
                raise BadInput(
                    f"{name} is {counts}, but there are {levels} levels.",
                    hint=f"Give {levels} counts of 0 or more.",
                )
        for width, layers in zip(self.widths, self.attention, strict=True):
            if layers and width % self.heads:
                raise BadInput(
                    f"The width {width} is not divisible by {self.heads} heads.",
                    hint=f"Use the width {-(-width // self.heads) * self.heads}, or another number of heads.",
                )


# small: for a few CPU cores and 20,000 points per step; base: for a GPU and a million points per step.
PRESETS: dict[str, dict[str, Any]] = {
    "small": {
        "cell": 0.1,
        "widths": (24, 40, 64, 96),
        "blocks": (1, 1, 1, 1),
        "attention": (0, 0, 0, 2),
        "heads": 4,
        "window": 128,
        "point_width": 24,
        "features": 32,
    },
    "base": {},
}
