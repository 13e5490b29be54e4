"""The description of the machine in a record."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from pinchpoint.core.machine import describe


@pytest.mark.parametrize(("platform", "told"), [("gpu", "a card"), ("cpu", None)])
def test_a_card_that_only_jax_sees_is_named(
    platform: str, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(platform=platform, device_kind="a card")
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    )
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: [device]))
    assert describe()["gpu"] == told
