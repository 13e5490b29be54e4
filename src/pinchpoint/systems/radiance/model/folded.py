"""The folded field: fewer operations with the same parameters, exact to rounding, with gradients for all of
`Field`.

The codes become a bias per image, direction and appearance a bias per ray, and layers without an activation
between them are merged. `FoldedField` computes these from the parameters, once per render and in the type of
the matrix products; `unfold` is its backward pass.

B images; H units, K an encoded point and ones, D an encoded direction and ones, C the view layer, the density
and zeros: all padded to multiples of eight, since products of other widths are slow on tensor cores; F
features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pinchpoint.systems.radiance.model.config import FieldConfig

_EIGHT = 8
Named = Mapping[str, Tensor]  # a field's parameters, or their gradients


class FoldedField:
    """What a field and B codes are folded into, computed lazily: a GPU stays busy while the next piece is
    computed.

    Small products are computed in the parameters' type, then cast to that of the products over the points.
    Not for autograd.
    """

    def __init__(
        self, config: FieldConfig, named: Named, z_shape: Tensor, z_app: Tensor, *, dtype: torch.dtype
    ) -> None:
        self.config, self.dtype = config, dtype
        self._named, self._z_shape, self._z_app = named, z_shape, z_app
        self._cast: dict[str, Tensor] = {}

    @cached_property
    def entry(self) -> Tensor:
        """(B, K, H) into the first layer; the first row of ones is the bias of the image."""
        return self._entry(0)

    @cached_property
    def again(self) -> Tensor:
        """(B, K, H) into the layer after the skip."""
        return self._entry(self.config.skip + 1)

    @cached_property
    def head(self) -> Tensor:
        """(H, C)."""
        half, of_hidden = self.config.features, _view_parts(self.config, self._named)[0]
        weight = self._z_app.new_zeros(multiple_of_eight(half + 1), self.config.width, dtype=self.dtype)
        weight[:half] = of_hidden @ self._named["remap.weight"]
        weight[half : half + 1] = self._named["density.weight"]
        return weight.t()

    @cached_property
    def view(self) -> Tensor:
        """(B, D, C) for a direction, in the parameters' type."""
        named, half, direction = self._named, self.config.features, self.config.encoded_direction
        of_hidden, of_direction, of_app = _view_parts(self.config, named)
        weight = self._z_app.new_zeros(
            len(self._z_app), multiple_of_eight(direction + 1), multiple_of_eight(half + 1)
        )
        weight[:, :direction, :half] = of_direction.t()
        bias = weight[:, direction]
        bias[:, :half] = torch.addmm(
            torch.addmv(named["view.bias"], of_hidden, named["remap.bias"]), self._z_app, of_app.t()
        )
        bias[:, half : half + 1] = named["density.bias"]
        return weight

    @property
    def colour(self) -> Tensor:
        """(3, F)."""
        return self._of("colour.weight")

    @property
    def colour_bias(self) -> Tensor:
        return self._of("colour.bias")

    def weight(self, at: int) -> Tensor:
        """(H, H) weight of any layer but the first, from the previous layer's output to its own."""
        name = f"trunk.{at}.weight"
        if name not in self._cast:
            skipped = self.config.encoded_point + self.config.z_shape if at == self.config.skip + 1 else 0
            self._cast[name] = self._named[name][:, skipped:].to(self.dtype).t()
        return self._cast[name]

    def bias(self, at: int) -> Tensor:
        return self._of(f"trunk.{at}.bias")

    def _of(self, name: str) -> Tensor:
        if name not in self._cast:
            self._cast[name] = self._named[name].to(self.dtype)
        return self._cast[name]

    def _entry(self, at: int) -> Tensor:
        """Weights of an encoded point and, for each image, the bias its code produces."""
        point, weight, z_shape = self.config.encoded_point, self._named[f"trunk.{at}.weight"], self._z_shape
        entry = z_shape.new_zeros(
            len(z_shape), multiple_of_eight(point + 1), self.config.width, dtype=self.dtype
        )
        entry[:, :point] = weight[:, :point].t()
        entry[:, point] = torch.addmm(
            self._named[f"trunk.{at}.bias"], z_shape, weight[:, point : point + z_shape.shape[1]].t()
        )
        return entry


class Slopes(NamedTuple):
    """Gradients of a folded field. head: (C, H); colour: (3, F + 1) with its bias last; weights: shaped as in
    `Field`.
    """

    view: Tensor
    entry: Tensor
    again: Tensor
    head: Tensor
    colour: Tensor
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]


def unfold(
    config: FieldConfig, named: Named, z_shape: Tensor, z_app: Tensor, slopes: Slopes
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Gradients of the codes and of every parameter, from those of the folded field."""
    half, point, after, direction = (
        config.features,
        config.encoded_point,
        config.skip + 1,
        config.encoded_direction,
    )
    read = point + config.z_shape
    of: dict[str, Tensor] = {}
    bias_slopes = iter(slopes.biases)
    for at in range(1, config.depth):
        of[f"trunk.{at}.weight"] = slopes.weights[at - 1]
        if at != after:
            of[f"trunk.{at}.bias"] = next(bias_slopes)
    first, again = named["trunk.0.weight"], named[f"trunk.{after}.weight"]
    of["trunk.0.weight"], of["trunk.0.bias"] = _of_entry(slopes.entry, z_shape, point)
    of_read, of[f"trunk.{after}.bias"] = _of_entry(slopes.again, z_shape, point)
    of[f"trunk.{after}.weight"] = torch.cat((of_read, slopes.weights[after - 1]), dim=1)
    of_shape = torch.addmm(
        slopes.entry[:, point] @ first[:, point:], slopes.again[:, point], again[:, point:read]
    )

    of_hidden, _, of_app = _view_parts(config, named)
    remap, bias = named["remap.weight"], slopes.view[:, direction]
    tint = bias[:, :half]
    shade = tint.sum(0)
    merged = slopes.head[:half]
    of["view.bias"] = shade
    of["view.weight"] = torch.cat(
        (
            torch.addr(merged @ remap.t(), shade, named["remap.bias"]),
            slopes.view[:, :direction, :half].sum(0).t(),
            tint.t() @ z_app,
        ),
        dim=1,
    )
    of["remap.weight"] = of_hidden.t() @ merged
    of["remap.bias"] = torch.mv(of_hidden.t(), shade)
    of["density.weight"] = slopes.head[half : half + 1]
    of["density.bias"] = bias[:, half].sum(0, keepdim=True)
    of["colour.weight"], of["colour.bias"] = slopes.colour[:, :half], slopes.colour[:, half]
    return of_shape, tint @ of_app, of


def some(tensor: Tensor, images: slice) -> Tensor:
    """(B, ...) restricted to some of the images."""
    return tensor if images.stop - images.start == len(tensor) else tensor[images]


def multiple_of_eight(count: int) -> int:
    """The next multiple of eight."""
    return -(-count // _EIGHT) * _EIGHT


def _view_parts(config: FieldConfig, named: Named) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the view layer for the remapped hidden layer, the direction and the appearance."""
    hidden, direction, app = named["view.weight"].split(
        (config.width, config.encoded_direction, config.z_app), dim=1
    )
    return hidden, direction, app


def _of_entry(slope: Tensor, z_shape: Tensor, point: int) -> tuple[Tensor, Tensor]:
    """Gradients of an entry's weights (H, E + z_shape) and bias (H,), from that of the entry (B, K, H)."""
    whole = slope[:, : point + 1].sum(0)
    return torch.cat((whole[:point].t(), slope[:, point].t() @ z_shape), dim=1), whole[point]
