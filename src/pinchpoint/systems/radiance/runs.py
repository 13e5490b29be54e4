"""The run of a radiance-field GAN: begun anew, taken up again, or read for its trained generator.

Beside what every run keeps in its folder, RUN/samples holds a sheet of pictures for every so many steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common import runs
from pinchpoint.systems.common.folders import check_run_folder, refuse_within
from pinchpoint.systems.common.runs import Which, plain, taken_up
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.radiance.data.images import Images, open_images, pillow
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator
from pinchpoint.systems.radiance.settings import PRESETS, Settings


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A folder and what the run in it is told."""

    @property
    def config(self) -> FieldConfig:
        return FieldConfig.from_json(json.dumps(self.settings.model))


def begin(
    folder: Path, data: Path, *, resume: bool, choices: Mapping[str, Any], ranks: int = 1
) -> tuple[Run, Images]:
    """A new run, or with `resume` the one there is, and its images; nothing is written. `choices`: only what was asked for."""
    pillow()  # for the sheets at least: a run that lacked it would end with the first of them
    outside = "move the run out of it, then go on with --resume and its new folder as -o"
    refuse_within(folder, data, hint=outside if resume else "choose a folder outside of it with -o")
    check_run_folder(folder, resume=resume)
    asked = plain(choices)
    if resume:
        stored = read_settings(folder)
        images = open_images(data, size=stored.size * stored.superres, white=stored.white)
        return Run(
            folder, taken_up(folder, stored, {**asked, "ranks": ranks}, data=fingerprint(images))
        ), images
    preset = choices.get("preset", Settings.preset)
    config = FieldConfig.preset(preset, **choices.get("model", {}))
    settings = apply_choices(
        Settings(**PRESETS[preset]), {**asked, "model": json.loads(config.to_json()), "ranks": ranks}
    )
    images = open_images(data, size=settings.size * settings.superres or None, white=settings.white)
    size, rest = divmod(images.size, settings.superres)
    if rest:
        raise BadInput(
            f"images of {images.size} x {images.size} with super-resolution x{settings.superres}",
            hint="give --size, the pixels a side before it: images are scaled to its multiple",
        )
    if settings.superres > 1:  # what its discriminator would take for real is blurred: it would learn to blur
        images.refuse_enlarged(
            f"that super-resolution x{settings.superres} is to learn from",
            hint=f"give larger images, or a smaller --size: it is that of the render, and they are {settings.superres} times it",
        )
    return Run(folder, apply_choices(settings, {"size": size, "data": fingerprint(images)})), images


def fingerprint(images: Images) -> str:
    """What the images are, wherever they lie: a hash of every pixel."""
    made = hashlib.sha256(repr(tuple(images.pixels.shape)).encode())
    made.update(images.pixels.cpu().contiguous().numpy().data)
    return f"radiance:{made.hexdigest()}"


def read_settings(folder: Path) -> Settings:
    """What the run in a folder was told."""
    return runs.read_settings(folder, Settings, made_by="radiance train")


@dataclass(frozen=True)
class Trained:
    """A generator with its weights, ready to make images."""

    generator: Generator
    config: FieldConfig
    settings: Settings
    step: int


def trained(folder: Path, *, which: Which = "last", device: str = "cpu") -> Trained:
    """The generator of a run: averaged weights where the run kept some."""
    run = Run(folder, read_settings(folder))
    entry = run.found(which)
    # Where it runs now may hold other chunks than where it was trained, and tf32 is CUDA's alone.
    told = replace(run.settings, memory="none", chunk=None)
    if device != "cuda" and told.precision != "bf16":
        told = replace(told, precision="fp32")
    generator = Generator(run.config, told)
    run.fill(generator, entry, key="generator")
    return Trained(generator.to(device).eval().requires_grad_(False), run.config, run.settings, entry.step)
