"""`mark_draws`: let a script say which numbers it draws at random, and what it chooses with them.

`random.randint(0, 8)` becomes `_pinchpoint_drawing(random.randint, ...)(0, 8)`, and `sizes[i]` becomes
`_pinchpoint_drawn_item(sizes, i, ...)` if `i` was computed from such a number. Names are followed within one
file, by their assignments only. A draw that is compared (`random.random() < 0.1`) or used as a seed is left
alone, and one with decimals is marked only if a whole number is made of it.
"""

from __future__ import annotations

import ast
from typing import Any

DRAWING, DRAWN_ITEM = "_pinchpoint_drawing", "_pinchpoint_drawn_item"
WHOLE = frozenset({"randint", "randrange", "integers", "random_integers"})
FROM_LIST = frozenset({"choice", "choices", "sample", "permutation", "shuffle"})
WITH_DECIMALS = frozenset({"random", "uniform", "rand", "random_sample"})
_OTHERS = frozenset({"getrandbits", "poisson", "geometric", "binomial", "zipf", "multinomial", "triangular"})
_DRAWS = WHOLE | FROM_LIST | WITH_DECIMALS | _OTHERS
_ROUNDING = frozenset({"int", "round", "floor", "ceil", "range", "interpolate", "resize"})
_SEEDS = frozenset({"seed", "manual_seed", "default_rng", "set_seed", "Generator", "RandomState", "Random"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def mark_draws(tree: ast.Module) -> ast.Module:
    names = _drawn_names(tree)
    return ast.fix_missing_locations(_Marker(names, _rounded(tree, names)).visit(tree))


def _name(function: ast.AST) -> str:
    return getattr(function, "id", getattr(function, "attr", ""))


def _drawn_names(tree: ast.Module) -> set[str]:
    """Names and attributes whose values are computed from random numbers, and functions that return some."""
    values: list[tuple[set[str], ast.AST]] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stored = {_name(part) for target in targets for part in ast.walk(target)} - {"", "self"}
            values.append((stored, node.value))
        elif isinstance(node, _FUNCTIONS):
            results = (part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value)
            values += [({node.name}, result) for result in results]
    names: set[str] = set()
    while found := [stored for stored, value in values if not stored <= names and _is_drawn(value, names)]:
        names.update(*found)
    return names


def _is_drawn(expression: ast.AST, names: set[str]) -> bool:
    """Whether a number in an expression was drawn; what a model computes from it is none."""
    if isinstance(expression, ast.Call):
        name = _name(expression.func)
        if name in _DRAWS or name in names:
            return True
        if name not in (
            "int",
            "round",
            "floor",
            "ceil",
            "item",
            "min",
            "max",
            "len",
            "abs",
            "divmod",
            "tolist",
        ):
            return False
    if isinstance(expression, (ast.Name, ast.Attribute)) and _name(expression) in names:
        return True
    return any(_is_drawn(part, names) for part in ast.iter_child_nodes(expression))


def _rounded(tree: ast.Module, names: set[str]) -> set[int]:
    """Nodes (ids) of which a whole number or an index is made, also by way of a name."""
    rounded: set[int] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Call) and _name(node.func) in _ROUNDING:
            parts = [*node.args, *(one.value for one in node.keywords)]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
            parts = [node.left]
        inside = [inner for part in parts for inner in ast.walk(part)]
        rounded |= set(map(id, inside))
        used |= {_name(inner) for inner in inside} & names
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            stored = {_name(part) for target in node.targets for part in ast.walk(target)}
            if stored & used:
                rounded |= {id(part) for part in ast.walk(node.value)}
        elif isinstance(node, ast.FunctionDef) and node.name in used:
            rounded |= {id(part) for part in ast.walk(node)}
    return rounded


class _Marker(ast.NodeTransformer):
    def __init__(self, names: set[str], rounded: set[int]) -> None:
        self._names, self._rounded = names, rounded
        self._marked: set[int] = set()  # a condition is also part of the function that evaluates it

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        for part in (node.left, *node.comparators):
            self._marked.add(id(part))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = _name(node.func)
        if name in _SEEDS:
            return node
        is_drawing = name in WHOLE | FROM_LIST or (name in WITH_DECIMALS and id(node) in self._rounded)
        if is_drawing and id(node) not in self._marked:
            self._marked.add(id(node))
            self.generic_visit(node)
            place = ast.Constant(node.lineno), ast.Constant(node.col_offset)
            node.func = _call(DRAWING, node.func, node.func, *place)
            return node
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        is_item = isinstance(node.ctx, ast.Load) and not isinstance(node.slice, (ast.Slice, ast.Tuple))
        is_item = is_item and _is_drawn(node.slice, self._names)
        self.generic_visit(node)
        if not is_item:
            return node
        place = ast.Constant(node.lineno), ast.Constant(node.end_col_offset)
        return _call(DRAWN_ITEM, node, node.value, node.slice, *place)


def _call(function: str, at: ast.expr, *arguments: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(function, ast.Load()), list(arguments), []), at)
