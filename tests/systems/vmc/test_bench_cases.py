"""The FermiNeuT baseline, and the cases in which our step is timed beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="wave functions are JAX's")
pytest.importorskip("folx", reason="the forward Laplacian is folx's")

import jax.numpy as jnp  # noqa: E402

from pinchpoint.backends.base import backend  # noqa: E402
from pinchpoint.systems.common.bench.cases import Setup  # noqa: E402
from pinchpoint.systems.common.bench.runner import compare  # noqa: E402
from pinchpoint.systems.vmc.bench_cases import all_cases  # noqa: E402
from pinchpoint.systems.vmc.bench_programs import program  # noqa: E402
from pinchpoint.systems.vmc.data.system import system_of  # noqa: E402
from pinchpoint.systems.vmc.model.baseline import Baseline, nested_energies  # noqa: E402
from pinchpoint.systems.vmc.model.config import NetConfig  # noqa: E402

TINY = NetConfig("ferminet", one=4, two=2, layers=1, determinants=1)


def walkers(count: int, electrons: int) -> Any:
    return jax.random.normal(jax.random.key(3), (count, electrons, 3))


def test_nested_energies_of_exact_hydrogen_are_its_energy_everywhere() -> None:
    energies = nested_energies(
        lambda a, x: -a * jnp.sqrt(jnp.sum(x**2)), jnp.float32(1.0), system_of("H"), walkers(3, 1)
    )
    np.testing.assert_allclose(energies, -0.5, atol=1e-5)


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
    calls: list[int] = []
    plain = Baseline.log_psi
    monkeypatch.setattr(Baseline, "log_psi", lambda self, p, x: (calls.append(1), plain(self, p, x))[1])
    moved = baseline.walk(params, x, jax.random.key(1))
    assert moved.shape == x.shape and bool(jnp.any(moved != x))
    assert len(calls) == 3  # every move runs the function in Python: a slope and two values
    zero = jax.tree_util.tree_map(jnp.zeros_like, params)
    (after, _, _, _), energy = baseline.step(params, zero, zero, x, jax.random.key(1), 0)
    assert np.isfinite(float(energy))
    assert float(jnp.max(jnp.abs(after["orbitals"] - params["orbitals"]))) == pytest.approx(1e-3, rel=0.05)


def test_a_part_of_the_step_is_timed_on_both_sides_and_has_the_peak_of_its_program() -> None:
    forward = next(case for case in all_cases() if case.name == "forward")
    comparison = compare(forward, Setup("cpu", "tiny", 4), backend("jax"), repeats=1, limit_s=60.0)
    report, ours = comparison.rows
    assert report.peak_allocated_bytes is None and (ours.peak_allocated_bytes or 0) > 0
    assert ours.agreement is not None and ours.agreement.equal is None, "the report's physics is another"
    assert comparison.settings == {
        "molecule": "H2",
        "network": "32x8, 1 layers, 1 determinants",
        "moves": "1",
    }


def test_a_carried_state_is_the_argument_of_the_next_call() -> None:
    step = program(jax.jit(lambda n: (n + 1, n * 10)), jnp.int32(3), carries=True)
    assert [int(step()[1]) for _ in range(3)] == [30, 40, 50]
    assert step.operations is not None and step.operations > 0 and step.peak_bytes
