"""A JAX random key is used for two draws.

The same key gives the same numbers: the draws are equal or correlated. Split the key and use each part once.

Bad:

    import jax

    def initialise(key, width):
        weights = jax.random.normal(key, (width, width))
        bias = jax.random.normal(key, (width,))
        return weights, bias

Good:

    import jax

    def initialise(key, width):
        first, second = jax.random.split(key)
        weights = jax.random.normal(first, (width, width))
        bias = jax.random.normal(second, (width,))
        return weights, bias
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument

_NO_DRAWS = frozenset(
    {"PRNGKey", "key", "fold_in", "key_data", "wrap_key_data", "key_impl", "clone", "split"}
)


def check(source: Source) -> Iterator[Match]:
    draws: dict[tuple[ast.AST, object, str], list[ast.Call]] = {}
    for call in source.calls:
        package, _, last = source.name(call.func).rpartition(".")
        key = argument(call, "key", 0) if package == "jax.random" and last not in _NO_DRAWS else None
        if isinstance(key, ast.Name):
            store = source.binding(key)
            draws.setdefault((source.scope(call), store, key.id), []).append(call)
    for (_, store, name), calls in draws.items():
        if store is None:
            continue
        later = [call for call in calls[1:] if not _excludes(source, calls[0], call)]
        if later:
            yield Match(later[0], {"name": name})
        elif (
            len(calls) == 1 and isinstance(store, ast.Name | ast.arg) and _is_looped(source, calls[0], store)
        ):
            yield Match(calls[0], {"name": name})


def _is_looped(source: Source, call: ast.Call, store: ast.AST) -> bool:
    """Whether a loop draws in every turn with a key from before the loop."""
    loops = patterns.hot_loops(source, call)
    return bool(loops) and not source.inside(store, loops[0]) and not patterns.is_rare(source, call)


def _excludes(source: Source, first: ast.Call, second: ast.Call) -> bool:
    """Whether only one of two calls can run: branches of one `if`, or a `return` in between."""
    before = {id(parent): parent for parent in source.ancestors(first)}
    for parent in source.ancestors(second):
        if id(parent) in before:
            if isinstance(parent, ast.If | ast.IfExp | ast.Try | ast.Match | ast.match_case):
                return True
            break
    child: ast.AST = first
    for parent in source.ancestors(first):
        if isinstance(parent, ast.If) and not source.inside(second, parent):
            block = parent.body if any(source.inside(first, s) for s in parent.body) else parent.orelse
            if isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break):
                return True
        if isinstance(child, ast.Return):
            return True
        child = parent
    return False


RULE = Rule(
    number=522,
    name="reused-random-key",
    message="The random key `{name}` is used for more than one draw, which gives the same numbers again.",
    hint="Split it: `{name}, subkey = jax.random.split({name})`.",
    check=check,
)
