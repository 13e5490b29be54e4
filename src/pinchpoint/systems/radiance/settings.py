"""Settings of a training run of a radiance-field GAN: images, camera and the two networks.

No framework is imported here, so that the command line can read defaults and help texts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import PRECISIONS, TrainSettings, flag, option

FORMS = ("eager", "folded")
MEMORIES = ("none", "checkpoint", "deferred")
OPTIMIZERS = ("rmsprop", "adam")
REDUCTIONS = ("graf", "image")
NORMS = ("instance", "layer", "none")
SIDES = (32, 64, 128)  # patch sizes that have a discriminator
FACTORS = (1, 2, 4)
# What each preset changes in the defaults of `Settings`. tuned: from eight-minute trials on cars; graf: as
# published.
PRESETS: dict[str, dict[str, Any]] = {
    "tuned": {},
    "graf": {
        "samples": 64,
        "batch": 8,
        "optimizer": "rmsprop",
        "lr_d": 1e-4,
        "r1": 10.0,
        "r1_reduction": "graf",
        "critic_bias": False,
        "whole": 0.0,
        "edge": 0.0,
        "endless": True,
    },
    "small": {"critic_width": 32, "sr_width": 32},
    "tiny": {
        "samples": 16,
        "batch": 4,
        "critic_width": 8,
        "sr_width": 16,
        "eval_images": 32,
        "optimizer": "rmsprop",
        "lr": 2e-3,
        "ema": 0.98,
    },
}


@dataclass(frozen=True)
class Settings(TrainSettings):
    """The settings of a run, as stored in config.json.

    data: see `runs.fingerprint`; lr: the learning rate of the generator.
    """

    preset: str = option("tuned", "Preset of the field and its training", main=True, choices=tuple(PRESETS))
    steps: int = option(20_000, "Total number of training steps.", main=True, at_least=1)
    precision: str = option(
        "fp32", "Precision of the matrix products", main=True, choices=(*PRECISIONS, "fp16")
    )
    size: int = option(
        0,
        "Width and height of the render in pixels; images are scaled to it.",
        main=True,
        at_least=0,
        default_text="that of the images",
    )
    superres: int = option(
        1, "Factor by which super-resolution enlarges the render: 1 (none), 2 or 4.", main=True
    )
    patch: int = option(32, "Width and height of a patch in rays: 32, 64 or 128.", main=True, at_least=1)
    samples: int = option(32, "Points per ray.", main=True, at_least=1)
    batch: int = option(16, "Images per step, in each process.", main=True, at_least=1)
    micro: int | None = option(
        None,
        "Images processed together; their gradients are summed.",
        at_least=1,
        default_text="the whole batch",
        may_change=True,
    )
    lr: float = option(5e-4, "Highest learning rate of the generator.", main=True, above=0)
    lr_d: float = option(2e-4, "Highest learning rate of the discriminator.", above=0)
    warmup: int = option(
        0,
        "Steps during which both learning rates rise; 0: a hundredth of all steps.",
        at_least=0,
        default_text="0, a hundredth of the steps",
    )
    optimizer: str = option("adam", "Optimizer of both networks", choices=OPTIMIZERS)
    weight_decay: float = option(0.0, "Weight decay of the weight matrices.", at_least=0)
    clip: float = option(10.0, "Largest norm of the gradient of each network.", above=0)
    ema: float = option(0.999, "Decay of the averaged weights; 0: no average is kept.", at_least=0, below=1)
    r1: float = option(1.0, "Weight of the R1 penalty on the discriminator's gradient.", at_least=0)
    r1_every: int = option(1, "Steps between two R1 penalties; the weight is multiplied by it.", at_least=1)
    r1_reduction: str = option(
        "image",
        "How R1 is averaged: per image, or over the rays of a patch as published (graf)",
        choices=REDUCTIONS,
    )
    sr_weight: float = option(
        0.1, "Weight of the discriminator of enlarged patches in the generator's loss.", at_least=0
    )
    # Two pixel errors: enlarged real patches against the real large ones, and enlarged renders against the
    # enlargement without features. Trained with the discriminator alone, the super-resolution learns patterns
    # that deceive it.
    sr_pairs: float = option(
        10.0, "Weight of the pixel errors of the super-resolution on real patches.", at_least=0
    )
    label_weight: float = option(
        0.0,
        "Weight of the loss that tells classes and views apart; 0: images are used without labels.",
        at_least=0,
    )
    view_sectors: int = option(
        0,
        "Parts of a turn around the object that the discriminator tells apart; 0: views have no labels.",
        at_least=0,
        at_most=360,
    )
    noise: float = option(1.0, "Standard deviation of the density noise at the first step.", at_least=0)
    noise_until: float = option(
        0.25, "Fraction of the run after which there is no density noise.", at_least=0, at_most=1
    )
    anneal_until: float = option(
        0.5, "Fraction of the run during which the smallest patches shrink to `least`.", at_least=0, at_most=1
    )
    least: float = option(
        0.0,
        "Smallest fraction of an image that a patch spans; 0: patch / size, whose rays are whole pixels.",
        at_least=0,
        at_most=1,
        default_text="0, patch / size",
    )
    whole: float = option(
        0.5,
        "Fraction of patches, rounded up, whose rays are adjacent whole pixels from the first step on.",
        at_least=0,
        at_most=1,
    )
    edge: float = option(
        0.25,
        "Fraction of patches that touch the upper or lower edge of their image; "
        "the same fraction touches the left or right edge.",
        at_least=0,
        below=1,
    )
    critic_width: int = option(64, "Width of the discriminator.", at_least=1)
    critic_norm: str = option("instance", "Normalisation in the discriminator", choices=NORMS)
    critic_bias: bool = option(
        True,
        "Bias in the first layer of the discriminator; "
        "GRAF has none, so that pale patches look the same as colourful ones.",
    )
    sr_width: int = option(64, "Width of the super-resolution network.", at_least=1)
    fov: float = option(30.0, "Field of view of an image in degrees.", above=0)
    radius: float = option(4.0, "Distance of the camera from the origin.", above=0)
    near: float = option(3.0, "Distance from the camera at which rays start.")
    far: float = option(5.0, "Distance from the camera at which rays end.")
    bound: float = option(
        0.0, "Radius around the origin outside which space is empty; 0: no bound.", at_least=0
    )
    haze: float = option(
        0.0,
        "Coverage below which a ray of a whole image shows only the background.",
        at_least=0,
        below=1,
        may_change=True,
    )
    endless: bool = option(
        False,
        "Extend the last interval of a ray to infinity, as published: any density there is opaque.",
    )
    v_low: float = option(0.0, "Highest camera pose: 0 is straight above, 0.5 is at the horizon.")
    v_high: float = option(0.45, "Lowest camera pose, on the same scale as `v_low`.")
    white: bool = option(True, "Use a white background instead of black.")
    form: str = option(
        "folded", "How the field is computed; eager is as published", choices=FORMS, may_change=True
    )
    memory: str = option(
        "none",
        "How activations are stored for the backward pass",
        choices=MEMORIES,
        default_text="none, or chosen by --budget",
        may_change=True,
    )
    chunk: int | None = option(
        None,
        "Rays per chunk, such as 4k.",
        main=True,
        at_least=1,
        default_text="all, or chosen by --budget",
        may_change=True,
    )
    graphs: bool = option(True, "Use CUDA graphs on a GPU, unless `micro` splits the batch.", may_change=True)
    sample_every: int = option(
        500, "Steps between two sheets of generated images.", at_least=1, may_change=True
    )
    eval_every: int = option(
        0,
        "Steps between two evaluations of the distance to real images; 0: 5,000.",
        at_least=0,
        default_text="0, 5000 steps",
        may_change=True,
    )
    eval_images: int = option(
        256,
        "Number of real and of generated images per evaluation during training; 0: no evaluation.",
        at_least=0,
        may_change=True,
    )
    validation: int | None = 0  # there is no validation set
    ranks: int = 1  # processes

    def warmup_steps(self) -> int:
        return min(self.warmup or max(1, self.steps // 100), self.steps)

    def eval_steps(self) -> int:
        return self.eval_every or 5000

    def unscored(self) -> tuple[str, str] | None:
        if self.eval_images == 0:
            return (
                "no distances were measured during training",
                "Use --checkpoint last, or train with --set eval_images=256.",
            )
        return None

    def rate(self, step: int) -> float:
        """Learning rate of the generator: a short warm-up, constant until half of the run, then a cosine
        decay to a tenth.
        """
        return self.lr * self.share_of_rate(step)

    def share_of_rate(self, step: int) -> float:
        """Factor by which both learning rates are multiplied at step 1, 2, ..."""
        rise = min(1.0, step / self.warmup_steps())
        fall = max(0.0, 2 * min(1.0, step / self.steps) - 1)
        return rise * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * fall)))

    def progress_at(self, step: int) -> float:
        """Fraction of the run completed before step 1, 2, ..."""
        return min(1.0, (step - 1) / self.steps)

    def noise_at(self, step: int) -> float:
        """Standard deviation of the density noise, which falls linearly to 0."""
        return self.noise * _remaining(self.progress_at(step), self.noise_until)

    def penalty_at(self, step: int) -> float:
        """Weight of the R1 penalty; 0 at steps without a penalty."""
        return 0.0 if (step - 1) % self.r1_every else self.r1_every * self.r1

    def least_at(self, step: int) -> float:
        """Smallest fraction of an image that a patch spans: 1 at first, then falling exponentially."""
        return self.smallest ** (1 - _remaining(self.progress_at(step), self.anneal_until))

    @property
    def smallest(self) -> float:
        return self.least or self.patch / self.size

    @property
    def always_whole(self) -> bool:
        """Whether every patch is the whole image, pixel by pixel."""
        return self.patch == self.size and self.smallest == 1

    @property
    def whole_share(self) -> float:
        """Fraction of whole-pixel patches over all processes: at least one patch if `whole` is above 0."""
        every = self.batch * self.ranks
        return 1.0 if self.always_whole else math.ceil(every * self.whole) / every

    def check(self) -> None:
        super().check()
        if not 0 <= self.near < self.far < math.inf:
            raise BadInput(
                f"The distances near={self.near:g} and far={self.far:g} are not in ascending order.",
                hint="Give --set near=A and --set far=B with 0 <= A < B.",
            )
        if not self.near < self.radius < self.far:
            raise BadInput(
                f"The camera is at a distance of {self.radius:g} from the origin, but its rays only span "
                f"{self.near:g} to {self.far:g}, which does not include it.",
                hint="Set near below radius and far above it.",
            )
        if self.bound and self.samples < 2:
            raise BadInput(
                f"{flag(self, 'bound', self.bound)} needs at least 2 points per ray, "
                "because the last one marks the end of the ball.",
                hint="Give --samples 2 or more.",
            )
        if not 0 <= self.v_low <= self.v_high <= 1:
            raise BadInput(
                f"The poses from {self.v_low:g} to {self.v_high:g} are not a range within 0 to 1.",
                hint="Give --set v_low=A and --set v_high=B with 0 <= A <= B <= 1.",
            )
        if self.superres > 1 and self.size and not self.whole_share:
            raise BadInput(
                "Super-resolution learns from patches of whole pixels, but `whole` is 0.",
                hint="Give --set whole=0.5, or --superres 1.",
            )
        if self.view_sectors == 1 or (self.view_sectors and not self.label_weight):
            raise BadInput(
                f"{flag(self, 'view_sectors', self.view_sectors)} has no effect"
                + (": one sector is all views." if self.view_sectors == 1 else " without a label weight."),
                hint="Give --set label_weight=1 and --set view_sectors=8, or leave both out.",
            )
        if self.superres not in FACTORS:
            raise BadInput(f"--superres {self.superres} is not supported.", hint="Use 2 or 4, or 1 for none.")
        self._check_patch()

    def _check_patch(self) -> None:
        """Check that the discriminators support the patch size, and that patches fit into the image."""
        for side, what in (
            (self.patch, "Patches"),
            (self.patch * self.superres, f"Patches after super-resolution x{self.superres}"),
        ):
            if side not in SIDES:
                raise BadInput(
                    f"{what} are {side} x {side} pixels; the discriminator supports 32, 64 or 128.",
                    hint="Use a --patch of 32, 64 or 128, and at most 128 after super-resolution.",
                )
        if self.size and self.patch > self.size:
            ways = [
                f"Give images of at least {self.patch * self.superres} x {self.patch * self.superres} pixels"
            ]
            ways += (
                [f"--size {self.patch}, to which images are enlarged"]
                if self.superres == 1
                else ["a smaller --superres"]
            )
            ways += ["a smaller --patch"] if self.patch > SIDES[0] else []
            raise BadInput(
                f"Patches of {self.patch} x {self.patch} do not fit into images of "
                f"{self.size} x {self.size}.",
                hint=", or ".join(ways) + ".",
            )
        if self.eval_images and self.eval_images < 2:
            raise BadInput(
                "An evaluation needs at least 2 images, but eval_images is 1.",
                hint="Give --set eval_images=2 or more, or 0 for no evaluation.",
            )


def _remaining(fraction: float, until: float) -> float:
    """Fall linearly from 1 to 0 while `fraction` rises from 0 to `until`."""
    return max(0.0, 1 - fraction / until) if until else 0.0
