"""The picture of the demo shows labels that are mostly correct, and nothing else is left in its folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the system needs torch")

from pinchpoint.systems.cloud.demo import draw


def test_the_packaged_network_labels_most_points_of_an_unseen_room(tmp_path: Path) -> None:
    result = draw(tmp_path, device="cpu", seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["cloud.png"]
    assert result.path.read_bytes().startswith(b"\x89PNG")
    full, fewer = (int(share) for share in re.findall(r"(\d+)%", result.caption))
    assert full >= 85 and fewer >= 78
