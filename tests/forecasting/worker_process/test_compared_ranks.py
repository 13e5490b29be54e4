"""The ranks that a script compares its own with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.core.ranks import make_rank
from pinchpoint.forecasting.worker_process.compared_ranks import compared_ranks


@pytest.mark.parametrize(
    ("comparison", "ranks"),
    [
        ("rank == 3", [0, 3]),
        ("dist.get_rank() > 4", [0, 5]),
        ("self.rank // 4 == 2", [0, 8]),
        ("args.local_rank == 2", [0, 2]),
        ("rank in (5, 6)", [0, 5]),
        ("rank == world_size - 2", [0, 14]),
        ("rank == last", []),  # another name
        ("rank == 99", [0]),
        ("rank % 0 == 1", []),
        ("rank < 'a'", []),
        ("frank == 3", [0, 3]),  # the end of a name counts
    ],
)
def test_the_first_rank_with_each_answer_is_found(tmp_path: Path, comparison: str, ranks: list[int]) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"if {comparison}:\n    pass\n", encoding="utf-8")
    assert compared_ranks(path, make_rank(0, 16)) == ranks


@pytest.mark.parametrize("text", ["if rank ==", "\0", ""])
def test_a_file_that_is_no_python_has_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text, encoding="utf-8")
    assert compared_ranks(path, make_rank(0, 16)) == []
    assert compared_ranks(tmp_path / "absent.py", make_rank(0, 16)) == []
