"""The picture of the demo is drawn after any number of steps, and nothing else is left in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("jax", reason="the system needs jax")

from pinchpoint.systems.vmc.demo import draw


@pytest.mark.slow
def test_the_picture_and_its_caption_tell_what_was_trained(tmp_path: Path) -> None:
    result = draw(tmp_path, device="cpu", seed=0, steps=2)
    assert [path.name for path in tmp_path.iterdir()] == ["vmc.png"]
    assert result.path.read_bytes().startswith(b"\x89PNG")
    assert "2 steps" in result.caption and "Trained for 2 steps" in result.caption
