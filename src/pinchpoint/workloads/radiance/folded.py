"""The field with fewer operations and the same parameters: exact to rounding, gradients reach every parameter of `Field`.

The codes become a bias of each image, direction and appearance a bias of each ray, and the layers with no activation between
them one. A call folds once (`fold`, by autograd); the layers over the points are one function with a backward pass of its own,
which holds an encoded point, the hidden layers and the layer of the view: 2,248 numbers of a point in preset graf. Held with
compositing, counted: 9,039 B a point in fp32, 4,543 in bf16 (`Field`: 13,560 and 6,490); most in a step 11,111 and 5,079 B.

B images, r rays of each, S points of a ray, P = r S, N = B P; H wide, K an encoded point and a one, C the layer of the view,
the density and zeros: both filled up to eights, since products of other widths are slow on tensor cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pinchpoint.workloads.radiance.config import FieldConfig
from pinchpoint.workloads.radiance.field import Field, encode

_EIGHT = 8
_aten = torch.ops.aten


class Folded(NamedTuple):
    """What a call folds a field into. entry, again: (B, K, H); the last row that is read is the bias of the image."""

    entry: Tensor  # into the first layer
    again: Tensor  # into the layer after the skip
    tint: Tensor  # (B, C) of the appearance, and the density's bias
    towards: Tensor  # (D, C) of an encoded direction
    head: Tensor  # (C, H)
    colour: Tensor  # (8, F)
    colour_bias: Tensor  # (8,)
    layers: tuple[Tensor, ...]  # weight (H, H) and bias (H,) of each layer but the first; no bias after the skip

    def of(self, images: slice) -> Folded:
        """That of some of the images."""
        return self._replace(entry=self.entry[images], again=self.again[images], tint=self.tint[images])


def fold(field: Field, z_shape: Tensor, z_app: Tensor) -> Folded:
    """Codes (B, z_shape), (B, z_app) folded into the weights: small products, whose gradients are autograd's."""
    config = field.config
    width, half, point, view = config.width, config.features, config.encoded_point, config.encoded_direction
    with torch.autocast(z_shape.device.type, enabled=False):  # small, and read by every point
        layers: list[Tensor] = []
        linear = cast(list[nn.Linear], list(field.trunk))
        entry = again = _entry(linear[0].weight, linear[0].bias, z_shape, point)
        for at, layer in enumerate(linear):
            if at == config.skip + 1:
                again = _entry(layer.weight[:, : point + config.z_shape], layer.bias, z_shape, point)
                layers.append(layer.weight[:, point + config.z_shape :])
            elif at:
                layers += (layer.weight, layer.bias)
        of_hidden, of_direction, of_app = field.view.weight.split((width, view, config.z_app), dim=1)
        rest = _filled(half + 1) - half - 1
        shade = torch.addmv(field.view.bias, of_hidden, field.remap.bias) + z_app @ of_app.t()
        tint = torch.cat((shade, field.density.bias.expand(len(z_app), 1), shade.new_zeros(len(z_app), rest)), dim=1)
        head = torch.cat((of_hidden @ field.remap.weight, field.density.weight, shade.new_zeros(rest, width)))
        towards = torch.nn.functional.pad(of_direction.t(), (0, rest + 1))
        colour = torch.nn.functional.pad(field.colour.weight, (0, 0, 0, _EIGHT - 3))
        colour_bias = torch.nn.functional.pad(field.colour.bias, (0, _EIGHT - 3))
    return Folded(entry, again, tint, towards, head, colour, colour_bias, tuple(layers))


