"""`suggest`: findings with the lines of their statements, and the fix of each one as a unified diff."""

from __future__ import annotations

import ast
import difflib
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinchpoint.core.findings import Finding, Unreadable
from pinchpoint.rules.engine.catalog import find_rule
from pinchpoint.rules.engine.reading import CannotRead, File, read_file
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source
from pinchpoint.rules.scan import find_jobs, matches_in, to_finding

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Suggestion:
    """A finding, the first and last line of its statement, and its fix.

    A finding about a loop has the lines of the whole loop. In a notebook there are no lines and no diff.
    diff: empty if the rule cannot rewrite this place. is_safe: whether the fix keeps all results.
    """

    finding: Finding
    first_line: int
    last_line: int
    diff: str = ""
    is_safe: bool = False


def suggest(paths: Sequence[str | Path]) -> tuple[list[Suggestion], list[Unreadable]]:
    """Scan files as `scan` does, and return their findings and the files that could not be read."""
    suggestions: list[Suggestion] = []
    unreadable: list[Unreadable] = []
    for job in find_jobs(paths):
        try:
            file = read_file(job.path)
            matches = matches_in(file, tuple(find_rule(name) for name in job.rules))
        except CannotRead as error:
            unreadable.append(Unreadable(job.path, str(error)))
            continue
        suggestions += [_suggestion(file, source, rule, match) for source, rule, match in matches]
    suggestions.sort(key=lambda each: (each.finding.file, each.finding.line, each.finding.column))
    return suggestions, unreadable


def show_diff(path: str, before: str, after: str) -> str:
    """The unified diff of a file, named by its path from the current folder."""
    name = os.path.relpath(path)
    name = path if name.startswith("..") else name
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def _suggestion(file: File, source: Source, rule: Rule, match: Match) -> Suggestion:
    finding = to_finding(file, source, rule, match)
    if file.cells:
        return Suggestion(finding, finding.line, finding.line)
    first, last = _lines(file.tree, match.node)
    if rule.fix is None or not match.fixable:
        return Suggestion(finding, first, last)
    diff = _diff(file, source, rule, match)
    return Suggestion(finding, first, last, diff, is_safe=bool(diff) and rule.fix.safe)


def _diff(file: File, source: Source, rule: Rule, match: Match) -> str:
    """The fix of one match. Only the statement of the module around it is parsed again, which is quick."""
    from pinchpoint.rules.engine import fixing

    lines = file.text.split("\n")
    outer = _outer(file.tree, match.node)
    first = _start(outer) - 1
    last = _end(outer)
    if "\r" in file.text:  # other line ends count as well
        first, last = 0, len(lines)
    try:
        text, count = fixing.rewrite(
            "\n".join(lines[first:last]), [(source, rule, match)], lines_before=first
        )
    except CannotRead:
        return ""
    if not count:
        return ""
    after = "\n".join([*lines[:first], *text.split("\n"), *lines[last:]])
    return show_diff(file.path, file.text, after)


def _lines(tree: ast.Module, node: ast.AST) -> tuple[int, int]:
    """The lines of the innermost statement around a node; of a compound statement, those of its head."""
    line = getattr(node, "lineno", 0)
    end = getattr(node, "end_lineno", None) or line
    if isinstance(node, _LOOPS):
        return line, end
    first, last = line, end
    for statement in ast.walk(_outer(tree, node)):  # outer statements come before inner ones
        if isinstance(statement, ast.stmt) and statement.lineno <= line and end <= _end(statement):
            first, last = _start(statement), _end(statement)
            body = getattr(statement, "body", None)
            if body and line < body[0].lineno:
                last = max(line, body[0].lineno - 1)
    return first, last


def _outer(tree: ast.Module, node: ast.AST) -> ast.stmt:
    """The statement of the module that contains a node."""
    at = bisect_right(tree.body, getattr(node, "lineno", 0), key=_start)
    return tree.body[max(at - 1, 0)]


def _start(statement: ast.stmt) -> int:
    """The first line, decorators included."""
    return min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", ()))])


def _end(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno
