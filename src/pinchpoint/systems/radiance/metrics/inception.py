"""The Inception network of FID and KID: 2,048 numbers per image, from a weights file the user provides.

The file is the one that defines FID, converted for torch (`pt_inception-2015-12-05-6726825d.pth`, 95,628,359
bytes); a file with another hash raises an error, because another Inception would give a different measure
under the same name. Layers are named as in that file. Like FID's graph, the network differs from the usual
Inception v3: average pools exclude the padding, and the last block uses max pooling.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.metrics.efficientnet import check_hash

SHA256 = "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2"
FEATURES = 2048
SIDE = 299
_EPSILON = 1e-3
_HINT = "Give pt_inception-2015-12-05-6726825d.pth, or omit --inception: KD-efflite0 needs no file."


class Inception:
    """The network up to its pooled features."""

    def __init__(self, state: dict[str, Tensor], *, device: str | torch.device = "cpu") -> None:
        self._layers: dict[str, tuple[Tensor, Tensor]] = {}
        for name in state:
            if name.endswith(".conv.weight"):
                layer = name.removesuffix(".conv.weight")
                norm = {
                    key: state[f"{layer}.bn.{key}"].to(device)
                    for key in ("weight", "bias", "running_mean", "running_var")
                }
                scale = norm["weight"] / torch.sqrt(norm["running_var"] + _EPSILON)
                weight = state[name].to(device) * scale[:, None, None, None]
                self._layers[layer] = weight, norm["bias"] - norm["running_mean"] * scale

    def features(self, images: Tensor) -> Tensor:
        """(N, 3, SIDE, SIDE) in [-1, 1] -> (N, FEATURES)."""
        hidden = self._conv(images, "Conv2d_1a_3x3", stride=2)
        hidden = self._conv(hidden, "Conv2d_2a_3x3")
        hidden = self._conv(hidden, "Conv2d_2b_3x3", pad=True)
        hidden = F.max_pool2d(hidden, 3, stride=2)
        hidden = self._conv(self._conv(hidden, "Conv2d_3b_1x1"), "Conv2d_4a_3x3")
        hidden = F.max_pool2d(hidden, 3, stride=2)
        for name in ("Mixed_5b", "Mixed_5c", "Mixed_5d"):
            hidden = self._fine(hidden, name)
        hidden = self._shrink_once(hidden, "Mixed_6a")
        for name in ("Mixed_6b", "Mixed_6c", "Mixed_6d", "Mixed_6e"):
            hidden = self._long(hidden, name)
        hidden = self._shrink_again(hidden, "Mixed_7a")
        hidden = self._wide(hidden, "Mixed_7b", _mean)
        # FID's graph uses max pooling in the last block only.
        hidden = self._wide(hidden, "Mixed_7c", lambda images: F.max_pool2d(images, 3, stride=1, padding=1))
        return hidden.mean(dim=(2, 3))

    def _conv(self, images: Tensor, name: str, *, stride: int = 1, pad: bool = False) -> Tensor:
        weight, bias = self._layers[name]
        return F.relu(
            F.conv2d(
                images, weight, bias, stride=stride, padding=[k // 2 if pad else 0 for k in weight.shape[2:]]
            )
        )

    def _chain(self, images: Tensor, block: str, *names: str) -> Tensor:
        for name in names:
            images = self._conv(images, f"{block}.{name}", pad=True)
        return images

    def _fine(self, images: Tensor, block: str) -> Tensor:
        return torch.cat(
            [
                self._chain(images, block, "branch1x1"),
                self._chain(images, block, "branch5x5_1", "branch5x5_2"),
                self._chain(images, block, "branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"),
                self._chain(_mean(images), block, "branch_pool"),
            ],
            dim=1,
        )

    def _shrink_once(self, images: Tensor, block: str) -> Tensor:
        double = self._chain(images, block, "branch3x3dbl_1", "branch3x3dbl_2")
        return torch.cat(
            [
                self._conv(images, f"{block}.branch3x3", stride=2),
                self._conv(double, f"{block}.branch3x3dbl_3", stride=2),
                F.max_pool2d(images, 3, stride=2),
            ],
            dim=1,
        )

    def _long(self, images: Tensor, block: str) -> Tensor:
        return torch.cat(
            [
                self._chain(images, block, "branch1x1"),
                self._chain(images, block, "branch7x7_1", "branch7x7_2", "branch7x7_3"),
                self._chain(images, block, *(f"branch7x7dbl_{number}" for number in range(1, 6))),
                self._chain(_mean(images), block, "branch_pool"),
            ],
            dim=1,
        )

    def _shrink_again(self, images: Tensor, block: str) -> Tensor:
        three = self._chain(images, block, "branch3x3_1")
        seven = self._chain(images, block, "branch7x7x3_1", "branch7x7x3_2", "branch7x7x3_3")
        return torch.cat(
            [
                self._conv(three, f"{block}.branch3x3_2", stride=2),
                self._conv(seven, f"{block}.branch7x7x3_4", stride=2),
                F.max_pool2d(images, 3, stride=2),
            ],
            dim=1,
        )

    def _wide(self, images: Tensor, block: str, pool: Callable[[Tensor], Tensor]) -> Tensor:
        three = self._chain(images, block, "branch3x3_1")
        double = self._chain(images, block, "branch3x3dbl_1", "branch3x3dbl_2")
        return torch.cat(
            [
                self._chain(images, block, "branch1x1"),
                self._chain(three, block, "branch3x3_2a"),
                self._chain(three, block, "branch3x3_2b"),
                self._chain(double, block, "branch3x3dbl_3a"),
                self._chain(double, block, "branch3x3dbl_3b"),
                self._chain(pool(images), block, "branch_pool"),
            ],
            dim=1,
        )


def load_inception(
    file: str | Path, *, device: str | torch.device = "cpu", sha256: str = SHA256
) -> Inception:
    """Load the network from a file with the known hash."""
    check_hash(Path(file), sha256, what="FID's Inception", hint=_HINT)
    try:
        return Inception(torch.load(file, map_location="cpu", weights_only=True), device=device)
    except (KeyError, RuntimeError, pickle.UnpicklingError) as error:
        raise BadInput(
            f"{file} does not contain an Inception network: {str(error)[:120]}.", hint=_HINT
        ) from error


def _mean(images: Tensor) -> Tensor:
    return F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
