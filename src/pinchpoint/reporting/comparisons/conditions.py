"""Notes on what differs between two records besides their results: targets, sizes, settings, versions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pinchpoint.core.records import Record


def differing_conditions(before: Record, after: Record, names: Sequence[str]) -> Iterable[str]:
    """A sentence for each attribute of `names`, each setting and each version that differs."""
    for name in names:
        yield from _sentence(name.replace("_", " "), getattr(before, name), getattr(after, name))
    for label, key in (("setting", "settings"), ("version of", "versions")):
        first, second = (_dictionary(record, key) for record in (before, after))
        for name in dict.fromkeys([*first, *second]):
            yield from _sentence(f"{label} {name}", first.get(name), second.get(name))


def _dictionary(record: Record, key: str) -> dict[str, Any]:
    if key == "versions":
        return dict((getattr(record, "machine", None) or {}).get("versions") or {})
    return dict(getattr(record, key, None) or {})


def _sentence(name: str, first: object, second: object) -> Iterable[str]:
    if first != second:
        shown = ["none" if value is None else str(value) for value in (first, second)]
        yield f"The {name} differs: {shown[0]} before, {shown[1]} after."
