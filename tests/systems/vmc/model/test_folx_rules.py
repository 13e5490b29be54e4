"""Rules given to folx: written once, only where folx is in use."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pinchpoint.systems.vmc.model.folx_rules import register_rules


def test_a_rule_is_written_once_however_often_a_function_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    held: dict[str, Any] = {}
    writes: list[str] = []

    def register(name: str, rule: Any) -> None:
        writes.append(name)
        held[name] = rule

    told = SimpleNamespace(is_registered=held.__contains__, register_function=register)
    monkeypatch.setitem(sys.modules, "folx.wrapped_functions", told)
    for _ in range(3):
        register_rules({"a": len, "b": abs})
    assert writes == ["a", "b"] and held == {"a": len, "b": abs}


def test_without_folx_nothing_is_imported_and_nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "folx.wrapped_functions", raising=False)
    register_rules({"a": len})
    assert "folx.wrapped_functions" not in sys.modules
