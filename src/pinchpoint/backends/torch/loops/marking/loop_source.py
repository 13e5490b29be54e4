"""`mark_loops`: change a script's loops so that they can be ended early; every line keeps its number.

`for x in things:` iterates over `_pinchpoint_for(things, ...)`, and `while condition:` asks
`_pinchpoint_while(line)` first. What the loop does with its variable is read from its body here: an `if` on
the variable and on names that the body does not change can be evaluated for turns that are not run.

`step += 1` becomes `step = _pinchpoint_count(step, 1, ..., "+=")`, and every other value that the script
gives to such a counter goes through `_pinchpoint_count_starts`.
"""

from __future__ import annotations

import ast
import copy
from typing import Any

from pinchpoint.backends.torch.loops.marking.syntax import inside, shows

FOR, WHILE, WHILE_STARTS = "_pinchpoint_for", "_pinchpoint_while", "_pinchpoint_while_starts"
COUNT, COUNT_STARTS = "_pinchpoint_count", "_pinchpoint_count_starts"
_PURE = (
    ast.Compare,
    ast.BoolOp,
    ast.UnaryOp,
    ast.BinOp,
    ast.Name,
    ast.Constant,
    ast.Attribute,
    ast.Tuple,
    ast.List,
    ast.operator,
    ast.unaryop,
    ast.cmpop,
    ast.boolop,
    ast.expr_context,
)
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-"}
_SIZES = {"size", "shape", "numel", "len", "batch_size", "bs"}


def mark_loops(tree: ast.Module) -> ast.Module:
    """Let every loop of the script ask whether it goes on, and every counter which value it gets."""
    compared = _Compared()
    compared.visit(tree)
    counters = _Counters(compared.found)
    counters.visit(tree)
    marked = _CounterMarker(counters).visit(_Marker().visit(tree))
    return ast.fix_missing_locations(marked)


class _Marker(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.For:
        tests, is_used = uses(node)
        self.generic_visit(node)
        name = node.target.id if isinstance(node.target, ast.Name) else "_"
        arguments: list[ast.expr] = [
            node.iter,
            ast.Constant(node.lineno),
            ast.Tuple([_function(name, test) for test in tests], ast.Load()),
            ast.Constant(is_used),
        ]
        node.iter = ast.copy_location(ast.Call(ast.Name(FOR, ast.Load()), arguments, []), node.iter)
        return node

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self.generic_visit(node)
        lines: list[ast.expr] = [ast.Constant(node.lineno), ast.Constant(node.end_lineno)]
        starts = ast.Call(ast.Name(WHILE_STARTS, ast.Load()), lines, [])
        goes_on = ast.Call(ast.Name(WHILE, ast.Load()), lines[:1], [])
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [goes_on, node.test]), node.test)
        return [ast.copy_location(ast.Expr(starts), node), node]


class _Scopes(ast.NodeTransformer):
    """Names the variables of a file: those of each function are its own."""

    compared: frozenset[str] | set[str] = frozenset()  # variables that are part of a condition

    def __init__(self) -> None:
        self._scopes: list[tuple[int, dict[str, int]]] = [(0, {})]  # and where its shared names belong

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        shared: dict[str, int] = {}
        for part in inside(node.body):
            if isinstance(part, (ast.Global, ast.Nonlocal)):
                shared |= dict.fromkeys(
                    part.names, 0 if isinstance(part, ast.Global) else self._scopes[-1][0]
                )
        self._scopes.append((node.lineno, shared))
        self.generic_visit(node)
        self._scopes.pop()
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def name(self, node: ast.AST) -> str | None:
        """What a counter is called that may be an element or an attribute; None for other expressions."""
        if isinstance(node, ast.Name):
            scope, shared = self._scopes[-1]
            return f"{shared.get(node.id, scope)}:{node.id}"
        if isinstance(node, ast.Attribute) and self.name(node.value) is not None:
            return f".{node.attr}"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return None if self.name(node.value) is None else f"[{node.slice.value!r}]"
        return None

    def increment(self, node: ast.AST) -> tuple[ast.expr, ast.expr, str] | None:
        """The counter that a statement increases or decreases, by how much, and with which operation."""
        target: ast.expr
        if isinstance(node, ast.AugAssign):
            target, operator, by = node.target, node.op, node.value
            sign = _SIGNS.get(type(operator), "")
            kind = f"{sign}="
        elif (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.value, ast.BinOp)
            and ast.unparse(node.value.left) == ast.unparse(node.targets[0])
        ):
            target, by = node.targets[0], node.value.right
            kind = sign = _SIGNS.get(type(node.value.op), "")
        else:
            return None
        if not sign or self.name(target) is None or not self._may_count(target, by, sign):
            return None
        return target, by, kind

    def _may_count(self, target: ast.expr, by: ast.expr, sign: str) -> bool:
        """Whether a target is a counter by what is added to it: a number, a variable, or some size."""
        if isinstance(by, ast.Constant):
            return type(by.value) is int
        is_size = any(
            getattr(node, "attr", getattr(node, "id", "")) in _SIZES
            for node in ast.walk(by)
            if isinstance(node, (ast.Attribute, ast.Name))
        )
        if sign == "+" and self.name(by) is not None:
            return True
        return (is_size or isinstance(by, (ast.BinOp, ast.Call))) and self.name(target) in self.compared


