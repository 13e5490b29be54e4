"""The plain form computes the same function and step, and the bars are judged correctly."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs JAX")
pytest.importorskip("folx", reason="needs folx")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.vmc.data.system import system_of  # noqa: E402
from pinchpoint.systems.vmc.model.config import NetConfig  # noqa: E402
from pinchpoint.systems.vmc.model.hamiltonian import local_energies  # noqa: E402
from pinchpoint.systems.vmc.model.wavefunction import wave_function  # noqa: E402
from pinchpoint.systems.vmc.optimization.training_step import clip  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"
NET = NetConfig("ferminet", one=4, two=2, layers=2, determinants=2)
# Compiles faster, to slower code.
compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(autouse=True)
def _in_float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def randomise(tree: Any, seed: int) -> Any:
    """Add random numbers to the initial zeros and ones, which would hide a weight in the wrong place."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jax.numpy.asarray(leaf + 0.3 * rng.normal(size=leaf.shape)), tree)


def count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("name", ["He", "B"])  # determinants written out, and factored
def test_the_plain_form_equals_our_wave_function_with_joined_weights(name: str) -> None:
    plain, system = load("plain"), system_of(name)
    wave = wave_function(system, NET)
    params = randomise(wave.init(jax.random.key(0)), 1)
    x = jax.numpy.asarray(np.random.default_rng(0).normal(size=(4, system.electrons, 3)))
    joined = plain.join_weights(params)
    assert count(joined) == count(params)
    result = compiled(jax.vmap(plain.Plain(system, NET).log, (None, 0)))(joined, x)
    expected = compiled(jax.vmap(wave.log, (None, 0)))(params, x)
    assert np.allclose(result, expected, rtol=1e-12)
    by_library = compiled(plain.Plain(system, NET, library=True).log)(joined, x[0])
    assert np.allclose(by_library, expected[0], rtol=1e-12)


def test_the_step_of_the_plain_form_descends_the_gradient_of_the_energy() -> None:
    plain, system = load("plain"), system_of("He")
    net = dataclasses.replace(NET, layers=1, determinants=1)
    wave = wave_function(system, net)
    params = randomise(wave.init(jax.random.key(0)), 2)
    plain_form = plain.Plain(system, net, moves=2)
    first = plain.begin(plain.join_weights(params), np.random.default_rng(0).normal(size=(16, 2, 3)))
    after, energy = compiled(plain_form._step)(first)
    energies = compiled(local_energies(wave.log, system, method="hessian"))(params, after.x)
    within = clip(energies, plain.CLIP)[0]
    pull = 2 * (within - within.mean()) / len(within)
    gradient = plain.join_weights(
        compiled(jax.grad(lambda p: jax.numpy.sum(pull * jax.vmap(wave.log, (None, 0))(p, after.x))))(params)
    )
    # The first update of Adam is the sign of the gradient times the learning rate.
    for old, new, slope in zip(*map(jax.tree.leaves, (first.params, after.params, gradient)), strict=True):
        assert np.allclose(old - new, plain.RATE * slope / (np.abs(slope) + plain.TINY), atol=1e-9)
    assert float(energy) == pytest.approx(float(energies.mean()), rel=1e-10)
    assert np.any(np.asarray(after.x) != np.asarray(first.x)) and int(after.step) == 1


def test_networks_that_the_plain_form_does_not_support_are_rejected() -> None:
    plain = load("plain")
    for system, net in (
        ("H", NET),
        ("He", dataclasses.replace(NET, full=False)),
        ("He", NetConfig.preset("psiformer")),
    ):
        with pytest.raises(BadInput, match="There is no yardstick"):
            plain.Plain(system_of(system), net)


def row(
    form: str, seconds: float, peak: float, *, plain: Any, ours: Any, chunk: int | None = None
) -> dict[str, Any]:
    return {
        "form": form,
        "chunk": chunk,
        "seconds": seconds,
        "peak_over_plain": peak,
        "over_plain": plain,
        "over_ours": ours,
    }


