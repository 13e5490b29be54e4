"""What a run of a radiance-field GAN is told beyond what every run is: its images, its camera, the two players.

No framework is imported here, so that the command line can read the defaults for its help.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import PRECISIONS, Common, check_among, check_counts

FORMS = ("eager", "folded")
MEMORIES = ("none", "checkpoint", "deferred")
OPTIMIZERS = ("rmsprop", "adam")
REDUCTIONS = ("graf", "image")
NORMS = ("instance", "layer", "none")
SIDES = (32, 64, 128)  # of patches there is a discriminator for
FACTORS = (1, 2, 4)
# What goes with a field of that size, over the defaults of `Settings`. tuned: by trials of cars in eight minutes; graf: as
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
class Settings(Common):
    """Every choice of a run, as config.json holds it. `data`: see runs.fingerprint; `lr`: the generator's."""

    FREE: ClassVar[frozenset[str]] = Common.FREE | {
        "form",
        "memory",
        "chunk",
        "micro",
        "graphs",
        "sample_every",
        "eval_images",
        "haze",
    }
    PRECISIONS: ClassVar[tuple[str, ...]] = (*PRECISIONS, "fp16")

    preset: str = "tuned"
    steps: int = 20_000
    size: int = 0  # pixels a side of what the field renders; 0: those of the data over `superres`
    superres: int = 1  # 1: none
    patch: int = 32  # rays a side
    samples: int = 32  # points of a ray
    batch: int = 16  # images a step, in each process
    micro: int | None = None  # images at one time; None: all of the batch
    lr: float = 5e-4
    lr_d: float = 2e-4
    optimizer: str = "adam"
    weight_decay: float = 0.0
    clip: float = 10.0  # for each player
    ema: float = 0.999
    r1: float = 1.0  # weight of the penalty on the discriminator's slope
    r1_every: int = 1  # steps from one penalty to the next; it then counts so many times
    r1_reduction: str = "image"  # see losses
    # Of the second discriminator in the generator's loss, and of two absolute differences of pixels: from real patches enlarged
    # right, and from how it would enlarge a made one without features. With the first alone it learns patterns that deceive.
    sr_weight: float = 0.1
    sr_pairs: float = 10.0
    noise: float = 1.0  # deviation of the density noise at the first step
    noise_until: float = 0.25  # share of the run after which there is none
    anneal_until: float = 0.5  # share of the run in which the smallest patches come down to `least`
    least: float = (
        0.0  # smallest share of an image a patch spans; 0: patch / size, whose pixels are the image's
    )
    whole: float = (
        0.5  # share of patches whose rays are whole pixels, side by side, from the first step on, rounded up
    )
    edge: float = 0.25  # share of patches that touch the upper or the lower edge of their image; as many touch the left or right
    critic_width: int = 64
    critic_norm: str = "instance"
    critic_bias: bool = (
        True  # of its first layer; as published there is none, and pale patches look like colourful ones
    )
    sr_width: int = 64
    fov: float = 30.0  # degrees
    radius: float = 4.0
    near: float = 3.0
    far: float = 5.0
    bound: float = (
        0.0  # radius around the middle outside which there is nothing; 0: whatever lies between near and far
    )
    haze: float = 0.0  # where less than this of a ray is covered, a whole image shows what lies behind, and nothing else
    endless: bool = (
        False  # the last interval of a ray has no end, as published: whatever is dense there is opaque
    )
    v_low: float = 0.0  # of the poses: 0 straight above, 0.5 the horizon
    v_high: float = 0.45
    white: bool = True  # behind what is rendered; black without
    form: str = "folded"
    memory: str = "none"
    chunk: int | None = None  # rays at one time
    graphs: bool = True  # on a GPU each player's turn is recorded and replayed, where `micro` leaves it whole
    sample_every: int = 500
    eval_images: int = 256  # of each kind that an evaluation while training compares; 0: none is made
    validation: int | None = 0  # nothing is held back
    ranks: int = 1  # processes

    def warmup_steps(self) -> int:
        return min(self.warmup or max(1, self.steps // 100), self.steps)

    def eval_steps(self) -> int:
        return self.eval_every or 5000

    def unscored(self) -> tuple[str, str] | None:
        if self.eval_images == 0:
            return (
                "no distances were taken on the way",
                "use --checkpoint last, or train with --eval-images 256",
            )
        return None

    def rate(self, step: int) -> float:
        """The generator's: a short rise, level for half of the run, then half a cosine down to a tenth."""
        return self.lr * self.share_of_rate(step)

    def share_of_rate(self, step: int) -> float:
        """Of both players' learning rates, at step 1, 2, ..."""
        rise = min(1.0, step / self.warmup_steps())
        fall = max(0.0, 2 * min(1.0, step / self.steps) - 1)
        return rise * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * fall)))

    def behind(self, step: int) -> float:
        """How much of the run lies behind when step 1, 2, ... begins."""
        return min(1.0, (step - 1) / self.steps)

    def noise_at(self, step: int) -> float:
        """Deviation of the density noise: straight down to 0."""
        return self.noise * _left(self.behind(step), self.noise_until)

    def penalty_at(self, step: int) -> float:
        """Weight of the penalty on the discriminator's slope: 0 at steps that have none."""
        return 0.0 if (step - 1) % self.r1_every else self.r1_every * self.r1

    def least_at(self, step: int) -> float:
        """Smallest share of an image that a patch spans: 1 at first, falling by equal factors."""
        return self.smallest ** (1 - _left(self.behind(step), self.anneal_until))

    @property
    def smallest(self) -> float:
        return self.least or self.patch / self.size

    @property
    def always_whole(self) -> bool:
        """Is every patch the whole image, pixel by pixel?"""
        return self.patch == self.size and self.smallest == 1

    @property
    def whole_share(self) -> float:
        """Of the patches of all processes, those of whole pixels: some where any are wanted."""
        every = self.batch * self.ranks
        return 1.0 if self.always_whole else math.ceil(every * self.whole) / every

    def check(self) -> None:
        super().check()
        check_among(
            self,
            form=FORMS,
            memory=MEMORIES,
            optimizer=OPTIMIZERS,
            r1_reduction=REDUCTIONS,
            critic_norm=NORMS,
        )
        check_counts(
            self,
            "patch",
            "samples",
            "batch",
            "micro",
            "chunk",
            "sample_every",
            "critic_width",
            "sr_width",
            "ranks",
            "r1_every",
        )
        for name in ("lr_d", "fov", "radius"):
            if not 0 < getattr(self, name) < math.inf:
                raise BadInput(
                    f"--{_option(name)} {getattr(self, name):g}",
                    hint=f"give --{_option(name)} a number above 0",
                )
        for name in ("r1", "sr_weight", "sr_pairs", "noise", "eval_images", "size", "bound"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadInput(
                    f"--{_option(name)} {getattr(self, name):g}", hint=f"give --{_option(name)} 0 or more"
                )
        for name in ("noise_until", "anneal_until", "least", "whole"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadInput(f"--{_option(name)} {getattr(self, name):g}", hint="give a share from 0 to 1")
        for name in ("edge", "haze"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"--{name} {getattr(self, name):g}", hint="give a share from 0 to below 1")
        if not 0 <= self.near < self.far < math.inf:
            raise BadInput(f"near {self.near:g} and far {self.far:g}", hint="give 0 <= --near < --far")
        if not self.near < self.radius < self.far:
            raise BadInput(
                f"points between {self.near:g} and {self.far:g} of a camera that looks at the middle from {self.radius:g}",
                hint="give --near and --far on both sides of --radius",
            )
        if self.bound and self.samples < 2:
            raise BadInput(
                f"--bound {self.bound:g} with 1 point of a ray",
                hint="give --samples 2 or more: one ends the ball",
            )
        if not 0 <= self.v_low <= self.v_high <= 1:
            raise BadInput(
                f"poses from {self.v_low:g} to {self.v_high:g}", hint="give 0 <= --v-low <= --v-high <= 1"
            )
        if self.superres > 1 and self.size and not self.whole_share:
            raise BadInput(
                "a super-resolution without patches of whole pixels, which it learns from",
                hint="give --whole 0.5, or --superres 1",
            )
        if self.superres not in FACTORS:
            raise BadInput(f"--superres {self.superres}", hint="use 2 or 4, or 1 for none")
        self._check_patch()

    def _check_patch(self) -> None:
        """What the discriminators see must be of a size they are made for, and lie inside the image."""
        for side, what in (
            (self.patch, "patches"),
            (self.patch * self.superres, f"patches after super-resolution x{self.superres}"),
        ):
            if side not in SIDES:
                raise BadInput(
                    f"{what} of {side} x {side}", hint="use a --patch of 32, 64 or 128, enlarged at most 128"
                )
        if self.size and self.patch > self.size:
            ways = [f"give images of at least {self.patch * self.superres} pixels a side"]
            ways += (
                [f"--size {self.patch}, to which they are enlarged"]
                if self.superres == 1
                else ["a smaller --superres"]
            )
            ways += ["a smaller --patch"] if self.patch > SIDES[0] else []
            raise BadInput(
                f"patches of {self.patch} x {self.patch} in images of {self.size} x {self.size}",
                hint=", or ".join(ways),
            )
        if self.eval_images and self.eval_images < 2:
            raise BadInput(
                "an evaluation of 1 image", hint="give --eval-images 2 or more, or 0 for no evaluation"
            )


def _left(fraction: float, until: float) -> float:
    """From 1 to 0 while `fraction` goes from 0 to `until`."""
    return max(0.0, 1 - fraction / until) if until else 0.0


def _option(name: str) -> str:
    return name.replace("_", "-")
