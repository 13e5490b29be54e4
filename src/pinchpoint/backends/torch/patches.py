"""Attributes replaced for a while, and put back in reverse order."""

from __future__ import annotations

from typing import Any

_ABSENT = object()


class Patches:
    """`with Patches() as patches: patches.set(torch.cuda, "is_available", ...)`."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace `owner.name`; returns what was there (looked up as usual), or None."""
        before = getattr(owner, name, None)
        own = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else before
        self._undo.append((owner, name, own))
        setattr(owner, name, value)
        return before

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
