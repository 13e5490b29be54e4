"""The processor: a pre-norm transformer over patches of the lattice's tokens.

L tokens of C channels, N patches of q tokens (p**3, or p**2 for a lattice in a plane), D the width. Outputs
of layers in the first half are also inputs of their counterparts in the second half (long skips), so that
detail can bypass the middle.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.systems.operator.model.config import OperatorConfig, Triple
from pinchpoint.systems.operator.model.rotary import BASE_1D, BASE_3D, angles, grid, rotate


def to_patches(tokens: Tensor, lattice: Triple, sides: Triple) -> Tensor:
    """(L, C) to (N, q C), with patches and the tokens within them in the order of the lattice.

    sides: tokens of a patch along each axis.
    """
    x, y, z = (count // side for count, side in zip(lattice, sides, strict=True))
    blocks = tokens.reshape(x, sides[0], y, sides[1], z, sides[2], -1)
    return blocks.permute(0, 2, 4, 1, 3, 5, 6).reshape(x * y * z, -1)


def from_patches(patches: Tensor, lattice: Triple, sides: Triple) -> Tensor:
    """(N, q C) to (L, C), the inverse of `to_patches`."""
    x, y, z = (count // side for count, side in zip(lattice, sides, strict=True))
    blocks = patches.reshape(x, y, z, *sides, -1)
    return blocks.permute(0, 3, 1, 4, 2, 5, 6).reshape(math.prod(lattice), -1)


class Attention(nn.Module):
    """(N, D) to (N, D): attention between all patches, with rotary position embedding."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.read = nn.Linear(width, 3 * width, bias=False)
        self.write = nn.Linear(width, width, bias=False)

    def forward(self, hidden: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        count, width = hidden.shape
        query, key, value = self.read(hidden).reshape(count, 3, self.heads, -1).permute(1, 2, 0, 3).unbind(0)
        query, key = (rotate(part, cosines, sines).to(value.dtype) for part in (query, key))
        # A batch of one: the fused kernels need four axes.
        output = functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        return self.write(output.transpose(0, 1).reshape(count, width))


class SwiGLU(nn.Module):
    """(N, D) to (N, D) through a gated layer, with as many parameters as a plain one four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 8 * -(-width // 3)
        self.read = nn.Linear(width, 2 * inner, bias=False)
        self.write = nn.Linear(inner, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, value = self.read(hidden).chunk(2, dim=-1)
        return self.write(functional.silu(gate) * value)


class Layer(nn.Module):
    """One pre-norm layer; with `skips`, it also reads the output of its counterpart in the first half."""

    def __init__(self, width: int, heads: int, *, skips: bool) -> None:
        super().__init__()
        self.merge = nn.Linear(2 * width, width) if skips else None
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2))
        self.attention = Attention(width, heads)
        self.gated = SwiGLU(width)

    def forward(self, hidden: Tensor, skip: Tensor | None, cosines: Tensor, sines: Tensor) -> Tensor:
        if self.merge is not None:
            assert skip is not None
            hidden = hidden + self.merge(torch.cat([hidden, skip], dim=1))
        hidden = hidden + self.attention(self.norms[0](hidden), cosines, sines)
        return hidden + self.gated(self.norms[1](hidden))


class PatchTransformer(nn.Module):
    """tokens (L, C) to (L, C)."""

    cosines: Tensor
    sines: Tensor

    def __init__(self, config: OperatorConfig) -> None:
        super().__init__()
        self.lattice, self.sides = config.lattice, config.patch_sides
        wide = math.prod(self.sides) * config.channels
        self.read = nn.Linear(wide, config.width)
        self.layers = nn.ModuleList(
            Layer(config.width, config.heads, skips=number >= config.depth - config.depth // 2)
            for number in range(config.depth)
        )
        self.norm = nn.RMSNorm(config.width, eps=1e-6)
        self.write = nn.Linear(config.width, wide)
        head = config.width // config.heads
        places = grid(config.patches)
        if config.compat:
            turns = angles(torch.arange(len(places), dtype=torch.float32)[:, None], head, base=BASE_1D)
        else:
            # An axis with a single plane has no offsets: its pairs serve the other two.
            axes = [axis for axis, count in enumerate(config.lattice) if count > 1]
            turns = angles(places[:, axes], head, base=BASE_3D)
        self.register_buffer("cosines", turns.cos(), persistent=False)
        self.register_buffer("sines", turns.sin(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        # The residual stream has the dtype of the weights: under autocast, half precision would lose small
        # additions.
        hidden = self.read(to_patches(tokens, self.lattice, self.sides)).to(self.norm.weight.dtype)
        skips: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden, skips.pop() if layer.merge is not None else None, self.cosines, self.sines)
            if number < len(self.layers) // 2:
                skips.append(hidden)
        return from_patches(self.write(self.norm(hidden)), self.lattice, self.sides)
