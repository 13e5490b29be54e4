"""How the kernels of `wide_mlp` are launched: tiles, blocks and warps, as they were fastest on an H200."""

from __future__ import annotations

from typing import NamedTuple

from pinchpoint.kit.edges.mlp_support import HOPPER, Capability


class Plan(NamedTuple):
    """How a kernel is launched: edges in a tile, columns of a block, warps, tiles on the chip.

    turned: sums of gradients are transposed.
    """

    edges: int
    columns: int
    warps: int
    stages: int = 1
    turned: bool = False


class Plans(NamedTuple):
    """Those of all kernels. In 16 bits, the first has the layer above it, too.

    pair: in 16 bits, the outputs' has the layer below it, too.
    """

    first: Plan
    middle: Plan
    outputs: Plan
    back_last: Plan
    between: Plan
    inputs: Plan  # the gradient of the inputs
    pair: bool = True


# By the bytes of a number and the padded width of the hidden layers.
PLANS = {
    (2, 256): Plans(
        first=Plan(128, 256, 8),
        middle=Plan(128, 256, 16),
        outputs=Plan(128, 256, 8),
        back_last=Plan(64, 256, 16),
        between=Plan(64, 64, 8, 3),
        inputs=Plan(64, 256, 8),
    ),
    (4, 256): Plans(
        first=Plan(64, 256, 8),
        middle=Plan(64, 128, 8),
        outputs=Plan(64, 256, 8),
        back_last=Plan(64, 128, 8),
        between=Plan(64, 64, 8, 2),
        inputs=Plan(64, 256, 8, 2),
    ),
    (4, 128): Plans(
        first=Plan(64, 128, 8),
        middle=Plan(64, 128, 8),
        outputs=Plan(128, 128, 8),
        back_last=Plan(64, 128, 8),
        between=Plan(64, 64, 8, 2),
        inputs=Plan(64, 128, 8, 2),
    ),
}
# The same on GPUs of other compute capabilities, with less shared memory.
SMALLER_PLANS = {
    (2, 256): Plans(
        first=Plan(32, 256, 8),
        middle=Plan(32, 256, 8),
        outputs=Plan(32, 256, 8),
        back_last=Plan(32, 256, 8),
        between=Plan(32, 64, 8, 3),
        inputs=Plan(32, 256, 8),
        pair=False,  # its kernel would need more registers than there are
    ),
    (4, 256): Plans(
        first=Plan(32, 256, 8),
        middle=Plan(32, 64, 8),
        outputs=Plan(32, 256, 8),
        back_last=Plan(32, 128, 8),
        between=Plan(16, 64, 8, turned=True),
        inputs=Plan(16, 256, 8),
    ),
}


def plans_of(size: int, width: int, capability: Capability) -> Plans:
    """The plans of a GPU. size: the bytes of a number; width: the padded one of the hidden layers."""
    return (PLANS if capability == HOPPER else SMALLER_PLANS)[size, width]
