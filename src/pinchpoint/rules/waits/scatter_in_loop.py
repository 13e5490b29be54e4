"""A Python loop adds values one by one to the places that an index names.

Each turn launches an operation for a single element. `index_add_`, `scatter_add_`, `segment_reduce`, and in
JAX `x.at[index].add(values)` or `jax.ops.segment_sum`, do it for all elements at once.

Bad:

    import torch

    def node_sums(messages: torch.Tensor, target: torch.Tensor, nodes: int):
        sums = torch.zeros(nodes, device=messages.device)
        for edge in range(len(target)):
            sums[target[edge]] += messages[edge]
        return sums

Good:

    import torch

    def node_sums(messages: torch.Tensor, target: torch.Tensor, nodes: int):
        sums = torch.zeros(nodes, device=messages.device)
        return sums.index_add_(0, target, messages)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Loop, Source, method
from pinchpoint.rules.engine.values import kind


def check(source: Source) -> Iterator[Match]:
    for node in source.all(ast.AugAssign, ast.Assign):
        loops = patterns.hot_loops(source, node)
        if not loops or patterns.is_jitted(source, node):
            continue
        target = _target(source, node, loops[0])
        if target is not None:
            yield Match(node, {"name": ast.unparse(target)})


def _target(source: Source, node: ast.AugAssign | ast.Assign, loop: Loop) -> ast.expr | None:
    names = patterns.loop_names(source, loop)
    if isinstance(node, ast.AugAssign):
        place = node.target
        if not isinstance(place, ast.Subscript) or kind(source, place.value) not in ("device", "host"):
            return None
        return place.value if _names_row(source, place.slice, names, loop) else None
    # x = x.at[i].set(value)
    call = node.value
    if isinstance(call, ast.Call) and method(call) in ("set", "add") and isinstance(call.func, ast.Attribute):
        place = call.func.value
        if (
            isinstance(place, ast.Subscript)
            and isinstance(place.value, ast.Attribute)
            and place.value.attr == "at"
            and ast.unparse(place.value.value) == ast.unparse(node.targets[0])
            and source.uses("jax")
            and patterns.counts(source, loop)
            and names & {n.id for n in source.walk(place.slice) if isinstance(n, ast.Name)}
            and not any(isinstance(n, ast.Slice) for n in source.walk(place.slice))  # a block, not an element
        ):
            return place.value.value
    return None


def _names_row(source: Source, index: ast.expr, names: set[str], loop: Loop) -> bool:
    """`index[i]` with the loop's counter, directly or by name, or an element of an index that the loop goes
    over."""
    if isinstance(index, ast.Name):
        if index.id in names:
            return (
                not isinstance(loop, ast.While)
                and not patterns.counts(source, loop)
                and _is_index(source, index, loop)
            )
        store = source.binding(index)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        if source.called(value) == "int" and isinstance(value, ast.Call) and value.args:
            value = value.args[0]
        if not isinstance(value, ast.Subscript) or not source.inside(value, loop):
            return False
        return _names_row(source, value, names, loop)
    for node in source.walk(index):
        if isinstance(node, ast.Subscript):
            read = {n.id for n in source.walk(node.slice) if isinstance(n, ast.Name)}
            if read & names:
                return patterns.counts(source, loop)
    return False


def _is_index(source: Source, index: ast.Name, loop: Loop) -> bool:
    """Whether the loop goes over a tensor of indices, or over indices and values in parallel."""
    if not isinstance(loop, ast.For):
        return False
    if isinstance(loop.target, ast.Name):  # the elements of a tensor are single numbers
        return kind(source, loop.iter) in ("device", "host")
    return source.called(loop.iter) == "zip" and kind(source, index) in ("", "device", "host")


RULE = Rule(
    number=107,
    name="scatter-in-loop",
    message="The loop writes single elements of `{name}` in every turn.",
    hint="Use index_add_ or scatter_add_; in JAX, x.at[index].add(values) with all indices.",
    check=check,
)
