"""Settings: every choice that makes one training of a wave function, as plain values that survive JSON.

Imports no framework, so that the command line reads the defaults for its help. `Settings.preset` gives a tried recipe
for a network and a number of electrons; wrong values raise BadInput here and nowhere later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Self, get_args

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig

Kind = Literal["metropolis", "langevin"]
Optimizer = Literal["adam", "spring", "adam+spring"]
OptimizerStage = Literal["adam", "spring"]  # what a single step is by
Method = Literal["auto", "nested", "hessian", "loop", "forward"]
Precision = Literal["float32", "float64"]

_CHOICES = {"kind": Kind, "optimizer": Optimizer, "method": Method, "precision": Precision}
_COUNTS = ("walkers", "moves", "steps")
_ABOVE_ZERO = (
    "width",
    "adam_rate",
    "adam_decay",
    "spring_rate",
    "spring_decay",
    "damping",
    "norm_cap",
    "clip",
)
LARGEST_SEED = 2**32 - 1
# Langevin proposals know the way: more of them are taken at the width that mixes best.
ACCEPTANCE = {"metropolis": 0.5, "langevin": 0.7}


class Stage(IntEnum):
    """What a random number is for. The key of a step is made of (seed, stage, step): to resume takes the step number alone."""

    PARAMETERS = 0
    WALKERS = 1
    PRETRAIN = 2
    BURN = 3
    TRAIN = 4
    EVALUATE = 5
    EVALUATE_BURN = 6


@dataclass(frozen=True)
class Settings(JsonConfig):
    """One training. Made by hand, by `preset`, or by `from_json`."""

    walkers: int = 512
    moves: int = 10  # of all electrons at once, in each step
    kind: Kind = "metropolis"
    width: float = 0.3  # bohr, of the first proposals; then set by the acceptance
    acceptance: float = 0.0  # aimed at; 0: what suits the kind of moves
    burn: int = 50  # steps of moves alone before the first step of training
    steps: int = 700  # of training, in all
    optimizer: Optimizer = "adam+spring"
    adam_steps: int = 100  # of the warm start of adam+spring
    adam_rate: float = 3e-3
    adam_decay: float = 1000.0  # steps after which the rate is half
    spring_rate: float = 0.05
    spring_decay: float = 300.0  # steps after which the rate is half, counted from SPRING's first
    momentum: float = 0.95  # how much of the last direction SPRING keeps
    damping: float = 1e-3  # put on the diagonal of SPRING's matrix
    norm_cap: float = 3e-3  # largest squared length of one change of all parameters by SPRING
    clip: float = 5.0  # mean absolute deviations from the median that a local energy may lie off
    chunk: int | None = None  # walkers at a time in local energies and gradients; None: all
    method: Method = "auto"  # of the Laplacian
    seed: int = 0
    precision: Precision = "float32"

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():
            if getattr(self, name) not in get_args(known):
                raise BadInput(
                    f"unknown {name} {getattr(self, name)!r}",
                    hint=f"use one of: {', '.join(get_args(known))}",
                )
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise BadInput(f"{name} = {getattr(self, name)}", hint=f"give {name} of at least 1")
        for name in ("burn", "adam_steps"):
            if getattr(self, name) < 0:
                raise BadInput(f"{name} = {getattr(self, name)}", hint=f"give {name} of at least 0")
        for name in _ABOVE_ZERO:
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise BadInput(f"{name} = {getattr(self, name)}", hint=f"give {name} a finite number above 0")
        if not 0 <= self.momentum < 1:
            raise BadInput(f"momentum = {self.momentum}", hint="give at least 0 and less than 1")
        if not 0 <= self.acceptance < 1:
            raise BadInput(
                f"acceptance = {self.acceptance}",
                hint="give a part of 1 above 0, or 0 for what suits the moves",
            )
        if not 0 <= self.seed <= LARGEST_SEED:
            raise BadInput(f"seed = {self.seed}", hint=f"give a whole number from 0 to {LARGEST_SEED}")
        if self.optimizer != "adam" and self.walkers < 2:
            raise BadInput("SPRING with one walker", hint="give at least 2 walkers, or --optimizer adam")
        self._check_chunk()

    @property
    def target(self) -> float:
        """The acceptance the width is set for."""
        return self.acceptance or ACCEPTANCE[self.kind]

    @property
    def adam_until(self) -> int:
        """The first step that is SPRING's."""
        return {"adam": self.steps, "spring": 0, "adam+spring": self.adam_steps}[self.optimizer]

    def stage_at(self, step: int) -> OptimizerStage:
        """What the step of this number, from 0, is by."""
        return "adam" if self.optimizer == "adam" or step < self.adam_until else "spring"

    @classmethod
    def preset(cls, net: str, *, electrons: int, **changes: Any) -> Self:
        """The tried recipe for a network's preset and a number of electrons. `changes` are fields to set otherwise."""
        chosen: dict[str, Any] = {**_recipe(net, electrons), **changes}
        return cls(**chosen)

    def _check_chunk(self) -> None:
        if self.chunk is None:
            return
        if self.chunk < 1:
            raise BadInput(
                f"a chunk of {self.chunk} walkers", hint="give at least 1, or leave it out for all at once"
            )
        if self.walkers % min(self.chunk, self.walkers):
            near = max(part for part in range(1, self.chunk + 1) if self.walkers % part == 0)
            raise BadInput(
                f"{self.walkers} walkers do not divide into chunks of {self.chunk}",
                hint=f"take a chunk of {near}, or {-(-self.walkers // self.chunk) * self.chunk} walkers",
            )


# What differs from the defaults, by the size of the network and then by the most electrons it was chosen for.
_SMALL: dict[int, dict[str, Any]] = {
    2: {"steps": 500, "adam_steps": 100},
    4: {"steps": 1500, "adam_steps": 300, "moves": 15, "burn": 100},
    10: {"steps": 3000, "adam_steps": 500, "moves": 20, "burn": 200, "spring_decay": 600.0},
}
# Long runs: smaller rates that last, and a direction remembered for longer.
_LONG = {
    "walkers": 1024,
    "adam_rate": 1e-3,
    "spring_rate": 0.02,
    "spring_decay": 3000.0,
    "momentum": 0.99,
    "norm_cap": 1e-3,
}
_LARGE: dict[int, dict[str, Any]] = {
    2: {**_LONG, "steps": 2000, "adam_steps": 200},
    4: {**_LONG, "steps": 6000, "adam_steps": 500, "moves": 20, "burn": 100},
    10: {**_LONG, "steps": 12_000, "adam_steps": 1000, "moves": 30, "burn": 200},
}
# A network between the two, on a card: fewer parameters allow SPRING longer strides.
_MEDIUM: dict[int, dict[str, Any]] = {
    14: {
        "walkers": 1024,
        "steps": 15_000,
        "moves": 20,
        "burn": 200,
        "adam_steps": 100,
        "adam_rate": 1e-3,
        "spring_rate": 0.05,
        "spring_decay": 2000.0,
        "momentum": 0.98,
        "norm_cap": 2e-3,
    },
}
_RECIPES = {"ferminet": _LARGE, "psiformer": _LARGE, "medium": _MEDIUM}


def _recipe(net: str, electrons: int) -> dict[str, Any]:
    sizes = _RECIPES.get(net, _SMALL)
    return sizes[min((most for most in sizes if most >= electrons), default=max(sizes))]
