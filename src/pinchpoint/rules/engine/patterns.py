"""Patterns that several rules look for: loops that matter, rare branches, contexts, decorators."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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

AUTOCAST = frozenset(
    {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"}
)
_RARE = re.compile(
    r"log|print|verbose|debug|every|interval|report|display|plot|save|summary|first|last|warn|rank|main_process|freq",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"^_?(eval|evaluate|evaluation|validate|validation|test|inference|predict)(_|$)")
_FEW = 8  # a loop of at most so many turns is not worth a finding


def hot_loops(source: Source, node: ast.AST) -> list[Loop]:
    """The loops around a node, innermost first, without those of a few turns and those over epochs."""
    return [loop for loop in source.loops(node) if not is_short(source, loop) and not _is_outer(source, loop)]


def _is_outer(source: Source, loop: Loop) -> bool:
    """Whether a loop goes over epochs: by its name, or because a loop inside it takes the steps."""
    key = ("outer", loop)
    if key not in source.facts:
        source.facts[key] = _find_outer(source, loop)
    return source.facts[key]


def _find_outer(source: Source, loop: Loop) -> bool:
    if any("epoch" in name for name in loop_names(source, loop)):
        return not takes_steps(source, loop)
    return any(
        inner is not loop and isinstance(inner, ast.For | ast.While) and takes_steps(source, inner)
        for inner in source.walk(loop)
    )


def is_short(source: Source, loop: Loop) -> bool:
    """Whether a loop visibly has only a few turns: a tuple of constants, `range(3)`."""
    if isinstance(loop, ast.While):
        return False
    parent = source.parents.get(loop)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        return True  # a, b = (f(x) for x in pair)
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
        if (
            isinstance(parent, ast.If | ast.IfExp)
            and child is not parent.test
            and _is_rare_test(source, parent.test)
        ):
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


def _is_rare_test(source: Source, test: ast.expr) -> bool:
    for node in source.walk(test):
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
        if name.endswith(("no_grad", "inference_mode")):
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


def is_evaluation(function: Function) -> bool:
    """Whether a function evaluates a model, by its name."""
    return _EVALUATION.match(function.name.lower()) is not None


def is_jitted(source: Source, node: ast.AST) -> bool:
    """Whether a node is inside a function that JAX compiles, by a decorator."""
    return any(
        name.rpartition(".")[2] in ("jit", "filter_jit", "pmap", "vmap")
        for parent in source.ancestors(node)
        if isinstance(parent, FUNCTIONS)
        for name in decorators(source, parent)
    )


@dataclass(frozen=True)
class Jitted:
    """A function with a decorator of jax.jit: its traced parameters, and its static ones with their
    positions."""

    function: Function
    traced: tuple[ast.arg, ...]
    static: tuple[tuple[int | None, str], ...]


def jitted_functions(source: Source) -> list[Jitted]:
    """The functions that `@jax.jit` or `@partial(jax.jit, ...)` compiles, where the static arguments can be
    read."""
    functions = []
    for function in source.functions if source.uses("jax") else ():
        for decorator in function.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            name = source.called(decorator) or source.name(decorator)
            if call is not None and name in ("functools.partial", "partial") and call.args:
                name = source.name(call.args[0])
            if name != "jax.jit":
                continue
            static = _static(function, call)
            if static is not None:
                functions.append(static)
    by_name = {function.name: function for function in source.functions}
    for call in source.calls if source.uses("jax") else ():
        # compiled = jax.jit(function, static_argnums=1)
        if source.name(call.func) == "jax.jit" and call.args and isinstance(call.args[0], ast.Name):
            function = by_name.get(call.args[0].id)
            static = (
                _static(function, call)
                if function is not None and source.scope(function) is source.tree
                else None
            )
            if static is not None:
                functions.append(static)
    return functions


def _static(function: Function, call: ast.Call | None) -> Jitted | None:
    arguments = [*function.args.posonlyargs, *function.args.args]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords} if call is not None else {}
    names: set[object] = set()
    for key in ("static_argnames", "static_argnums"):
        if key in keywords:
            try:
                value = ast.literal_eval(keywords[key])
            except ValueError:
                return None
            names.update(value if isinstance(value, list | tuple | set) else [value])
    if None in keywords:
        return None
    static, traced = [], []
    for position, parameter in enumerate(arguments):
        if parameter.arg in names or position in names or position - len(arguments) in names:
            static.append((position, parameter.arg))
        else:
            traced.append(parameter)
    for parameter in function.args.kwonlyargs:
        if parameter.arg in names:
            static.append((None, parameter.arg))
        else:
            traced.append(parameter)
    return Jitted(function, tuple(traced), tuple(static))


def is_kept(source: Source, call: ast.Call) -> bool:
    """Whether the value of a call is stored for later: `compiled[size] = jax.jit(f)`, in a list or an
    attribute."""
    parent = source.parents[call]
    if isinstance(parent, ast.Assign):
        return any(isinstance(target, ast.Subscript | ast.Attribute) for target in parent.targets)
    return isinstance(parent, ast.ListComp | ast.DictComp | ast.Tuple) or method(parent) in (
        "append",
        "setdefault",
    )


def method_calls(source: Source, node: ast.AST, *names: str) -> list[ast.Call]:
    """The calls of methods of these names inside a node."""
    return [call for call in source.walk(node) if isinstance(call, ast.Call) and method(call) in names]


def loop_names(source: Source, loop: Loop) -> set[str]:
    """The names that a loop binds in each turn by its target."""
    if isinstance(loop, ast.While):
        return set()
    targets = [g.target for g in loop.generators] if isinstance(loop, COMPREHENSIONS) else [loop.target]
    return {node.id for target in targets for node in source.walk(target) if isinstance(node, ast.Name)}


def stores_in(source: Source, node: ast.AST) -> set[str]:
    """The names that are assigned inside a node."""
    return {n.id for n in source.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def over_loader(source: Source, loop: Loop) -> bool:
    """Whether a loop goes over the batches of a loader."""
    if isinstance(loop, ast.While):
        return False
    parent = source.parents.get(loop)
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        return True  # a, b = (f(x) for x in pair)
    iterable = loop.generators[0].iter if isinstance(loop, COMPREHENSIONS) else loop.iter
    return any(
        re.search(
            r"loader|batches|dataloader", n.attr if isinstance(n, ast.Attribute) else n.id, re.IGNORECASE
        )
        for n in source.walk(iterable)
        if isinstance(n, ast.Name | ast.Attribute)
    ) or any(
        source.called(n).endswith("DataLoader") for n in source.walk(iterable) if isinstance(n, ast.Call)
    )


def shorten(node: ast.expr, length: int = 50) -> str:
    """The code of an expression on one line, cut at a length."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= length else f"{text[: length - 3]}..."


