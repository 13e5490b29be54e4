"""Checkpoints, configuration and log of a run: what is written comes back, what is not its own is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc import logs
from pinchpoint.systems.vmc.checkpoints import Checkpoints
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.runs import Run, begin, read_run


def arrays(value: float = 1.0) -> dict[str, np.ndarray]:
    return {"params['w']": np.full((2, 3), value, np.float32), "step": np.array(7)}


def begun(folder: Path, what: str = "H2", **asked: object) -> Run:
    run = begin(folder, what, resume=False, **asked)  # pyright: ignore[reportArgumentType]
    run.write()
    return run


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    kept = {**arrays(np.pi), "x": np.random.default_rng(0).normal(size=(4, 2, 3))}
    Checkpoints(tmp_path).save(12, kept, {"seed": 3})
    found = Checkpoints(tmp_path).load(12)
    assert (found.step, found.told) == (12, {"seed": 3})
    assert {name: array.dtype for name, array in found.arrays.items()} == {
        name: array.dtype for name, array in kept.items()
    }
    assert all(found.arrays[name].tobytes() == array.tobytes() for name, array in kept.items())


def test_the_last_two_are_kept_and_nothing_half_written(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    (tmp_path / ".step-00000001.npz.abc").write_bytes(b"cut")
    for step in (1, 2, 3):
        kept.save(step, arrays(), {})
    assert kept.steps() == [2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000002.json",
        "step-00000002.npz",
        "step-00000003.json",
        "step-00000003.npz",
    ]


def test_arrays_whose_json_was_never_written_are_no_checkpoint(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(1, arrays(), {})
    kept.save(2, arrays(), {})
    (tmp_path / "step-00000002.json").unlink()  # as a kill between the two leaves it
    assert kept.last() == 1


@pytest.mark.parametrize("name", ["step-00000002.npz", "step-00000002.json"])
def test_a_damaged_checkpoint_is_refused_and_the_last_good_one_named(tmp_path: Path, name: str) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(1, arrays(), {"seed": 1})
    kept.save(2, arrays(), {"seed": 1})
    path = tmp_path / name
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b'"seed": 1', b'"seed": 2') if path.suffix == ".json" else data[:-20] + b"x" * 20
    )
    with pytest.raises(
        BadInput, match=r"step-00000002\.npz is damaged; the last good one is step-00000001\.npz, step 1"
    ):
        kept.load(2)


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(1, {"w": np.array([{"a": 1}], dtype=object)}, {})
    with pytest.raises(BadInput, match="is damaged, and there is no other"):
        kept.load(1)


def test_a_run_is_read_as_it_was_told(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "LiH", net="psiformer", choices={"walkers": 64, "steps": 20}, pretrain=5)
    assert read_run(tmp_path / "run") == run
    assert (run.told.settings.walkers, run.told.net.kind, run.told.pretrain) == (64, "psiformer", 5)


def test_a_folder_with_a_run_or_without_one_is_refused_as_asked(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with pytest.raises(BadInput, match="already holds a run") as caught:
        begin(tmp_path / "run", "H2", resume=False)
    assert caught.value.hint == "go on with --resume, or choose another -o"
    with pytest.raises(BadInput, match=r"no run in .*other to resume"):
        begin(tmp_path / "other", "H2", resume=True)
    with pytest.raises(BadInput, match="no molecule to train"):
        begin(tmp_path / "other", None, resume=False)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"what": "LiH"}, r"is of H2, and LiH is asked for"),
        ({"what": "H2", "bond": 2.0}, r"is of H2 with its nuclei at other places"),
        ({"what": "H2", "spin": 2}, r"is of another H2: spin \(was 0, is 2\)"),
        ({"net": "ferminet"}, r"has another network: one \(was 32, is 256\)"),
        ({"net_changes": {"determinants": 8}}, r"has another network: determinants \(was 4, is 8\)"),
        ({"choices": {"walkers": 7}}, r"was begun with another configuration: walkers \(was 512, is 7\)"),
        ({"choices": {"seed": 7}}, r"was begun with another configuration: seed \(was 0, is 7\)"),
    ],
)
def test_a_run_is_not_resumed_as_another(tmp_path: Path, asked: dict[str, object], what: str) -> None:
    begun(tmp_path)
    with pytest.raises(BadInput, match=what):
        begin(tmp_path, resume=True, **{"what": None, **asked})  # pyright: ignore[reportArgumentType]


def test_a_run_is_resumed_by_its_name_and_may_be_made_longer(tmp_path: Path) -> None:
    run = begun(tmp_path, bond=2.0)
    found = begin(tmp_path, "H2", resume=True, choices={"steps": 5000})
    assert found.told.system == run.told.system
    assert found.told.settings == replace(run.told.settings, steps=5000)
    run.checkpoints.save(300, arrays(), run.told.to_dict())
    with pytest.raises(BadInput, match="is at step 300, beyond 200"):
        begin(tmp_path, "H2", resume=True, choices={"steps": 200})


def test_a_checkpoint_of_another_molecule_or_network_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path)
    other = begin(tmp_path / "other", "LiH", resume=False)
    run.checkpoints.save(3, arrays(), other.told.to_dict())
    with pytest.raises(BadInput, match=r"step-00000003\.npz is of LiH, and the run of H2") as caught:
        run.last()
    assert caught.value.hint == "put back the checkpoints this run wrote, or start again with another -o"
    run.checkpoints.save(4, arrays(), replace(run.told, net=NetConfig.preset("report")).to_dict())
    with pytest.raises(BadInput, match=r"step-00000004\.npz is of another network: one \(was 64, is 32\)"):
        run.last()


def test_a_configuration_of_another_system_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"data": "x", "steps": 10}))
    with pytest.raises(BadInput, match="it is of a run of kind None, not of a wave function"):
        read_run(tmp_path)
    with pytest.raises(BadInput, match=r"no run in .*nowhere"):
        read_run(tmp_path / "nowhere")


def row(step: int, energy: float = -1.0) -> logs.Row:
    return logs.Row(step, energy, 0.1, 0.5, 0.3, 0.01, 0.0, step * 0.5)


def test_a_log_is_cut_back_to_the_checkpoint_and_a_half_line_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = logs.Log(path, keep_to=0)
    log.add([row(step) for step in range(1, 6)])
    with path.open("a") as file:
        file.write("6,-1.0,0.")
    again = logs.Log(path, keep_to=3)
    again.add([row(4, -1.234567891)])
    assert logs.read(path) == [row(1), row(2), row(3), row(4, -1.234567891)]


def test_a_tree_of_arrays_comes_back_in_its_own_form() -> None:
    jnp = pytest.importorskip("jax.numpy", reason="trees are JAX's")
    from pinchpoint.systems.vmc.optimization.trees import count, from_arrays, to_arrays

    class Pair(NamedTuple):
        first: object
        second: object

    tree = {"w": [jnp.arange(6.0).reshape(2, 3), jnp.zeros(())], "state": Pair(jnp.ones(2, jnp.int32), None)}
    found = to_arrays(tree)
    assert set(found) == {"['w'][0]", "['w'][1]", "['state'].first"} and count(tree) == 9
    back = from_arrays(found, tree, where="file")
    assert back["state"].second is None and np.array_equal(back["w"][0], tree["w"][0])
    with pytest.raises(
        BadInput, match=r"file is of another network: \['w'\]\[0\] has shape \(3, 2\), and \(2, 3\) is wanted"
    ):
        from_arrays({**found, "['w'][0]": np.zeros((3, 2), np.float32)}, tree, where="file")
    with pytest.raises(BadInput, match=r"\['w'\]\[1\] is float64, and float32 is wanted"):
        from_arrays({**found, "['w'][1]": np.zeros(())}, tree, where="file")
    with pytest.raises(BadInput, match=r"\['more'\] is in only one of the two"):
        from_arrays({**found, "['more']": np.zeros(1)}, tree, where="file")
