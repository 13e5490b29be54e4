"""`what_is_left`: what a script would still have run where it was stopped, read from its source.

A script that is stopped in a loop whose turns repeat themselves has nothing else to show if what follows the
loop only prints, plots, or saves. Everything else that follows is named.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FrameType
from typing import Any

from pinchpoint.backends.recording.source_lines import is_user_module
from pinchpoint.backends.torch.loops.marking.loop_source import evaluated_conditions
from pinchpoint.backends.torch.loops.marking.syntax import parse

_TURNS = 3  # of a loop after which the next ones are taken to be like them
# Functions and methods that allocate nothing on the device, or one number.
_NAMES = (
    "print len str int float bool round sum min max abs list dict tuple set sorted range enumerate zip map "
    "format join item tolist cpu numpy detach mean std append extend keys values items get copy open close "
    "write writerow dump dumps flush exit quit time perf_counter strftime now total_seconds "
    "log info debug warning error add_scalar add_image add_figure add_text finish "
    "figure subplots subplot plot scatter hist bar imshow title set_title suptitle xlabel ylabel set_xlabel "
    "set_ylabel xlim ylim legend grid axis tight_layout colorbar savefig show clf cla "
    "save savez state_dict makedirs mkdir exists remove path Path eval train synchronize empty_cache "
    "max_memory_allocated max_memory_reserved memory_allocated reset_peak_memory_stats memory_summary "
    "destroy_process_group barrier update set_description set_postfix no_grad inference_mode"
)
_HARMLESS = frozenset(_NAMES.split())


_COLLECTING = {"append", "extend", "add", "insert", "update", "setdefault", "put", "push", "store"}


@dataclass(frozen=True)
class Remainder:
    """line: `file:line` of the first statement that was not run, or None if nothing of note was left.

    package: whether the script was stopped in the code of a package, whose rest is unknown.
    """

    line: str | None
    package: bool = False


@dataclass(frozen=True)
class _Call:
    """A function that was running: its code, and the line and the instruction that it was at."""

    code: CodeType
    line: int
    instruction: int

    def is_before(self, other: ast.Call) -> bool:
        """Whether another call of the same statement comes after the one that was running."""
        first, last, column, end = list(self.code.co_positions())[max(self.instruction, 0) // 2]
        starts_later = (other.lineno, other.col_offset) >= (last or 0, end or 0)
        # Arguments come before the call that contains them.
        contains = (other.lineno, other.col_offset) <= (first or 0, column or 0) and (
            (other.end_lineno or 0, other.end_col_offset or 0) > (last or 0, end or 0)
        )
        return starts_later or contains


def what_is_left(frame: FrameType | None, loops: Any) -> Remainder:
    """What was left when the script was stopped in this frame. loops: the `Loops` of the script."""
    calls: list[_Call] = []
    while frame is not None:
        calls.append(_Call(frame.f_code, frame.f_lineno, frame.f_lasti))
        frame = frame.f_back
    script = os.path.abspath(getattr(sys.modules["__main__"], "__file__", ""))
    return _left_of_calls(calls[::-1], script, loops)


def left_after_error(error: BaseException, loops: Any) -> Remainder:
    """What was left when the script raised an error, which ended it."""
    from pinchpoint.backends.torch.ledger import kind_of_file  # the rest of this module needs no torch

    calls: list[_Call] = []
    traceback = error.__traceback__
    while traceback is not None:
        calls.append(_Call(traceback.tb_frame.f_code, traceback.tb_lineno, traceback.tb_lasti))
        traceback = traceback.tb_next
    files = (call.code.co_filename for call in calls)
    script = next((file for file in files if kind_of_file(file) == "user"), "")
    return _left_of_calls(calls, script, loops)


def _left_of_calls(calls: list[_Call], script: str, loops: Any) -> Remainder:
    """calls: the functions that were running, outermost first."""
    from pinchpoint.backends.torch.ledger import kind_of_file

    is_in_script = in_package = is_repeated = False
    folder = os.path.join(os.path.dirname(script), "")
    for call in calls:
        file = call.code.co_filename
        is_beside = file.startswith(folder)
        if kind_of_file(file) == "user" and (is_beside or (is_in_script and is_user_module(file))):
            is_in_script = True
            if in_package:
                continue  # called back by a package
            line, is_repeated = _left_in(file, call, loops, is_repeated)
            if line is not None:
                return Remainder(f"{file}:{line}")
        elif kind_of_file(file) != "other":
            in_package = is_in_script
        elif file.endswith(os.path.join("nn", "modules", "module.py")):
            break  # a call of a model, as there were others
    return Remainder(None, in_package)


def _left_in(file: str, call: _Call, loops: Any, is_repeated: bool) -> tuple[int | None, bool]:
    """The first line of a function that was not run and may allocate, and whether a loop repeats the rest.

    is_repeated: whether a loop calls the function, so that only its conditions may differ.
    """
    line = call.line
    body = _body(file, call.code.co_firstlineno, call.code.co_name)
    if body is None or not file.endswith(".py"):  # a cell of a notebook, of which others follow
        return line, False
    if is_repeated:
        return _left_of_conditions(body, set()), True
    while True:
        at = next((n for n, s in enumerate(body) if _start(s) <= line <= (s.end_lineno or s.lineno)), None)
        if at is None:
            return line, False
        statement = body[at]
        if (number := _first_of(body[at + 1 :])) is not None:
            return number, False
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            return _left_of_loop(file, statement, loops), True
        if isinstance(statement, ast.Try) and (number := _first_of(statement.finalbody)) is not None:
            return number, False
        blocks = (b for b in _blocks(statement) if _start(b[0]) <= line <= (b[-1].end_lineno or b[-1].lineno))
        inner = next(blocks, None)
        if inner is None:
            is_left = _repeats(statement) or any(
                not is_harmless(one) and call.is_before(one) for one in _calls(_head(statement))
            )
            return (statement.lineno if is_left else None), False
        body = inner


def _repeats(statement: ast.stmt) -> bool:
    """Whether a statement calls a function for several values, as a comprehension and `map` do."""
    nodes = [node for part in _head(statement) for node in ast.walk(part)]
    return any(
        isinstance(node, ast.comprehension)
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "map")
        for node in nodes
    )


def _left_of_loop(file: str, loop: ast.For | ast.AsyncFor | ast.While, loops: Any) -> int | None:
    """The line of a loop if its turns may differ from those that were run, or of what follows in `else`."""
    running = loops.at(f"{file}:{loop.lineno}")
    if running is None or running.turns < _TURNS or running.has_other_turns():
        return loop.lineno
    known = evaluated_conditions(loop) if isinstance(loop, ast.For) else set[int]()
    line = _left_of_conditions(loop.body, known)
    return _first_of(loop.orelse) if line is None else line


def _left_of_conditions(body: list[ast.stmt], known: set[int]) -> int | None:
    """The first line in a conditional part of statements that were run. known: conditions that are known."""
    unknown = (one for one in _inside(body) if isinstance(one, ast.If) and id(one.test) not in known)
    lines = (_first_of([*one.body, *one.orelse]) for one in unknown)
    return next((line for line in lines if line is not None), None)


@cache
def collects_rarely(site: str) -> bool:
    """Whether the loop at a line adds something to a container only if a condition holds."""
    loop = _loop_at(site)
    if loop is None:
        return True
    conditional = [one for one in _inside(loop.body) if isinstance(one, ast.If)]
    return any(_collects(node) for one in conditional for node in ast.walk(one))


@cache
def changes_later_turns(site: str) -> bool:
    """Whether a loop sets a name only if a condition on its variable holds, and uses it elsewhere."""
    loop = _loop_at(site)
    if loop is None:
        return False
    known = evaluated_conditions(loop)
    for one in _inside(loop.body):
        if isinstance(one, ast.If) and id(one.test) in known:
            inside = list(ast.walk(one))
            ids = {id(node) for node in inside}
            names = {
                node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
            others = (node for node in ast.walk(loop) if isinstance(node, ast.Name) and id(node) not in ids)
            if any(node.id in names and isinstance(node.ctx, ast.Load) for node in others):
                return True
            if any(isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) for node in inside):
                return True
    return False


def _loop_at(site: str) -> ast.For | None:
    file, _, line = site.rpartition(":")
    loops = (node for node in ast.walk(parse(file)) if isinstance(node, ast.For))
    return next((node for node in loops if node.lineno == int(line)), None)


def _collects(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", "") in _COLLECTING
    return isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)


@cache
def _body(file: str, first: int, name: str) -> list[ast.stmt] | None:
    """The statements of a function, or of the file."""
    tree = parse(file)
    if name == "<module>":
        return tree.body or None
    functions = (one for one in ast.walk(tree) if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return next(
        (one.body for one in functions if one.name == name and first in (one.lineno, _start(one))), None
    )


def _start(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The lists of statements inside a statement; a function that is defined is not run."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for field in ("body", "orelse", "finalbody"):
        if block := getattr(statement, field, []):
            yield block
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body


def _inside(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        for block in _blocks(statement):
            yield from _inside(block)


def _head(statement: ast.stmt) -> list[ast.AST]:
    """The parts of a statement that are no statements: the condition of an `if`, the items of a `with`."""
    return [part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)]


def _calls(parts: list[ast.AST]) -> list[ast.Call]:
    return [node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call)]


def is_harmless_body(statements: list[ast.stmt]) -> bool:
    """Whether statements allocate nothing of note on the device."""
    return _first_of(statements) is None


def _first_of(statements: list[ast.stmt]) -> int | None:
    return next((line for one in statements if (line := _first_call(one)) is not None), None)


def _first_call(statement: ast.stmt) -> int | None:
    """The line of the first call in a statement that may allocate on the device."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return None
    calls = (call for call in _calls(_head(statement)) if not is_harmless(call))
    own = next((call.lineno for call in calls), None)
    if own is not None:
        return own
    is_result = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return))
    if is_result and any(isinstance(node, ast.BinOp) for part in _head(statement) for node in ast.walk(part)):
        return statement.lineno  # arithmetic of tensors needs no call
    return next((line for block in _blocks(statement) if (line := _first_of(block)) is not None), None)


def is_harmless(call: ast.Call) -> bool:
    return getattr(call.func, "id", getattr(call.func, "attr", "")) in _HARMLESS
