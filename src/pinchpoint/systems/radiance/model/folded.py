"""The folded field: the parameters and, up to rounding, the values of `Field` with fewer operations.

The shape code becomes a bias per image, direction and appearance code become a bias per ray, and layers
without an activation between them are merged. `FoldedField` computes these weights from the parameters, once
per render and in the type of the matrix products; `unfold` is its backward pass, with gradients for all
parameters of `Field`.

Letters: B images; widths H of a hidden layer, K of an encoded point with ones, D of an encoded direction with
ones, C of the view layer with the density and zeros; F features. All widths are padded to multiples of eight,
because products of other widths are slow on tensor cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from pinchpoint.systems.radiance.model.config import FieldConfig

_EIGHT = 8
_PARTS, _FEW = 8, 32  # parts of a product on a GPU, if there are few rows (images)
NamedTensors = Mapping[str, Tensor]  # a field's parameters, or their gradients


class FoldedField:
    """The weights that a field and B codes are folded into.

    They are computed lazily, so that a GPU is busy with one while the next is prepared.

    Small products are computed in the type of the parameters, then cast to that of the products over points.
    Autograd is not supported.
    """

    def __init__(
        self,
        config: FieldConfig,
        parameters: NamedTensors,
        z_shape: Tensor,
        z_app: Tensor,
        *,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.dtype = config, dtype
        self._parameters, self._z_shape, self._z_app = parameters, z_shape, z_app
        self._cast: dict[str, Tensor] = {}

    @cached_property
    def entry(self) -> Tensor:
        """(B, K, H) weights of the first layer; the row of the first one is the bias of the image."""
        return self._entry(0)

    @cached_property
    def again(self) -> Tensor:
        """(B, K, H) weights of the encoded point in the layer after the skip connection."""
        return self._entry(self.config.skip + 1)

    @cached_property
    def joined(self) -> Tensor:
        """(B, H + K, H) weights of the layer after the skip connection, for its input and encoded points."""
        own = self.weight(self.config.skip + 1).expand(len(self._z_shape), -1, -1)
        return torch.cat((own, self.again), dim=1)

    @cached_property
    def head(self) -> Tensor:
        """(H, C) weights of the view layer and the density."""
        half, of_hidden = self.config.features, _view_parts(self.config, self._parameters)[0]
        weight = self._z_app.new_zeros(multiple_of_eight(half + 1), self.config.width, dtype=self.dtype)
        weight[:half] = of_hidden @ self._parameters["remap.weight"]
        weight[half : half + 1] = self._parameters["density.weight"]
        return weight.t()

    @cached_property
    def view(self) -> Tensor:
        """(B, D, C) weights of an encoded direction, in the type of the parameters."""
        parameters, half, direction = self._parameters, self.config.features, self.config.encoded_direction
        of_hidden, of_direction, of_app = _view_parts(self.config, parameters)
        weight = self._z_app.new_zeros(
            len(self._z_app), multiple_of_eight(direction + 1), multiple_of_eight(half + 1)
        )
        weight[:, :direction, :half] = of_direction.t()
        bias = weight[:, direction]
        bias[:, :half] = torch.addmm(
            torch.addmv(parameters["view.bias"], of_hidden, parameters["remap.bias"]), self._z_app, of_app.t()
        )
        bias[:, half : half + 1] = parameters["density.bias"]
        return weight

    @property
    def colour(self) -> Tensor:
        """(3, F) weights of the colour."""
        return self._of("colour.weight")

    @property
    def colour_bias(self) -> Tensor:
        return self._of("colour.bias")

    def weight(self, at: int) -> Tensor:
        """(H, H) weight of a layer after the first, without the columns of the skip connection."""
        name = f"trunk.{at}.weight"
        if at != self.config.skip + 1:
            return self._of(name).t()
        if name not in self._cast:
            skip_columns = self.config.encoded_point + self.config.z_shape
            self._cast[name] = self._parameters[name][:, skip_columns:].to(self.dtype)
        return self._cast[name].t()

    def bias(self, at: int) -> Tensor:
        return self._of(f"trunk.{at}.bias")

    def _of(self, name: str) -> Tensor:
        if self._parameters[name].dtype is self.dtype:
            return self._parameters[name]
        if name not in self._cast:
            self._cast_all()
        return self._cast[name]

    def _cast_all(self) -> None:
        """Cast all parameters that are used whole, on a GPU in one kernel."""
        layers, after = range(1, self.config.depth), self.config.skip + 1
        names = [f"trunk.{at}.weight" for at in layers if at != after]
        names += [f"trunk.{at}.bias" for at in layers] + ["colour.weight", "colour.bias"]
        values = [self._parameters[name] for name in names]
        copies = [torch.empty_like(value, dtype=self.dtype) for value in values]
        torch.ops.aten._foreach_copy_.default(copies, values)
        self._cast.update(zip(names, copies, strict=True))

    def _entry(self, at: int) -> Tensor:
        """Weights of an encoded point and, for each image, the bias that its code produces."""
        point, weight, z_shape = (
            self.config.encoded_point,
            self._parameters[f"trunk.{at}.weight"],
            self._z_shape,
        )
        entry = z_shape.new_zeros(
            len(z_shape), multiple_of_eight(point + 1), self.config.width, dtype=self.dtype
        )
        entry[:, :point] = weight[:, :point].t()
        entry[:, point] = torch.addmm(
            self._parameters[f"trunk.{at}.bias"], z_shape, weight[:, point : point + z_shape.shape[1]].t()
        )
        return entry


class Slopes(NamedTuple):
    """Gradients of a folded field.

    head: (C, H); colour: (3, F + 1), with the bias in the last column; weights: shaped as in `Field`.
    """

    view: Tensor
    entry: Tensor
    again: Tensor
    head: Tensor
    colour: Tensor
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]


def unfold(
    config: FieldConfig, parameters: NamedTensors, z_shape: Tensor, z_app: Tensor, slopes: Slopes
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Compute the gradients of the codes and of every parameter from those of the folded field."""
    half, point, after, direction = (
        config.features,
        config.encoded_point,
        config.skip + 1,
        config.encoded_direction,
    )
    inputs = point + config.z_shape
    of: dict[str, Tensor] = {}
    bias_slopes = iter(slopes.biases)
    for at in range(1, config.depth):
        of[f"trunk.{at}.weight"] = slopes.weights[at - 1]
        if at != after:
            of[f"trunk.{at}.bias"] = next(bias_slopes)
    first, again = parameters["trunk.0.weight"], parameters[f"trunk.{after}.weight"]
    of["trunk.0.weight"], of["trunk.0.bias"] = _of_entry(slopes.entry, z_shape, point)
    of_inputs, of[f"trunk.{after}.bias"] = _of_entry(slopes.again, z_shape, point)
    of[f"trunk.{after}.weight"] = torch.cat((of_inputs, slopes.weights[after - 1]), dim=1)
    of_shape = _product(slopes.entry[:, point], first[:, point:]) + _product(
        slopes.again[:, point], again[:, point:inputs]
    )

    of_hidden, _, of_app = _view_parts(config, parameters)
    remap, bias = parameters["remap.weight"], slopes.view[:, direction]
    tint = bias[:, :half]
    shade = tint.sum(0)
    of_head = slopes.head[:half]
    of["view.bias"] = shade
    of["view.weight"] = torch.cat(
        (
            torch.addr(of_head @ remap.t(), shade, parameters["remap.bias"]),
            slopes.view[:, :direction, :half].sum(0).t(),
            tint.t() @ z_app,
        ),
        dim=1,
    )
    of["remap.weight"] = of_hidden.t() @ of_head
    of["remap.bias"] = torch.mv(of_hidden.t(), shade)
    of["density.weight"] = slopes.head[half : half + 1]
    of["density.bias"] = bias[:, half].sum(0, keepdim=True)
    of["colour.weight"], of["colour.bias"] = slopes.colour[:, :half], slopes.colour[:, half]
    return of_shape, _product(tint, of_app), of


