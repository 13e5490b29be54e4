"""`mark_script`: let a script say how its conditions are answered that may be answered otherwise later.

`if test:` becomes `if _pinchpoint_if(test, ...):`, and so do `elif` and conditional expressions. A condition
is marked if what it reads may change while a loop runs (a name or an attribute that is changed in a loop or
in a function, a list that grows, the result of a call), or if it compares an argument of its function, and if
one of its sides may need memory (see `changes`).
"""

from __future__ import annotations

import ast
from typing import Any

from pinchpoint.backends.torch.loops.marking.changes import ALLOCATES, Changes, Scope, names_in
from pinchpoint.backends.torch.loops.marking.loop_source import mark_loops
from pinchpoint.backends.torch.loops.marking.syntax import shows

IF = "_pinchpoint_if"


def mark_script(tree: ast.Module) -> ast.Module:
    """Mark the loops, the counters, and the conditions of a file."""
    changes = Changes()
    changes.read(tree)
    changes.settle()
    planner = _Planner(changes)
    planner.visit(tree)
    return ast.fix_missing_locations(_Marker(planner.details).visit(mark_loops(tree)))


class _Planner(ast.NodeVisitor):
    """Chooses the conditions to mark, before anything else is changed in the file."""

    def __init__(self, changes: Changes) -> None:
        self._file_changes = changes
        self._scope: Scope = next(iter(changes.scopes.values()))
        self._depth = 0  # loops of this function around a node
        self.details: dict[int, tuple[Any, ...]] = {}  # id of a condition -> its description

    def visit_FunctionDef(self, node: Any) -> None:
        before = self._scope, self._depth
        self._scope, self._depth = self._file_changes.scopes.get(id(node), self._scope), 0
        self.generic_visit(node)
        self._scope, self._depth = before

    visit_AsyncFunctionDef = visit_Lambda = visit_FunctionDef

    def visit_For(self, node: Any) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_AsyncFor = visit_While = visit_For

    def visit_Call(self, node: ast.Call) -> None:
        if not shows(node.func):
            self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        rank = self._file_changes.rank
        self._plan(node.test, (rank(node.body, node.orelse), rank(node.orelse, node.body)))
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._plan(node.test, (ALLOCATES, ALLOCATES))
        self.generic_visit(node)

    def _plan(self, test: ast.expr, ranks: tuple[int | None, int | None]) -> None:
        """ranks: of the side that is not run if the answer is True, and if it is False."""
        if ranks == (None, None) or id(test) in self._file_changes.evaluated:
            return
        is_changing = self._changes(test)
        compared = _compared(test) & self._scope.arguments - {"self"}
        arguments = () if is_changing else tuple(sorted(compared))
        if is_changing or arguments:
            parts = [
                (_span(part), tuple(sorted(names_in(part))), self._changes(part) or bool(arguments))
                for part in _joined(test)
            ]
            self.details[id(test)] = _span(test), ranks, arguments, tuple(parts)

    def _changes(self, expression: ast.expr) -> bool:
        return self._file_changes.changes(expression, self._scope, is_in_loop=self._depth > 0)


class _Marker(ast.NodeTransformer):
    def __init__(self, details: dict[int, tuple[Any, ...]]) -> None:
        self._details = details

    def visit_If(self, node: Any) -> ast.AST:
        details = self._details.get(id(node.test))
        self.generic_visit(node)
        if details is not None:
            constants = [ast.parse(repr(one), mode="eval").body for one in details]
            call = ast.Call(ast.Name(IF, ast.Load()), [node.test, *constants], [])
            for part in (call, call.func, *(inner for one in constants for inner in ast.walk(one))):
                if isinstance(part, ast.expr):
                    ast.copy_location(part, node.test)
            node.test = call
        return node

    visit_IfExp = visit_If


def _compared(test: ast.expr) -> set[str]:
    """Names that a condition compares."""
    return {
        name
        for node in ast.walk(test)
        if isinstance(node, ast.Compare) and not any(isinstance(one, (ast.Is, ast.IsNot)) for one in node.ops)
        for name in (part.id for part in [node.left, *node.comparators] if isinstance(part, ast.Name))
    }


def _span(node: ast.expr) -> tuple[Any, ...]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _joined(test: ast.expr) -> list[ast.expr]:
    """The parts of a condition that `and`, `or` and `not` join."""
    if isinstance(test, ast.BoolOp):
        return [part for value in test.values for part in _joined(value)]
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _joined(test.operand)
    return [test]
