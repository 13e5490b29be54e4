"""Convert a tree of JAX arrays to named numpy arrays and back.

A name is the path of a leaf, such as `params['layers'][0]['w']`. The conversion back needs a tree with the
same structure, names, shapes and dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from pinchpoint.core.errors import BadInput


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Return every leaf by its path; leaves spread over devices are gathered. Waits for the device."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    values = jax.device_get([leaf for _, leaf in leaves])
    return {_name(path): np.asarray(value) for (path, _), value in zip(leaves, values, strict=True)}


def from_arrays(arrays: Mapping[str, np.ndarray], like: Any, *, where: str) -> Any:
    """Return the arrays as a tree of numpy arrays like `like`. where: the file they come from, for errors."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {_name(path): leaf for path, leaf in leaves}
    unmatched = sorted(set(arrays) ^ set(expected))
    if unmatched:
        raise _other(where, f"{unmatched[0]} is in only one of them")
    for name, leaf in expected.items():
        array = arrays[name]
        if array.shape != tuple(leaf.shape):
            raise _other(where, f"{name} has shape {array.shape}, but {tuple(leaf.shape)} is expected")
        if array.dtype != np.dtype(leaf.dtype):
            raise _other(where, f"{name} is {array.dtype}, but {np.dtype(leaf.dtype)} is expected")
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in expected])


def count(tree: Any) -> int:
    """Return the number of values in all leaves."""
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree_util.tree_leaves(tree))


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path).lstrip(".")


def _other(where: str, why: str) -> BadInput:
    return BadInput(
        f"{where} belongs to another network: {why}.",
        hint="Give the run that wrote it, or train a new one with another -o.",
    )
