"""Settings of the training of a wave function, as plain values that survive JSON.

No framework is imported here, so that the command line can read defaults and help texts. `Settings.preset`
returns a tested recipe for a network and a number of electrons. Invalid values raise BadInput on
construction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.common.settings import LARGEST_SEED, check_options, option

Kind = Literal["metropolis", "scaled", "langevin"]
Optimizer = Literal["adam", "spring", "adam+spring"]
OptimizerStage = Literal["adam", "spring"]  # the optimizer of a single step
Method = Literal["auto", "nested", "hessian", "loop", "forward"]
Precision = Literal["float32", "float64"]

# Langevin proposals follow the gradient: at the width that mixes best, more of them are accepted.
ACCEPTANCE = {"metropolis": 0.5, "scaled": 0.5, "langevin": 0.7}


class Stage(IntEnum):
    """What a random number is used for.

    The key of a step is made from (seed, stage, step), so that resuming needs only the number of the step.
    """

    PARAMETERS = 0
    WALKERS = 1
    PRETRAIN = 2
    BURN = 3
    TRAIN = 4
    EVALUATE = 5
    EVALUATE_BURN = 6


@dataclass(frozen=True)
class RunOptions:
    """Options of the command line besides `Settings`.

    These are the arguments of `train` that are not stored in config.json, or not among the settings.
    """

    net: str | None = option(
        None,
        "Network",
        main=True,
        choices=("small", "medium", "ferminet", "psiformer", "report", "report-cpu"),
        default_text="small",
    )
    spin: int | None = option(
        None, "Spin-up minus spin-down electrons.", main=True, default_text="spin of the ground state"
    )
    charge: int | None = option(None, "Charge of the molecule.", main=True, default_text="0")
    bond: float | None = option(
        None,
        "Bond length in bohr, for two atoms or a chain.",
        main=True,
        default_text="that of the named molecule",
    )
    states: int | None = option(
        None, "Number of lowest states to train together.", main=True, at_least=1, default_text="1"
    )
    pseudopotential: str | None = option(
        None,
        "Replace the core electrons of all atoms by this pseudopotential",
        main=True,
        choices=("ccecp",),
        default_text="none, all electrons",
    )
    device: str = option("auto", "Device: auto, cpu or cuda.", main=True)
    pretrain: int | None = option(
        None,
        "Number of pretraining steps that fit Hartree-Fock orbitals.",
        at_least=0,
        default_text="0; 1000 for more than 4 electrons",
    )
    orbitals: Path | None = option(
        None, "Orbitals written by `vmc orbitals`, for machines without PySCF.", metavar="FILE.npz"
    )
    start_from: Path | None = option(
        None,
        "Start from the network of this run, which must have the same atoms.",
        main=True,
        name="from",
        metavar="RUN",
    )
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints.", at_least=1, default_text="a tenth of the steps"
    )


@dataclass(frozen=True)
class Settings(JsonConfig):
    """The settings of one training run. Construct them directly, with `preset`, or with `from_json`."""

    walkers: int = option(
        512,
        "Number of walkers (electron configurations) sampled together.",
        main=True,
        at_least=1,
        default_text="512; 1024 for large networks",
    )
    moves: int = option(
        10,
        "Moves per walker and step; a move displaces all electrons.",
        at_least=1,
        default_text="depends on network and electrons",
    )
    kind: Kind = option("metropolis", "How moves are proposed", name="sampler", choices=get_args(Kind))
    width: float = option(
        0.3, "Width of the first proposals in bohr; later adjusted to the acceptance.", above=0
    )
    acceptance: float = option(
        0.0,
        "Target fraction of accepted proposals; 0: the best for the sampler.",
        at_least=0,
        below=1,
        default_text="0, the best for the sampler",
    )
    burn: int = option(
        50,
        "Steps that only move walkers, before the first training step.",
        at_least=0,
        default_text="depends on network and electrons",
    )
    steps: int = option(
        700,
        "Total number of training steps.",
        main=True,
        at_least=1,
        default_text="depends on network and electrons; 500 for small and H2",
        may_change=True,
    )
    optimizer: Optimizer = option("adam+spring", "Optimizer", main=True, choices=get_args(Optimizer))
    adam_steps: int = option(
        100,
        "For adam+spring: steps by Adam before SPRING takes over.",
        at_least=0,
        default_text="depends on network and electrons",
    )
    adam_rate: float = option(
        3e-3, "Learning rate of Adam.", above=0, default_text="0.003; 0.001 for large networks"
    )
    adam_decay: float = option(1000.0, "Steps after which the learning rate of Adam is halved.", above=0)
    spring_rate: float = option(
        0.05, "Learning rate of SPRING.", above=0, default_text="0.05; 0.02 for large networks"
    )
    spring_decay: float = option(
        300.0,
        "Steps of SPRING after which its learning rate is halved.",
        above=0,
        default_text="depends on network and electrons",
    )
    momentum: float = option(
        0.95,
        "Momentum of SPRING: the fraction of the last direction it keeps.",
        at_least=0,
        below=1,
        default_text="0.95; 0.99 for large networks",
    )
    damping: float = option(1e-3, "Damping added to the diagonal of SPRING's matrix.", above=0)
    norm_cap: float = option(
        3e-3,
        "Largest squared norm of an update by SPRING, over all parameters.",
        above=0,
        default_text="0.003; 0.001 for large networks",
    )
    clip: float = option(
        5.0, "Clip local energies beyond this many mean absolute deviations from the median.", above=0
    )
    spin_penalty: float = option(
        0.0,
        "Weight in hartree of the spin S^2 above its lowest value, which keeps other spins out of the state.",
        at_least=0,
    )
    chunk: int | None = option(
        None,
        "Walkers processed together for local energies and gradients.",
        main=True,
        at_least=1,
        default_text="all, or chosen by --budget",
        may_change=True,
    )
    method: Method = option(
        "auto", "How the Laplacian is computed", choices=get_args(Method), may_change=True
    )
    seed: int = option(
        0, "Seed of parameters, walkers and moves.", main=True, at_least=0, at_most=LARGEST_SEED
    )
    precision: Precision = option(
        "float32", "Floating-point precision", main=True, choices=get_args(Precision)
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.optimizer != "adam" and self.walkers < 2:
            raise BadInput(
                f"The optimizer {self.optimizer} needs at least 2 walkers, but only 1 is set.",
                hint="Set --walkers to 2 or more, or use --optimizer adam.",
            )
        self._check_chunk()

    @property
    def target(self) -> float:
        """The acceptance to which the width is adjusted."""
        return self.acceptance or ACCEPTANCE[self.kind]

    @property
    def adam_until(self) -> int:
        """The first step by SPRING."""
        return {"adam": self.steps, "spring": 0, "adam+spring": self.adam_steps}[self.optimizer]

    def stage_at(self, step: int) -> OptimizerStage:
        """Return the optimizer of a step, counted from 0."""
        return "adam" if self.optimizer == "adam" or step < self.adam_until else "spring"

    @classmethod
    def preset(cls, net: str, *, electrons: int, **changes: Any) -> Self:
        """Return the tested recipe for the preset of a network and a number of electrons.

        changes: fields to override.
        """
        values: dict[str, Any] = {**_recipe(net, electrons), **changes}
        return cls(**values)

    def _check_chunk(self) -> None:
        if self.chunk is not None and self.walkers % min(self.chunk, self.walkers):
            near = max(part for part in range(1, self.chunk + 1) if self.walkers % part == 0)
            raise BadInput(
                f"{self.walkers} walkers do not divide into chunks of {self.chunk}.",
                hint=f"Use a chunk of {near}, or {-(-self.walkers // self.chunk) * self.chunk} walkers.",
            )


# Differences from the defaults, by the size of the network and then by the largest number of electrons they
# are for.
_SMALL: dict[int, dict[str, Any]] = {
    2: {"steps": 500, "adam_steps": 100},
    4: {"steps": 1500, "adam_steps": 300, "moves": 15, "burn": 100},
    10: {"steps": 3000, "adam_steps": 500, "moves": 20, "burn": 200, "spring_decay": 600.0},
}
# Long runs: smaller rates that decay later, and more momentum.
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
# A network between the two, for a GPU; fewer parameters allow larger steps of SPRING.
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
