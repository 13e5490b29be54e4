"""Training a wave function: a resumed run equals one that was not stopped, and errors say what is wrong."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.core.errors import BadInput, Diverged, Missing
from pinchpoint.systems.common.training.training_loop import Report
from pinchpoint.systems.vmc import train as trainer
from pinchpoint.systems.vmc.analysis.plots import draw_convergence
from pinchpoint.systems.vmc.data.hartree_fock import orbitals_for
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.optimization import programs
from pinchpoint.systems.vmc.optimization.devices import Host
from pinchpoint.systems.vmc.optimization.driver import find_fault, floor_ha, likely_cause
from pinchpoint.systems.vmc.optimization.warm_start import move, resize
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.runs import Log, Row, read_run


def at_step(number: int, act: Callable[[], None]) -> Callable[[Report], None]:
    """A progress callback that acts once the numbers of that step are read."""

    def watch(report: Report) -> None:
        if report.stage == "train" and report.done == number:
            act()

    return watch


def arrays_of(run: Path) -> dict[str, np.ndarray]:
    state = read_run(run).resumed_state()
    assert state is not None
    return state["arrays"]


@pytest.fixture
def whole(
    tiny: dict[str, Any], whole_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An uninterrupted run that all tests share: read it, do not write to it."""
    return _whole("tiny", tiny, whole_runs, tmp_path_factory)


@pytest.fixture(scope="module")
def whole_runs() -> dict[str, Path]:
    """The runs so far, by the name of their options."""
    return {}


def _whole(
    name: str, choices: dict[str, Any], made: dict[str, Path], folders: pytest.TempPathFactory
) -> Path:
    if name not in made:
        made[name] = folders.mktemp("whole") / name
        train("H", made[name], **choices)
    return made[name]


@pytest.mark.parametrize(
    ("number", "raised", "code", "made_of"),
    [(signal.SIGTERM, SystemExit, 143, "tiny_network"), (signal.SIGINT, KeyboardInterrupt, None, "tiny")],
)
def test_a_run_stopped_by_a_signal_and_resumed_equals_one_that_was_not(
    tmp_path: Path,
    number: int,
    raised: Any,
    code: int | None,
    made_of: str,
    request: pytest.FixtureRequest,
    whole_runs: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    choices = request.getfixturevalue(made_of)
    folder, reports = tmp_path / "run", []
    whole = _whole(made_of, choices, whole_runs, tmp_path_factory)
    stopping = at_step(10, lambda: os.kill(os.getpid(), number))

    def watch(report: Report) -> None:
        reports.append(report)
        stopping(report)

    with pytest.raises(raised) as caught:
        train("H", folder, progress=watch, **choices)
    assert code is None or caught.value.code == code
    stopped = reports[-1]
    assert stopped.stage == "stopped" and stopped.done in (10, 20) and stopped.total == 40
    assert read_run(folder).checkpoints.last_step() == stopped.done
    assert json.loads((folder / "record.json").read_text())["complete"] is False

    made = train(None, folder, device="cpu", resume=True)
    assert made.complete and made.step == 40
    ours, theirs = arrays_of(folder), arrays_of(whole)
    assert set(ours) == set(theirs)
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)

    def timeless(run: Path) -> list[Row]:
        return [replace(row, seconds=0.0) for row in Log.read(run / "log.csv")]

    assert timeless(folder) == timeless(whole)
    assert [row.step for row in timeless(folder)] == list(range(1, 41))


