"""The layers of a folded field over the points of a chunk, forward and backward, without autograd.

Encoded points, hidden layers and the view layer are stored for the backward pass. On CUDA, one Triton kernel
encodes the points, and another one masks a gradient by its activation and adds it to the gradient of a bias
in one pass; on other devices plain torch does both. On Hopper cards in bf16, a layer of width 256 is one
kernel in the backward pass: both products, mask and sum (`layers_triton`). So are the first layer and the one
after the skip connection in the forward pass.

Letters: B images, r rays per image, S points per ray, P = r S, N = B P; H and others as in `folded`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake, own_kernels
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import encode
from pinchpoint.systems.radiance.model.folded import FoldedField, Slopes, multiple_of_eight, some
from pinchpoint.systems.radiance.rendering.compositing import Scene, depths_of, points_of
from pinchpoint.systems.radiance.rendering.strategies import Part

MOST_OCTAVES = 13  # limit of the kernel, which reduces angles up to this octave to a quarter turn exactly
PROGRAMS = 1056  # programs that sum on CUDA; a constant, so that the order of summation never changes
GROUPS = 66  # groups of points whose products are summed separately by the kernels of whole layers, likewise
_FUSED_WIDTH = 256  # with others, these kernels were not measured
_aten = torch.ops.aten


def encoded_points(config: FieldConfig, scene: Scene, part: Part, dtype: torch.dtype, *, own: bool) -> Tensor:
    """Encoded points (B, P, K): coordinates, sines and cosines, then ones."""
    rays, offsets = scene.rays, scene.offsets
    images, each = _size(part)
    samples = offsets.shape[2]
    if not own:
        part_rays = rays.part(*part)
        points = points_of(part_rays, depths_of(part_rays, offsets[part])).flatten(1, 2)
        return encode_with_ones(config, points, dtype)
    wide = multiple_of_eight(config.encoded_point + 1)
    encoding = torch.empty(images, each * samples, wide, dtype=dtype, device=offsets.device)
    if not is_fake(offsets):
        from pinchpoint.systems.radiance.rendering import points_triton

        points_triton.encode_points(
            rays.origins,
            rays.directions,
            offsets,
            (part[0].start, part[1].start),
            encoding,
            octaves=config.point_octaves,
            samples=samples,
            each=each,
            near=rays.near,
            step=(rays.far - rays.near) / samples,
        )
    return encoding


def encode_with_ones(config: FieldConfig, points: Tensor, dtype: torch.dtype) -> Tensor:
    """The same for points (B, P, 3)."""
    return _plain(points, config.point_octaves, multiple_of_eight(config.encoded_point + 1), dtype)


def encoded_directions(config: FieldConfig, scene: Scene, part: Part, *, own: bool) -> Tensor:
    """Encoded directions (B, r, D) in the type of the rays, followed by ones."""
    wide = multiple_of_eight(config.encoded_direction + 1)
    directions = scene.rays.directions
    if not own or config.direction_octaves < 0:
        return _plain(directions[part], config.direction_octaves, wide, directions.dtype)
    images, each = _size(part)
    encoding = torch.empty(images, each, wide, dtype=directions.dtype, device=directions.device)
    if not is_fake(directions):
        from pinchpoint.systems.radiance.rendering import points_triton

        first = part[0].start, part[1].start
        points_triton.encode_directions(
            directions, first, encoding, octaves=config.direction_octaves, each=each
        )
    return encoding


def runs_fused(config: FieldConfig, tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels of whole layers support this field and the tensor's GPU, real or simulated."""
    return (
        own_kernels(tensor)
        and dtype is torch.bfloat16
        and config.width == _FUSED_WIDTH
        and torch.cuda.get_device_capability(tensor.device)[0] == 9
    )


