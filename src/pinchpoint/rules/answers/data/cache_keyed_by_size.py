"""A cache finds its entries by the size of the data, but what it stores depends on the values.

Another scene, mesh, or batch of the same size gets the stored result of the first. Key the cache by the
data itself: an identity that the caller passes, or a hash of the contents.

Bad:

    import torch

    class Sampler:
        def __init__(self):
            self.cache = {}

        def cell_counts(self, cells):
            key = (cells.shape[0], cells.device)
            if key not in self.cache:
                self.cache[key] = torch.bincount(cells)
            return self.cache[key]

Good:

    import torch

    class Sampler:
        def __init__(self):
            self.cache = {}

        def cell_counts(self, scene, cells):
            key = (scene, cells.device)
            if key not in self.cache:
                self.cache[key] = torch.bincount(cells)
            return self.cache[key]
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Function, Source, method, parameters

_SIZES = frozenset({"shape", "ndim", "device", "dtype", "size", "numel", "nbytes", "dim"})
_COUNT = re.compile(
    r"^(num|n|total|count|len|size)_|_(num|count|size|len|length|shape)$|^(n|size|shape|length|device|dtype)$"
)

# Numbers that a result depends on besides the data.
_NUMBER = re.compile(
    r"^(r|k|radius|cutoff|eps|sigma|threshold|resolution|lmax|scale|voxel_size|r_max|max_radius|knn)$"
)


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch", "jax"):
        return
    for assign in source.all(ast.Assign):
        target = assign.targets[0]
        function = source.function(assign)
        if not isinstance(target, ast.Subscript) or function is None:
            continue
        if not _is_cache(source, target.value, function):
            continue
        key = _value(source, target.slice)
        names = {argument.arg for argument in parameters(function)} - {"self", "cls"}
        if not _is_size(source, key, function) or _reads_of_sizes(source, key) == 0:
            continue
        if _depends(source, assign.value, names, function, 6):
            yield Match(target, {"cache": ast.unparse(target.value)})


def _is_cache(source: Source, container: ast.expr, function: Function) -> bool:
    """Whether a container is called a cache, or the function looks up whether a key is in it."""
    text = ast.unparse(container)
    return "cache" in text.lower() or any(
        isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In | ast.NotIn)
        and ast.unparse(node.comparators[0]) == text
        for node in source.walk(function)
    )


def _value(source: Source, node: ast.expr) -> ast.expr:
    """What a name was assigned in the same function."""
    if isinstance(node, ast.Name):
        store = source.binding(node)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        if value is not None:
            return value
    return node


def _is_size(source: Source, node: ast.expr, function: Function) -> bool:
    """Whether an expression is made of sizes, devices, dtypes and constants only."""
    match node:
        case ast.Tuple(elts=parts):
            return bool(parts) and all(_is_size(source, part, function) for part in parts)
        case ast.Constant():
            return True
        case ast.Attribute(attr=attr):
            return attr in _SIZES
        case ast.Subscript(value=value):
            return _is_size(source, value, function)
        case ast.Call(args=args):
            if source.called(node) == "len" or method(node) in ("size", "numel", "dim"):
                return True
            if (
                source.called(node) in ("sum", "max", "min")
                and args
                and isinstance(args[0], ast.GeneratorExp)
            ):
                return _is_size(source, args[0].elt, function)  # sum(len(part) for part in parts)
            return source.called(node) in ("tuple", "int", "str") and all(
                _is_size(source, arg, function) for arg in args
            )
        case ast.Name():
            value = _value(source, node)
            if value is not node:
                return not isinstance(value, ast.Name) and _is_size(source, value, function)
            return node.id.isupper() or any(pattern.search(node.id) for pattern in (_COUNT, _NUMBER))
        case _:
            return False


def _reads_of_sizes(source: Source, key: ast.expr) -> int:
    """How many sizes of data a key has; a device alone is a fair key."""
    count = 0
    for node in source.walk(key):
        if (isinstance(node, ast.Attribute) and node.attr in ("shape", "size", "numel")) or (
            isinstance(node, ast.Call) and source.called(node) == "len"
        ):
            count += 1
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            value = _value(source, node)
            count += (
                _reads_of_sizes(source, value) if value is not node and not isinstance(value, ast.Name) else 0
            )
    return count


def _depends(source: Source, node: ast.expr, names: set[str], function: Function, depth: int) -> bool:
    """Whether a value is computed from the contents of a parameter, not only from its size."""
    for name in source.walk(node):
        if isinstance(name, ast.Call) and _is_draw(source.called(name)):
            return True  # random numbers belong to one use
        if not isinstance(name, ast.Name) or not isinstance(name.ctx, ast.Load):
            continue
        parent = source.parents[name]
        if isinstance(parent, ast.Attribute) and parent.attr in _SIZES:
            continue
        if isinstance(parent, ast.Call) and source.called(parent) == "len":
            continue
        value = _value(source, name)
        if value is name:
            if name.id in names and not _COUNT.search(name.id) and isinstance(source.binding(name), ast.arg):
                return True
        elif (
            depth > 0
            and source.function(value) is function
            and _depends(source, value, names, function, depth - 1)
        ):
            return True
    return False


def _is_draw(name: str) -> bool:
    return name.startswith(("torch.rand", "jax.random.", "numpy.random.")) and not name.endswith(
        ("key", "PRNGKey")
    )


RULE = Rule(
    number=531,
    name="cache-keyed-by-size",
    message="`{cache}` is keyed by the size of the data, but the stored value depends on its contents.",
    hint="Key the cache by an identity of the data, or by a hash of its contents.",
    check=check,
)
