"""Checkpoints: the last two and the best are kept, and a damaged one is never used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.checkpoints import Checkpoints


def filled(folder: Path, scores: list[float | None]) -> Checkpoints:
    """A checkpoint at step 1, 2, ... for each score."""
    made = Checkpoints(folder)
    for step, score in enumerate(scores, start=1):
        made.save({"step": step, "weights": torch.full((3,), float(step))}, step=step, score=score)
    return made


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    made = filled(tmp_path, [0.5, 0.1, 0.4, 0.3, 0.2])
    assert [entry.step for entry in made.entries()] == [2, 4, 5]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "step-00000002.pt",
        "step-00000004.pt",
        "step-00000005.pt",
    ]
    assert made.best() == made.entries()[0]
    assert made.last() == made.entries()[-1]


def test_without_scores_there_is_no_best(tmp_path: Path) -> None:
    made = filled(tmp_path, [None, None, None])
    assert [entry.step for entry in made.entries()] == [2, 3]
    assert made.best() is None


def test_a_checkpoint_can_be_read_with_weights_only(tmp_path: Path) -> None:
    filled(tmp_path, [None])
    state = torch.load(tmp_path / "step-00000001.pt", weights_only=True)
    assert torch.equal(state["weights"], torch.ones(3))


@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(tmp_path: Path, harm: str) -> None:
    made = filled(tmp_path, [None, None])
    path = tmp_path / "step-00000002.pt"
    data = bytearray(path.read_bytes())
    if harm == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)
    last = made.last()
    assert last is not None
    with pytest.raises(
        BadInput, match=r"step-00000002\.pt is damaged; the last good one is step-00000001\.pt, step 1"
    ) as caught:
        made.load(last)
    assert f"remove {path}" in caught.value.hint
    path.unlink()  # what the hint says
    last = made.last()
    assert last is not None
    assert made.load(last)["step"] == 1


def test_with_no_good_one_left_the_error_says_so(tmp_path: Path) -> None:
    made = filled(tmp_path, [None])
    (tmp_path / "step-00000001.pt").write_bytes(b"")
    with pytest.raises(BadInput, match="there is no other"):
        made.load(made.entries()[0])


def test_a_file_that_was_written_but_not_listed_is_ignored(tmp_path: Path) -> None:
    made = filled(tmp_path, [None])
    (tmp_path / "step-00000009.pt").write_bytes(b"killed before the list was written")
    last = made.last()
    assert last is not None and last.step == 1
    made.save({"step": 2}, step=2)
    assert not (tmp_path / "step-00000009.pt").exists()


def test_a_damaged_list_is_an_error_that_names_it(tmp_path: Path) -> None:
    made = filled(tmp_path, [None])
    (tmp_path / "index.json").write_text("[{", encoding="utf-8")
    with pytest.raises(BadInput, match=r"index\.json is damaged"):
        made.last()