def some(tensor: Tensor, images: slice) -> Tensor:
    """Select some of the images of a (B, ...) tensor."""
    return tensor if images.stop - images.start == len(tensor) else tensor[images]


def multiple_of_eight(count: int) -> int:
    """The next multiple of eight."""
    return -(-count // _EIGHT) * _EIGHT


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in fp32: of few rows on a GPU in parts, because a few programs would do all of it."""
    in_parts = left.is_cuda and len(left) <= _FEW and len(right) % _PARTS == 0
    return _product_in_parts(left, right) if in_parts else left @ right


def _product_in_parts(left: Tensor, right: Tensor) -> Tensor:
    parts = left.unflatten(1, (_PARTS, -1)).transpose(0, 1)
    return torch.bmm(parts, right.unflatten(0, (_PARTS, -1))).sum(0)


def _view_parts(config: FieldConfig, parameters: NamedTensors) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of the view layer for the remapped hidden layer, the direction and the appearance."""
    hidden, direction, app = parameters["view.weight"].split(
        (config.width, config.encoded_direction, config.z_app), dim=1
    )
    return hidden, direction, app


def _of_entry(slope: Tensor, z_shape: Tensor, point: int) -> tuple[Tensor, Tensor]:
    """Gradients of a layer's weights (H, E + z_shape) and bias (H,), from that of its entry (B, K, H)."""
    whole = slope[:, : point + 1].sum(0)
    return torch.cat((whole[:point].t(), slope[:, point].t() @ z_shape), dim=1), whole[point]
