"""Passes of a discriminator without autograd: its outputs, R1 and the gradients of both.

R1 is the square of the slope g of an output at an image. Its gradient needs no second backward pass: that of
g . g is twice that of t . g with t = g constant, and t . g is the derivative of the output if the image moves
along t. So the images that are penalised move along their slopes through all layers, and one backward pass
goes through both the outputs and these derivatives.

A layer is z = x W, y = (z - mean) r with r = 1 / deviation, x' = leaky(y), with s the slope of `leaky` at y.
The derivative of y by z is J q = r (q - mean(q) - y mean(y q)), which is symmetric. So x' moves by s J q if z
moves by q. With a and p the gradients of x' and of its movement, both multiplied by s, the gradient of z is

    J (a - r mean(y q) p) - r (mean(y p) J q + y mean(p J q)),

and that of its movement is J p. Of all this, only x', its movement, r and mean(y q) are stored: they give y,
and J q. On CUDA, everything between two convolutions is one Triton kernel, and images are laid out with
channels last. Elsewhere `Discriminator` uses autograd, and the passes in plain torch are the reference of the
kernels. Letters: N images, m of them penalised, O outputs, C channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pinchpoint.kit.edges.edge_ops import is_fake, on_device, own_kernels

SLOPE = 0.2  # of leaky below zero
EPS = 1e-5  # of the instance norm
_LANES = 4  # channels of an image are padded to a multiple: other counts are slow on tensor cores


class Judgement(NamedTuple):
    """outputs: (N, O); squares: (m,), the squared norms of the slopes of the penalised images."""

    outputs: Tensor
    squares: Tensor


def judge(
    images: Tensor, weights: Sequence[Tensor], bias: Tensor | None, *, norm: bool, towards: Tensor | None
) -> Judgement:
    """Judge images (N, C, p, p), of which only the first m are penalised.

    weights: those of the layers, (C', C, 4, 4) with stride 2, then of the outputs, (O, C, 4, 4) at images of
    4 x 4; those of the first layer may have more channels than the images. bias: (C',) of the first layer.
    norm: instance norm in all layers but the first. towards: (m, O), slopes are those of outputs * towards;
    None: no penalty.
    """
    towards = images.new_zeros(0, len(weights[-1])) if towards is None else towards
    with torch.autocast(images.device.type, enabled=False), on_device(images):
        return Judgement(*_Judge.apply(norm, images, towards, bias, *weights))


class _Layer(NamedTuple):
    """State of a layer for the backward pass.

    units: (N + m, C, h, w), x' and room for its movement; scale: (N, C), r; along: (m, C), room for the means
    of y q. Without a norm, scale and along are empty.
    """

    units: Tensor
    scale: Tensor
    along: Tensor


class _Judge(torch.autograd.Function):
    """Outputs and squared slopes, with the state for their gradients."""

    @staticmethod
    def forward(
        ctx: Any, norm: bool, images: Tensor, towards: Tensor, bias: Tensor | None, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        count, penalised = len(images), len(towards)
        weights = tuple(weight.contiguous(memory_format=torch.channels_last) for weight in weights)
        last = _rows(weights[-1])
        hidden = _room(images, count + penalised, weights[0].shape[1])
        hidden[:count, : images.shape[1]] = images
        hidden[:count, images.shape[1] :] = 0
        layers = [_Layer(hidden, images.new_empty(0), images.new_empty(0))]
        for at, weight in enumerate(weights[:-1]):
            before = _convolve(layers[-1].units[:count], weight)
            layers.append(_activate(before, bias if at == 0 else None, penalised, norm=norm and at > 0))
            del before  # before the next layer
        outputs = _rows(layers[-1].units[:count]) @ last.t()
        slope = images.new_zeros(0)
        if penalised:
            slope = _as_images(towards @ last, layers[-1].units)
            for at in range(len(weights) - 2, -1, -1):
                units, scale, along = layers[at + 1]
                some = _Layer(units[:penalised], scale[:penalised], along[:0])
                slope = _deconvolve(_pull(some, slope, penalised), layers[at].units[:penalised], weights[at])
        ctx.channels, ctx.layers = images.shape[1], layers
        ctx.save_for_backward(towards, slope, *weights)
        return outputs, slope.square().sum(dim=(1, 2, 3)) if penalised else slope

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, of_outputs: Tensor, of_squares: Tensor
    ) -> tuple[Any, ...]:
        needs_images, needs_bias, needs = (
            ctx.needs_input_grad[1],
            ctx.needs_input_grad[3],
            ctx.needs_input_grad[4:],
        )
        towards, slope, *weights = ctx.saved_tensors
        # Not saved tensors, which live until the whole backward pass ends.
        layers, ctx.layers = ctx.layers, None
        assert layers is not None, (
            "This pass supports one backward pass only, because that overwrites its state."
        )
        penalised, count = len(towards), len(of_outputs)
        of_bias: Tensor | None = None
        with torch.autocast(of_outputs.device.type, enabled=False), on_device(of_outputs):
            if penalised:
                torch.mul(slope, (2 * of_squares)[:, None, None, None], out=layers[0].units[count:])
                for at in range(len(weights) - 1):
                    _push(_convolve(layers[at].units[count:], weights[at]), layers[at + 1], count)
            of_joint = torch.cat([of_outputs, towards]) if penalised else of_outputs
            gradients: list[Tensor | None] = [None] * len(weights)
            if needs[-1]:
                gradients[-1] = _as_images(of_joint.t() @ _rows(layers[-1].units), weights[-1])
            of_hidden: Tensor | None = _as_images(of_joint @ _rows(weights[-1]), layers[-1].units)
            for at in range(len(weights) - 2, -1, -1):
                assert of_hidden is not None
                of_sums = _pull(layers.pop(), of_hidden, count)
                del of_hidden
                if at == 0 and needs_bias:
                    of_bias = of_sums[:count].sum(dim=(0, 2, 3))
                of_hidden, gradients[at] = _both_gradients(
                    of_sums, layers[-1].units, weights[at], images=at > 0 or needs_images, weight=needs[at]
                )
                del of_sums
        of_images = of_hidden[:count, : ctx.channels] if needs_images and of_hidden is not None else None
        return None, of_images, None, of_bias, *gradients


def normalise(weight: Tensor, left: Tensor, right: Tensor, *, lanes: bool = False) -> Tensor:
    """A weight (C', C, 4, 4), as a matrix, divided by left . weight . right; channels last.

    lanes: pad the channels with zeros, to a number that is fast on tensor cores.
    """
    channels = -(-weight.shape[1] // _LANES) * _LANES if lanes else weight.shape[1]
    with on_device(weight):
        return _Normalise.apply(channels, weight, left, right)


class _Normalise(torch.autograd.Function):
    """The weight; left and right are constants and must not change before the backward pass."""

    @staticmethod
    def forward(ctx: Any, channels: int, weight: Tensor, left: Tensor, right: Tensor) -> Tensor:
        out = _room(weight, len(weight), channels)
        shares = weight.new_empty(len(weight))  # of sigma, one for each row
        if not own_kernels(weight):
            torch.mul(left, weight.flatten(1) @ right, out=shares)
            out.zero_()[:, : weight.shape[1]] = weight / shares.sum()
        elif not is_fake(weight):
            from pinchpoint.systems.radiance.model import critic_triton

            critic_triton.normalise(weight, left, right, shares, out)
        ctx.save_for_backward(weight, left, right, shares)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        weight, left, right, shares = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        out = torch.empty_like(weight)
        with on_device(weight):
            inner = torch.empty_like(shares)  # shares of slope . weight
            if not own_kernels(weight):
                slope, sigma = slope[:, : weight.shape[1]], shares.sum()
                inner.copy_((slope * weight).sum(dim=(1, 2, 3)))
                of_sigma = -inner.sum() / sigma.square()
                out.copy_(slope / sigma + (of_sigma * left[:, None] * right).view_as(weight))
            elif not is_fake(weight):
                from pinchpoint.systems.radiance.model import critic_triton

                critic_triton.unnormalise(slope, weight, left, right, shares, inner, out)
        return None, out, None, None


def _room(like: Tensor, images: int, channels: int) -> Tensor:
    """Empty images of the same size."""
    return torch.empty(
        images,
        channels,
        *like.shape[2:],
        dtype=like.dtype,
        device=like.device,
        memory_format=torch.channels_last,
    )


def _rows(images: Tensor) -> Tensor:
    """(N, C, h, w) -> (N, h w C) without a copy."""
    return images.permute(0, 2, 3, 1).flatten(1)


def _as_images(rows: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_rows`."""
    channels, *sides = like.shape[1:]
    return rows.view(-1, *sides, channels).permute(0, 3, 1, 2)


def _convolve(images: Tensor, weight: Tensor) -> Tensor:
    return torch.conv2d(images, weight, stride=2, padding=1).contiguous(memory_format=torch.channels_last)


def _deconvolve(slope: Tensor, images: Tensor, weight: Tensor) -> Tensor:
    """Gradient of the images that were convolved, from that of the result."""
    of_images, _ = _both_gradients(slope, images, weight, images=True, weight=False)
    assert of_images is not None
    return of_images


def _both_gradients(
    slope: Tensor, inputs: Tensor, weights: Tensor, *, images: bool, weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of images and weights, of which only those requested are computed."""
    if not images and not weight:
        return None, None
    of_images, of_weight, _ = torch.ops.aten.convolution_backward(
        slope, inputs, weights, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [images, weight, False]
    )
    return (
        of_images.contiguous(memory_format=torch.channels_last) if images else None,
        of_weight if weight else None,
    )


def _activate(before: Tensor, bias: Tensor | None, penalised: int, *, norm: bool) -> _Layer:
    """before: z, (N, C, h, w)."""
    count, channels = before.shape[:2]
    layer = _Layer(
        _room(before, count + penalised, channels),
        before.new_empty(count if norm else 0, channels),
        before.new_empty(penalised if norm else 0, channels),
    )
    if not own_kernels(before):
        value = before if bias is None else before + bias[:, None, None]
        if norm:
            value = before - _mean(before)
            scale = (_mean(value.square()) + EPS).rsqrt()
            layer.scale.copy_(scale[:, :, 0, 0])
            value = value * scale
        layer.units[:count] = torch.where(value > 0, value, SLOPE * value)
    elif not is_fake(before):
        from pinchpoint.systems.radiance.model import critic_triton

        critic_triton.activate(before, bias, *layer[:2])
    return layer


def _push(move: Tensor, layer: _Layer, count: int) -> None:
    """Write how x' moves if z moves, to the end of `layer`. move: (m, C, h, w)."""
    if not own_kernels(move):
        value, scale, leak = _parts(layer, len(move))
        if layer.along.numel():
            layer.along.copy_(_mean(value * move)[:, :, 0, 0])
            move = _through(value, scale, move)
        layer.units[count:] = leak * move
    elif not is_fake(move):
        from pinchpoint.systems.radiance.model import critic_triton

        critic_triton.push(move, *layer)


def _pull(layer: _Layer, slope: Tensor, count: int) -> Tensor:
    """Gradients of z, (N, ...), then of its movement, (m, ...), from those of x' and its movement."""
    out = _room(slope, *slope.shape[:2])
    if not own_kernels(slope):
        out.copy_(_plain_pull(layer, slope, count))
    elif not is_fake(slope):
        from pinchpoint.systems.radiance.model import critic_triton

        critic_triton.pull(*layer, slope, out, count=count)
    return out


def _plain_pull(layer: _Layer, slope: Tensor, count: int) -> Tensor:
    some = len(slope) - count
    value, scale, leak = _parts(layer, count)
    of_value, of_move = leak * slope[:count], leak[:some] * slope[count:]
    if not layer.scale.numel():
        return torch.cat([of_value, of_move])
    moved = layer.units[count:] / leak[:some]
    value_m, scale_m = value[:some], scale[:some]
    of_value[:some] -= scale_m * layer.along[:, :, None, None] * of_move
    of_before = _through(value, scale, of_value)
    of_before[:some] -= scale_m * (_mean(value_m * of_move) * moved + value_m * _mean(of_move * moved))
    return torch.cat([of_before, _through(value_m, scale_m, of_move)])


def _parts(layer: _Layer, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """y of the first images, r and s."""
    units = layer.units[:count]
    leak = torch.where(units > 0, torch.ones_like(units), SLOPE)
    return units / leak, layer.scale[:count, :, None, None], leak


def _through(value: Tensor, scale: Tensor, slope: Tensor) -> Tensor:
    """J times `slope`."""
    return scale * (slope - _mean(slope) - value * _mean(value * slope))


def _mean(values: Tensor) -> Tensor:
    return values.mean(dim=(2, 3), keepdim=True)
