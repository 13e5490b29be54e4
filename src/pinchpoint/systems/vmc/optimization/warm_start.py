"""Parameters and walkers from the checkpoint of a run, for an evaluation or to start another run.

The other run has the same atoms and electrons, with the nuclei at other positions. Each electron moves along
with its nearest nucleus, so that the walkers of one bond length suit a slightly longer bond.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import changed_values
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.training_step import Wave
from pinchpoint.systems.vmc.training.runs import Run, RunConfig, read_run

PARAMS, POSITIONS = "params", "walkers.x"


def stored_params(run: Run, wave: Wave) -> tuple[int, Any, np.ndarray]:
    """Return the step of a run's last checkpoint, its parameters, and its walkers (B, n, 3).

    The parameters are a tree of numpy arrays.
    """
    state = run.resumed_state()
    if state is None:
        raise BadInput(
            f"The run in {run.folder} has no checkpoint.",
            hint="Train it first, or resume it with `vmc train --resume`.",
        )
    arrays = state["arrays"]
    params = {name.removeprefix(PARAMS): array for name, array in arrays.items() if name.startswith(PARAMS)}
    dtype = arrays[POSITIONS].dtype
    like = jax.eval_shape(wave.init, jax.eval_shape(lambda: jax.random.key(0)))
    like = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), like)
    return state["step"], trees.from_arrays(params, like, where=str(run.last_path())), arrays[POSITIONS]


def read_start(folder: Path, config: RunConfig) -> Run:
    """Return the run to start from; raise BadInput if its atoms, spins or network differ."""
    run = read_run(folder)
    theirs, ours = run.config.system, config.system
    if _electrons(theirs) != _electrons(ours):
        raise BadInput(
            f"The run in {folder} is for {describe(theirs)} and cannot start a run for {describe(ours)}.",
            hint="Give a run with the same atoms in the same order, as many electrons up and down, "
            "and the same pseudopotential.",
        )
    different = changed_values(run.config.to_dict()["net"], config.to_dict()["net"])
    if different:
        raise BadInput(
            f"The run in {folder} has another network: {'; '.join(different)}.",
            hint=f"Use its network with --net {run.config.net_name}, or leave out --from.",
        )
    return run


def start_params(folder: Path, wave: Wave, config: RunConfig) -> tuple[Any, np.ndarray]:
    """Return the parameters and walkers to start from."""
    run = read_start(folder, config)
    _, params, x = stored_params(run, wave)
    return params, move(resize(x, config.settings.walkers), run.config.system, config.system)


def _electrons(system: System) -> tuple[object, ...]:
    return system.symbols, system.up, system.down, system.pseudopotential


def describe(system: System) -> str:
    potential = f" and the pseudopotential {system.pseudopotential}" if system.pseudopotential else ""
    return f"{system.name} with {system.up} electrons up and {system.down} down{potential}"


def resize(x: np.ndarray, walkers: int) -> np.ndarray:
    """Return the first `walkers` of (B, n, 3), or all of them repeated, (walkers, n, 3)."""
    return x[np.arange(walkers) % len(x)]


def move(x: np.ndarray, before: System, after: System) -> np.ndarray:
    """Return walkers (B, n, 3) with every electron shifted like its nearest nucleus."""
    old, new = (np.array(system.positions) for system in (before, after))
    nearest = np.linalg.norm(x[:, :, None] - old, axis=-1).argmin(axis=-1)
    return (x + (new - old)[nearest]).astype(x.dtype)
