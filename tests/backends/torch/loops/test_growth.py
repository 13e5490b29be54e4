"""Growth of a loop is counted for turns that were not run only if the script removes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinchpoint.backends.torch.loops.growth import removes


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kept.append(x)", False),
        ("kept[step] = x", False),
        ("if step % 100 == 0: print(kept[:5], kept[1:])", False),
        ("if best is None: best = x", False),
        ("kept = kept[-100:]", True),
        ("if len(kept) > 100: kept.pop(0)", True),
        ("if len(kept) > 100: del kept[0]", True),
        ("if step % 100 == 0: kept = []", True),
        ("if step % 100 == 0: kept = dict()", True),
        ("kept[step % 100] = x", True),
        ("place = (place + 1) % 100; kept[place] = x", True),
    ],
)
def test_lines_that_remove_what_is_kept_are_known(tmp_path: Path, line: str, expected: bool) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for step in range(1000):\n    {line}\n", encoding="utf-8")
    assert removes(str(file), limits=True) is expected


def test_a_maximum_length_counts_unless_it_was_found(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("kept = deque(maxlen=100)\n", encoding="utf-8")
    assert removes(str(file), limits=True) and not removes(str(file), limits=False)