def test_a_bar_is_held_or_missed_by_the_whole_interval_and_open_otherwise() -> None:
    forms = load("forms")
    rows = [
        row("plain", 2.0, 1.0, plain=(1, 1, 1), ours=(2, 2, 2)),
        row("ours", 1.0, 0.8, plain=(0.98, 0.9, 1.01), ours=(1, 1, 1)),
        row("ours, chunks of 64", 1.05, 0.51, plain=(0.5, 0.5, 0.5), ours=(1.05, 1.0, 1.1), chunk=64),
        row("ours, chunks of 32", 1.2, 0.5, plain=(0.6, 0.6, 0.6), ours=(1.2, 1.16, 1.3), chunk=32),
        row("ours, chunks of 16", 1.3, 0.2, plain=(0.6, 0.6, 0.6), ours=(1.3, 1.2, 1.4), chunk=16),
    ]
    result = forms.verdicts(rows)
    assert [bar["verdict"] for bar in result] == ["open", "held", "missed", "held"]
    assert {bar["form"] for bar in result[1:]} == {"ours, chunks of 32"}
    assert [bar["verdict"] for bar in forms.verdicts(rows[:3])] == ["open", "missed"]
    assert [bar["verdict"] for bar in forms.verdicts(rows[:2])] == [
        "open"
    ]  # what was not timed is not judged
    assert [bar["verdict"] for bar in forms.verdicts([{**rows[3], "over_ours": None}])] == ["held", "held"]


class Fake:
    """A stand-in for a compiled form, with a fixed time per call."""

    def __init__(self, name: str, seconds: float, chunk: int | None = None) -> None:
        self.name, self.seconds, self.chunk = name, seconds, chunk
        self.temp_bytes, self.peak_bytes, self.compile_s = 1, 2, 0.0


class Fakes:
    device = "cuda"

    def __init__(self, **seconds: float) -> None:
        self.seconds = seconds

    def plain(self, name: str = "plain", **_: Any) -> Fake:
        return Fake(name, self.seconds["tf32" if "tf32" in name else "plain"])

    def ours(self, name: str, chunk: int | None = None, **_: Any) -> Fake:
        return Fake(name, self.seconds["ours"] * (2 if chunk else 1), chunk)


def test_ours_is_compared_with_the_faster_plain_form_and_each_form_is_reported_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forms = load("forms")
    monkeypatch.setattr(forms, "interleave", lambda a, b, **_: ([a.seconds] * 3, [b.seconds] * 3))
    for tf32, yardstick, ratio in ((2.0, "plain, tf32", 1.5), (8.0, "plain", 0.75)):
        rows: list[Any] = []
        forms.rows_of(
            Fakes(plain=4.0, tf32=tf32, ours=3.0), ("ours", "chunks"), [8], repeats=3, tell=rows.append
        )
        assert [row["form"] for row in rows] == ["plain", "plain, tf32", "ours", "ours, chunks of 8"]
        assert {row["yardstick"] for row in rows} == {yardstick}
        assert rows[2]["over_plain"][0] == ratio and rows[3]["over_ours"][0] == 2
        rows_without_ours: list[Any] = []
        forms.rows_of(
            Fakes(plain=4.0, tf32=tf32, ours=3.0), ("chunks",), [8], repeats=3, tell=rows_without_ours.append
        )
        assert (
            rows_without_ours[-1]["over_ours"] is None and rows_without_ours[-1]["over_plain"][0] == 2 * ratio
        )


def test_a_second_call_adds_to_the_record_and_a_different_step_is_rejected(tmp_path: Path) -> None:
    forms, path = load("forms"), tmp_path / "forms.json"
    step_settings = {"system": "He", "net": "small", "walkers": 8, "moves": 1, "device": "cpu"}
    plain_row = {**row("plain", 2.0, 1.0, plain=(1, 1, 1), ours=None), "yardstick": "plain", "peak_bytes": 1}
    forms.Book(path, step_settings).add(plain_row)
    book = forms.Book(path, step_settings)
    book.add({**plain_row, "form": "ours"})
    book.add({**plain_row, "form": "ours", "seconds": 9.0})
    result = json.loads(path.read_text())
    assert [(entry["form"], entry["seconds"]) for entry in result["forms"]] == [("plain", 2.0), ("ours", 9.0)]
    assert len(result["commands"]) == 2 and result["verdicts"][0]["verdict"] == "held"
    with pytest.raises(BadInput, match="written with another walkers"):
        forms.Book(path, {**step_settings, "walkers": 9})
