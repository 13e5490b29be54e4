"""Comments that allow a finding: `# pinchpoint: allow sync-in-loop`, for several rules with commas.

A comment counts for its own line, for every line of the expression or simple statement it ends, and, on a
line of its own, for the next line of code.
"""

from __future__ import annotations

import ast
import re

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source

_COMMENT = re.compile(r"#\s*pinchpoint:\s*allow\s+([\w ,-]+)")


def allowances(source: Source) -> dict[int, set[str]]:
    """The names and numbers of rules that comments allow, by line."""
    allowed: dict[int, set[str]] = {}
    if "pinchpoint:" not in source.text:
        return allowed
    for number, line in enumerate(source.lines, 1):
        found = _COMMENT.search(line)
        if found is None:
            continue
        names = {word.lower() for word in re.split(r"[ ,]+", found.group(1)) if word}
        target = number
        if line.lstrip().startswith("#"):
            target = next(
                (
                    n
                    for n in range(number + 1, len(source.lines) + 1)
                    if source.lines[n - 1].strip() and not source.lines[n - 1].lstrip().startswith("#")
                ),
                number,
            )
        allowed.setdefault(target, set()).update(names)
    return allowed


def is_allowed(source: Source, rule: Rule, match: Match, allowed: dict[int, set[str]]) -> bool:
    if not allowed:
        return False
    first, last = match.node.lineno, match.node.end_lineno or match.node.lineno
    statement = source.statement(match.node) if match.node in source.parents else match.node
    if hasattr(statement, "body"):
        last = match.node.lineno if statement is match.node else last  # a loop: its first line only
    elif isinstance(statement, ast.stmt):
        first, last = statement.lineno, statement.end_lineno or statement.lineno
    names = {name for line in range(first, last + 1) for name in allowed.get(line, ())}
    return bool(names & {rule.name, rule.code.lower()})
