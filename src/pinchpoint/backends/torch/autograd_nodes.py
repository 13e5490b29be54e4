"""Nodes of the backward pass: which one runs, and the numbers by which torch orders them.

Torch has no public names for these; see `compat` for the others.
"""

from __future__ import annotations

from typing import Any

import torch


def autograd_node() -> Any | None:
    """The node that the backward pass is executing, if any."""
    return torch._C._current_autograd_node()


def node_sequence(node: Any) -> int:
    """The number that links a backward node to the forward operation that created it."""
    return node._sequence_nr()


def node_name(node: Any) -> str:
    return node.name()


def set_node_sequence(node: Any, number: int) -> None:
    """Change the number that decides when a backward pass visits the node."""
    node._set_sequence_nr(number)


def next_sequence() -> int:
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]
