"""Run folders of a radiance-field GAN: start a run, resume one, or load its trained generator.

Beside what every run keeps in its folder, RUN/samples holds an image sheet every `sample_every` steps.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.folders import check_run_folder, refuse_within
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.training import runs
from pinchpoint.systems.common.training.runs import Which, json_values, resume_settings
from pinchpoint.systems.radiance.data.images import Images, open_images, pillow
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.objective import Generator
from pinchpoint.systems.radiance.settings import PRESETS, Settings


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A run folder and its settings."""

    @property
    def config(self) -> FieldConfig:
        return FieldConfig.from_json(json.dumps(self.settings.model))


def begin(
    folder: Path, data: Path, *, resume: bool, choices: Mapping[str, Any], ranks: int = 1
) -> tuple[Run, Images]:
    """A new run, or with `resume` the existing one, and its images; nothing is written.

    choices: only the settings that differ from the defaults or the stored ones.
    """
    pillow()  # the sheets need it: without it the run would end at the first one
    outside = "Move the run out of that folder, then use --resume with its new folder as -o."
    refuse_within(folder, data, hint=outside if resume else "Choose a folder outside of it with -o.")
    check_run_folder(folder, resume=resume)
    overrides = json_values(choices)
    if resume:
        stored = read_settings(folder)
        images = choose_labels(
            open_images(data, size=stored.size * stored.superres, white=stored.white), stored
        )
        return Run(
            folder, resume_settings(folder, stored, {**overrides, "ranks": ranks}, data=fingerprint(images))
        ), images
    preset = choices.get("preset", Settings.preset)
    config = FieldConfig.preset(preset, **choices.get("model", {}))
    settings = apply_choices(
        Settings(**PRESETS[preset]), {**overrides, "model": json.loads(config.to_json()), "ranks": ranks}
    )
    images = open_images(data, size=settings.size * settings.superres or None, white=settings.white)
    images = choose_labels(images, settings)
    if images.labels is not None:
        counts = torch.bincount(images.labels, minlength=len(images.classes)).tolist()
        config = replace(config, classes=images.classes, class_images=tuple(counts))
        settings = replace(settings, model=json.loads(config.to_json()))
    size, rest = divmod(images.size, settings.superres)
    if rest:
        raise BadInput(
            f"The images are {images.size} x {images.size} pixels, which super-resolution "
            f"x{settings.superres} does not divide.",
            hint="Give --size, the pixels per side of the render: images are scaled to its multiple.",
        )
    # Enlarged images are blurred: the discriminator would accept blur as real, and the generator would learn
    # it.
    if settings.superres > 1:
        images.refuse_enlarged(
            f"that super-resolution x{settings.superres} must learn from",
            hint="Give larger images, or a smaller --size, the size of the render: images are "
            f"{settings.superres} times as large.",
        )
    return Run(folder, apply_choices(settings, {"size": size, "data": fingerprint(images)})), images


def choose_labels(images: Images, settings: Settings, *, check: bool = True) -> Images:
    """The images with the labels that the settings use. check: raise an error if there are none."""
    classes, turns = settings.label_weight > 0, settings.view_sectors > 0
    if check and turns and images.turns is None:
        raise BadInput(
            f"The cameras of the images in {images.source} are unknown, so that views have no labels.",
            hint="Leave out --set view_sectors, or use images that `radiance data` made.",
        )
    if check and classes and not turns and images.labels is None:
        raise BadInput(
            f"The images in {images.source} have no classes.",
            hint="Put the images of each class into a subfolder of its own, or leave out --set label_weight; "
            "`radiance data --bodies` makes cars with classes.",
        )
    return images.keep_labels(classes=classes, turns=turns)


def fingerprint(images: Images) -> str:
    """A hash of every pixel and label, independent of where the images are stored."""
    digest = hashlib.sha256(repr(tuple(images.pixels.shape)).encode())
    digest.update(images.pixels.cpu().contiguous().numpy().data)
    if images.labels is not None:
        digest.update(repr((images.classes, images.labels.tolist())).encode())
    if images.turns is not None:
        digest.update(repr(images.turns.tolist()).encode())
    return f"radiance:{digest.hexdigest()}"


def read_settings(folder: Path) -> Settings:
    """Settings of the run in a folder."""
    return runs.read_settings(folder, Settings, made_by="radiance train")


TrainedRun = runs.TrainedRun[Generator, FieldConfig, Settings]


def settings_for(settings: Settings, device: str) -> Settings:
    """The settings of a trained run on this device.

    This machine may fit other chunks than the one it was trained on. A CPU computes in fp32: tf32 does not
    exist there, and half precision, which many CPUs emulate, takes longer.
    """
    settings = replace(settings, memory="none", chunk=None)
    return settings if device == "cuda" else replace(settings, precision="fp32")


def load_trained(folder: Path, *, which: Which = "last", device: str = "cpu") -> TrainedRun:
    """Load the generator of a run, with averaged weights if the run has them."""
    run = Run(folder, read_settings(folder))
    settings = settings_for(run.settings, device)
    trained_run = runs.load_trained(
        run,
        run.config,
        lambda config: Generator(config, settings),
        which=which,
        device=device,
        key="generator",
    )
    trained_run.model.requires_grad_(False)
    return trained_run
