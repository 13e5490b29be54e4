"""Configuration, checkpoints and log of a run: what is written comes back, what belongs to another run is
refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.training.runs import Log, Row, Run, RunConfig, begin, read_run


def state(config: RunConfig) -> dict[str, Any]:
    return {"settings": config.to_dict(), "arrays": {"step": np.array(7)}}


def begun(folder: Path, molecule: str = "H2", **options: Any) -> Run:
    run = begin(folder, molecule, resume=False, **options)
    run.write()
    return run


def test_a_run_is_read_as_it_was_told(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "LiH", net="psiformer", choices={"walkers": 64, "steps": 20}, pretrain=5)
    assert read_run(tmp_path / "run") == run
    assert (run.config.settings.walkers, run.config.net.kind, run.config.pretrain) == (64, "psiformer", 5)


def test_a_folder_with_a_run_or_without_one_is_refused_as_asked(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with pytest.raises(BadInput, match="already holds a run"):
        begin(tmp_path / "run", "H2", resume=False)
    with pytest.raises(BadInput, match=r"no run in .*other to resume"):
        begin(tmp_path / "other", "H2", resume=True)
    with pytest.raises(BadInput, match="There is no molecule to train"):
        begin(tmp_path / "other", None, resume=False)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"molecule": "LiH"}, r"is of H2, not of LiH"),
        ({"molecule": "H2", "bond": 2.0}, r"is of H2 with its nuclei at other positions"),
        ({"molecule": "H2", "spin": 2}, r"is of another state of H2: spin \(was 0, is 2\)"),
        ({"net": "ferminet"}, r"has another network: one \(was 32, is 256\)"),
        ({"net_changes": {"determinants": 8}}, r"has another network: determinants \(was 4, is 8\)"),
        ({"choices": {"walkers": 7}}, r"was started with other settings: walkers \(was 512, is 7\)"),
        ({"choices": {"seed": 7}}, r"was started with other settings: seed \(was 0, is 7\)"),
    ],
)
def test_a_run_is_not_resumed_as_another(tmp_path: Path, asked: dict[str, object], what: str) -> None:
    begun(tmp_path)
    with pytest.raises(BadInput, match=what):
        begin(tmp_path, resume=True, **{"molecule": None, **asked})  # pyright: ignore[reportArgumentType]


def test_a_run_is_resumed_by_its_name_and_may_be_made_longer(tmp_path: Path) -> None:
    run = begun(tmp_path, bond=2.0)
    found = begin(tmp_path, "H2", resume=True, choices={"steps": 5000})
    assert found.config.system == run.config.system
    assert found.config.settings == replace(run.config.settings, steps=5000)
    run.checkpoints.save(state(run.config), step=300)
    with pytest.raises(BadInput, match="is at step 300, beyond 200"):
        begin(tmp_path, "H2", resume=True, choices={"steps": 200})


def test_a_checkpoint_of_another_molecule_or_network_is_refused(tmp_path: Path) -> None:
    run = begun(tmp_path)
    other = begin(tmp_path / "other", "LiH", resume=False)
    run.checkpoints.save(state(other.config), step=3)
    with pytest.raises(BadInput, match=r"step-00000003\.npz belongs to LiH, but the run is of H2") as caught:
        run.resumed_state()
    assert caught.value.hint.startswith("Restore the checkpoints that this run wrote")
    run.checkpoints.save(state(replace(run.config, net=NetConfig.preset("report"))), step=4)
    with pytest.raises(
        BadInput, match=r"step-00000004\.npz belongs to another network: one \(was 64, is 32\)"
    ):
        run.resumed_state()


def test_a_configuration_of_another_system_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"data": "x", "steps": 10}))
    with pytest.raises(BadInput, match="it belongs to a run of kind None, not to a wave function"):
        read_run(tmp_path)
    with pytest.raises(BadInput, match=r"no run in .*nowhere"):
        read_run(tmp_path / "nowhere")


def row(step: int, energy: float = -1.0) -> Row:
    return Row(step, energy, 0.1, 0.5, 0.3, 0.01, 0.0, step * 0.5)


def test_a_log_is_cut_back_to_the_checkpoint_and_a_half_line_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = Log(path, keep_to=0)
    log.add([row(step) for step in range(1, 6)])
    with path.open("a") as file:
        file.write("6,-1.0,0.")
    again = Log(path, keep_to=3)
    again.add([row(4, -1.234567891)])
    assert Log.read(path) == [row(1), row(2), row(3), row(4, -1.234567891)]


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
        BadInput,
        match=r"file belongs to another network: \['w'\]\[0\] has shape \(3, 2\), but \(2, 3\) is expected",
    ):
        from_arrays({**found, "['w'][0]": np.zeros((3, 2), np.float32)}, tree, where="file")
    with pytest.raises(BadInput, match=r"\['w'\]\[1\] is float64, but float32 is expected"):
        from_arrays({**found, "['w'][1]": np.zeros(())}, tree, where="file")
    with pytest.raises(BadInput, match=r"\['more'\] is in only one of them"):
        from_arrays({**found, "['more']": np.zeros(1)}, tree, where="file")
