"""Rewriting files: LibCST finds the node of each match by its position and keeps all other text as it is.

A file is rewritten until no fix applies, and only if the result parses. It is replaced as a whole: a reader
sees the old text or the new text. In a notebook, the cells that change are replaced.
"""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from pinchpoint.core.files import write_bytes
from pinchpoint.rules.engine.reading import CannotRead, File, decode, parse, replace_cells
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_ROUNDS = 10
Place = tuple[int, int, int, int]
Find = Callable[[File, Sequence[Rule]], "list[tuple[Source, Rule, Match]]"]

# The LibCST class for each class of ast; positions alone do not tell `x` from the statement `x`.
_CLASSES: dict[type[ast.AST], tuple[type[cst.CSTNode], ...]] = {
    ast.Call: (cst.Call,),
    ast.Name: (cst.Name,),
    ast.Attribute: (cst.Attribute,),
    ast.Constant: (cst.SimpleString, cst.Integer, cst.Float, cst.Name, cst.ConcatenatedString),
    ast.Expr: (cst.Expr,),
    ast.Assign: (cst.Assign,),
    ast.keyword: (cst.Arg,),
    ast.alias: (cst.ImportAlias,),
    ast.ImportFrom: (cst.ImportFrom,),
    ast.FunctionDef: (cst.FunctionDef,),
    ast.With: (cst.With,),
}


def fix_text(file: File, rules: Sequence[Rule], find: Find, *, unsafe: bool) -> tuple[str, int]:
    """The text with all fixes made, and how many there were."""
    count = 0
    for _ in range(_ROUNDS):
        matches = [
            (source, rule, match)
            for source, rule, match in find(file, rules)
            if rule.fix is not None and match.fixable and (unsafe or rule.fix.safe)
        ]
        if not matches:
            break
        text, made = rewrite(file.text, matches)
        if not made or text == file.text:
            break
        file = File(file.path, text, parse(text), file.cells)
        count += made
    return file.text, count


def rewrite(
    text: str, matches: Sequence[tuple[Source, Rule, Match]], *, lines_before: int = 0
) -> tuple[str, int]:
    """The text with the fix of each match made once, and how many there were.

    lines_before: how many lines of the file come before the text, if it is a part of one.
    """
    try:
        module = cst.parse_module(text)
    except (cst.ParserSyntaxError, RecursionError) as error:
        raise CannotRead("LibCST cannot parse it, so that nothing is fixed") from error
    wanted: dict[Place, list[tuple[Rule, Match]]] = {}
    for source, rule, match in matches:
        wanted.setdefault(_place(source, match.node), []).append((rule, match))
    wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
    rewrites: dict[cst.CSTNode, tuple[Rule, Match]] = {}
    for node, position in wrapper.resolve(PositionProvider).items():
        first, last = position.start.line + lines_before, position.end.line + lines_before
        place = (first, position.start.column, last, position.end.column)
        for rule, match in wanted.get(place, ()):
            if isinstance(node, _CLASSES[type(match.node)]) and node not in rewrites:
                rewrites[node] = (rule, match)
                break
    changed = wrapper.module.visit(_Rewriter(rewrites))
    assert isinstance(changed, cst.Module)
    return changed.code, len(rewrites)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, rewrites: dict[cst.CSTNode, tuple[Rule, Match]]) -> None:
        super().__init__()
        self._rewrites = rewrites

    def on_leave(self, original_node, updated_node):
        updated = super().on_leave(original_node, updated_node)
        rewrite = self._rewrites.get(original_node)
        if rewrite is None or not isinstance(updated, cst.CSTNode):
            return updated
        rule, match = rewrite
        assert rule.fix is not None
        return rule.fix.rewrite(updated, match)


def _place(source: Source, node: ast.AST) -> Place:
    """The position as LibCST counts: columns in characters, decorators not part of a function."""
    start, end = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    return (
        start,
        source.characters(start, getattr(node, "col_offset", 0)),
        end,
        source.characters(end, getattr(node, "end_col_offset", 0)),
    )


def write_fixed(file: File, text: str) -> None:
    """Replace a file by its new text, in its own encoding and with its own permissions."""
    path = Path(file.path)
    mode = path.stat().st_mode
    if file.cells:
        data = replace_cells(path.read_bytes(), text)
    else:
        old = path.read_bytes()
        data = text.encode(_encoding(old))
        assert decode(data) == text
    write_bytes(path, data)
    os.chmod(path, mode)


def _encoding(data: bytes) -> str:
    return tokenize.detect_encoding(io.BytesIO(data).readline)[0]
