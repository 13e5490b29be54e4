"""Findings: what `scan` reports, one per place in the source.

The JSON form is a contract with other tools: an object with one key, `findings`, a list of objects with
`rule`, `name`, `file`, `line`, `column`, `message`, `hint`, and `fixable`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One place where a rule applies. Lines and columns count from 1; in a notebook, the line is the
    cell's."""

    rule: str  # PP101
    name: str  # sync-in-loop
    file: str
    line: int
    column: int
    message: str
    hint: str
    fixable: bool  # whether --fix or --unsafe-fixes can rewrite it

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Unreadable:
    """A file that was not scanned, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Findings:
    """All findings of one scan, in the order of files and lines. `fixed` counts what was rewritten."""

    findings: tuple[Finding, ...]
    files: int
    unreadable: tuple[Unreadable, ...] = ()
    fixed: int = 0

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def to_json(self) -> str:
        return json.dumps({"findings": [finding.to_dict() for finding in self.findings]}, indent=1)
