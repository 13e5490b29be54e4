"""Temporary replacements of attributes, defaults and environment variables, undone in reverse order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Self

_ABSENT = object()


class Patches:
    """`with Patches() as patches: patches.set(torch.cuda, "is_available", ...)`, or `undo()` by hand."""

    def __init__(self) -> None:
        self._attributes: list[tuple[Any, str, Any]] = []
        self._environment: list[tuple[str, str | None]] = []
        self._suspended: list[tuple[Any, str, Any]] = []  # the replacements that are suspended

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace `owner.name` and return its previous value (looked up as usual), or None.

        `undo` deletes an attribute that was inherited or absent before.
        """
        before = getattr(owner, name, None)
        own = vars(owner).get(name, _ABSENT) if hasattr(owner, "__dict__") else before
        self._attributes.append((owner, name, own))
        setattr(owner, name, value)
        return before

    def set_defaults(self, function: Any, values: tuple[Any, ...]) -> None:
        """Replace the default values of a function's arguments."""
        self._attributes.append((function, "__defaults__", function.__defaults__))
        function.__defaults__ = values

    def set_environment(self, name: str, value: str) -> None:
        self._environment.append((name, os.environ.get(name)))
        os.environ[name] = value

    def replaced_functions(self) -> list[tuple[Any, Any]]:
        """Pairs of a module's function and what replaces it."""
        return [
            (before, vars(owner)[name])
            for owner, name, before in self._attributes
            if isinstance(owner, ModuleType)
        ]

    def is_replaced(self, value: object) -> bool:
        """Whether a value is what an attribute had before it was replaced."""
        return any(value is before for _, _, before in self._attributes)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within this context, attributes have their previous values."""
        self._suspended = [
            (owner, name, vars(owner)[name] if hasattr(owner, "__dict__") else getattr(owner, name))
            for owner, name, _ in self._attributes
        ]
        self._suspend()
        try:
            yield
        finally:
            self._resume()
            self._suspended = []

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Within `suspended()`: within this context, attributes are replaced again."""
        self._resume()
        try:
            yield
        finally:
            self._suspend()

    def _suspend(self) -> None:
        for owner, name, before in reversed(self._attributes):
            _restore(owner, name, before)

    def _resume(self) -> None:
        for owner, name, value in self._suspended:
            setattr(owner, name, value)

    def undo(self) -> None:
        while self._attributes:
            _restore(*self._attributes.pop())
        while self._environment:
            name, text = self._environment.pop()
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
