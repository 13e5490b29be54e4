"""OperatorConfig: every choice that makes one operator, as plain values that survive JSON.

Imports no framework. Lengths (`low`, `high`, `radii`, `local_radii`) are in the units of the points;
`OperatorConfig.preset` finds radii that leave no holes from the lattice's own spacing.
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
# Not linear_kernelonly: it reads nothing but coordinates, so no feature would reach the output.
Transform = Literal["linear", "nonlinear", "nonlinear_kernelonly"]
Triple = tuple[int, int, int]
Corner = tuple[float, float, float]

_CHOICES = {"geometry": Geometry, "weights": Weights, "transform": Transform}
# A ball this many panels in radius looks the same when they are cut in four; one of fewer does not, and what a network
# learns of it would mislead it on a finer mesh.
PANELS = 3.5
_COUNTS = ("in_features", "out_features", "channels", "width", "depth", "heads")


@dataclass(frozen=True)
class OperatorConfig(JsonConfig):
    """One operator. Made by hand, by `preset`, or by `from_json`; wrong values raise BadInput here and nowhere later."""

    in_features: int  # K read at every point
    out_features: int  # T returned at every point
    low: Corner = option(help="Lower corner of the box the lattice fills.", default_text="that of the data")
    high: Corner = option(help="Upper corner of that box.", default_text="that of the data")
    radii: tuple[float, ...] = option(
        help="Radii, each with an encoder and a decoder transform.", default_text="from the lattice"
    )
    lattice: Triple = option((32, 16, 16), "Tokens along each axis.")
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
        "Columns of the features at which 3-vectors start; their products are read too.",
        default_text="those of the data",
    )
    mirror: int | None = option(
        None,
        "Column with the y part of such a vector: bodies with it below zero are read mirrored, y -> -y.",
        default_text="that of the wind, if there is one",
    )
    turning: bool = option(
        False,
        "Also read how the outward normal, the first vector, turns within the local balls.",
        default_text="true if the data have wind",
    )
    # (K,) subtracted, then divided by the scale; empty: features are left unchanged
    feature_shift: tuple[float, ...] = option((), "Shift of each feature.", default_text="from the data")
    feature_scale: tuple[float, ...] = option((), "Scale of each feature.", default_text="from the data")
    # (T,) added to the output of the network, after the scale
    target_shift: tuple[float, ...] = option((), "Shift of each target.", default_text="from the data")
    target_scale: tuple[float, ...] = option((), "Scale of each target.", default_text="from the data")
    compat: bool = option(False, "Compute as the model of the GINO memory study does.")
    neighbour_cap: int | None = option(
        None, "With compat: largest number of edges per row; the others are dropped.", default_text="none"
    )

    def __post_init__(self) -> None:
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise BadInput(f"{name} = {getattr(self, name)}", hint=f"give {name} of at least 1")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in get_args(known):
                raise BadInput(
                    f"unknown {name} {getattr(self, name)!r}",
                    hint=f"use one of: {', '.join(get_args(known))}",
                )
        self._check_box()
        self._check_transformer()
        self._check_scales()
        self._check_turning()
        self._check_mirror()
        self._check_compat()

    @property
    def spacing(self) -> Corner:
        """Between neighbouring tokens, along each axis."""
        return _spacing(self.low, self.high, self.lattice)

    @property
    def covering_radius(self) -> float:
        """Half the diagonal of a cell: with this radius every point of the box has a token."""
        return math.hypot(*self.spacing) / 2

    @property
    def half_length(self) -> float:
        """Half the longest side of the box: the unit of length the network reads."""
        return max(b - a for a, b in zip(self.low, self.high, strict=True)) / 2

    @property
    def patches(self) -> Triple:
        """How many patches there are along each axis."""
        x, y, z = (count // self.patch for count in self.lattice)
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
        """A tried set of choices for a box, with radii in proportion to its lattice. `changes` are fields to set otherwise.

        panel_side: root of a panel's area in training; local radii are widened where they would hold too few panels.
        """
        if name not in PRESETS:
            raise BadInput(f"unknown preset {name!r}", hint=f"use one of: {', '.join(PRESETS)}")
        chosen: dict[str, Any] = {**PRESETS[name], **changes}
        reach, local_reach, far_reach = (chosen.pop(name) for name in ("reach", "local_reach", "far_reach"))
        if chosen.get("turning"):
            local_reach += far_reach
        corners = _corner(low, "low"), _corner(high, "high")
        lattice = _lattice(chosen.get("lattice", cls.lattice))
        half = math.hypot(*_spacing(*corners, lattice)) / 2
        chosen.setdefault("radii", tuple(r * half for r in reach))
        widest = math.dist(*corners)
        if "radii" not in changes and max(reach) * half > widest:
            raise BadInput(
                f"a lattice of {lattice} is too coarse: a radius of {max(reach):g} half diagonals of its cells passes the box",
                hint=f"give it more planes, such as {PRESETS['small']['lattice']}, or choose radii too",
            )
        local = [min(max(r * half, PANELS * panel_side * 2**at), widest) for at, r in enumerate(local_reach)]
        chosen.setdefault("local_radii", () if chosen.get("compat") else tuple(local))
        return cls(
            in_features=in_features, out_features=out_features, low=corners[0], high=corners[1], **chosen
        )

    def _check_box(self) -> None:
        if not all(math.isfinite(v) for v in (*self.low, *self.high)) or any(
            a >= b for a, b in zip(self.low, self.high, strict=True)
        ):
            raise BadInput(
                f"a box from {self.low} to {self.high}",
                hint="give finite corners, low below high along every axis",
            )
        _lattice(self.lattice)
        if not self.radii:
            raise BadInput("no radius", hint=f"give at least one; {self.covering_radius:.4g} leaves no holes")
        largest = math.dist(self.low, self.high)
        for radius in (*self.radii, *self.local_radii):
            if not 0 < radius <= largest:
                raise BadInput(
                    f"a radius of {radius:g} in a box whose diagonal is {largest:.4g}",
                    hint=f"give a radius above zero and below the diagonal; {self.covering_radius:.4g} leaves no holes",
                )

    def _check_transformer(self) -> None:
        if self.patch < 1 or any(count % self.patch for count in self.lattice):
            near = tuple(
                max(1, round(count / max(self.patch, 1))) * max(self.patch, 1) for count in self.lattice
            )
            raise BadInput(
                f"a lattice of {self.lattice} does not divide into patches of {self.patch}",
                hint=f"take lattice {near}, or patch 1",
            )
        if self.width % self.heads:
            raise BadInput(
                f"width {self.width} does not divide by {self.heads} heads",
                hint=f"take width {-(-self.width // self.heads) * self.heads}",
            )
        head = self.width // self.heads
        least = 2 if self.compat else 6
        if head % 2 or head < least:
            raise BadInput(
                f"heads {head} wide are too narrow or odd for the rotary embedding",
                hint=f"a head needs an even width of at least {least} (a pair for each axis): widen, or take fewer heads",
            )
        if not self.mlp or min(self.mlp) < 1:
            raise BadInput(
                f"edge MLPs with hidden widths {self.mlp}", hint="give at least one width, such as (64, 64)"
            )

    def _check_scales(self) -> None:
        for name, count in (("feature", self.in_features), ("target", self.out_features)):
            shift, scale = getattr(self, f"{name}_shift"), getattr(self, f"{name}_scale")
            if len(shift) not in (0, count) or len(scale) != len(shift) or any(not s > 0 for s in scale):
                raise BadInput(
                    f"{name}_shift of {len(shift)} and {name}_scale of {len(scale)} numbers for {count}",
                    hint=f"give {count} of each, scales above zero, or none",
                )
        if any(not 0 <= column <= self.in_features - 3 for column in self.vectors):
            raise BadInput(
                f"vectors that begin at columns {self.vectors} of {self.in_features} features",
                hint="a vector takes 3 columns",
            )

    def _check_turning(self) -> None:
        if self.turning and not (self.vectors and self.local_radii):
            raise BadInput(
                f"turning=True with vectors {self.vectors} and local_radii {self.local_radii}",
                hint="name the column of the normal first in vectors, and give local_radii; or turning=False",
            )

    def _check_mirror(self) -> None:
        if self.mirror is None:
            return
        parts = [column + 1 for column in self.vectors]
        if self.mirror not in parts:
            raise BadInput(
                f"mirror = {self.mirror} is the y part of no vector",
                hint=f"name one of {parts}: a column of `vectors` and one more",
            )
        if abs(self.low[1] + self.high[1]) > 1e-6 * (self.high[1] - self.low[1]):
            raise BadInput(
                f"a mirror at y = 0 in a box from y = {self.low[1]:g} to {self.high[1]:g}",
                hint="give a box as wide on both sides",
            )

    def _check_compat(self) -> None:
        if self.neighbour_cap is not None and (not self.compat or self.neighbour_cap < 1):
            raise BadInput(
                f"neighbour_cap = {self.neighbour_cap}",
                hint="it drops edges, as the original did: give it with compat=True and at least 1, or leave it out",
            )
        for name, wrong in (
            ("weights", self.weights == "quadrature"),
            ("local_radii", self.local_radii),
            ("vectors", self.vectors),
        ):
            if self.compat and wrong:
                raise BadInput(
                    f"{name} = {getattr(self, name)!r} with compat=True",
                    hint="the original has none: leave it out",
                )


# Radii in units of the covering radius (half the diagonal of a cell); `far_reach` comes to `local_reach` where `turning` is read:
# the velocity at a point is due to how the surface turns near it and far from it.
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


def _spacing(low: Corner, high: Corner, lattice: Triple) -> Corner:
    x, y, z = ((b - a) / max(count - 1, 1) for a, b, count in zip(low, high, lattice, strict=True))
    return x, y, z


def _lattice(counts: Triple) -> Triple:
    if len(counts) != 3 or min(counts) < 2:
        raise BadInput(f"a lattice of {counts}", hint="give three counts of at least 2, such as (32, 16, 16)")
    return counts


def _corner(values: Sequence[float], name: str) -> Corner:
    if len(values) != 3:
        raise BadInput(f"a corner {name} of {len(values)} numbers", hint="give three: x, y, z")
    x, y, z = (float(v) for v in values)
    return x, y, z