def evaluate(
    config: FieldConfig, folded: Folded, points: Tensor, directions: Tensor, *, features: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """points: (B, r, S, 3); directions: (B, r, 3) -> colour (N, 3), density (N, 1), features (N, F) or None, before activations.

    In the type of an autocast around it, else of the weights. Points and directions get no gradient.
    """
    device = points.device.type
    dtype = folded.head.dtype
    if dtype != torch.float64 and torch.is_autocast_enabled(device):  # autocast leaves fp64 alone
        dtype = torch.get_autocast_dtype(device)
    with torch.autocast(device, enabled=False):
        seen_along = encode(directions.detach(), config.direction_octaves)
        tints = (seen_along @ folded.towards + folded.tint[:, None]).flatten(0, 1)
        return _Points.apply(
            points.detach().flatten(1, 2), _Plan(config, dtype, torch.is_grad_enabled(), features), tints, folded.entry,
            folded.again, folded.head, folded.colour, folded.colour_bias, *folded.layers,
        )  # fmt: skip


class _Plan(NamedTuple):
    config: FieldConfig
    dtype: torch.dtype
    keep: bool  # for a backward pass
    features: bool


class _Points(torch.autograd.Function):
    """The layers over the points."""

    @staticmethod
    def forward(ctx: Any, points: Tensor, plan: _Plan, tints: Tensor, *given: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """points: (B, P, 3); tints: (B r, C); given: entry, again, head, colour, colour_bias, layers."""
        config, dtype = plan.config, plan.dtype
        entry, again, head, colour, colour_bias, *layers = (tensor.to(dtype) for tensor in given)
        encoded = points.new_empty(*points.shape[:2], entry.shape[1], dtype=dtype)
        encoded[..., config.encoded_point :] = 1  # the bias of the image; the rows beyond it are zero
        encode(points, config.point_octaves, out=encoded)
        hidden = torch.bmm(encoded, entry).relu_().flatten(0, 1)
        kept = [hidden] if plan.keep else []
        layers = iter(layers)
        for at in range(1, config.depth):
            weight = next(layers)
            if at == config.skip + 1:
                hidden = torch.mm(hidden, weight.t())
                hidden.view(*encoded.shape[:2], -1).baddbmm_(encoded, again).relu_()
            else:
                hidden = _aten._addmm_activation(next(layers), hidden, weight.t())  # with relu, in one kernel on CUDA
            if plan.keep:
                kept.append(hidden)
        seen = torch.mm(hidden, head.t())
        seen.view(len(tints), -1, seen.shape[1]).add_(tints[:, None].to(dtype))
        half = config.features
        seen[:, :half].relu_()
        colours = torch.addmm(colour_bias, seen[:, :half], colour.t())
        if plan.keep:
            ctx.plan, ctx.rays = plan, len(tints)
            ctx.save_for_backward(encoded, seen, *kept, *given)
        ctx.set_materialize_grads(False)
        wide = torch.promote_types(dtype, torch.float32)
        return colours[:, :3].to(wide), seen[:, half : half + 1].to(wide), seen[:, :half] if plan.features else None

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor | None
    ) -> tuple[Any, ...]:
        config, dtype, depth = ctx.plan.config, ctx.plan.dtype, ctx.plan.config.depth
        encoded, seen, *rest = ctx.saved_tensors
        kept, given = rest[:depth], rest[depth:]
        _, _, head, colour, _, *weights = (tensor.to(dtype) for tensor in given)
        transposed = encoded.transpose(1, 2)
        slope, of_colour, of_colour_bias = _of_heads(gradients, seen, colour, config.features)
        wide = given[0].dtype
        of_tints = slope.view(ctx.rays, -1, slope.shape[1]).sum(1, dtype=wide)
        of_head = torch.mm(slope.t(), kept[-1])
        slope = torch.mm(slope, head)
        of_layers: list[Tensor] = []  # the last first
        of_again = None
        for at in range(depth - 1, 0, -1):
            _mask(slope, kept[at])
            if at == config.skip + 1:
                of_again = torch.bmm(transposed, slope.view(*encoded.shape[:2], -1))
            else:
                of_layers.append(slope.sum(0, dtype=wide))
                weights.pop()
            of_layers.append(torch.mm(slope.t(), kept[at - 1]))
            slope = torch.mm(slope, weights.pop())
        _mask(slope, kept[0])
        of_entry = torch.bmm(transposed, slope.view(*encoded.shape[:2], -1))
        found = (of_tints, of_entry, of_again, of_head, of_colour, of_colour_bias, *reversed(of_layers))
        return None, None, *(None if gradient is None else gradient.to(wide) for gradient in found)


def _of_heads(
    gradients: Sequence[Tensor | None], seen: Tensor, colour: Tensor, half: int
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of the layer of the view with the density beside it, before activation (N, C), and of the colour's weights."""
    of_colours, of_density, of_features = gradients
    padded = seen.new_zeros(len(seen), _EIGHT)
    if of_colours is not None:
        padded[:, :3] = of_colours
    slope = torch.empty_like(seen)
    of_view = slope[:, :half]
    torch.mm(padded, colour, out=of_view)
    if of_features is not None:
        of_view += of_features
    _mask(of_view, seen[:, :half])
    slope[:, half:] = 0
    if of_density is not None:
        slope[:, half : half + 1] = of_density
    return slope, torch.mm(padded.t(), seen[:, :half]), padded.sum(0)


def _mask(slope: Tensor, hidden: Tensor) -> None:
    """Zero, in place, where relu gave zero."""
    _aten.threshold_backward.grad_input(slope, hidden, 0, grad_input=slope)


def _entry(weight: Tensor, bias: Tensor, z_shape: Tensor, point: int) -> Tensor:
    """Weights of an encoded point (H, E + z_shape) and the bias that a code makes, for each image: (B, K, H)."""
    of_point, of_code = weight[:, :point].t(), weight[:, point:]
    code = torch.addmm(bias, z_shape, of_code.t())[:, None]
    rest = code.new_zeros(len(z_shape), _filled(point + 1) - point - 1, len(weight))
    return torch.cat((of_point.expand(len(z_shape), -1, -1), code, rest), dim=1)


def _filled(count: int) -> int:
    """The next multiple of eight."""
    return -(-count // _EIGHT) * _EIGHT
