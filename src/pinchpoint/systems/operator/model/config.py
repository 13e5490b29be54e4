"""The configuration of an operator, as plain values that survive JSON.

Imports no framework. Lengths (`low`, `high`, `radii`, `local_radii`) are in the units of the points;
`OperatorConfig.preset` derives radii that leave no point uncovered from the spacing of the lattice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.common.settings import option

Geometry = Literal["none", "statistics", "pointnet"]
Weights = Literal["mean", "quadrature", "attention"]
# Not linear_kernelonly: it reads only coordinates, so no feature would reach the output.
Transform = Literal["linear", "nonlinear", "nonlinear_kernelonly"]
Triple = tuple[int, int, int]
MEASURES = (1, 2, 3)
Corner = tuple[float, float, float]

_CHOICES = {"geometry": Geometry, "weights": Weights, "transform": Transform}
# The statistics of a ball with a radius of this many panels stay the same if each panel is divided in four.
# Those of a smaller ball change, which would mislead a network on a finer mesh than those it was trained on.
PANELS = 3.5
# The least distance of tokens in sides of a panel: about four points in the smallest ball of a token.
TOKEN_SIDES = 1.25
_COUNTS = ("in_features", "out_features", "channels", "width", "depth", "heads")


@dataclass(frozen=True)
class OperatorConfig(JsonConfig):
    """One operator.

    Created directly, by `preset`, or by `from_json`; invalid values raise `BadInput` here, never later.
    """

    in_features: int  # K inputs at every point
    out_features: int  # T outputs at every point
    low: Corner = option(help="Lower corner of the box the lattice fills.", default_text="that of the data")
    high: Corner = option(help="Upper corner of that box.", default_text="that of the data")
    radii: tuple[float, ...] = option(
        help="Radii, each with an encoder and a decoder transform.", default_text="from the lattice"
    )
    lattice: Triple = option(
        (32, 16, 16), "Tokens along each axis; 1 along an axis in which the data have no extent."
    )
    mlp: tuple[int, ...] = option((64, 64), "Hidden widths of the edge MLPs.")
    channels: int = option(48, "Channels C of a point and of a token.")
    width: int = option(160, "Width of the transformer.")
    depth: int = option(5, "Layers of the transformer.")
    heads: int = option(5, "Attention heads.")
    patch: int = option(2, "Tokens per patch along each axis.")
    geometry: Geometry = option("statistics", "Geometry features: none, statistics or pointnet.")
    weights: Weights = option("quadrature", "Weights of the edges: mean, quadrature or attention.")
    transform: Transform = option("linear", "Edge transform: linear, nonlinear or nonlinear_kernelonly.")
    local_radii: tuple[float, ...] = option(
        (),
        "Radii of the balls in which the surroundings of a point are described.",
        default_text="from the lattice",
    )
    vectors: tuple[int, ...] = option(
        (),
        "Columns of the features at which 3-vectors start; their products are inputs too.",
        default_text="those of the data",
    )
    mirror: int | None = option(
        None,
        "Column with the y component of such a vector: bodies where it is negative are mirrored, y -> -y.",
        default_text="that of the wind, if there is one",
    )
    measure: int = option(
        2,
        "Dimension of what the points sample: 1 for a curve, 2 for a surface or a plane, 3 for a volume.",
        default_text="that of the data",
    )
    dimension: int = option(3, "Coordinates that the edge MLPs read: 3, or 2 for data in a plane.")
    turning: bool = option(
        False,
        "Also use how the outward normal (the first vector) varies within the local balls.",
        default_text="true if the data have wind",
    )
    # (K,) subtracted, then divided by the scale; empty: features are left unchanged
    feature_shift: tuple[float, ...] = option((), "Shift of each feature.", default_text="from the data")
    feature_scale: tuple[float, ...] = option((), "Scale of each feature.", default_text="from the data")
    # (T,) added to the output of the network, after the scale
    target_shift: tuple[float, ...] = option((), "Shift of each target.", default_text="from the data")
    target_scale: tuple[float, ...] = option((), "Scale of each target.", default_text="from the data")
    compat: bool = option(False, "Follow GAOT-3D where this model differs.")
    neighbour_cap: int | None = option(
        None, "With compat: largest number of edges per row; the others are dropped.", default_text="none"
    )

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise BadInput(
                    f"`{name}` is {getattr(self, name)}; it must be at least 1.",
                    hint=f"Give a {name} of at least 1.",
                )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise BadInput(
                    f"The {name} {getattr(self, name)!r} does not exist.",
                    hint=f"Use one of: {', '.join(get_args(choices))}.",
                )
        if self.measure not in MEASURES:
            raise BadInput(
                f"`measure` is {self.measure}; it must be 1, 2 or 3.", hint="Use 2 for a surface or a plane."
            )
        if self.dimension not in (2, 3):
            raise BadInput(
                f"`dimension` is {self.dimension}; it must be 2 or 3.", hint="Use 2 for data in a plane."
            )
        _lattice(self.lattice, self.low, self.high)
        self._check_box()
        self._check_transformer()
        self._check_scales()
        self._check_turning()
        self._check_mirror()
        self._check_compat()

    @property
    def spacing(self) -> Corner:
        """The distance between adjacent tokens along each axis."""
        return _spacing(self.low, self.high, self.lattice)

    @property
    def covering_radius(self) -> float:
        """Half the diagonal of a cell: with this radius every point of the box has a token."""
        return math.hypot(*self.spacing) / 2

    @property
    def half_length(self) -> float:
        """Half the longest side of the box: the network's unit of length."""
        return max(b - a for a, b in zip(self.low, self.high, strict=True)) / 2

    @property
    def patches(self) -> Triple:
        """The number of patches along each axis."""
        x, y, z = (count // side for count, side in zip(self.lattice, self.patch_sides, strict=True))
        return x, y, z

    @property
    def patch_sides(self) -> Triple:
        """Tokens of a patch along each axis: 1 along an axis with a single plane of tokens."""
        x, y, z = (min(self.patch, count) for count in self.lattice)
        return x, y, z

    @classmethod
    def preset(
        cls,
        name: str,
        *,
        low: Sequence[float],
        high: Sequence[float],
        in_features: int,
        out_features: int = 1,
        panel_side: float = 0.0,
        **changes: Any,
    ) -> Self:
        """A tested configuration for a box, with radii in proportion to its lattice.

        changes: fields to override. panel_side: square root of a panel's area in training; local radii that
        contain too few panels are enlarged.
        """
        if name not in PRESETS:
            raise BadInput(f"The preset {name!r} does not exist.", hint=f"Use one of: {', '.join(PRESETS)}.")
        fields: dict[str, Any] = {**PRESETS[name], **changes}
        reach, local_reach, far_reach = (fields.pop(name) for name in ("reach", "local_reach", "far_reach"))
        if fields.get("turning"):
            local_reach += far_reach
        corners = _corner(low, "low"), _corner(high, "high")
        lattice = _lattice(fields.get("lattice", cls.lattice), *corners)
        half = math.hypot(*_spacing(*corners, lattice)) / 2
        fields.setdefault("radii", tuple(r * half for r in reach))
        widest = math.dist(*corners)
        if "radii" not in changes and max(reach) * half > widest:
            raise BadInput(
                f"A lattice of {lattice} is too coarse: a radius of {max(reach):g} half diagonals of a cell "
                "is larger than the box.",
                hint=f"Use a finer lattice, such as {PRESETS['small']['lattice']}, or set the radii too.",
            )
        local = [min(max(r * half, PANELS * panel_side * 2**at), widest) for at, r in enumerate(local_reach)]
        fields.setdefault("local_radii", () if fields.get("compat") else tuple(local))
        return cls(
            in_features=in_features, out_features=out_features, low=corners[0], high=corners[1], **fields
        )

    def _check_box(self) -> None:
        if not all(math.isfinite(v) for v in (*self.low, *self.high)) or any(
            a > b or (a == b and count > 1)
            for a, b, count in zip(self.low, self.high, self.lattice, strict=True)
        ):
            raise BadInput(
                f"The box from {self.low} to {self.high} is empty or not finite.",
                hint="Give finite corners, with low below high along every axis with more than one token.",
            )
        if not self.radii:
            raise BadInput(
                "The list of radii is empty.",
                hint=f"Give at least one radius; {self.covering_radius:.4g} covers all points.",
            )
        largest = math.dist(self.low, self.high)
        for radius in (*self.radii, *self.local_radii):
            if not 0 < radius <= largest:
                raise BadInput(
                    f"A radius is {radius:g}; it must be above 0 and at most {largest:.4g}, the diagonal "
                    "of the box.",
                    hint=f"Give another radius; {self.covering_radius:.4g} covers all points.",
                )

    def _check_transformer(self) -> None:
        if self.patch < 1 or any(count % self.patch for count in self.lattice if count > 1):
            near = tuple(
                1 if count == 1 else max(1, round(count / max(self.patch, 1))) * max(self.patch, 1)
                for count in self.lattice
            )
            raise BadInput(
                f"A lattice of {self.lattice} cannot be divided into patches of {self.patch}.",
                hint=f"Use lattice {near}, or patch 1.",
            )
        if self.width % self.heads:
            raise BadInput(
                f"A width of {self.width} cannot be divided by {self.heads} heads.",
                hint=f"Use width {-(-self.width // self.heads) * self.heads}.",
            )
        head = self.width // self.heads
        least = 2 if self.compat else 6
        if head % 2 or head < least:
            raise BadInput(
                f"The heads have a width of {head}; the rotary embedding needs an even width of at least "
                f"{least}, a pair for each axis.",
                hint="Raise the width, or use fewer heads.",
            )
        if not self.mlp or min(self.mlp) < 1:
            raise BadInput(
                f"The hidden widths of the edge MLPs are {self.mlp}; at least one of 1 or more is needed.",
                hint="Give at least one width, such as (64, 64).",
            )

    def _check_scales(self) -> None:
        for name, count in (("feature", self.in_features), ("target", self.out_features)):
            shift, scale = getattr(self, f"{name}_shift"), getattr(self, f"{name}_scale")
            if len(shift) not in (0, count) or len(scale) != len(shift) or any(not s > 0 for s in scale):
                raise BadInput(
                    f"`{name}_shift` has {len(shift)} and `{name}_scale` has {len(scale)} numbers; {count} "
                    f"shifts and {count} positive scales are needed, or none.",
                    hint=f"Give {count} of each, with scales above zero, or none.",
                )
        if any(not 0 <= column <= self.in_features - 3 for column in self.vectors):
            raise BadInput(
                f"Vectors cannot begin at columns {self.vectors} of {self.in_features} features.",
                hint="Leave 3 columns for each vector.",
            )

    def _check_turning(self) -> None:
        if self.turning and not (self.vectors and self.local_radii):
            raise BadInput(
                f"turning=True needs vectors and local_radii, not {self.vectors} and {self.local_radii}.",
                hint="Name the normal's column first in vectors, and give local_radii; or set turning=False.",
            )

    def _check_mirror(self) -> None:
        if self.mirror is None:
            return
        parts = [column + 1 for column in self.vectors]
        if self.mirror not in parts:
            raise BadInput(
                f"`mirror` is {self.mirror}, which is not the y component of a vector.",
                hint=f"Use one of {parts}: a column of `vectors` plus one.",
            )
        if abs(self.low[1] + self.high[1]) > 1e-6 * (self.high[1] - self.low[1]):
            raise BadInput(
                f"A mirror at y = 0 needs a symmetric box, but it goes from y = {self.low[1]:g} to "
                f"{self.high[1]:g}.",
                hint="Give a box that is equally wide on both sides.",
            )

    def _check_compat(self) -> None:
        if self.neighbour_cap is not None and (not self.compat or self.neighbour_cap < 1):
            raise BadInput(
                f"`neighbour_cap` is {self.neighbour_cap}; it must be at least 1 and needs compat=True.",
                hint="Set compat=True and a cap of at least 1, or leave neighbour_cap out: it drops edges.",
            )
        for name, wrong in (
            ("weights", self.weights == "quadrature"),
            ("local_radii", self.local_radii),
            ("vectors", self.vectors),
        ):
            if self.compat and wrong:
                raise BadInput(
                    f"`{name}` is {getattr(self, name)!r}, but GAOT-3D, which compat=True follows, has none.",
                    hint=f"Leave {name} out.",
                )


# Radii in units of the covering radius (half the diagonal of a cell). `far_reach` is added to `local_reach`
# with `turning`: the velocity at a point depends on how the normals vary near it and far from it.
PRESETS: dict[str, dict[str, Any]] = {
    "base": {"reach": (1.25, 2.5), "local_reach": (2.0, 5.0), "far_reach": (12.0, 30.0)},
    "small": {
        "reach": (1.25, 2.5),
        "local_reach": (1.0, 2.5),
        "far_reach": (6.0, 15.0),
        "lattice": (16, 8, 8),
        "mlp": (32, 32),
        "channels": 32,
        "width": 64,
        "depth": 3,
        "heads": 4,
    },
    "compat": {
        "reach": (1.25, 2.5),
        "local_reach": (),
        "far_reach": (),
        "weights": "attention",
        "compat": True,
    },
}


def lattice_for(name: str, low: Corner, high: Corner, *, panel_side: float = 0.0) -> Triple:
    """A lattice with about as many tokens as that of a preset, with cells as cubic as its patches allow.

    In a plane, the tokens of the preset's third axis are distributed over the other two. panel_side: the mean
    distance of points; a lattice finer than them would leave most tokens without a point, so that larger
    presets would be worse than small ones.
    """
    if name not in PRESETS:
        return OperatorConfig.lattice
    tokens = math.prod(PRESETS[name].get("lattice", OperatorConfig.lattice))
    patch = PRESETS[name].get("patch", OperatorConfig.patch)
    sides = [b - a for a, b in zip(low, high, strict=True)]
    extents = [side for side in sides if side > 0]
    cell = max((math.prod(extents) / tokens) ** (1 / len(extents)), TOKEN_SIDES * panel_side)
    # At least four along an axis: with fewer, a lattice hardly resolves anything.
    x, y, z = (max(4, patch * round(side / cell / patch)) if side > 0 else 1 for side in sides)
    return x, y, z


def _spacing(low: Corner, high: Corner, lattice: Triple) -> Corner:
    x, y, z = ((b - a) / max(count - 1, 1) for a, b, count in zip(low, high, lattice, strict=True))
    return x, y, z


def _lattice(counts: Triple, low: Corner, high: Corner) -> Triple:
    """The counts themselves: at least 2 along each axis, or 1 along one in which the box has no extent."""
    least = [1 if a == b else 2 for a, b in zip(low, high, strict=True)]
    if len(counts) != 3 or any(a < b for a, b in zip(counts, least, strict=True)) or sorted(counts)[1] < 2:
        raise BadInput(
            f"The lattice is {counts}, not three counts of at least 2 (or two, and 1 for data in a plane).",
            hint="Give three counts, such as (32, 16, 16), or (32, 32, 1) for data in a plane.",
        )
    return counts


def _corner(values: Sequence[float], name: str) -> Corner:
    if len(values) != 3:
        raise BadInput(f"The corner {name} has {len(values)} numbers, not three.", hint="Give x, y and z.")
    x, y, z = (float(v) for v in values)
    return x, y, z