def forward(
    field: FoldedField, encoding: Tensor, images: slice, *, keep: bool, fused: bool = False
) -> tuple[list[Tensor], Tensor]:
    """encoding: (B, P, K) of some images -> hidden layers (N, H), and the view layer before tints (N, C).

    keep: return all hidden layers; otherwise only the last one, with at most two in memory at a time.
    """
    if fused:
        hidden = _read(encoding, some(field.entry, images))
    else:
        hidden = torch.bmm(encoding, some(field.entry, images)).relu_().flatten(0, 1)
    layers = [hidden]
    for at in range(1, field.config.depth):
        if at == field.config.skip + 1 and fused:
            hidden = _read_again(hidden, encoding, some(field.joined, images))
        elif at == field.config.skip + 1:
            hidden = torch.mm(hidden, field.weight(at))
            hidden.view(*encoding.shape[:2], -1).baddbmm_(encoding, some(field.again, images)).relu_()
        else:  # product and relu are one kernel on CUDA
            hidden = _aten._addmm_activation(field.bias(at), hidden, field.weight(at))
        if keep:
            layers.append(hidden)
        else:
            layers[0] = hidden
    return layers, torch.mm(hidden, field.head)


def _read(encoding: Tensor, entry: Tensor) -> Tensor:
    """relu(encoding @ entry), (N, H), in one kernel."""
    out = encoding.new_empty(encoding.shape[0] * encoding.shape[1], entry.shape[2])
    if not is_fake(encoding):
        from pinchpoint.systems.radiance.rendering import layers_triton

        layers_triton.read(encoding, entry, out)
    return out


def _read_again(hidden: Tensor, encoding: Tensor, weights: Tensor) -> Tensor:
    """relu of (hidden, encoding) @ weights, (N, H), in one kernel."""
    out = torch.empty_like(hidden)
    if not is_fake(hidden):
        from pinchpoint.systems.radiance.rendering import layers_triton

        layers_triton.read_again(hidden, encoding, weights, out)
    return out


class Sums:
    """Gradients of a folded field, summed over chunks in fp32 or wider.

    The products of a chunk are written into one buffer in their own type, so that a single operation adds
    them. fused: a layer's products are written in fp32, one for each group of points, and added up.
    """

    def __init__(self, field: FoldedField, *, own: bool, fused: bool = False) -> None:
        self.own, self.fused = own, fused
        config, head = field.config, field.head
        wide = torch.promote_types(head.dtype, torch.float32)
        square = torch.Size((config.width, config.width))
        self._shapes = [
            field.entry.shape,
            field.again.shape,
            head.t().shape,
            *[square] * (config.depth - 1),
        ]
        self._counts = [shape.numel() for shape in self._shapes]
        self._total = head.new_zeros(sum(self._counts), dtype=wide)
        several = (PROGRAMS,) if own else ()
        if fused:
            groups, (images, encoded, width) = (GROUPS,), field.entry.shape
            # of the widest layer, or of the entries: see `_gather`
            each = max(GROUPS * max(head.shape) * width, max(2 * GROUPS, images) * encoded * width)
            self._products = head.new_empty(each, dtype=wide)
            self.entry, self.again, self.head, *self.weights = self._views(self._total)
        else:
            groups = several
            self._products = head.new_empty(sum(self._counts))
            self.entry, self.again, self.head, *self.weights = self._views(self._products)
        self._biases = head.new_zeros(config.depth - 2, *groups, config.width, dtype=wide)
        self.biases = self._biases.unbind()
        self.colour = head.new_zeros(*several, 3, config.features + 1, dtype=wide)
        self.view = torch.zeros_like(field.view)

    def start(self, images: slice) -> None:
        """Prepare for a chunk: clear products that it does not write, which would be added twice."""
        if images.stop - images.start < len(self.view):
            self.entry.zero_()
            self.again.zero_()

    def add(self) -> None:
        """Add the products of a chunk."""
        self._total.add_(self._products)

    def products(self, *shape: int) -> Tensor:
        """Room for the products of groups of points, (..., A, H), in fp32."""
        return self._products[: math.prod(shape)].view(shape)

    def total(self) -> Slopes:
        entry, again, head, *weights = self._views(self._total)
        biases, colour = (
            (self._biases.sum(1), self.colour.sum(0)) if self.own else (self._biases, self.colour)
        )
        return Slopes(self.view, entry, again, head, colour, weights, biases.unbind())

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._counts), self._shapes, strict=True)]


