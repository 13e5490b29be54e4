"""What is read from the code of a script: its syntax tree, conditions that end a loop, learning rates."""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

RATE = re.compile(r"(^|_)(lr|learning_rate)(_|$)", re.IGNORECASE)
_EXITS = (ast.Break, ast.Return, ast.Raise)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Functions and methods that only show a number.
_SHOWING = {"print", "add_scalar", "info", "log", "set_description", "set_postfix", "update", "write", "str"}


def shows(function: Any) -> bool:
    name = getattr(function, "id", getattr(function, "attr", ""))
    return name in _SHOWING or RATE.search(name) is not None


@cache
def endings(file: str) -> dict[tuple[int, int], bool]:
    """Line and column of each condition that ends the loop around it -> the answer that does."""
    answers: dict[tuple[int, int], bool] = {}

    def add(test: ast.expr, answer: bool) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            add(test.operand, not answer)
        elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or if answer else ast.And):
            for part in test.values:
                add(part, answer)
        else:
            answers[test.lineno, test.col_offset] = answer

    for loop in ast.walk(parse(file)):
        if isinstance(loop, ast.While):
            add(loop.test, False)
        if isinstance(loop, (ast.For, ast.While)):
            for node in inside(loop.body):
                if isinstance(node, ast.If) and isinstance(node.body[-1], _EXITS):
                    shown = [getattr(part, "value", None) for part in node.body[:-1]]
                    if all(isinstance(part, ast.Call) and shows(part.func) for part in shown):
                        add(node.test, True)
    return answers


@cache
def rates(file: str) -> set[int]:
    """First lines of functions that are named after a learning rate and call only functions of numbers."""
    return {
        function.lineno
        for function in ast.walk(parse(file))
        if isinstance(function, _FUNCTIONS)
        and RATE.search(function.name)
        and all(_is_numeric(node.func) for node in ast.walk(function) if isinstance(node, ast.Call))
    }


def _is_numeric(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Name) and function.value.id in ("math", "np", "numpy")
    return isinstance(function, ast.Name) and function.id in ("min", "max", "abs", "float", "int", "round")


def inside(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a loop's body, without those of functions that it defines."""
    for statement in body:
        if not isinstance(statement, (*_FUNCTIONS, ast.ClassDef)):
            yield statement
            for field in ("body", "orelse", "finalbody"):
                yield from inside(getattr(statement, field, []))


@cache
def parse(file: str) -> ast.Module:
    """The syntax tree of a file of the script; empty if it has none."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])
