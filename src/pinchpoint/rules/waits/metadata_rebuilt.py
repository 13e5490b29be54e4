"""A method sorts, groups, or counts data that the object holds, in every call.

Counts, orders, and offsets of data that never changes after `__init__` can be computed there, once. Each
call pays for them again, and several of these operations wait for the device.

Bad:

    import torch

    class Sampler:
        def __init__(self, cells):
            self.cells = cells

        def sample(self, share):
            counts = torch.bincount(self.cells)
            return (counts * share).long()

Good:

    import torch

    class Sampler:
        def __init__(self, cells):
            self.counts = torch.bincount(cells)

        def sample(self, share):
            return (self.counts * share).long()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_NAMES = frozenset(
    f"{package}.{name}"
    for package in ("torch", "jax.numpy")
    for name in ("unique", "unique_consecutive", "bincount", "argsort", "sort", "searchsorted", "cdist")
)
_ONCE = ("__init__", "__post_init__", "setup", "reset", "build", "prepare", "init", "update", "fit", "load")


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) not in _NAMES or not call.args:
            continue
        function, owner = source.function(call), source.class_of(call)
        if function is None or owner is None or function.name.lstrip("_").startswith(_ONCE):
            continue
        if function.decorator_list or function.name.startswith("__init"):
            continue  # a cached property, perhaps
        if not isinstance(source.parents[source.statement(call)], ast.FunctionDef):
            continue  # under a condition: perhaps computed once
        if _is_kept(source, call) or not _is_constant(source, call, owner):
            continue
        yield Match(call, {"code": patterns.shorten(call), "name": function.name})


def _is_kept(source: Source, call: ast.Call) -> bool:
    """Whether the result is stored in the object."""
    statement = source.statement(call)
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets
    )


def _is_constant(source: Source, call: ast.Call, owner: ast.ClassDef) -> bool:
    """Whether all arguments are attributes of the object that only `__init__` sets, or constants."""
    attributes = [arg for arg in call.args if not isinstance(arg, ast.Constant)]
    if not attributes or any(not isinstance(arg, ast.Attribute) for arg in attributes):
        return False
    for attribute in attributes:
        if not isinstance(attribute, ast.Attribute) or source.name(attribute.value) != "self":
            return False
        stores = [
            node
            for node in source.walk(owner)
            if isinstance(node, ast.Attribute)
            and node.attr == attribute.attr
            and isinstance(node.ctx, ast.Store)
        ]
        inside = [source.function(node) for node in stores]
        if not stores or any(function is None or function.name != "__init__" for function in inside):
            return False
        if _changes(source, owner, attribute.attr):
            return False
    return True


def _changes(source: Source, owner: ast.ClassDef, name: str) -> bool:
    """Whether the attribute is a parameter, or something changes it in place."""
    full = f"self.{name}"
    for node in source.walk(owner):
        match node:
            case ast.Subscript(ctx=ast.Store(), value=value) if source.name(value) == full:
                return True
            case ast.Call(func=ast.Attribute(attr=attr, value=value)) if source.name(value) == full:
                if attr.endswith("_"):
                    return True
            case ast.Assign(targets=targets, value=value) if source.called(value).endswith("Parameter"):
                if any(source.name(target) == full for target in targets):
                    return True
            case _:
                pass
    return False


RULE = Rule(
    number=109,
    name="metadata-rebuilt",
    message="Every call of `{name}` computes `{code}` again, which never changes.",
    hint="Compute it once in __init__.",
    check=check,
)
