"""Patterns that several rules look for: loops that matter, rare branches, contexts, decorators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from pinchpoint.rules.engine.source import (
    COMPREHENSIONS,
    FUNCTIONS,
    Function,
    Loop,
    Source,
    argument,
    is_constant,
    method,
)

NO_GRAD = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.set_grad_enabled"}
)
AUTOCAST = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"}
)
_RARE = re.compile(
    r"log|print|verbose|debug|every|interval|report|display|plot|save|summary|first|last|warn|rank|main_process|freq",
    re.IGNORECASE,
)
_FEW = 8  # a loop of at most so many turns is not worth a finding


def hot_loops(source: Source, node: ast.AST) -> list[Loop]:
    """The loops around a node, innermost first, without those of a few turns that the text shows."""
    return [loop for loop in source.loops(node) if not is_short(source, loop)]


def is_short(source: Source, loop: Loop) -> bool:
    """Whether a loop visibly has only a few turns: a tuple of constants, `range(3)`."""
    if isinstance(loop, ast.While):
        return False
    iterable = loop.generators[0].iter if isinstance(loop, COMPREHENSIONS) else loop.iter
    while source.called(iterable) in ("enumerate", "zip", "reversed", "sorted", "list") and iterable.args:  # pyright: ignore[reportAttributeAccessIssue]
        iterable = iterable.args[0]  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(iterable, ast.Name):
        store = source.binding(iterable)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        iterable = value if isinstance(value, ast.Tuple | ast.List) else iterable
    if isinstance(iterable, ast.Tuple | ast.List | ast.Set):
        return len(iterable.elts) <= _FEW
    if source.called(iterable) == "range" and isinstance(iterable, ast.Call):
        ends = iterable.args[:2]
        numbers = [arg.value for arg in ends if isinstance(arg, ast.Constant) and isinstance(arg.value, int)]
        return len(numbers) == len(ends) and numbers[-1] - (numbers[0] if len(ends) > 1 else 0) <= _FEW
    return False


def is_rare(source: Source, node: ast.AST, loop: ast.AST | None = None) -> bool:
    """Whether a node runs in few turns of its innermost loop.

    It does if it is in an `if` that counts or logs (`step % 100 == 0`, `if verbose`), handles an exception,
    or is followed by a `break`, `return` or `raise`.
    """
    child = node
    for parent in source.ancestors(node):
        if isinstance(parent, COMPREHENSIONS) and loop is None:
            break
        if isinstance(parent, ast.ExceptHandler | ast.Return | ast.Raise | ast.Assert):
            return True
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test and _is_rare_test(parent.test):
            return True
        if isinstance(parent, ast.If) and child is not parent.test:
            branch = parent.body if child in parent.body else parent.orelse
            if branch and isinstance(branch[-1], ast.Break | ast.Return | ast.Raise):
                return True
        if parent is loop or isinstance(parent, (*FUNCTIONS, ast.Lambda)):
            break
        if isinstance(parent, ast.For | ast.While):
            if isinstance(parent.body[-1], ast.Break | ast.Return | ast.Raise):
                return True
            if loop is None:
                break
        child = parent
    return False


def _is_rare_test(test: ast.expr) -> bool:
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return True
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name and _RARE.search(name):
            return True
    return False


def contexts(source: Source, node: ast.AST) -> Iterator[ast.expr]:
    """The expressions of the `with` statements around a node in its function, and its function's
    decorators."""
    child = node
    for parent in source.ancestors(node):
        if isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
            yield from (item.context_expr for item in parent.items)
        if isinstance(parent, FUNCTIONS):
            if child in parent.body:
                yield from parent.decorator_list
                return
        elif isinstance(parent, ast.Lambda):
            return
        child = parent


def within(source: Source, node: ast.AST, names: Iterable[str]) -> ast.expr | None:
    """The context or decorator of one of these names that a node is in."""
    wanted = set(names)
    for context in contexts(source, node):
        if (source.called(context) or source.name(context)) in wanted:
            return context
    return None


def without_gradient(source: Source, node: ast.AST) -> bool:
    """Whether a node runs under no_grad or inference_mode, as far as its function shows."""
    for context in contexts(source, node):
        name = (source.called(context) or source.name(context)).rpartition(".")[2]
        if name in ("no_grad", "inference_mode"):
            return True
        if name == "set_grad_enabled" and isinstance(context, ast.Call):
            return not is_constant(argument(context, "mode", 0), True)
    return False


def decorators(source: Source, function: Function) -> list[str]:
    """The names of a function's decorators; `partial(jax.jit, ...)` counts as jax.jit."""
    names = []
    for decorator in function.decorator_list:
        name = source.called(decorator) or source.name(decorator)
        if name in ("functools.partial", "partial") and isinstance(decorator, ast.Call) and decorator.args:
            name = source.name(decorator.args[0])
        names.append(name)
    return names


def is_jitted(source: Source, node: ast.AST) -> bool:
    """Whether a node is inside a function that JAX compiles, by a decorator."""
    return any(
        name.rpartition(".")[2] in ("jit", "filter_jit", "pmap", "vmap")
        for parent in source.ancestors(node)
        if isinstance(parent, FUNCTIONS)
        for name in decorators(source, parent)
    )


def method_calls(node: ast.AST, *names: str) -> list[ast.Call]:
    """The calls of methods of these names inside a node."""
    return [call for call in ast.walk(node) if isinstance(call, ast.Call) and method(call) in names]


def loop_names(loop: Loop) -> set[str]:
    """The names that a loop binds in each turn by its target."""
    if isinstance(loop, ast.While):
        return set()
    targets = [g.target for g in loop.generators] if isinstance(loop, COMPREHENSIONS) else [loop.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def stores_in(node: ast.AST) -> set[str]:
    """The names that are assigned inside a node."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def over_loader(source: Source, loop: Loop) -> bool:
    """Whether a loop goes over the batches of a loader."""
    if isinstance(loop, ast.While):
        return False
    iterable = loop.generators[0].iter if isinstance(loop, COMPREHENSIONS) else loop.iter
    return any(
        re.search(
            r"loader|batches|dataloader", n.attr if isinstance(n, ast.Attribute) else n.id, re.IGNORECASE
        )
        for n in ast.walk(iterable)
        if isinstance(n, ast.Name | ast.Attribute)
    ) or any(source.called(n).endswith("DataLoader") for n in ast.walk(iterable) if isinstance(n, ast.Call))


def trains(source: Source, loop: ast.AST) -> bool:
    """Whether a loop contains a backward pass or the step of an optimizer."""
    return any(
        method(call) == "backward"
        or (method(call) == "step" and re.search(r"opt", ast.unparse(call.func), re.IGNORECASE))
        or source.called(call) == "optax.apply_updates"
        for call in ast.walk(loop)
        if isinstance(call, ast.Call)
    )
