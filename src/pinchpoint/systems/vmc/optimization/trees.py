"""A tree of JAX arrays as named numpy arrays, and back into a tree of the same form.

A name is the path of a leaf, such as `params['layers'][0]['w']`. What comes back has the structure of the tree it is
put into: names, shapes and kinds of number must be its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pinchpoint.core.errors import BadInput


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf by its path, whole: one that is spread over devices is gathered. Waits for the device."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    values = jax.device_get([leaf for _, leaf in leaves])
    return {_name(path): np.asarray(value) for (path, _), value in zip(leaves, values, strict=True)}


def from_arrays(arrays: Mapping[str, np.ndarray], like: Any, *, where: str) -> Any:
    """The arrays as a tree like `like`, of numpy arrays. where: the file they are from, for errors."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {_name(path): leaf for path, leaf in leaves}
    strange = sorted(set(arrays) ^ set(wanted))
    if strange:
        raise _other(where, f"{strange[0]} is in only one of the two")
    for name, leaf in wanted.items():
        found = arrays[name]
        if found.shape != tuple(leaf.shape):
            raise _other(where, f"{name} has shape {found.shape}, and {tuple(leaf.shape)} is wanted")
        if found.dtype != np.dtype(leaf.dtype):
            raise _other(where, f"{name} is {found.dtype}, and {np.dtype(leaf.dtype)} is wanted")
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted])


def count(tree: Any) -> int:
    """Numbers in all leaves."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(tree))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _other(where: str, why: str) -> BadInput:
    return BadInput(
        f"{where} is of another network: {why}",
        hint="name the run that wrote it, or train a new one with another -o",
    )
