"""Functions that modules have imported are replaced in the sandbox, and the old ones are back afterwards."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from pinchpoint.backends.sandbox.rebinding import Rebinding


class WithoutHash:
    __hash__ = None  # type: ignore[assignment]


def old() -> None: ...


def new() -> None: ...


def old_late() -> None: ...


def new_late() -> None: ...


def make_module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> Any:
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_function_is_replaced_where_it_was_imported_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_module(monkeypatch, "imported_before", kept=old, other=WithoutHash(), third=print)
    swaps = [(old, new)]
    rebinding = Rebinding(swaps)
    rebinding.apply()
    assert before.kept is new and before.third is print
    inside = make_module(monkeypatch, "imported_inside", kept=new, late=new_late)
    before.again = new  # by a function that imports when it is called
    swaps.append((old_late, new_late))
    rebinding.undo()
    assert (before.kept, before.again, inside.kept, inside.late) == (old, old, old, old_late)


def test_what_a_module_has_replaced_itself_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_module(monkeypatch, "imported_before", kept=old)
    rebinding = Rebinding([(old, new)])
    rebinding.apply()
    before.kept = print
    replaced = make_module(monkeypatch, "imported_before", kept=new)  # imported again, as another module
    rebinding.undo()
    assert before.kept is print and replaced.kept is old


def test_functions_that_are_patched_later_are_undone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    swaps: list[tuple[Any, Any]] = []
    rebinding = Rebinding(swaps)
    rebinding.apply()
    swaps.append((old, new))
    inside = make_module(monkeypatch, "imported_inside", kept=new)
    rebinding.undo()
    assert inside.kept is old


def test_an_existing_name_that_is_bound_to_a_new_function_gets_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by `global _open; _open = os.open` in a function of a module that was imported before."""
    before = make_module(monkeypatch, "imported_before", cached=None, late=None)
    swaps = [(old, new)]
    rebinding = Rebinding(swaps)
    rebinding.apply()
    swaps.append((old_late, new_late))
    before.cached, before.late = new, new_late
    rebinding.undo()
    assert (before.cached, before.late) == (old, old_late)
