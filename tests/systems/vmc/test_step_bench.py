"""Timings of the FermiNeuT baseline and of our step: what is timed, what is scaled, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="wave functions are JAX's")
pytest.importorskip("folx", reason="the forward Laplacian is folx's")

import jax.numpy as jnp  # noqa: E402

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.vmc import step_bench  # noqa: E402
from pinchpoint.systems.vmc.data.system import system_of  # noqa: E402
from pinchpoint.systems.vmc.model.baseline import Baseline, nested_energies  # noqa: E402
from pinchpoint.systems.vmc.model.config import NetConfig  # noqa: E402
from pinchpoint.systems.vmc.step_bench import BESIDE, FIGURES, Benchmark, Size, bench  # noqa: E402

TINY = NetConfig("ferminet", one=4, two=2, layers=1, determinants=1)


def walkers(count: int, electrons: int) -> Any:
    return jax.random.normal(jax.random.key(3), (count, electrons, 3))


def test_nested_energies_of_exact_hydrogen_are_its_energy_everywhere() -> None:
    found = nested_energies(
        lambda a, x: -a * jnp.sqrt(jnp.sum(x**2)), jnp.float32(1.0), system_of("H"), walkers(3, 1)
    )
    np.testing.assert_allclose(found, -0.5, atol=1e-5)


def test_the_energies_of_the_baseline_are_the_nested_ones_without_the_nuclear_repulsion() -> None:
    baseline = Baseline(system_of("H2", charge=1), TINY, moves=1)
    params, x = baseline.init(jax.random.key(0)), walkers(4, 1)
    # Jitted, so that its derivatives are compiled once and not operation by operation.
    wanted = (
        nested_energies(jax.jit(baseline.log_psi), params, baseline.system, x) - baseline.system.repulsion
    )
    np.testing.assert_allclose(jax.jit(baseline.energies)(params, x), wanted, rtol=1e-3)


def test_the_baseline_moves_without_a_program_and_steps_along_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    baseline = Baseline(system_of("H2", charge=1), TINY, moves=1)
    params, x = baseline.init(jax.random.key(0)), walkers(4, 1)
    seen: list[int] = []
    plain = Baseline.log_psi
    monkeypatch.setattr(Baseline, "log_psi", lambda self, p, x: (seen.append(1), plain(self, p, x))[1])
    moved = baseline.walk(params, x, jax.random.key(1))
    assert moved.shape == x.shape and bool(jnp.any(moved != x))
    assert len(seen) == 3  # every move runs the function in Python: a slope and two values
    zero = jax.tree_util.tree_map(jnp.zeros_like, params)
    (after, _, _, _), energy = baseline.step(params, zero, zero, x, jax.random.key(1), 0)
    assert np.isfinite(float(energy))
    assert float(jnp.max(jnp.abs(after["orbitals"] - params["orbitals"]))) == pytest.approx(1e-3, rel=0.05)


def test_the_five_figures_are_of_both_sides_and_the_nested_one_says_it_is_scaled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    clock = iter(np.arange(0.0, 1e6))
    step = {"n": 0}

    def fake(*_: Any, **__: Any) -> dict[str, Any]:
        return {name: (lambda: jnp.zeros(())) for name in (*FIGURES, *BESIDE)}

    monkeypatch.setitem(step_bench.CONFIGS, "report-cpu", Size("report-cpu", 4, 1))
    monkeypatch.setattr(NetConfig, "preset", lambda *_: TINY)
    monkeypatch.setattr(step_bench, "_baseline", fake)
    monkeypatch.setattr(step_bench, "_ours", fake)
    before: list[Benchmark] = []

    def nested(log: Any, params: Any, system: Any, x: Any) -> Any:
        before.append(Benchmark.from_json((tmp_path / "bench.json").read_text()))
        step.update(n=len(x))
        return jnp.zeros(len(x))

    monkeypatch.setattr(step_bench, "nested_energies", nested)
    made = bench(
        "H", device="cpu", repeats=3, scanned=10, clock=lambda: next(clock), output=tmp_path / "bench.json"
    )
    assert [one.name for one in made.figures] == [FIGURES[0], *BESIDE, *FIGURES[1:], "energy_nested"]
    assert [one.speedup for one in made.figures] == [1, 10, 1, 10, 1, 1, 1, 1, 64]
    last = made.figure("energy_nested")
    assert (last.timed_walkers, last.walkers, last.scaled, step["n"]) == (2, 128, True, 2)
    # A stop within the slow last figure keeps the others.
    assert before[0].figures == made.figures[:-1] and before[0].nested_error is None
    assert ("nested energies", "not timed") in before[0].summary()
    assert made.config == "report-cpu"  # the one for this device, where none is asked for
    assert not made.figure("mcmc").scaled
    assert Benchmark.from_json((tmp_path / "bench.json").read_text()) == made
    assert any("timed on 2 of 128 walkers" in text for _, text in made.summary())


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"config": "huge"}, "huge"),
        ({"repeats": 0}, "at least 1"),
        ({"system": "Xx"}, "Xx"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_what_cannot_be_timed_is_refused(asked: dict[str, Any], what: str) -> None:
    told: dict[str, Any] = {"device": "cpu", **asked}
    with pytest.raises(BadInput, match=what) as caught:
        bench(**told)
    assert caught.value.hint
