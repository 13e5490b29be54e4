"""One random permutation is used many times.

A permutation that is drawn once and stored by its length, or drawn before a loop over epochs, gives every
cell or epoch the same order: the draws are correlated. Draw a new one for each use, or sort random keys of
all cells at once.

Bad:

    import torch

    def shuffle_cells(cells, sizes):
        permutations = {}
        for size in sizes:
            permutations[size] = torch.randperm(size)
        return [cell[permutations[len(cell)]] for cell in cells]

Good:

    import torch

    def shuffle_cells(cells, sizes):
        return [cell[torch.randperm(len(cell))] for cell in cells]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_PERMUTATIONS = frozenset({"torch.randperm", "jax.random.permutation", "numpy.random.permutation"})


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch", "jax"):
        return
    for call in source.calls:
        if source.name(call.func) not in _PERMUTATIONS:
            continue
        parent = source.parents[call]
        target = parent.targets[0] if isinstance(parent, ast.Assign) else None
        if isinstance(target, ast.Subscript) and _is_keyed_by_size(source, target, call):
            yield Match(call, {"how": "stored by its length and used for every cell of that length"})
        if isinstance(target, ast.Name) and _is_read_in_epochs(source, target):
            yield Match(call, {"how": "drawn before the loop over epochs and used in each of them"})


def _is_keyed_by_size(source: Source, target: ast.Subscript, call: ast.Call) -> bool:
    """`cache[n] = randperm(n)`: the key is the length."""
    if not call.args:
        return False
    length = call.args[-1] if source.name(call.func) == "jax.random.permutation" else call.args[0]
    names, lengths = (
        {n.id for n in source.walk(node) if isinstance(n, ast.Name)} - {"int", "len"}
        for node in (target.slice, length)
    )
    return bool(names) and names == lengths


def _is_read_in_epochs(source: Source, store: ast.Name) -> bool:
    """Whether a loop over epochs after the draw orders its data by the permutation."""
    for loop in source.all(ast.For):
        if loop.lineno <= store.lineno or source.scope(loop) is not source.scope(store):
            continue
        if source.inside(store, loop) or store.id in patterns.stores_in(source, loop):
            continue
        if not any(re.search(r"epoch", name) for name in patterns.loop_names(source, loop)):
            continue
        if source.loads(loop, store.id) and patterns.method_calls(source, loop, "backward"):
            return True
    return False


RULE = Rule(
    number=521,
    name="reused-permutation",
    message="The permutation is {how}.",
    hint="Draw a new permutation for each use.",
    check=check,
)
