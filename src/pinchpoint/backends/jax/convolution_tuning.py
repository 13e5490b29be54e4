"""Memory for tuning a convolution: the arrays, guard zones, and the largest workspace of cuDNN's algorithms.

The workspace of the FFT algorithm follows from its transforms; the factors of the others are fitted. Of 30
convolutions on an H200 (benchmarks/results/jax_scripts_h200.json), 21 are right to 2 % and 28 to 10 %;
strided and dilated ones were not measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from pinchpoint.backends.jax.hlo_text import array_bytes, dimensions

GUARDS = 16 << 20  # around each array: two times xla_gpu_redzone_padding_bytes
_CALL = re.compile(
    r"= (\(.*?\)) custom-call\((.*?)\), (.*?)custom_call_target=\"__cudnn\$conv(\w+)\"", re.MULTILINE
)
_OPERAND = re.compile(r"([a-z]\w*\[[\d,]*\]\S*) \w+")
# The workspace as a multiple of the bytes of input and output.
_HALF = 2.0  # 16-bit floats, and windows of one element
_GROUPED = 1.0
_GROUPED_KERNEL_GRADIENT = 4.2
_INPUT_GRADIENT = 4.2
_FORWARD = 9.2  # Winograd
_KERNEL_GRADIENT = (9.25, 10.25)  # of the input, of the output's gradient


def convolution_tuning_bytes(canonical: str) -> int:
    """The most memory that tuning one of a program's convolutions takes; 0 if it has none."""
    return max(_each(canonical), default=0)


def _each(canonical: str) -> Iterator[int]:
    for result, operands, attributes, kind in _CALL.findall(canonical):
        shapes = _OPERAND.findall(operands)
        if len(shapes) < 2:
            continue
        output = array_bytes(result)
        workspace = _workspace_bytes(kind, shapes, result, attributes)
        # Five guard zones for two operands; cuDNN's calls with a bias or a residual have more operands.
        guards = GUARDS * (len(shapes) + 3)
        yield sum(map(array_bytes, shapes)) + 2 * output + guards + workspace


def _workspace_bytes(kind: str, shapes: list[str], result: str, attributes: str) -> int:
    image = shapes[0]
    other = shapes[1] if kind == "BackwardFilter" else result
    image_bytes, other_bytes = array_bytes(image), array_bytes(other)
    both = image_bytes + other_bytes
    window_text = re.search(r"size=([\dx]+)", attributes)  # absent for a window of one element
    window = [int(size) for size in window_text[1].split("x")] if window_text else [1]
    is_half = image.startswith(("bf16", "f16"))
    if is_half or math.prod(window) == 1:
        return int(_HALF * both)
    if "feature_group_count" in attributes:
        return int((_GROUPED_KERNEL_GRADIENT if kind == "BackwardFilter" else _GROUPED) * both)
    if kind == "BackwardFilter":
        return int(_KERNEL_GRADIENT[0] * image_bytes + _KERNEL_GRADIENT[1] * other_bytes)
    if kind == "BackwardInput":
        return int(_INPUT_GRADIENT * both)
    return max(int(_FORWARD * both), _fft_bytes(image, other, window, attributes))


def _fft_bytes(image: str, output: str, window: list[int], attributes: str) -> int:
    """Two copies of the transforms of image and kernel, and a copy of image and output."""
    labels = re.search(r"dim_labels=(\w+)_\w+->(\w+)", attributes)
    if labels is None or len(window) != 2 or re.search(r"stride=|dilate=", attributes):
        return 0
    sizes = dict(zip(labels[1], dimensions(image), strict=True))
    features = dict(zip(labels[2], dimensions(output), strict=True))["f"]
    lengths = [_power_of_two(sizes[axis] + extent - 1) for axis, extent in zip("01", window, strict=True)]
    transform = 2 * 8 * lengths[0] * (lengths[1] // 2 + 1)
    return (sizes["b"] + features) * sizes["f"] * transform + array_bytes(image) + array_bytes(output)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()
