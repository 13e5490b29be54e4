"""Scripts that catch CUDA's error for a full card, as those do that look for the largest batch size.

In such a script, an allocation for which the modelled card has no room raises torch's own error, if a `try`
around it catches it. The room is that of all live blocks, without the gaps between them.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from types import FrameType
from typing import Any

import torch

from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.loops.marking.syntax import parse
from pinchpoint.core.units import show_bytes

_NAMES = {
    "OutOfMemoryError",
    "find_executable_batch_size",
    "auto_find_batch_size",
    "should_reduce_batch_size",
}
_TEXT = "out of memory"
_BROAD = {"RuntimeError", "Exception", "BaseException"}


def may_catch(tree: ast.AST) -> bool:
    """Whether a part of a file names the error."""
    return any(_names_it(node) for node in ast.walk(tree))


def _names_it(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and _TEXT in node.value.lower()
    name = getattr(node, "id", getattr(node, "attr", getattr(node, "arg", getattr(node, "name", ""))))
    return name in _NAMES


class FullCard:
    """Raises the error in a script. usable_bytes: that torch may allocate."""

    def __init__(self, ledger: Ledger, usable_bytes: int) -> None:
        self._ledger, self._usable_bytes = ledger, usable_bytes
        self.line = ""  # of the user's where it was raised first

    def watch(self, tree: ast.Module) -> ast.Module:
        """Begin to raise errors if a file of the script may catch them; returns the file's tree."""
        if may_catch(tree):
            self._ledger.before_large = self.check
        return tree

    def check(self, size_bytes: int) -> None:
        live_bytes = self._ledger.live_bytes()
        if live_bytes + size_bytes <= self._usable_bytes or not _is_caught():
            return
        self.line = self.line or _user_line()
        raise torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {show_bytes(size_bytes)}. GPU 0 has a total capacity of "
            f"{show_bytes(self._usable_bytes)}, of which {show_bytes(live_bytes)} are allocated."
        )


def _is_caught() -> bool:
    """Whether a function that runs now catches the error."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file) or "/accelerate/" in file:
            line = frame.f_lineno
            for node in ast.walk(parse(file)):
                if isinstance(node, ast.Try) and _covers(node, line) and any(map(_catches, node.handlers)):
                    return True
        frame = frame.f_back
    return False


def _covers(node: ast.Try, line: int) -> bool:
    return node.body[0].lineno <= line <= (node.body[-1].end_lineno or node.body[-1].lineno)


def _catches(handler: ast.ExceptHandler) -> bool:
    kinds: list[Any] = getattr(handler.type, "elts", [handler.type])
    names = {getattr(kind, "id", getattr(kind, "attr", "")) for kind in kinds}
    if "OutOfMemoryError" in names:
        return True
    return (handler.type is None or bool(names & _BROAD)) and any(map(may_catch, handler.body))


@cache
def searches(site: str) -> bool:
    """Whether a turn of the loop at a line catches the error, itself or in a function of the same file."""
    file, _, line = site.rpartition(":")
    loops = (node for node in ast.walk(parse(file)) if isinstance(node, (ast.For, ast.While)))
    loop = next((node for node in loops if node.lineno == int(line)), None)
    if loop is None:
        return False
    called = {getattr(node.func, "id", getattr(node.func, "attr", "")) for node in _calls(loop)}
    functions = (node for node in ast.walk(parse(file)) if isinstance(node, ast.FunctionDef))
    parts = [loop, *(one for one in functions if one.name in called)]
    tries = (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Try))
    return any(_catches(handler) for node in tries for handler in node.handlers)


def _calls(loop: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(loop) if isinstance(node, ast.Call)]


def _user_line() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
