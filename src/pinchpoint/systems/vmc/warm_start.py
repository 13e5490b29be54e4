"""Begin a run with the network and the walkers of another: the same atoms and electrons, the nuclei elsewhere.

Each electron goes along with the nucleus it is nearest to, so that walkers of a bond are near those of a bond a little longer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.training_step import Wave
from pinchpoint.systems.vmc.runs import Run, Told, differing, read_run

PARAMS, PLACES = "params", "walkers.x"


def stored_params(run: Run, wave: Wave) -> tuple[int, Any, np.ndarray]:
    """The step of a run's last checkpoint, its parameters as a tree of numpy arrays, and its walkers (B, n, 3)."""
    found = run.last()
    if found is None:
        raise BadInput(
            f"the run in {run.folder} has no checkpoint",
            hint="train it first, or go on with it: vmc train --resume",
        )
    like = jax.eval_shape(wave.init, jax.eval_shape(lambda: jax.random.key(0)))
    where = str(run.checkpoints.folder / run.checkpoints.name(found.step))
    arrays = {
        name.removeprefix(PARAMS): array for name, array in found.arrays.items() if name.startswith(PARAMS)
    }
    kind = found.arrays[PLACES].dtype
    like = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, kind), like)
    return found.step, trees.from_arrays(arrays, like, where=where), found.arrays[PLACES]


def beginning(folder: Path, told: Told) -> Run:
    """The run to begin with. One of other atoms, spins or another network is refused."""
    run = read_run(folder)
    theirs, ours = run.told.system, told.system
    if (theirs.symbols, theirs.up, theirs.down) != (ours.symbols, ours.up, ours.down):
        raise BadInput(
            f"the run in {folder} is of {named(theirs)}, and cannot begin one of {named(ours)}",
            hint="name a run of the same atoms in the same order, with as many electrons up and down",
        )
    differ = differing(run.told.to_dict()["net"], told.to_dict()["net"])
    if differ:
        raise BadInput(
            f"the run in {folder} has another network: {'; '.join(differ)}",
            hint=f"ask for its own network: --net {run.told.net_name}, or leave out --from",
        )
    return run


def warmed(folder: Path, wave: Wave, told: Told) -> tuple[Any, np.ndarray]:
    """Parameters and walkers to begin with."""
    run = beginning(folder, told)
    _, params, x = stored_params(run, wave)
    return params, moved(resized(x, told.settings.walkers), run.told.system, told.system)


def named(system: System) -> str:
    return f"{system.name} with {system.up} electrons up and {system.down} down"


def resized(x: np.ndarray, walkers: int) -> np.ndarray:
    """(B, n, 3) -> (walkers, n, 3): the first of them, or all of them again and again."""
    return x[np.arange(walkers) % len(x)]


def moved(x: np.ndarray, before: System, after: System) -> np.ndarray:
    """Walkers (B, n, 3) with every electron shifted as its nearest nucleus is."""
    old, new = (np.array(system.positions) for system in (before, after))
    nearest = np.linalg.norm(x[:, :, None] - old, axis=-1).argmin(axis=-1)
    return (x + (new - old)[nearest]).astype(x.dtype)
