"""An index is converted to int64 for an operation that takes int32.

`index_add`, `index_select`, and embeddings accept int32 indices, which take half the memory and traffic;
int64 is needed for `scatter_add`, `gather`, and from 2^31 rows on.

Bad:

    import torch

    def node_sums(messages, target, nodes):
        target = target.to(torch.int64)
        sums = messages.new_zeros(nodes, messages.shape[1])
        return sums.index_add_(0, target, messages)

Good:

    import torch

    def node_sums(messages, target, nodes):
        target = target.to(torch.int32)
        sums = messages.new_zeros(nodes, messages.shape[1])
        return sums.index_add_(0, target, messages)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver
from pinchpoint.rules.engine.values import CREATION

_TAKES_INT32 = frozenset({"index_add", "index_add_", "index_select"})


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if not _widens(source, call):
            continue
        parent = source.parents[call]
        if isinstance(parent, ast.Call) and _is_index_of(source, parent, call):
            yield Match(call)
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            scope = source.function(call)
            reads = source.loads(scope, parent.targets[0].id) if scope else []
            reads = [read for read in reads if source.binding(read) is parent.targets[0]]
            if reads and all(_is_index_of(source, source.parents[read], read) for read in reads):
                yield Match(call)


def _widens(source: Source, call: ast.Call) -> bool:
    if method(call) in ("long", "to") and method(receiver(call)) in ("floor", "ceil", "round"):
        return False  # computed as floats just before
    name = source.name(call.func)
    if name.startswith("torch.") and name.rpartition(".")[2] in CREATION:
        return source.name(argument(call, "dtype")) in ("torch.int64", "torch.long")
    if method(call) == "long" and not call.args:
        return True
    dtype = argument(call, "dtype", 0) if method(call) in ("to", "type") else None
    return dtype is not None and source.name(dtype) in ("torch.int64", "torch.long")


def _is_index_of(source: Source, node: ast.AST, index: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = source.name(node.func)
    if name.startswith("torch.") and name.rpartition(".")[2] in _TAKES_INT32:
        return argument(node, "index", 2) is index
    return method(node) in _TAKES_INT32 and argument(node, "index", 1) is index


RULE = Rule(
    number=312,
    name="wide-index",
    message="The index is converted to int64, but the operation takes int32, which needs half the memory.",
    hint="Use torch.int32 unless the index reaches 2^31 rows.",
    check=check,
)
