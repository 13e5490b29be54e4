"""FieldConfig: the configuration of a conditional radiance field, as plain JSON values. Imports no framework.

The preset graf is GRAF's field: 8 layers of width 256, a skip connection from the encoded point after layer
4, and codes of length 128, which makes 677,764 parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.common.settings import option


@dataclass(frozen=True)
class FieldConfig(JsonConfig):
    """The configuration of one field, created directly, by `preset` or by `from_json`.

    Invalid values raise `BadInput` here, never later.
    """

    depth: int = option(8, "Layers before the density.")
    width: int = option(256, "Width of each layer; the layer that reads the view has half of it.")
    skip: int = option(
        4, "Layer, counted from 0, after which the encoded point and the shape code are read again."
    )
    point_octaves: int = option(
        10, "Octaves of the positional encoding: sines and cosines of 1, 2, 4, ... times each coordinate."
    )
    direction_octaves: int = option(
        4, "The same for the direction; -1: the direction is not used, and colours do not depend on the view."
    )
    z_shape: int = option(128, "Length of the shape code, which determines the density.")
    z_app: int = option(128, "Length of the appearance code, which determines the colour.")
    # Of a run with labels: the names of the classes, and how many training images each has. The first entries
    # of both codes then say which class an object is of.
    classes: tuple[str, ...] = ()
    class_images: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("depth", "width", "z_shape", "z_app"):
            if getattr(self, name) < 1:
                raise BadInput(
                    f"`{name}` is {getattr(self, name)}, but it must be at least 1.",
                    hint=f"Give {name} a value of at least 1.",
                )
        if self.width % 2:
            raise BadInput(
                f"`width` is {self.width}, but it must be even.",
                hint="Give an even width: the view layer has half of it.",
            )
        for name, least in (("point_octaves", 0), ("direction_octaves", -1)):
            if not least <= getattr(self, name) <= 16:
                raise BadInput(
                    f"`{name}` is {getattr(self, name)}, but it must be between {least} and 16.",
                    hint=f"Give {name} {least} to 16: beyond that fp32 cannot tell points apart.",
                )
        if len(self.classes) != len(self.class_images) or min((*self.class_images, 1)) < 1:
            raise BadInput(
                f"{len(self.classes)} classes do not match numbers of images {self.class_images}.",
                hint="Give every class its number of images, at least 1.",
            )
        if len(self.classes) >= min(self.z_shape, self.z_app):
            raise BadInput(
                f"Codes of {self.z_shape} (shape) and {self.z_app} (appearance) numbers are too short for "
                f"{len(self.classes)} classes.",
                hint="Give longer codes with --set z_shape= and --set z_app=, or fewer classes.",
            )
        if not 0 <= self.skip < self.depth - 1:
            raise BadInput(
                f"`skip` is {self.skip}, but with {self.depth} layers it must be 0 to {self.depth - 2}.",
                hint="Give skip a layer before the last: 0 to depth - 2.",
            )

    @property
    def encoded_point(self) -> int:
        """Size of an encoded point: coordinates, sines, cosines."""
        return 3 + 6 * self.point_octaves

    @property
    def encoded_direction(self) -> int:
        return 3 + 6 * self.direction_octaves if self.direction_octaves >= 0 else 0

    @property
    def features(self) -> int:
        """Number F of features for the super-resolution, at a point or composited along a ray: the width of
        the view layer.
        """
        return self.width // 2

    @property
    def parameters(self) -> int:
        """Number of parameters, computed without building the field."""
        width, half = self.width, self.width // 2
        point, view = self.encoded_point + self.z_shape, self.encoded_direction + self.z_app
        trunk = (point + 1) * width + (self.depth - 1) * (width + 1) * width + point * width
        heads = (width + 1) + (width + 1) * width + (view + width + 1) * half + (half + 1) * 3
        return trunk + heads

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A tested configuration. `changes` overrides fields."""
        if name not in PRESETS:
            raise BadInput(f"The preset {name!r} is unknown.", hint=f"Use one of: {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **changes})


# graf: as published; tuned: colours do not depend on the view, and no wavelength is shorter than two pixels
# of 64; small: for a small card; tiny: for tests and the demo.
PRESETS: dict[str, dict[str, Any]] = {
    "tuned": {"point_octaves": 7, "direction_octaves": -1},
    "graf": {},
    "small": {"depth": 6, "width": 128, "skip": 3, "point_octaves": 8, "z_shape": 64, "z_app": 64},
    "tiny": {
        "depth": 4,
        "width": 32,
        "skip": 1,
        "point_octaves": 4,
        "direction_octaves": 2,
        "z_shape": 8,
        "z_app": 8,
    },
}