def backward(
    field: FoldedField, encoding: Tensor, layers: list[Tensor], slope: Tensor, sums: Sums, images: slice
) -> None:
    """Add the gradients of the layers to `sums`, and empty `layers`.

    slope: (N, C), the gradient of the view layer before tints.
    """
    sums.start(images)
    config, transpose = field.config, encoding.transpose(1, 2)
    torch.mm(slope.t(), layers[-1], out=sums.head)
    slope = torch.mm(slope, field.head.t())
    bias_at = len(sums.biases)
    for at in range(config.depth - 1, 0, -1):
        if at == config.skip + 1:
            mask(slope, layers.pop(), None, own=sums.own)
            torch.bmm(transpose, slope.view(*encoding.shape[:2], -1), out=some(sums.again, images))
        else:
            bias_at -= 1
            mask(slope, layers.pop(), sums.biases[bias_at], own=sums.own)
        torch.mm(slope.t(), layers[-1], out=sums.weights[at - 1])
        slope = torch.mm(slope, field.weight(at).t())
    mask(slope, layers.pop(), None, own=sums.own)
    torch.bmm(transpose, slope.view(*encoding.shape[:2], -1), out=some(sums.entry, images))
    sums.add()


def backward_fused(
    field: FoldedField, encoding: Tensor, layers: list[Tensor], slope: Tensor, sums: Sums, images: slice
) -> None:
    """The same as `backward`, with one kernel for both products of a layer, the mask and the sum."""
    config = field.config
    after = config.skip + 1
    for at in range(config.depth, 0, -1):  # depth: the view layer and the density
        if at == after:
            _gather(encoding, slope, sums, some(sums.again, images))
        hidden, biases = layers.pop(), None
        if at - 1 not in (0, after):  # the biases of these two are entries of an image
            biases = sums.biases[at - 2 - (at - 1 > after)]
        weight, total = (
            (field.head, sums.head) if at == config.depth else (field.weight(at), sums.weights[at - 1])
        )
        out, products = torch.empty_like(hidden), sums.products(GROUPS, *total.shape)
        if not is_fake(slope):
            from pinchpoint.systems.radiance.rendering import layers_triton

            layers_triton.back(slope, weight.t(), hidden, out, products, biases)
        total.add_(products.sum(0))
        slope = out
    _gather(encoding, slope, sums, some(sums.entry, images))


def _gather(encoding: Tensor, slope: Tensor, sums: Sums, total: Tensor) -> None:
    """Add encoding^T @ slope of each image to `total`, (B, K, H)."""
    products = sums.products(len(total), _groups_of(len(total)), *total.shape[1:])
    if not is_fake(slope):
        from pinchpoint.systems.radiance.rendering import layers_triton

        layers_triton.gather(encoding, slope, products)
    total.add_(products.sum(1))


def _groups_of(images: int) -> int:
    """Groups of points of each image."""
    return max(1, 2 * GROUPS // images)


def mask(slope: Tensor, hidden: Tensor, sums: Tensor | None, *, own: bool) -> None:
    """Zero `slope` in place where relu returned zero, and add its sum over points to `sums`.

    sums: (H,), or (PROGRAMS, H) for the Triton kernel.
    """
    if not own:
        _aten.threshold_backward.grad_input(slope, hidden, 0, grad_input=slope)
        if sums is not None:
            sums.add_(slope.sum(0, dtype=sums.dtype))
    elif not is_fake(slope):
        from pinchpoint.systems.radiance.rendering import points_triton

        points_triton.mask(slope, hidden, sums)


def _size(part: Part) -> tuple[int, int]:
    return part[0].stop - part[0].start, part[1].stop - part[1].start


def _plain(values: Tensor, octaves: int, wide: int, dtype: torch.dtype) -> Tensor:
    encoding = values.new_empty(*values.shape[:-1], wide, dtype=dtype)
    encoding[..., max(0, 3 + 6 * octaves) :] = 1
    return encode(values, octaves, out=encoding)
