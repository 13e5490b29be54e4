"""A step is one program: compiled once, the same scanned or stepwise, whole or in chunks, and it tells when
it fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.systems.vmc.closed import Closed, helium, hydrogen, hydrogen_walkers
from tests.systems.vmc.conftest import product

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.analysis.statistics import block_estimate
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import walker_energies
from pinchpoint.systems.vmc.model.wavefunction import wave_function
from pinchpoint.systems.vmc.optimization.programs import ProgramStore
from pinchpoint.systems.vmc.optimization.sample_energies import make_observe
from pinchpoint.systems.vmc.optimization.sampling import Walkers, stage_key
from pinchpoint.systems.vmc.optimization.training_step import (
    Step,
    Wave,
    begin,
    clip,
    make_burn,
    make_step,
    make_steps,
)
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings, Stage

SMALL = Settings(walkers=32, moves=3, burn=0, adam_steps=3, method="hessian")


@pytest.fixture(scope="module")
def steps() -> dict[OptimizerStage, Step]:
    """The programs for all tests of this page that can share them."""
    return {stage: make_step(helium(), SMALL, stage=stage) for stage in get_args(OptimizerStage)}


def same(a: Any, b: Any) -> bool:
    first, second = (jax.tree_util.tree_leaves(tree) for tree in (a, b))
    return all(np.array_equal(x, y, equal_nan=True) for x, y in zip(first, second, strict=True))


def check_that_scanned_steps_are_single_ones() -> None:
    wave = helium()
    single = {stage: make_step(wave, SMALL, stage=stage) for stage in get_args(OptimizerStage)}
    carry, each = begin(wave, SMALL), []
    for at in range(6):
        carry, stats = single[SMALL.stage_at(at)](carry)
        each.append(stats)
    scanned, first = make_steps(wave, SMALL, 3, stage="adam")(begin(wave, SMALL))
    scanned, second = make_steps(wave, SMALL, 3, stage="spring")(scanned)
    assert int(scanned.step) == 6
    assert same(scanned, carry)
    wanted = jax.tree_util.tree_map(lambda *parts: np.stack(parts), *each)
    assert same(jax.tree_util.tree_map(lambda a, b: np.concatenate([a, b]), first, second), wanted)


def test_steps_scanned_in_one_program_are_those_taken_one_by_one_to_the_bit() -> None:
    """In a process with XLA's default flags: without optimisation (`tests/conftest.py`), programs of several
    steps round differently on x86.
    """
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    check = f"from {__name__} import check_that_scanned_steps_are_single_ones as check; check()"
    root = Path(__file__).parents[4]
    result = subprocess.run(
        [sys.executable, "-c", check], env=environment, cwd=root, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("stage", get_args(OptimizerStage))
def test_a_program_is_traced_once_and_its_buffers_are_given_on(stage: OptimizerStage) -> None:
    plain, traces = hydrogen(0.9), []

    def log(params: Any, x: Any) -> Any:
        traces.append(1)
        return plain.log(params, x)

    wave = Closed(plain.system, plain.init, log)
    step = make_step(wave, SMALL, stage=stage)
    carry = begin(wave, SMALL)
    old = carry.walkers.x
    carry, _ = step(carry)
    assert old.is_deleted()  # donated: a step needs no second copy of the walkers
    after_first = len(traces)
    for _ in range(3):
        carry, _ = step(carry)
    assert len(traces) == after_first


def test_training_finds_the_exponent_of_hydrogen() -> None:
    wave = hydrogen(0.7)
    settings = Settings(
        walkers=128,
        moves=5,
        burn=20,
        optimizer="adam+spring",
        adam_steps=100,
        adam_rate=5e-3,
        method="hessian",
    )
    carry, _ = make_steps(wave, settings, 100, stage="adam")(begin(wave, settings))
    carry, stats = make_steps(wave, settings, 150, stage="spring")(carry)
    assert float(carry.params["a"]) == pytest.approx(1.0, abs=1e-3)
    assert float(stats.energy[-1]) == pytest.approx(-0.5, abs=1e-4)
    assert float(stats.variance[-1]) < 1e-4
    assert float(stats.acceptance[-50:].mean()) == pytest.approx(0.5, abs=0.05)
    assert bool(stats.finite.all())


@pytest.mark.parametrize("stage", get_args(OptimizerStage))
def test_an_energy_that_is_no_number_is_told_and_changes_no_parameter(
    stage: OptimizerStage, steps: dict[OptimizerStage, Step]
) -> None:
    broken = {**helium().init(None), "b": jnp.asarray(jnp.nan)}
    carry, stats = steps[stage](begin(helium(), SMALL, params=broken))
    assert not bool(stats.finite)
    assert same(carry.params, broken)
    assert all(np.all(np.asarray(kept) == 0) for kept in carry.optimizer)
    assert int(carry.step) == 1


def test_far_energies_are_clipped_about_the_median() -> None:
    energies = np.linspace(-1, 1, 101)
    energies[-1] = 1e4
    found, part = clip(jnp.asarray(energies, jnp.float32), 5.0)
    reach = 5 * np.mean(np.abs(energies))
    assert float(found[-1]) == pytest.approx(reach, rel=1e-5)
    assert np.allclose(found[:-1], energies[:-1])
    assert float(part) == pytest.approx(1 / 101)


def test_the_same_seed_gives_the_same_start_and_another_seed_another() -> None:
    wave = helium()
    first, again, other = (begin(wave, replace(SMALL, seed=seed)) for seed in (1, 1, 2**32 - 1))
    assert same(first, again)
    assert not np.allclose(first.walkers.x, other.walkers.x)


def program_texts(
    wave: Wave, settings: Settings, stages: Sequence[OptimizerStage] = get_args(OptimizerStage)
) -> list[str]:
    """Programs of a run and its evaluation, before they are compiled."""
    carry = jax.eval_shape(lambda: begin(wave, replace(settings, burn=0)))
    key = jax.eval_shape(lambda: stage_key(settings.seed, Stage.EVALUATE))
    steps: list[Any] = [make_step(wave, settings, stage=stage) for stage in stages]
    others: list[Any] = [make_burn(wave, settings), make_observe(wave, settings, 2)]
    arguments = carry.params, carry.walkers, 3, key, carry.inputs.nuclei
    lowered = [step.lower(carry) for step in steps] + [other.lower(*arguments) for other in others]
    return [program.as_text() for program in lowered]


def test_programs_of_two_seeds_are_one() -> None:
    first, second = (program_texts(helium(), replace(SMALL, seed=seed)) for seed in (0, 1))
    assert first == second


def test_programs_of_two_bond_lengths_are_one_and_stored_as_one() -> None:
    settings = replace(SMALL, walkers=2, moves=1)
    waves: list[Any] = [product(system_of("H2", bond=bond), NetConfig.preset("small")) for bond in (1.4, 2.0)]
    # A length after the first of a scan: other steps, and none by Adam.
    runs = list(zip(waves, (settings, replace(settings, steps=9, adam_steps=0)), strict=True))
    first, second = (program_texts(*run, ("spring",)) for run in runs)
    assert first == second
    store = ProgramStore()
    assert {store.get(*run, "steps", object) for run in runs} == {store.get(*runs[0], "steps", list)}
    other = product(system_of("H2"), NetConfig.preset("medium"))
    assert store.get(other, settings, "steps", list) == []


@pytest.mark.parametrize(("name", "potential"), [("H2", None), ("LiH", "ccecp")])
def test_the_energies_of_a_network_have_no_nuclei_among_their_constants(
    name: str, potential: str | None
) -> None:
    texts = []
    for bond in (3.0, 3.5):
        system = system_of(name, bond=bond, pseudopotential=potential)
        wave = wave_function(system, NetConfig.preset("report-cpu", one=4, two=2))
        params = jax.eval_shape(wave.init, jax.eval_shape(lambda: jax.random.key(0)))
        energies = jax.jit(
            lambda nuclei, params, x, wave=wave: walker_energies(wave.at(nuclei), method="loop")(params, x)
        )
        x = jax.ShapeDtypeStruct((2, system.electrons, 3), jnp.float32)
        texts.append(energies.lower(jnp.asarray(system.positions), params, x).as_text())
    assert texts[0] == texts[1]


def test_a_step_uses_the_nuclei_of_its_carry() -> None:
    settings = Settings(walkers=4, moves=2, burn=0, optimizer="adam", method="hessian")
    waves = [product(system_of("H2", bond=bond), NetConfig.preset("small")) for bond in (1.4, 2.0)]
    x = jax.random.normal(jax.random.key(0), (4, 2, 3))
    shared, own = (make_step(wave, settings) for wave in waves)
    near, far = (shared(begin(wave, settings, x=x))[1] for wave in waves)
    assert same(far, own(begin(waves[1], settings, x=x))[1])
    assert abs(float(near.energy) - float(far.energy)) > 1e-3


def test_what_the_caller_gives_to_begin_with_is_not_donated(steps: dict[OptimizerStage, Step]) -> None:
    params, x = helium().init(None), jnp.ones((32, 2, 3)) * jnp.arange(1.0, 3.0)[:, None]
    steps["adam"](begin(helium(), SMALL, params=params, x=x))
    assert float(params["a"]) == pytest.approx(1.9) and not x.is_deleted()


def test_float64_without_the_switch_is_refused() -> None:
    with pytest.raises(BadInput, match="float64"):
        begin(helium(), replace(SMALL, precision="float64"))


def test_no_steps_are_refused() -> None:
    for make in (make_steps, make_observe):
        with pytest.raises(BadInput):
            make(helium(), SMALL, 0)


def test_a_stage_that_the_optimizer_does_not_have_or_that_is_not_told_is_refused() -> None:
    cases: list[tuple[str, OptimizerStage | None]] = [
        ("adam+spring", None),
        ("adam", "spring"),
        ("spring", "adam"),
    ]
    for optimizer, stage in cases:
        with pytest.raises(BadInput) as caught:
            make_step(helium(), replace(SMALL, optimizer=optimizer), stage=stage)
        assert caught.value.hint == "Pass stage=settings.stage_at(step)."


def test_the_error_bar_of_a_short_run_covers_the_exact_energy() -> None:
    a, steps = 0.8, 24
    wave, exact = hydrogen(), a**2 / 2 - a
    settings = Settings(walkers=64, moves=4, method="hessian", width=0.9)
    params = {"a": jnp.asarray(a)}
    observe = make_observe(wave, settings, steps)
    covered, deviations, variances = [], [], []
    for run in range(100):
        x = jnp.asarray(hydrogen_walkers(settings.walkers, a, run), jnp.float32)
        _, seen = observe(
            params,
            Walkers(x, jnp.zeros(len(x)), jnp.asarray(0.9)),
            run * steps,
            jax.random.key(0),
            jnp.zeros((1, 3)),
        )
        found = block_estimate(np.asarray(seen.energies))
        covered.append(abs(found.mean - exact) <= 2 * found.error)
        deviations.append((found.mean - exact) / found.error)
        variances.append(found.variance)
    assert 0.90 <= np.mean(covered) <= 0.99
    assert abs(np.mean(deviations)) < 0.4
    assert np.mean(variances) == pytest.approx((a - 1) ** 2 * a**2, rel=0.25)  # its own spread is infinite


def test_burning_in_forgets_where_the_walkers_began() -> None:
    wave = hydrogen()
    settings = Settings(walkers=512, moves=10)
    far = Walkers(jnp.full((512, 1, 3), 8.0), jnp.zeros(512), jnp.asarray(0.01))
    walkers, accepted = make_burn(wave, settings)(
        {"a": jnp.asarray(1.0)}, far, 100, jax.random.key(0), jnp.zeros((1, 3))
    )
    radius = np.linalg.norm(walkers.x, axis=-1)
    assert radius.mean() == pytest.approx(1.5, abs=5 * np.sqrt(0.75 / 512))
    assert float(accepted) == pytest.approx(0.5, abs=0.05)
