"""What a rule is: a number, a name, texts, and a function that finds places in a source.

A rule is one module with a `RULE`. Its docstring is the documentation and the test: one or more paragraphs,
then an example under `Bad:` and one under `Good:`. Where a rule has a fix, fixing the bad example gives the
good one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pinchpoint.rules.engine.source import Source

if TYPE_CHECKING:
    import libcst as cst

FAMILIES = {1: "waits", 2: "recompiles", 3: "memory", 4: "copies", 5: "answers"}


@dataclass(frozen=True)
class Match:
    """A place where a rule applies. values: fill the placeholders of the rule's message and hint."""

    node: ast.expr | ast.stmt | ast.arg | ast.keyword | ast.alias
    values: dict[str, str] = field(default_factory=dict)
    fixable: bool = True  # whether the rule's fix applies to this place
    detail: Any = None  # what the fix needs besides the node


Check = Callable[[Source], Iterator[Match]]
# Takes the LibCST node at the place of the match, with nested fixes made, and returns what replaces it.
Rewrite = Callable[["cst.CSTNode", Match], "cst.CSTNode | cst.RemovalSentinel"]


@dataclass(frozen=True)
class Fix:
    """How a match is rewritten. safe: the program computes the same results afterwards."""

    rewrite: Rewrite
    safe: bool


@dataclass(frozen=True)
class Rule:
    number: int
    name: str
    message: str
    hint: str
    check: Check
    fix: Fix | None = None

    @property
    def code(self) -> str:
        return f"PP{self.number}"

    @property
    def family(self) -> str:
        return FAMILIES[self.number // 100]

    @property
    def about(self) -> str:
        """The docstring of the rule's module."""
        return sys.modules[self.check.__module__].__doc__ or ""

    @property
    def title(self) -> str:
        return self.about.partition("\n")[0]

    def examples(self) -> tuple[str, str]:
        """The bad and the good example of the docstring."""
        return _block(self.about, "Bad"), _block(self.about, "Good")

    def text(self) -> str:
        """The paragraphs between the title and the examples."""
        return self.about.partition("\n")[2].partition("\nBad:\n")[0].strip()


def _block(about: str, head: str) -> str:
    found = re.search(
        rf"^{head}:\n\n((?:    .*\n|\n)+)", about if about.endswith("\n") else about + "\n", re.M
    )
    assert found, f"no example under {head}:"
    return re.sub(r"^    ", "", found.group(1), flags=re.M).strip("\n") + "\n"
