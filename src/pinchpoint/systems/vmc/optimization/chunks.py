"""Apply a function of one walker to all walkers, one chunk at a time, inside one program.

B walkers. A chunk takes every (B / chunk)-th walker: if walkers are spread over devices, each device has its
share of every chunk, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput


def over_walkers(each: Callable[[Any], Any], x: Any, *, chunk: int | None) -> Any:
    """Return each(x[i]) for every walker i, as a tree of (B, ...). x: (B, ...)."""
    many = jax.vmap(each)
    if chunk is None or chunk >= x.shape[0]:
        return many(x)
    rows = jax.lax.map(many, split(x, chunk))
    return jax.tree_util.tree_map(
        lambda leaf: jnp.swapaxes(leaf, 0, 1).reshape(x.shape[0], *leaf.shape[2:]), rows
    )


def split(rows: Any, chunk: int) -> Any:
    """Reshape (B, ...) to (B / chunk, chunk, ...)."""
    size = rows.shape[0]
    if chunk < 1 or size % chunk:
        raise BadInput(
            f"{size} walkers cannot be divided into chunks of {chunk}.",
            hint="Choose a chunk that divides the number of walkers.",
        )
    return jnp.swapaxes(rows.reshape(chunk, size // chunk, *rows.shape[1:]), 0, 1)