class _Compared(_Scopes):
    """Finds the variables of a file that are part of a comparison, a quotient, or a remainder."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = self.found = set[str]()

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self._find(node)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            self._find(node.left)
        return self.generic_visit(node)

    def _find(self, expression: ast.expr) -> None:
        self.found |= {name for node in ast.walk(expression) if (name := self.name(node)) is not None}


class _Counters(_Scopes):
    """Finds the counters of a file, and which of them may decide about sizes without a condition."""

    def __init__(self, compared: set[str]) -> None:
        super().__init__()
        self.compared = compared
        self.names: set[str] = set()
        self.used: set[str] = set()

    def visit_AugAssign(self, node: ast.AugAssign | ast.Assign) -> ast.AST:
        if (found := self.increment(node)) is not None:
            self.names.add(self.name(found[0]) or "")
        return self.generic_visit(node)

    visit_Assign = visit_AugAssign

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not shows(node.func):
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self._use(argument)
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if isinstance(node.op, ast.FloorDiv):
            self._use(node.left)
        return self.generic_visit(node)

    def _use(self, expression: ast.expr) -> None:
        if not isinstance(expression, (ast.JoinedStr, ast.Dict)):
            self.used |= {name for node in ast.walk(expression) if (name := self.name(node)) is not None}


class _CounterMarker(_Scopes):
    def __init__(self, counters: _Counters) -> None:
        super().__init__()
        self._counters, self.compared = counters, counters.compared

    def _call(self, function: str, target: ast.expr, *values: ast.expr, kind: str = "") -> ast.expr:
        name = self.name(target) or ""
        details = (name, target.lineno, name in self._counters.used, *([kind] if kind else []))
        arguments = [*values, *map(ast.Constant, details)]
        return ast.copy_location(ast.Call(ast.Name(function, ast.Load()), arguments, []), values[-1])

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        found = self.increment(node)
        return node if found is None else ast.copy_location(self._increase(*found), node)

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        self.generic_visit(node)
        found = self.increment(node)
        if found is not None:
            return ast.copy_location(self._increase(*found), node)
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for part, value in pairs:
                if self.name(part) in self._counters.names:
                    started = self._call(COUNT_STARTS, part, value)
                    if value is node.value:
                        node.value = started
                    else:
                        elements = getattr(node.value, "elts", [])
                        elements[elements.index(value)] = started
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        self.generic_visit(node)
        if node.value is not None and self.name(node.target) in self._counters.names:
            node.value = self._call(COUNT_STARTS, node.target, node.value)
        return node

    def _increase(self, target: ast.expr, by: ast.expr, kind: str) -> ast.Assign:
        value: Any = copy.deepcopy(target)
        value.ctx = ast.Load()
        return ast.Assign([target], self._call(COUNT, target, value, by, kind=kind))


def _function(name: str, test: ast.expr) -> ast.Lambda:
    arguments = ast.arguments([], [ast.arg(name)], None, [], [], None, [])
    return ast.Lambda(arguments, test)


def uses(loop: ast.For) -> tuple[list[ast.expr], bool]:
    """The conditions on the loop's variable that can be evaluated, and whether it is used in other ways."""
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    changed = {
        node.id
        for statement in loop.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }
    tests: list[ast.expr] = []
    known: set[int] = set()  # nodes in conditions, or in calls that only show the variable
    for statement in loop.body:
        for node in ast.walk(statement):
            if isinstance(node, (ast.If, ast.IfExp)) and _is_pure(node.test, names, changed):
                if isinstance(loop.target, ast.Name) and _mentions(node.test, names):
                    tests.append(node.test)
                    known |= _ids(node.test)
            elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and shows(node.func)):
                known |= _ids(node)
    is_used = any(
        isinstance(node, ast.Name) and node.id in names and id(node) not in known
        for statement in loop.body
        for node in ast.walk(statement)
    )
    return tests, is_used


def evaluated_conditions(loop: ast.For) -> set[int]:
    """The conditions of a loop that can be evaluated for turns that are not run, as ids of their nodes."""
    return {id(test) for test in uses(loop)[0]}


def _is_pure(test: ast.expr, names: set[str], changed: set[str]) -> bool:
    """Whether a condition reads only values that the loop's body does not change, and calls nothing."""
    return all(
        isinstance(node, _PURE) and not (isinstance(node, ast.Name) and node.id in changed - names)
        for node in ast.walk(test)
    ) and not (names & changed)


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))


def _ids(node: ast.AST) -> set[int]:
    return {id(part) for part in ast.walk(node)}
