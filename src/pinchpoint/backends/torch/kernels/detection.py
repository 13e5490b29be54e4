"""Temporaries of torchvision's CUDA kernels, checked against the allocator's requests on an H200.

Pooling of regions (`roi_align`, `roi_pool` and their kin) allocates only its results.
"""

from __future__ import annotations

import math
from typing import Any

_BOXES_PER_WORD = 64  # of the matrix that says which box suppresses which
_IMAGES_TOGETHER = 32  # of a deformable convolution


def suppression(boxes: int) -> list[int]:
    """Non-maximum suppression: order, sorted boxes, the matrix of suppressed pairs, and a flag per box."""
    return [8 * boxes, 16 * boxes, 8 * boxes * -(-boxes // _BOXES_PER_WORD), boxes, 21_503]


def deformable_convolution(args: Any, out: Any) -> list[int]:
    """The sampled columns of the images that are convolved together, the result by image, and its product."""
    result_bytes = out.numel() * out.element_size()
    return [result_bytes, _columns_bytes(args[0], args[1], args[2]), result_bytes]


def deformable_convolution_backward(args: Any, out: Any) -> list[int]:
    """The gradient by channels and the columns, first of the inputs and then of the weight."""
    gradient = args[0]
    gradient_bytes = gradient.numel() * gradient.element_size()
    return [gradient_bytes, _columns_bytes(args[1], args[2], args[3]), gradient_bytes]


def _columns_bytes(source: Any, weight: Any, offset: Any) -> int:
    images = source.shape[0]
    together = max(k for k in range(1, min(images, _IMAGES_TOGETHER) + 1) if images % k == 0)
    rows = source.shape[1] * math.prod(weight.shape[2:])
    return rows * together * math.prod(offset.shape[-2:]) * source.element_size()