def counts(source: Source, loop: Loop) -> bool:
    """Whether a loop goes over a range."""
    return not isinstance(loop, ast.While) and source.called(iterable(loop)) == "range"


def measures_time(source: Source, node: ast.AST) -> bool:
    """Whether the function around a node, or the file outside functions, reads a clock or records events."""
    function = source.function(node)
    return any(
        source.called(call).startswith(("time.", "timeit.", "torch.utils.benchmark"))
        or source.called(call).rpartition(".")[2] in ("perf_counter", "time", "monotonic", "perf_counter_ns")
        or method(call) in ("elapsed_time", "record")
        for call in source.walk(function or source.tree)
        if isinstance(call, ast.Call)
    )


def iterable(loop: Loop) -> ast.expr:
    """What a loop goes over; the test of `while`."""
    if isinstance(loop, ast.While):
        return loop.test
    return loop.generators[0].iter if isinstance(loop, COMPREHENSIONS) else loop.iter


def takes_steps(source: Source, loop: ast.AST) -> bool:
    """Whether a loop itself, not one inside it, runs a backward pass or the step of an optimizer."""
    key = ("steps", loop)
    if key not in source.facts:
        source.facts[key] = _find_steps(source, loop)
    return source.facts[key]


def _find_steps(source: Source, loop: ast.AST) -> bool:
    return any(
        isinstance(call, ast.Call)
        and (method(call) == "backward" or _is_optimizer_step(call))
        and source.statement_loops(call)[:1] == [loop]
        for call in source.walk(loop)
    )


def _is_optimizer_step(call: ast.Call) -> bool:
    return method(call) == "step" and re.search(r"opt", ast.unparse(call.func), re.IGNORECASE) is not None


def runs_in_loop(source: Source, call: ast.Call) -> bool:
    """Whether a call runs often in a loop; `if step % 2 == 0` is often, `if step % 500 == 0` is not."""
    loops = [loop for loop in source.loops(call) if counts(source, loop) or not is_short(source, loop)]
    if not loops:
        return False
    for parent in source.ancestors(call):
        if parent is loops[0]:
            break
        if isinstance(parent, ast.ExceptHandler):
            return False
        if isinstance(parent, ast.If) and not any(_is_frequent(node) for node in source.walk(parent.test)):
            return False
    return True


def _is_frequent(node: ast.AST) -> bool:
    """`i % 2` and the like with a small number."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Mod)
        and isinstance(node.right, ast.Constant)
        and isinstance(node.right.value, int)
        and node.right.value <= 20
    )


def is_removable(source: Source, statement: ast.stmt) -> bool:
    """Whether a block keeps other statements when this one is removed."""
    parent = source.parents[statement]
    return any(statement in block and len(block) > 1 for block in _blocks(parent))


def _blocks(node: ast.AST) -> list[list[ast.stmt]]:
    return [
        block
        for field in ("body", "orelse", "finalbody")
        if isinstance(block := getattr(node, field, None), list)
    ]
