"""The modules of a record for readers: repeated layers in one row, without the model's own name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pinchpoint.core.units import common_root
from pinchpoint.reporting.record_reader import count, word


@dataclass(frozen=True)
class ModuleBytes:
    """The bytes of a module, or of `count` repeated ones; equal: whether each has the same bytes."""

    name: str
    count: int
    bytes: int
    equal: bool

    @property
    def label(self) -> str:
        """The name with how often the module is repeated: `h.*.mlp (12 ×)`."""
        return f"{self.name} ({self.count} ×)" if self.count > 1 else self.name


def merged_modules(modules: Iterable[Mapping[str, Any]]) -> list[ModuleBytes]:
    """Return the modules with the largest first.

    `blocks.8.mlp` joins the row of `blocks.*.mlp`, from which only its bytes set it apart. What a module
    holds besides its parts is called `blocks.* (itself)`.
    """
    rows: dict[str, tuple[int, int, bool]] = {}
    for module in modules:
        name, repeats, size = word(module, "name"), count(module, "count") or 1, count(module, "bytes") or 0
        each = count(module, "bytes_each")
        equal = each is None or repeats * each == size  # the record rounds the mean of layers that differ
        # Layers of two sizes are two entries of the same name.
        if before := rows.get(name):
            repeats, size, equal = before[0] + repeats, before[1] + size, False
        rows[name] = (repeats, size, equal)
    for pattern in [name for name in rows if "*" in name.split(".")[:-1]]:
        parts = [r"\d+" if part == "*" else re.escape(part) for part in pattern.split(".")]
        for name in [name for name in rows if re.fullmatch(r"\.".join(parts), name)]:
            repeats, size, _ = rows.pop(name)
            rows[pattern] = (rows[pattern][0] + repeats, rows[pattern][1] + size, False)
    root = common_root(rows)
    named = []
    for name, (repeats, size, equal) in rows.items():
        shown = name.removeprefix(root) or "outside modules"
        if name and any(other.startswith(f"{name}.") for other in rows):
            shown += " (itself)"
        named.append(ModuleBytes(shown, repeats, size, equal))
    return sorted(named, key=lambda module: (-module.bytes, module.name))