def test_a_run_leaves_what_it_says(
    whole: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "draw_convergence", draw_convergence)
    train(None, whole, device="cpu", resume=True)  # it is complete: only the plot is drawn again
    assert sorted(path.name for path in whole.iterdir()) == [
        "checkpoints",
        "config.json",
        "convergence.png",
        "log.csv",
        "record.json",
    ]
    record = json.loads((whole / "record.json").read_text())
    assert record["kind"] == "vmc-training" and record["complete"] and record["reference_ha"] == -0.5
    assert record["parameters"] == sum(
        a.size for name, a in arrays_of(whole).items() if name.startswith("params")
    )
    assert (whole / "convergence.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    last = [row.energy_ha for row in Log.read(whole / "log.csv")][-4:]
    assert record["energy_ha"] == pytest.approx(np.mean(last), rel=1e-9)


def test_a_run_compiles_each_of_its_programs_once_and_says_which(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[int, str]] = []
    plain = programs.make_steps

    def make(wave: Any, settings: Settings, count: int, *, stage: Any, mesh: Any) -> Any:
        made.append((count, stage))
        return plain(wave, settings, count, stage=stage, mesh=mesh)

    monkeypatch.setattr(programs, "make_steps", make)
    notes: list[str] = []
    train(
        "H",
        tmp_path / "run",
        progress=lambda r: notes.append(r.note) if r.stage == "compile" else None,
        **tiny,
    )
    assert sorted(made) == [(10, "adam"), (10, "spring")]
    assert notes[0] == "steps: 10 by SPRING" and any("10 by Adam" in note for note in notes)


TWO_SEEDS = """
import importlib.util, sys
import jax
from pinchpoint.systems.vmc import train
from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache
found = importlib.util.spec_from_file_location("made", sys.argv[1])
made = importlib.util.module_from_spec(found)
sys.modules["made"] = made
found.loader.exec_module(made)
train.wave_function = made.product
folder = use_compile_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rsplit("/", 1)[-1]))
for seed in (0, 1):
    events.clear()
    jax.clear_caches()  # as a new process would find them
    options = {**made.SMALL, "optimizer": "adam", "steps": 10}
    train.train("H", f"{sys.argv[2]}/{seed}", seed=seed, **options)
    kept = len([path for path in folder.iterdir() if path.name.endswith("-cache")])
    print(events.count("cache_hits"), events.count("cache_misses"), kept)
"""


def test_a_run_with_another_seed_compiles_nothing_anew(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    script = [sys.executable, "-c", TWO_SEEDS, str(Path(__file__).with_name("conftest.py")), str(tmp_path)]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = [[int(part) for part in line.split()] for line in done.stdout.splitlines()[-2:]]
    (_, misses, kept), (hits, missed, kept_after) = counts
    assert misses >= 2 and kept >= 2  # Adam's and the warm-up's programs
    assert missed == 0 and hits >= misses and kept_after == kept
    first, second = (Log.read(tmp_path / seed / "log.csv") for seed in ("0", "1"))
    assert first[0].energy_ha != second[0].energy_ha


def test_a_run_is_made_longer_and_keeps_what_it_has(
    whole: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    train("H", tmp_path / "run", **{**tiny, "steps": 20})
    made = train("H", tmp_path / "run", device="cpu", resume=True, steps=40)
    assert made.step == 40
    ours, theirs = arrays_of(tmp_path / "run"), arrays_of(whole)
    assert all(ours[name].tobytes() == theirs[name].tobytes() for name in ours)


def test_a_stopped_run_may_end_sooner_than_it_was_to_and_still_go_on(
    whole: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train("H", run, progress=at_step(10, lambda: os.kill(os.getpid(), signal.SIGINT)), **tiny)
    at = read_run(run).checkpoints.last_step()
    assert at in (10, 20)
    made = train("H", run, resume=True, **{**tiny, "steps": at + 5})  # no whole block
    assert made.complete and made.step == at + 5 and read_run(run).config.settings.steps == at + 5
    with pytest.raises(BadInput, match=f"is at step {at + 5}, beyond {at}") as caught:
        train(None, run, device="cpu", resume=True, steps=at)
    assert caught.value.hint == f"Give --steps more than {at + 5}."
    assert train(None, run, device="cpu", resume=True, steps=40).step == 40
    ours, theirs = (Log.read(one / "log.csv") for one in (run, whole))
    assert [row.step for row in ours] == list(range(1, 41))
    assert [row.energy_ha for row in ours] == pytest.approx([row.energy_ha for row in theirs], rel=1e-4)


SEVERAL = """
import importlib.util, sys
from pathlib import Path
from pinchpoint.systems.vmc import train
found = importlib.util.spec_from_file_location("made", sys.argv[1])
made = importlib.util.module_from_spec(found)
sys.modules["made"] = made
found.loader.exec_module(made)
train.wave_function = made.product
told = lambda report: report.note.startswith("devices") and print(report.note)
record = train.train(None, sys.argv[2], device="cpu", resume=True, steps=2, progress=told)
print(record.devices, record.step)
"""


def test_a_run_goes_on_with_as_many_devices_as_share_its_walkers(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    train("H", tmp_path / "one", **{**tiny, "walkers": 6, "steps": 1, "optimizer": "adam"})
    shutil.copytree(tmp_path / "one", tmp_path / "four")
    train("H", tmp_path / "one", device="cpu", resume=True, steps=2)
    told = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    flags = {**os.environ, "XLA_FLAGS": told, "JAX_PLATFORMS": "cpu"}
    script = [
        sys.executable,
        "-c",
        SEVERAL,
        str(Path(__file__).with_name("conftest.py")),
        str(tmp_path / "four"),
    ]
    done = subprocess.run(script, env=flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "devices: 6 walkers run on 3 of 4 devices, which share them evenly",
        "3 2",
    ]
    ours, theirs = arrays_of(tmp_path / "four"), arrays_of(tmp_path / "one")
    # Sums are in another order, which is seen in the last digits alone.
    for name in ("params['a'][0]", "walkers.x", "walkers.width"):
        assert np.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5), name


def test_a_new_run_is_told_walkers_that_its_devices_share() -> None:
    host = Host("cpu", tuple(range(4)))
    with pytest.raises(BadInput, match="6 walkers cannot be divided evenly among 4 devices") as caught:
        host.mesh(6)
    assert "8 walkers" in caught.value.hint
    assert [len(host.sharing(walkers).devices) for walkers in (8, 6, 5, 1)] == [4, 3, 1, 1]


def test_steps_that_fill_no_program_are_taken_one_by_one(tiny: dict[str, Any], tmp_path: Path) -> None:
    made = train("H", tmp_path / "run", **{**tiny, "steps": 3, "optimizer": "adam"})
    assert made.step == 3 and [row.step for row in Log.read(tmp_path / "run" / "log.csv")] == [1, 2, 3]


def test_a_run_begins_with_the_network_of_another(whole: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    train("H", tmp_path / "run", start_from=whole, **{**tiny, "steps": 1, "optimizer": "adam"})
    checkpoints = read_run(tmp_path / "run").checkpoints
    assert [entry.step for entry in checkpoints.entries()] == [0, 1]
    first = checkpoints.load(checkpoints.entries()[0])["arrays"]
    theirs = arrays_of(whole)
    assert all(
        first[name].tobytes() == theirs[name].tobytes() for name in theirs if name.startswith("params")
    )


def test_what_cannot_begin_a_run_is_refused_before_anything_is_compiled(
    whole: Path, tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiling(*_: Any) -> None:
        raise AssertionError("something is compiled")

    monkeypatch.setattr(trainer, "Programs", compiling)
    orbitals_for(system_of("Ne")).save(tmp_path / "ne.npz")
    for asked, what in (
        ({"start_from": tmp_path / "none"}, f"There is no run in {tmp_path / 'none'}"),
        ({"start_from": whole, "spin": 1, "charge": -2}, f"The run in {whole} is for H with 1 electrons up"),
        ({"pretrain": 5, "orbitals": tmp_path / "none.npz"}, f"{tmp_path / 'none.npz'} cannot be read"),
        (
            {"pretrain": 5, "orbitals": tmp_path / "ne.npz"},
            f"{tmp_path / 'ne.npz'} holds orbitals of another molecule than H",
        ),
    ):
        with pytest.raises(BadInput) as caught:
            train("H", tmp_path / "run", **{**tiny, **asked})
        assert caught.value.what.startswith(what)
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(Missing, match="PySCF is not installed"):
        train("N2", tmp_path / "run", **{**tiny, "charge": 1, "spin": 1, "pretrain": 5})
    assert not (tmp_path / "run").exists()


def test_a_run_does_not_begin_with_that_of_another_molecule_or_network(
    whole: Path, tiny: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(
        BadInput, match=r"is for H with 1 electrons up and 0 down and cannot start a run for He"
    ) as caught:
        train("He", tmp_path / "run", start_from=whole, **tiny)
    assert caught.value.hint.startswith("Give a run with the same atoms in the same order, as many electrons")
    with pytest.raises(BadInput, match=r"has another network: one \(was 4, is 32\)"):
        train("H", tmp_path / "run", start_from=whole, **{**tiny, "net_changes": None})
    assert not (tmp_path / "run").exists()


def test_parameters_that_are_no_numbers_stop_the_run_and_name_the_last_good_checkpoint(
    tiny: dict[str, Any], tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def spoil() -> None:
        checkpoints = read_run(run).checkpoints
        state = checkpoints.load(checkpoints.entries()[-1])
        spoilt = {
            name: np.full_like(a, np.nan) if name.startswith("params") else a
            for name, a in state["arrays"].items()
        }
        checkpoints.save({**state, "arrays": spoilt}, step=20)

    train("H", run, checkpoint_every=10, **{**tiny, "steps": 20})
    spoil()
    with pytest.raises(Diverged) as caught:
        train("H", run, device="cpu", resume=True, steps=40)
    assert caught.value.exit_code == 1
    assert caught.value.what.startswith("The energy or the parameter update is not finite at step 23. ")
    assert "The last good checkpoint is step-00000020.npz. " in caught.value.what
    assert (
        "The likely cause is spring_rate being too high (0.05), or gradients of 8 walkers being too noisy"
        in caught.value.what
    )
    assert caught.value.hint.startswith(
        "Train again with --set spring_rate=0.013 --walkers 32 and another -o; --from "
    )


def row(step: int, energy: float, **changes: float) -> Row:
    return replace(Row(step, energy, 0.1, 0.5, 0.3, 0.01, 0.0, 1.0), **changes)


def test_an_energy_explosion_and_one_below_all_bounds_are_found_and_noise_is_not() -> None:
    he = system_of("He")
    assert floor_ha(he) == -4.0  # two electrons, each alone with the nucleus: -Z²/2 twice
    calm = [row(step, -2.9 + 0.5 * math.sin(step)) for step in range(10)]
    assert find_fault(calm, lowest_ha=-2.9, system=he) is None
    spike = [*calm[:-1], row(9, 500.0)]  # one walker near a node
    assert find_fault(spike, lowest_ha=-2.9, system=he) is None
    assert find_fault([row(7, 3.0)] * 3, lowest_ha=-2.9, system=he) == (
        7,
        "the energy exploded from -2.9 to 3 Ha",
    )
    assert (
        find_fault([row(7, 3.0)] * 3, lowest_ha=None, system=he) is None
    )  # where a run begins is no explosion
    found = find_fault([row(7, -60.0)] * 3, lowest_ha=-2.9, system=he)
    assert found == (7, "the energy of -60 Ha is below any energy that He can have")
    assert find_fault([row(7, -2.9, norm=math.inf)], lowest_ha=-2.9, system=he) == (
        7,
        "the parameter update is not finite",
    )


def test_an_explosion_is_half_a_hartree_and_a_fifth_of_the_energy() -> None:
    h2, lih = system_of("H2"), system_of("LiH")
    assert find_fault([row(7, -0.7)] * 3, lowest_ha=-1.17, system=h2) is None
    found = find_fault([row(7, -0.6)] * 3, lowest_ha=-1.17, system=h2)  # two free hydrogen atoms have -1 Ha
    assert found == (7, "the energy exploded from -1.17 to -0.6 Ha")
    assert (
        find_fault([row(7, -0.6), row(8, -1.1), row(9, -1.2)], lowest_ha=-1.17, system=h2) is None
    )  # the median is none
    assert (
        find_fault([row(7, -6.5)] * 3, lowest_ha=-8.0, system=lih) is None
    )  # a fifth of 8 Ha is more than a half
    assert find_fault([row(7, -6.3)] * 3, lowest_ha=-8.0, system=lih) == (
        7,
        "the energy exploded from -8 to -6.3 Ha",
    )


def test_the_likely_cause_follows_from_the_last_rows() -> None:
    told = Settings()
    assert likely_cause(row(10, -1, acceptance=0.001), told)[0].startswith(
        "walkers that do not sample (0.1% of moves accepted"
    )
    assert likely_cause(row(10, -1), told) == ("adam_rate being too high (0.003)", "--set adam_rate=0.00075")
    assert likely_cause(row(500, -1), told)[1] == "--set spring_rate=0.013 --precision float64"


def test_a_gpu_that_is_not_here_is_missed_and_no_run_is_left(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinchpoint.backends.jax import measurement

    monkeypatch.setattr(measurement, "has_cuda", lambda: False)
    with pytest.raises(Missing, match="No CUDA device is available on this machine") as caught:
        train("H", tmp_path / "run", **{**tiny, "device": "cuda"})
    assert caught.value.exit_code == 3 and caught.value.hint.startswith("Use --device cpu")
    assert not (tmp_path / "run").exists()


def test_float64_is_on_within_a_run_and_off_after_it(tiny: dict[str, Any], tmp_path: Path) -> None:
    import jax

    before = jax.config.read("jax_enable_x64")
    train(
        "H", tmp_path / "run", **{**tiny, "steps": 1, "precision": "float64", "optimizer": "adam", "burn": 0}
    )
    assert {a.dtype for name, a in arrays_of(tmp_path / "run").items() if name != "step"} == {
        np.dtype("float64")
    }
    assert jax.config.read("jax_enable_x64") == before


def test_pretraining_is_asked_of_more_than_four_electrons_and_begins_the_run(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinchpoint.systems.vmc.data import hartree_fock
    from pinchpoint.systems.vmc.optimization import pretrain as pretraining
    from pinchpoint.systems.vmc.training.runs import begin

    asked = [
        begin(tmp_path / "none", name, resume=False).config.pretrain
        for name in ("H2", "LiH", "Be", "B", "H2O")
    ]
    assert asked == [0, 0, 0, 1000, 1000]
    steps: list[int] = []
    shared: list[dict[str, Any]] = []

    def pretended(
        wave: Any, field: Any, params: Any, x: Any, key: Any, *, steps: int, progress: Any, **same: Any
    ) -> Any:
        asked.append(steps)
        shared.append(same)
        progress(steps, 0.5)
        return pretraining.PretrainResult(params, x + 1.0, x[0])

    monkeypatch.setattr(pretraining, "pretrain", pretended)
    monkeypatch.setattr(
        hartree_fock, "orbitals_for", lambda system: SimpleNamespace(fits=lambda system: True)
    )
    told = {**tiny, "steps": 1, "burn": 0, "optimizer": "adam", "chunk": 4}
    train(
        "H",
        tmp_path / "run",
        pretrain=7,
        progress=lambda r: steps.append(r.done) if r.stage == "pretrain" else None,
        **told,
    )
    assert asked[-1] == 7 and steps == [7] and shared == [{"chunk": 4, "mesh": None}]
    with pytest.raises(BadInput, match="--set orbitals needs pretraining"):
        train("He", tmp_path / "other", orbitals="he.npz", **tiny)


def test_walkers_go_along_with_their_nuclei() -> None:
    before, after = system_of("H2", bond=1.0), system_of("H2", bond=2.0)
    x = np.array([[[0.1, 0.0, -0.4], [0.0, 0.2, 0.6]]])
    assert np.allclose(move(x, before, after), [[[0.1, 0.0, -0.9], [0.0, 0.2, 1.1]]])
    assert resize(np.arange(3), 7).tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({}, (None, "auto")),
        ({"chunk": 4}, (4, "auto")),
        ({"method": "loop"}, (None, "loop")),
        ({"chunk": 4, "method": "loop"}, (4, "loop")),
    ],
)
def test_a_budget_of_a_resumed_run_keeps_a_chunk_and_a_method_named_with_it(
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    choices: dict[str, Any],
    expected: tuple[int | None, str],
) -> None:
    class Chosen(Exception):
        """Ends the run once its budget is used."""

    def fit(settings: Settings, **options: Any) -> None:
        assert options["budget"] == "8GiB" and (settings.chunk, settings.method) == expected
        raise Chosen

    run = shutil.copytree(whole, tmp_path / "run")
    monkeypatch.setattr(trainer, "fit", fit)
    with pytest.raises(Chosen):
        train(None, run, resume=True, budget="8GiB", **choices)


def test_bad_requests_are_refused_before_anything_is_made(tiny: dict[str, Any], tmp_path: Path) -> None:
    for asked, what in (
        ({"walkers": 0}, "--walkers 0"),
        ({"steps": 0}, "--steps 0"),
        ({"budget": "12"}, "'12' is not a number of bytes"),
        ({"checkpoint_every": 0}, "--set checkpoint_every=0"),
        ({"resume": True, "start_from": "x"}, "--from cannot be used with --resume"),
        ({"pretrain": -1}, "--set pretrain=-1 is out of range"),
        ({"net": "huge"}, "There is no network 'huge'"),
        ({"device": "tpu"}, "The device 'tpu' is unknown"),
    ):
        with pytest.raises(BadInput) as caught:
            train("H", tmp_path / "run", **{**tiny, **asked})
        assert caught.value.what.startswith(what)
    assert not (tmp_path / "run").exists()
    assert trainer.CHECKPOINTS == 10
