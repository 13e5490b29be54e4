"""The field with fewer operations and the same parameters: exact to rounding, gradients reach every parameter of `Field`.

The codes become a bias of each image, direction and appearance a bias of each ray, and the layers with no activation between
them one. `fold` makes these from the parameters, once a render and in the type of the products; `unfold` is its way back.

B images; H wide, K an encoded point and ones, D an encoded direction and ones, C the layer of the view, the density and
zeros: all filled up to eights, since products of other widths are slow on tensor cores; F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pinchpoint.workloads.radiance.config import FieldConfig

_EIGHT = 8
Named = Mapping[str, Tensor]  # a field's parameters, or their gradients


class Folded(NamedTuple):
    """What a field and B codes are folded into. The first row of ones that is read is the bias of the image."""

    view: Tensor  # (B, D, C) of a direction, in the parameters' type; all others in that of the products
    entry: Tensor  # (B, K, H) into the first layer
    again: Tensor  # (B, K, H) into the layer after the skip
    head: Tensor  # (C, H)
    colour: Tensor  # (3, F)
    colour_bias: Tensor  # (3,)
    weights: tuple[Tensor, ...]  # (H, H) of each layer but the first
    biases: tuple[Tensor, ...]  # (H,) of those but the one after the skip


class Slopes(NamedTuple):
    """Gradients of a folded field, shaped as `Folded` is; colour: (3, F + 1), the bias beside the weights."""

    view: Tensor
    entry: Tensor
    again: Tensor
    head: Tensor
    colour: Tensor
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]


def fold(config: FieldConfig, named: Named, z_shape: Tensor, z_app: Tensor, *, dtype: torch.dtype) -> Folded:
    """Codes (B, z_shape), (B, z_app) folded into the weights: small products in the parameters' type. Not for autograd."""
    half, point, after = config.features, config.encoded_point, config.skip + 1
    images, read = len(z_shape), point + config.z_shape
    weights = [named[f"trunk.{at}.weight"] for at in range(config.depth)]
    biases = [named[f"trunk.{at}.bias"] for at in range(config.depth)]
    of_hidden, of_direction, of_app = _view_parts(config, named)
    beside = filled(half + 1)
    view = z_app.new_zeros(images, filled(config.encoded_direction + 1), beside)
    view[:, : config.encoded_direction, :half] = of_direction.t()
    bias = view[:, config.encoded_direction]
    bias[:, :half] = torch.addmm(torch.addmv(named["view.bias"], of_hidden, named["remap.bias"]), z_app, of_app.t())
    bias[:, half : half + 1] = named["density.bias"]
    head = z_app.new_zeros(beside, config.width, dtype=dtype)
    head[:half] = of_hidden @ named["remap.weight"]
    head[half : half + 1] = named["density.weight"]
    return Folded(
        view, _entry(weights[0], biases[0], z_shape, point, dtype), _entry(weights[after], biases[after], z_shape, point, dtype),
        head, named["colour.weight"].to(dtype), named["colour.bias"].to(dtype),
        tuple((weight[:, read:] if at == after else weight).to(dtype) for at, weight in enumerate(weights) if at),
        tuple(bias.to(dtype) for at, bias in enumerate(biases) if at not in (0, after)),
    )  # fmt: skip


def unfold(
    config: FieldConfig, named: Named, z_shape: Tensor, z_app: Tensor, slopes: Slopes
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:  # fmt: skip
    """Gradients of the codes and of every parameter, from those of the folded field."""
    half, point, after, direction = config.features, config.encoded_point, config.skip + 1, config.encoded_direction
    read = point + config.z_shape
    of: dict[str, Tensor] = {}
    left = iter(slopes.biases)
    for at in range(1, config.depth):
        of[f"trunk.{at}.weight"] = slopes.weights[at - 1]
        if at != after:
            of[f"trunk.{at}.bias"] = next(left)
    first, again = named["trunk.0.weight"], named[f"trunk.{after}.weight"]
    of["trunk.0.weight"], of["trunk.0.bias"] = _of_entry(slopes.entry, z_shape, point)
    of_read, of[f"trunk.{after}.bias"] = _of_entry(slopes.again, z_shape, point)
    of[f"trunk.{after}.weight"] = torch.cat((of_read, slopes.weights[after - 1]), dim=1)
    of_shape = torch.addmm(slopes.entry[:, point] @ first[:, point:], slopes.again[:, point], again[:, point:read])

    of_hidden, _, of_app = _view_parts(config, named)
    remap, bias = named["remap.weight"], slopes.view[:, direction]
    tint = bias[:, :half]
    shade = tint.sum(0)
    merged = slopes.head[:half]
    of["view.bias"] = shade
    of["view.weight"] = torch.cat(
        (
            torch.addr(merged @ remap.t(), shade, named["remap.bias"]), slopes.view[:, :direction, :half].sum(0).t(),
            tint.t() @ z_app,
        ), dim=1,
    )  # fmt: skip
    of["remap.weight"] = of_hidden.t() @ merged
    of["remap.bias"] = torch.mv(of_hidden.t(), shade)
    of["density.weight"] = slopes.head[half : half + 1]
    of["density.bias"] = bias[:, half].sum(0, keepdim=True)
    of["colour.weight"], of["colour.bias"] = slopes.colour[:, :half], slopes.colour[:, half]
    return of_shape, tint @ of_app, of


def filled(count: int) -> int:
    """The next multiple of eight."""
    return -(-count // _EIGHT) * _EIGHT


def _view_parts(config: FieldConfig, named: Named) -> tuple[Tensor, Tensor, Tensor]:
    """What the layer of the view reads: the remapped hidden layer, the direction, the appearance."""
    hidden, direction, app = named["view.weight"].split((config.width, config.encoded_direction, config.z_app), dim=1)
    return hidden, direction, app


def _entry(weight: Tensor, bias: Tensor, z_shape: Tensor, point: int, dtype: torch.dtype) -> Tensor:
    """Weights of an encoded point (H, E + z_shape + ...) and the bias that a code makes, for each image: (B, K, H)."""
    made = z_shape.new_zeros(len(z_shape), filled(point + 1), len(weight), dtype=dtype)
    made[:, :point] = weight[:, :point].t()
    made[:, point] = torch.addmm(bias, z_shape, weight[:, point : point + z_shape.shape[1]].t())
    return made


def _of_entry(slope: Tensor, z_shape: Tensor, point: int) -> tuple[Tensor, Tensor]:
    """Back from an entry (B, K, H) to its weights (H, E + z_shape) and its bias (H,)."""
    whole = slope[:, : point + 1].sum(0)
    return torch.cat((whole[:point].t(), slope[:, point].t() @ z_shape), dim=1), whole[point]
