"""SPRING against a dense solve, its solver against float64, and the memory and the exchange it may take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from tests.systems.vmc.closed import helium
from tests.systems.vmc.dense import centred, spring_reference

from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.wavefunction import wave_function
from pinchpoint.systems.vmc.optimization import products, spring
from pinchpoint.systems.vmc.optimization.chunks import split
from pinchpoint.systems.vmc.optimization.optimizers import optimizer_state, update
from pinchpoint.systems.vmc.optimization.products import by_columns, has_tensor_cores
from pinchpoint.systems.vmc.optimization.spring import (
    centred_scores,
    in_order,
    rows_at_once,
    solve,
    spring_direction,
)
from pinchpoint.systems.vmc.settings import Settings

from .test_devices import python


@pytest.fixture
def _float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("shape", [(20, 37), (40, 9)])
def test_spring_is_the_least_squares_solution_in_the_space_of_the_parameters(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    rows, energies, previous = rng.normal(size=shape), rng.normal(size=shape[0]), rng.normal(size=shape[1])
    told = jnp.asarray(centred(rows)), jnp.asarray(energies), jnp.asarray(previous)
    found = spring_direction(*told, momentum=0.9, damping=1e-3)
    assert np.allclose(found, spring_reference(rows, energies, previous, 0.9, 1e-3), rtol=1e-7, atol=1e-9)


def test_spring_stays_right_in_float32_where_its_matrix_is_nearly_singular() -> None:
    rng = np.random.default_rng(0)
    # Scores of a network: a few large directions, a long tail of small ones.
    rows = (rng.normal(size=(64, 300)) * np.geomspace(10, 1e-3, 300)).astype(np.float32)
    energies = rng.normal(size=64)
    wanted = spring_reference(rows.astype(np.float64), energies, np.zeros(300), 0.9, 1e-3)
    told = jnp.asarray(centred(rows)), jnp.asarray(energies, jnp.float32), jnp.zeros(300, jnp.float32)
    found = spring_direction(*told, momentum=0.9, damping=1e-3)
    assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted)


@pytest.mark.usefixtures("_float64")
def test_scores_are_centred_and_in_the_order_of_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = helium()
    params: Any = wave.init(None)
    x = jax.random.normal(jax.random.key(0), (12, 2, 3))
    each = jax.jit(jax.vmap(lambda walker: ravel_pytree(jax.grad(wave.log)(params, walker))[0]))
    wanted = centred(np.asarray(each(x)))
    whole, in_chunks = jax.jit(
        lambda: [centred_scores(wave.log, params, x, chunk=chunk) for chunk in (None, 4)]
    )()
    assert np.allclose(whole, wanted, atol=1e-14)
    assert np.allclose(in_chunks, split(wanted, 4).reshape(12, -1), atol=1e-14)
    # Rows that are too large to be made at once are made in chunks all the same, and the energies are put in
    # their order.
    monkeypatch.setattr(spring, "ROWS_BYTES", 3 * 14 * 8)
    by_themselves = jax.jit(lambda: centred_scores(wave.log, params, x))()
    assert np.allclose(by_themselves, split(wanted, 3).reshape(12, -1), atol=1e-14)
    assert np.array_equal(in_order(jnp.arange(12), 14 * 8, chunk=None), split(np.arange(12), 3).reshape(-1))


def test_as_many_rows_are_made_at_once_as_are_allowed() -> None:
    assert rows_at_once(1024, 4, chunk=None) == 1024
    assert rows_at_once(1024, 4, chunk=96) == 64
    assert rows_at_once(1024, 4 * 730_000, chunk=None) == 64  # 187 MB of 268
    assert rows_at_once(1024, 4 * 730_000, chunk=None, devices=4) == 256
    assert rows_at_once(12, 2**40, chunk=None, devices=4) == 1


def test_a_step_of_spring_holds_one_array_of_walkers_by_parameters() -> None:
    chunk = 8
    wave = wave_function(system_of("He"), NetConfig.preset("small", one=96, layers=2))
    settings = Settings(walkers=256, optimizer="spring", chunk=chunk)
    params = jax.eval_shape(wave.init, jax.eval_shape(lambda: jax.random.key(0)))
    state = jax.eval_shape(
        lambda: optimizer_state(jax.tree_util.tree_map(lambda p: jnp.zeros(p.shape), params), settings)
    )
    size = state.direction.shape[0]
    x, energies = jax.ShapeDtypeStruct((256, 2, 3), jnp.float32), jax.ShapeDtypeStruct((256,), jnp.float32)

    def step(params: Any, state: Any, x: Any, energies: Any) -> Any:
        return update(wave.log, params, state, x, energies, 0, settings, stage="spring")

    temporary = jax.jit(step).lower(params, state, x, energies).compile().memory_analysis().temp_size_in_bytes
    # A chunk's gradients as they come, put side by side, and centred; and the matrices of walkers by walkers.
    allowed = 1.2 * 256 * size * 4 + 3 * chunk * size * 4 + 6 * 256 * 256 * 4
    assert 256 * size * 4 < temporary < allowed


def solved_before(matrix: Any, wanted: Any) -> Any:
    """Cholesky with a rounding of the whole trace on the diagonal, as it was solved without scaling."""
    extra = jnp.finfo(matrix.dtype).eps * jnp.trace(matrix)
    factor = jax.scipy.linalg.cho_factor(matrix + extra * jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    found = jax.scipy.linalg.cho_solve(factor, wanted)
    for _ in range(2):
        found = found + jax.scipy.linalg.cho_solve(factor, wanted - matrix @ found)
    return found


def hard(kind: str, size: int) -> np.ndarray:
    """Symmetric positive matrices in float64 whose condition is 1e5 and more."""
    rng = np.random.default_rng(size)
    if kind == "tail":  # scores with a long tail of small directions
        rows = rng.normal(size=(size, 4 * size)) * np.geomspace(3, 1e-4, 4 * size)
        return rows @ rows.T + 1e-3 * np.eye(size)
    if kind == "scales":  # walkers whose scores differ by orders of magnitude
        rows = rng.normal(size=(size, 2 * size)) * np.geomspace(1e2, 1e-2, size)[:, None]
        return rows @ rows.T + 1e-3 * np.eye(size)
    if kind == "outlier":  # one walker near a node
        rows = rng.normal(size=(size, 2 * size)) / size
        rows[0] *= 1e4
        return rows @ rows.T + 1e-3 * np.eye(size)
    base, _ = np.linalg.qr(rng.normal(size=(size, size)))
    return (base * np.geomspace(1, 1e-6, size)) @ base.T


@pytest.mark.parametrize(
    ("kind", "gain"), [("tail", 0.8), ("scales", 1e5), ("outlier", 1e5), ("spectrum", 5)]
)
def test_the_solver_is_nearer_to_float64_than_without_scaling(kind: str, gain: float) -> None:
    matrix = hard(kind, 192).astype(np.float32)
    wanted = np.random.default_rng(1).normal(size=(5, 192)).astype(np.float32)
    truth = np.linalg.solve(matrix.astype(np.float64), wanted.astype(np.float64).T).T

    def off(solve: Any) -> float:
        """The worst of five. On a tail both are at rounding, within which either may be the nearer."""
        found = np.asarray(
            jax.jit(jax.vmap(solve, (None, 0)))(jnp.asarray(matrix), jnp.asarray(wanted)), np.float64
        )
        return float(np.max(np.linalg.norm(found - truth, axis=1) / np.linalg.norm(truth, axis=1)))

    assert gain * off(solve) <= off(solved_before)


@pytest.mark.parametrize("seed", range(4))
def test_a_matrix_that_rounding_made_negative_is_solved_all_the_same(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(256, 3)).astype(np.float32) * 100
    matrix = jnp.asarray(rows @ rows.T + 1e-6 * np.eye(256, dtype=np.float32))
    wanted = jnp.asarray(rows @ np.ones(3, np.float32))
    found = solve(matrix, wanted)
    assert np.all(np.isfinite(found))
    assert np.linalg.norm(matrix @ found - wanted) < 1e-2 * np.linalg.norm(wanted)
    # Far below zero there is no right answer: no number, by which a step knows that it is to be skipped.
    bent = matrix - 1.1 * jnp.linalg.norm(matrix, 2) * jnp.outer(wanted, wanted) / jnp.vdot(wanted, wanted)
    assert not np.any(np.isfinite(solve(bent, wanted)))


def test_the_solver_has_no_loop_that_asks_the_host_whether_to_go_on() -> None:
    assert "while" not in str(jax.make_jaxpr(solve)(jnp.eye(8), jnp.ones(8)))


def test_products_some_columns_at_a_time_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "COLUMNS_BYTES", 8 * 4 * 16)
    for columns in (5, 16, 64, 77):
        rows = np.random.default_rng(columns).normal(size=(8, columns)).astype(np.float32)
        found = by_columns(jnp.asarray(rows), jax.lax.Precision.HIGHEST)
        assert np.allclose(found, rows.astype(np.float64) @ rows.T.astype(np.float64), rtol=1e-5, atol=1e-4)


def test_tensor_cores_are_those_of_cards_that_take_tf32() -> None:
    class Card:
        platform = "gpu"

        def __init__(self, capability: str) -> None:
            self.compute_capability = capability

    assert has_tensor_cores([Card("9.0"), Card("8.0")]) and has_tensor_cores([Card("10.0")])
    assert not has_tensor_cores([Card("7.5")]) and not has_tensor_cores([Card("9.0"), Card("7.0")])
    assert not has_tensor_cores([Card("gfx90a")]) and not has_tensor_cores([Card("gfx942:sramecc+")])
    assert not has_tensor_cores(jax.devices("cpu"))


ON_FOUR_DEVICES = """
import json, re, sys
sys.path.insert(0, sys.argv[1])
import jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import numpy as np
from closed import helium
from pinchpoint.systems.vmc.optimization.optimizers import optimizer_state, update
from pinchpoint.systems.vmc.optimization.sampling import Walkers
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.optimization.devices import mesh_of, place
wave = helium()
params = wave.init(None)
params |= {name: jnp.asarray(np.resize(np.asarray(params[name]), (29,))) for name in ("in", "out")}
x = jax.random.normal(jax.random.key(0), (64, 2, 3))
energies = jax.random.normal(jax.random.key(1), (64,))
found, gathered, made = [], [], []
for devices, chunk in ((1, None), (4, None), (4, 16)):
    settings = Settings(walkers=64, optimizer="spring", precision="float64", chunk=chunk)
    mesh = mesh_of(64, jax.devices()[:devices])
    state = optimizer_state(params, settings)._replace(direction=jnp.sin(jnp.arange(60.0)))
    told = place((params, state, Walkers(x, energies, jnp.asarray(0.0))), mesh)
    step = jax.jit(lambda params, state, walkers: update(
        wave.log, params, state, walkers.x, walkers.log, 0, settings, stage="spring", mesh=mesh)[0])
    text = step.lower(*told).compile().as_text()
    shapes = [int(np.prod([int(n) for n in m.split(",") if n]))
              for m in re.findall(r"= \\(?\\w+\\[([\\d,]*)\\][^=]* all-gather", text)]
    gathered.append(max(shapes, default=0))
    made.append(sorted(set(re.findall(r" (all-to-all|all-[a-z]+|collective-[a-z]+)(?:-start)?\\(", text))))
    found.append(np.asarray(step(*told)))
off = [float(abs(one - found[0]).max()) for one in found]
print(json.dumps({"off": off, "size": float(abs(found[0]).max()), "gathered": gathered, "made": made}))
"""


def test_four_devices_exchange_no_array_of_walkers_by_parameters_and_find_the_same() -> None:
    found = json.loads(python(ON_FOUR_DEVICES, devices=4).splitlines()[-1])
    assert max(found["off"]) < 1e-9 * max(found["size"], 1)
    assert found["made"][0] == []
    for made, gathered in zip(found["made"][1:], found["gathered"][1:], strict=True):
        assert "all-to-all" in made and "all-reduce" in made
        assert gathered <= 64 * 6  # the walkers' places at most, never 64 x 60 scores
