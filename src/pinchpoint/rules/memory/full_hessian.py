"""A whole Hessian is computed for its trace or diagonal.

The matrix of n x n second derivatives takes n times the memory that the Laplacian needs. A forward Laplacian
(`pinchpoint.kit`), or one Hessian-vector product per coordinate, computes the diagonal alone.

Bad:

    import jax
    import jax.numpy as jnp

    def laplacian(f, x):
        return jnp.trace(jax.hessian(f)(x))

Good:

    import jax
    import jax.numpy as jnp

    def laplacian(f, x):
        def second(direction):
            return jax.jvp(jax.grad(f), (x,), (direction,))[1] @ direction

        return jax.lax.map(second, jnp.eye(x.shape[0])).sum()
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, method

_HESSIANS = frozenset({"jax.hessian", "torch.func.hessian"})
_JACOBIANS = frozenset({"jax.jacfwd", "jax.jacrev", "jax.jacobian", "torch.func.jacfwd", "torch.func.jacrev"})
_REDUCTIONS = frozenset(
    f"{package}.{name}"
    for package in ("jax.numpy", "torch", "numpy")
    for name in ("trace", "diag", "diagonal")
)


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        value = _reduced(source, call)
        if value is not None and _is_hessian(source, value, 4):
            yield Match(call)
    for node in source.all(ast.Subscript):
        # hessian[i, i] in a loop over i
        index = node.slice
        if isinstance(index, ast.Tuple) and len(index.elts) == 2 and isinstance(node.ctx, ast.Load):
            first, second = index.elts
            same = isinstance(first, ast.Name) and ast.unparse(first) == ast.unparse(second)
            if same and source.loops(node) and _is_hessian(source, node.value, 4):
                yield Match(node)


def _reduced(source: Source, call: ast.Call) -> ast.expr | None:
    name = source.name(call.func)
    if name in _REDUCTIONS and call.args:
        return call.args[0]
    if name.endswith(".einsum") and len(call.args) == 2 and isinstance(call.args[0], ast.Constant):
        return call.args[1] if str(call.args[0].value).replace(" ", "") in ("ii->", "ii", "ii->i") else None
    if method(call) in ("trace", "diagonal", "diag") and isinstance(call.func, ast.Attribute):
        return call.func.value
    return None


def _is_hessian(source: Source, node: ast.expr, depth: int) -> bool:
    """Whether a value is `hessian(f)(x)`, directly or through names."""
    if depth == 0:
        return False
    if isinstance(node, ast.Name):
        store = source.binding(node)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        return value is not None and _is_hessian(source, value, depth - 1)
    if isinstance(node, ast.Call):
        if source.name(node.func) == "torch.autograd.functional.hessian":
            return True
        if method(node) in ("reshape", "view", "squeeze") and isinstance(node.func, ast.Attribute):
            return _is_hessian(source, node.func.value, depth - 1)
        return _makes_hessian(source, node.func, depth)
    return False


def _makes_hessian(source: Source, node: ast.expr, depth: int) -> bool:
    if isinstance(node, ast.Name):
        store = source.binding(node)
        value = source.assigned_value(store) if isinstance(store, ast.Name) else None
        return value is not None and depth > 0 and _makes_hessian(source, value, depth - 1)
    name = source.called(node)
    if name in _HESSIANS:
        return True
    inner = node.args[0] if isinstance(node, ast.Call) and node.args else None
    return name in _JACOBIANS and source.called(inner) in {"jax.grad", "torch.func.grad"}


RULE = Rule(
    number=306,
    name="full-hessian",
    message="The whole Hessian is computed, and only its diagonal is used.",
    hint="Compute the diagonal alone: a forward Laplacian, or jax.jvp of jax.grad for each coordinate.",
    check=check,
)
