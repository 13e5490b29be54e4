"""Files and folders: refused before the work, never half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder


def test_a_folder_that_is_only_checked_leaves_nothing(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "kept").mkdir()
    check_folder(tmp_path / "kept")
    assert (tmp_path / "kept").is_dir()
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(BadInput, match="cannot make the folder"):
        check_folder(tmp_path / "file" / "run")
