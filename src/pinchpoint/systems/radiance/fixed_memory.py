"""What training holds beside the field's part of a step, before anything is trained: for `train --budget`.

Counted on fake tensors, whatever the device. What libraries take for themselves is the margin's on a GPU, and `LIBRARIES` here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.evaluate import TOGETHER
from pinchpoint.systems.radiance.metrics.features import open_extractor
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator, Request, whole_images
from pinchpoint.systems.radiance.rendering.render import Codes, Rendered
from pinchpoint.systems.radiance.settings import Settings
from pinchpoint.systems.radiance.training_step import Stepper, replays

LIBRARIES = (
    64 << 20
)  # bytes that a process on a CPU grew by over its tensors, at most, in trials from 0.4 to 0.8 GiB
_TURNS = 3  # that are recorded with inputs of their own, at most


def beside_bytes(
    config: FieldConfig, told: Settings, images: Images, device: str
) -> Callable[[int | None], int]:
    """Bytes by the rays that pass at one time: both players and what they compute, on a GPU the images too.

    Graphs keep their memory to themselves: sheets and distances on the way, and a turn that is recorded later than another, have
    theirs beside it. All of that and the field have their peaks at other times, so that the sum is never too little.
    """
    counted = _of_steps(config, told, images) + (images.pixels.numel() if device == "cuda" else LIBRARIES)
    if told.ranks == 1 and not replays(told, device):
        return lambda chunk: counted
    with _fake():
        stepper = _stepper(config, told, images)
        shown, asked = _bytes(stepper.real(1).tensors()), _bytes(stepper.request(1, "to count").tensors())
        weights = _bytes(stepper.critics.parameters())
    counted += (told.ranks - 1) * asked  # drawn for all processes, then let go
    if not replays(told, device):
        return lambda chunk: counted
    counted += _TURNS * (shown + asked)
    if told.r1 and told.r1_every > 1:  # a turn with and one without a penalty, each with gradients of its own
        counted += weights + _of_turn(config, told, images)
    if told.eval_images:
        blank = torch.zeros(TOGETHER, 3, told.size * told.superres, told.size * told.superres)
        counted += measurement.account(lambda: open_extractor(device="cpu")(blank)) or 0
    return lambda chunk: counted + _of_pictures(config, replace(told, chunk=chunk))


def _of_steps(config: FieldConfig, told: Settings, images: Images) -> int:
    def steps() -> None:
        with _fake():
            stepper = _stepper(config, told, images)
            # Both have a penalty, the second an optimizer's state too. Step 1 looks at gradients, of which there are none.
            for number in (1 + told.r1_every, 1 + 2 * told.r1_every):
                stepper.step(number)

    state = 8 if told.optimizer == "adam" else 4  # bytes that the optimizer holds of a weight
    field = (
        4 + state
    ) * config.parameters  # of its own, and its gradient's: the steps that were counted gave it none
    return (measurement.account(steps) or 0) + field


def _of_turn(config: FieldConfig, told: Settings, images: Images) -> int:
    """Of the discriminators' turn with a penalty."""

    def turn() -> None:
        with _fake():
            _stepper(config, told, images).discriminate(1)

    return measurement.account(turn) or 0


def _of_pictures(config: FieldConfig, told: Settings) -> int:
    """Of whole images as sheets and distances make them: one after another, some of them held."""

    def pictures() -> None:
        with _fake():
            generator = Generator(config, told).requires_grad_(False)
            codes = Codes(*(torch.zeros(2, wide) for wide in (config.z_shape, config.z_app)))
            whole_images(generator, codes, torch.zeros(2), torch.zeros(2))

    # (3 + 3 f^2 + 2) numbers of a pixel: both sizes, depth and cover; twice where they are joined.
    held = 2 * TOGETHER * 4 * told.size**2 * (5 + 3 * told.superres**2)
    return (measurement.account(pictures) or 0) + held


def _stepper(config: FieldConfig, told: Settings, images: Images) -> Stepper:
    """On fake tensors, with pixels that come from nowhere."""
    # A scaler of fp16 would read its scale, which is not there; bf16 has the same bytes.
    tried = replace(told, precision="bf16" if told.precision == "fp16" else told.precision, noise_until=1.0)
    held = Images(images.source, torch.zeros(1, *images.pixels.shape[1:], dtype=images.pixels.dtype))

    def blank(asked: Request, **_: Any) -> Rendered:
        images, rays = asked.places.shape[:2]
        rgb, depth, acc = (torch.zeros(images, rays, *more, requires_grad=True) for more in ((3,), (), ()))
        features = (
            torch.zeros(images, rays, config.features, requires_grad=True) if told.superres > 1 else None
        )
        return Rendered(rgb, depth, acc, features)

    stepper = Stepper(config, tried, held, "cpu")
    stepper.generator.rendered = blank
    return stepper


@contextmanager
def _fake() -> Iterator[None]:
    with compat.fake_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copies of fake weights ask for their address
        yield


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
