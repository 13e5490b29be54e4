"""Checkpoints: the last two and the best are kept, and a damaged one is never used."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pinchpoint.systems.common.training.checkpoints as checkpoints_module
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.training.checkpoints import ARRAYS, Checkpoints


def save_scores(folder: Path, scores: list[float | None]) -> Checkpoints:
    """Save a checkpoint at step 1, 2, ... with each score."""
    checkpoints = Checkpoints(folder)
    for step, score in enumerate(scores, start=1):
        checkpoints.save({"step": step, "weights": torch.full((3,), float(step))}, step=step, score=score)
    return checkpoints


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [0.5, 0.1, 0.4, 0.3, 0.2])
    assert [entry.step for entry in checkpoints.entries()] == [2, 4, 5]
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == [
        "step-00000002.pt",
        "step-00000004.pt",
        "step-00000005.pt",
    ]
    assert checkpoints.best() == checkpoints.entries()[0]
    assert checkpoints.last() == checkpoints.entries()[-1]


def test_without_scores_there_is_no_best_checkpoint(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [None, None, None])
    assert [entry.step for entry in checkpoints.entries()] == [2, 3]
    assert checkpoints.best() is None


def test_a_checkpoint_can_be_read_with_weights_only(tmp_path: Path) -> None:
    save_scores(tmp_path, [None])
    state = torch.load(tmp_path / "step-00000001.pt", weights_only=True)
    assert torch.equal(state["weights"], torch.ones(3))


@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_is_named(tmp_path: Path, harm: str) -> None:
    checkpoints = save_scores(tmp_path, [None, None])
    path = tmp_path / "step-00000002.pt"
    data = bytearray(path.read_bytes())
    if harm == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1
    path.write_bytes(data)
    last = checkpoints.last()
    assert last is not None
    with pytest.raises(
        BadInput, match=r"step-00000002\.pt is damaged; the last good one is step-00000001\.pt, step 1"
    ) as excinfo:
        checkpoints.load(last)
    assert f"Remove {path}" in excinfo.value.hint
    path.unlink()  # as the hint says
    last = checkpoints.last()
    assert last is not None
    assert checkpoints.load(last)["step"] == 1


def test_the_error_says_if_no_good_checkpoint_is_left(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [None])
    (tmp_path / "step-00000001.pt").write_bytes(b"")
    with pytest.raises(BadInput, match="there is no other"):
        checkpoints.load(checkpoints.entries()[0])


def test_checkpoints_without_their_list_are_refused_and_kept(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [None, None])
    (tmp_path / "index.json").unlink()
    with pytest.raises(BadInput, match=r"holds checkpoints, but their list index\.json is missing"):
        checkpoints.last()
    with pytest.raises(BadInput, match="list"):
        checkpoints.save({"step": 3}, step=3)
    assert len(list(tmp_path.glob("step-*"))) == 2


def test_a_kill_during_the_first_checkpoint_leaves_a_run_that_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints, write = Checkpoints(tmp_path), checkpoints_module.write_bytes

    def write_and_die(path: Path, data: bytes) -> Path:
        write(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "write_bytes", write_and_die)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save({"step": 1}, step=1)
    assert checkpoints.last() is None and checkpoints.last_step() == 0
    checkpoints.save({"step": 1}, step=1)
    assert checkpoints.last_step() == 1


def test_a_checkpoint_file_that_is_not_listed_is_ignored(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [None])
    (tmp_path / "step-00000009.pt").write_bytes(b"killed before the list was written")
    last = checkpoints.last()
    assert last is not None and last.step == 1
    checkpoints.save({"step": 2}, step=2)
    assert not (tmp_path / "step-00000009.pt").exists()


def test_a_damaged_checkpoint_list_is_named_in_the_error(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [None])
    (tmp_path / "index.json").write_text("[{", encoding="utf-8")
    with pytest.raises(BadInput, match=r"index\.json is damaged: it is not JSON \(line 1, column 3\)\."):
        checkpoints.last()


def save_arrays(folder: Path, steps: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, ARRAYS)
    for step in range(1, steps + 1):
        checkpoints.save({"arrays": {"params['w']": np.full((2, 3), step, np.float32)}, "seed": 1}, step=step)
    return checkpoints


def test_arrays_and_plain_values_come_back_bit_for_bit(tmp_path: Path) -> None:
    arrays = {"params['w']": np.full((2, 3), np.pi, np.float32), "step": np.array(7)}
    arrays["x"] = np.random.default_rng(0).normal(size=(4, 2, 3))
    checkpoints = Checkpoints(tmp_path, ARRAYS)
    checkpoints.save({"arrays": arrays, "settings": {"seed": 3}, "best": None}, step=12)
    (entry,) = checkpoints.entries()
    assert (entry.file, entry.step) == ("step-00000012.npz", 12)
    state = checkpoints.load(entry)
    assert (state["settings"], state["best"]) == ({"seed": 3}, None)
    assert {name: array.dtype for name, array in state["arrays"].items()} == {
        name: array.dtype for name, array in arrays.items()
    }
    assert all(state["arrays"][name].tobytes() == array.tobytes() for name, array in arrays.items())


def test_only_the_last_two_array_files_are_kept_and_none_is_partial(tmp_path: Path) -> None:
    (tmp_path / ".step-00000001.npz.abc").write_bytes(b"cut")
    assert [entry.step for entry in save_arrays(tmp_path, 3).entries()] == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.json",
        "step-00000002.npz",
        "step-00000003.npz",
    ]


@pytest.mark.parametrize("part", [b"\x00\x00\x00@", b'"seed": 1'])
def test_damaged_arrays_or_values_are_refused_and_the_last_good_file_is_named(
    tmp_path: Path, part: bytes
) -> None:
    checkpoints = save_arrays(tmp_path, 2)
    path = tmp_path / "step-00000002.npz"
    data = path.read_bytes()
    assert part in data
    path.write_bytes(data.replace(part, bytes(len(part))))
    last = checkpoints.last()
    assert last is not None
    with pytest.raises(
        BadInput, match=r"step-00000002\.npz is damaged; the last good one is step-00000001\.npz, step 1"
    ):
        checkpoints.load(last)


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, ARRAYS)
    checkpoints.save({"arrays": {"w": np.array([{"a": 1}], dtype=object)}}, step=1)
    with pytest.raises(BadInput, match="is damaged, and there is no other"):
        checkpoints.load(checkpoints.entries()[0])


def test_a_pickled_object_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save({"weights": torch.ones(2)}, step=1)
    (entry,) = checkpoints.entries()
    data = pickle.dumps({"weights": _Trap()})
    (checkpoints.folder / entry.file).write_bytes(data)
    index = checkpoints.folder / "index.json"
    index.write_text(index.read_text().replace(entry.sha256, hashlib.sha256(data).hexdigest()))
    with pytest.raises(BadInput, match="is damaged, and there is no other"):
        checkpoints.load(checkpoints.entries()[0])


class _Trap:
    """An object whose pickle raises an error if it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise AssertionError('the code in the file was run')",)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("file", True),
        ("file", ["x"]),
        ("file", "../other.pt"),
        ("file", ""),
        ("step", {}),
        ("step", 10**400),
        ("step", -1),
        ("step", 0.5),
        ("sha256", None),
        ("score", "low"),
        ("score", [1]),
    ],
)
def test_a_value_of_the_wrong_kind_in_the_list_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    save_scores(tmp_path, [0.5])
    entry = json.loads((tmp_path / "index.json").read_text())[0]
    (tmp_path / "index.json").write_text(json.dumps([entry | {key: value}]))
    with pytest.raises(BadInput, match="list of checkpoints"):
        Checkpoints(tmp_path).entries()


def test_a_checkpoint_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    checkpoints = save_scores(tmp_path, [0.5])
    entry = checkpoints.entries()[0]
    torch.save([1, 2], tmp_path / entry.file)
    changed = hashlib.sha256((tmp_path / entry.file).read_bytes()).hexdigest()
    with pytest.raises(BadInput, match="is damaged"):
        checkpoints.load(replace(entry, sha256=changed))
