"""The layers of a folded field over the points of a part, there and back, without autograd: little work for the host.

Held for the way back: an encoded point, the hidden layers and the layer of the view. On CUDA points are encoded by one kernel
of ours, and a slope is masked by its activation and summed to the gradient of a bias in one pass; elsewhere by plain torch.

B images, r rays of each, S points of a ray, P = r S, N = B P; H wide, other letters as in `folded`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.kit.edges.edge_ops import is_fake
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import encode
from pinchpoint.systems.radiance.model.folded import Folded, Slopes, filled, some
from pinchpoint.systems.radiance.rendering.compositing import Scene, depths_of, points_of
from pinchpoint.systems.radiance.rendering.strategies import Part

MOST_OCTAVES = 13  # of our kernel: angles that it takes back to a quarter of a turn exactly
PROGRAMS = 1056  # that add up on CUDA, whatever there is to add: sums are in the same order every time
_aten = torch.ops.aten


def encoded_points(config: FieldConfig, scene: Scene, part: Part, dtype: torch.dtype, *, own: bool) -> Tensor:
    """(B, P, K): points, sines and cosines, then ones."""
    wide = filled(config.encoded_point + 1)
    rays, offsets = scene.rays, scene.offsets
    images, each = _size(part)
    samples = offsets.shape[2]
    if not own:
        seen = rays.part(*part)
        points = points_of(seen, depths_of(seen, offsets[part])).flatten(1, 2)
        return _plain(points, config.point_octaves, wide, dtype)
    made = torch.empty(images, each * samples, wide, dtype=dtype, device=offsets.device)
    if not is_fake(offsets):
        from pinchpoint.systems.radiance.rendering import points_triton

        points_triton.encode_points(
            rays.origins,
            rays.directions,
            offsets,
            (part[0].start, part[1].start),
            made,
            octaves=config.point_octaves,
            samples=samples,
            each=each,
            near=rays.near,
            step=(rays.far - rays.near) / samples,
        )
    return made


def encoded_directions(config: FieldConfig, scene: Scene, part: Part, *, own: bool) -> Tensor:
    """(B, r, D), in the type of the rays: small, and read by every point of a ray."""
    wide = filled(config.encoded_direction + 1)
    directions = scene.rays.directions
    if not own or config.direction_octaves < 0:
        return _plain(directions[part], config.direction_octaves, wide, directions.dtype)
    images, each = _size(part)
    made = torch.empty(images, each, wide, dtype=directions.dtype, device=directions.device)
    if not is_fake(directions):
        from pinchpoint.systems.radiance.rendering import points_triton

        first = part[0].start, part[1].start
        points_triton.encode_directions(directions, first, made, octaves=config.direction_octaves, each=each)
    return made


def forward(folded: Folded, encoded: Tensor, images: slice, *, keep: bool) -> tuple[list[Tensor], Tensor]:
    """encoded: (B, P, K) of some images -> hidden layers (N, H), the layer of the view before tints (N, C).

    keep: all hidden layers; else the last, and no more than two are there at one time.
    """
    hidden = torch.bmm(encoded, some(folded.entry, images)).relu_().flatten(0, 1)
    kept = [hidden]
    for at in range(1, folded.config.depth):
        if at == folded.config.skip + 1:
            hidden = torch.mm(hidden, folded.weight(at))
            hidden.view(*encoded.shape[:2], -1).baddbmm_(encoded, some(folded.again, images)).relu_()
        else:  # with relu, in one kernel on CUDA
            hidden = _aten._addmm_activation(folded.bias(at), hidden, folded.weight(at))
        if keep:
            kept.append(hidden)
        else:
            kept[0] = hidden
    return kept, torch.mm(hidden, folded.head)


class Sums:
    """Gradients of a folded field, added up part by part in fp32 at least.

    Products are written side by side in their own type, so that a part is added by one operation.
    """

    def __init__(self, folded: Folded, *, own: bool) -> None:
        self.own = own
        config, head = folded.config, folded.head
        wide = torch.promote_types(head.dtype, torch.float32)
        square = torch.Size((config.width, config.width))
        self._shapes = [
            folded.entry.shape,
            folded.again.shape,
            head.t().shape,
            *[square] * (config.depth - 1),
        ]
        self._counts = [shape.numel() for shape in self._shapes]
        self._made = head.new_empty(sum(self._counts))
        self._total = head.new_zeros(sum(self._counts), dtype=wide)
        self.entry, self.again, self.head, *self.weights = self._views(self._made)
        several = (PROGRAMS,) if own else ()
        self._biases = head.new_zeros(config.depth - 2, *several, config.width, dtype=wide)
        self.biases = self._biases.unbind()
        self.colour = head.new_zeros(*several, 3, config.features + 1, dtype=wide)
        self.view = torch.zeros_like(folded.view)

    def start(self, images: slice) -> None:
        """Before a part: what it does not write must not be added twice."""
        if images.stop - images.start < len(self.view):
            self.entry.zero_()
            self.again.zero_()

    def add(self) -> None:
        """After it."""
        self._total.add_(self._made)

    def found(self) -> Slopes:
        entry, again, head, *weights = self._views(self._total)
        biases, colour = (
            (self._biases.sum(1), self.colour.sum(0)) if self.own else (self._biases, self.colour)
        )
        return Slopes(self.view, entry, again, head, colour, weights, biases.unbind())

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._counts), self._shapes, strict=True)]


def backward(
    folded: Folded, encoded: Tensor, kept: list[Tensor], slope: Tensor, sums: Sums, images: slice
) -> None:
    """slope: (N, C) of the layer of the view before tints. Adds to `sums` what the layers get; empties `kept`."""
    sums.start(images)
    config, transposed = folded.config, encoded.transpose(1, 2)
    torch.mm(slope.t(), kept[-1], out=sums.head)
    slope = torch.mm(slope, folded.head.t())
    left = len(sums.biases)
    for at in range(config.depth - 1, 0, -1):
        if at == config.skip + 1:
            mask(slope, kept.pop(), None, own=sums.own)
            torch.bmm(transposed, slope.view(*encoded.shape[:2], -1), out=some(sums.again, images))
        else:
            left -= 1
            mask(slope, kept.pop(), sums.biases[left], own=sums.own)
        torch.mm(slope.t(), kept[-1], out=sums.weights[at - 1])
        slope = torch.mm(slope, folded.weight(at).t())
    mask(slope, kept.pop(), None, own=sums.own)
    torch.bmm(transposed, slope.view(*encoded.shape[:2], -1), out=some(sums.entry, images))
    sums.add()


def mask(slope: Tensor, hidden: Tensor, sums: Tensor | None, *, own: bool) -> None:
    """Zero, in place, where relu gave zero; add the sum over points to sums, (H,), or with our own kernel (PROGRAMS, H)."""
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
    made = values.new_empty(*values.shape[:-1], wide, dtype=dtype)
    made[..., max(0, 3 + 6 * octaves) :] = 1
    return encode(values, octaves, out=made)
