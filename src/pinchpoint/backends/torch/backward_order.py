"""`BackwardOrder`: lets a backward pass visit nodes in the order of a GPU's own thread.

Autograd visits the node with the highest number first. On a GPU, a backward pass runs in a thread of its
own, and each thread numbers the nodes that it creates from zero. Nodes of a second derivative
(`create_graph=True`) are therefore numbered apart from those of the forward pass. Here everything runs in one
thread, so before each pass the nodes get the numbers that they would have had.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from pinchpoint.backends.torch import autograd_nodes, compat
from pinchpoint.backends.torch.ledger import Ledger

_BASE = 1 << 40  # numbers from here on are final; autograd's own for accumulated gradients are higher too


class BackwardOrder:
    """Knows which nodes were created during backward passes."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._starts: list[int] = []  # first number that each backward pass gave ...
        self._counts: list[int] = []  # ... and how many nodes such passes had created by its end
        self._depth = 0

    @contextmanager
    def backward_pass(self, roots: Any) -> Iterator[None]:
        """Renumber the graph below `roots`, and remember which nodes the pass in this context creates."""
        if self._depth == 0 and self._starts:
            self._renumber(roots)
        start = autograd_nodes.next_sequence()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            created = autograd_nodes.next_sequence() - start
            if self._depth == 0 and created:
                self._starts.append(start)
                self._counts.append((self._counts[-1] if self._counts else 0) + created)

    def _renumber(self, roots: Any) -> None:
        tensors = [root for root in compat.tree_leaves(roots) if isinstance(root, torch.Tensor)]
        nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        visited: set[Any] = set()
        while nodes:
            node = nodes.pop()
            if node in visited:
                continue
            visited.add(node)
            number = autograd_nodes.node_sequence(node)
            if number < _BASE:
                final = self._final(number)
                autograd_nodes.set_node_sequence(node, final)
                self._ledger.renumber_node(number, final)
            nodes += [below for below, _ in node.next_functions if below is not None]

    def _final(self, number: int) -> int:
        """The number of a node in its own thread; numbers of the two threads alternate."""
        at = bisect_right(self._starts, number) - 1
        before = self._counts[at - 1] if at > 0 else 0
        if at < 0:
            return _BASE + 2 * number
        created = self._counts[at] - before
        if number < self._starts[at] + created:
            return _BASE + 2 * (before + number - self._starts[at]) + 1
        return _BASE + 2 * (number - self._counts[at])
