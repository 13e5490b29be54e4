"""A function of one walker over all walkers, a chunk at a time inside one program.

B walkers. A chunk takes every (B / chunk)-th walker: where walkers are spread over devices, each device has its share of every
chunk, and none waits for another's walkers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput


def over_walkers(each: Callable[[Any], Any], x: Any, *, chunk: int | None) -> Any:
    """each(x[i]) for every walker i. x: (B, ...); gives a tree of (B, ...)."""
    many = jax.vmap(each)
    if chunk is None or chunk >= x.shape[0]:
        return many(x)
    found = jax.lax.map(many, split(x, chunk))
    return jax.tree_util.tree_map(
        lambda rows: jnp.swapaxes(rows, 0, 1).reshape(x.shape[0], *rows.shape[2:]), found
    )


def split(rows: Any, chunk: int) -> Any:
    """(B, ...) as (B / chunk, chunk, ...)."""
    size = rows.shape[0]
    if chunk < 1 or size % chunk:
        raise BadInput(
            f"{size} walkers do not divide into chunks of {chunk}",
            hint="take a chunk that divides the walkers",
        )
    return jnp.swapaxes(rows.reshape(chunk, size // chunk, *rows.shape[1:]), 0, 1)
