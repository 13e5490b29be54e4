"""Kernels for tensor cores, run by Pallas's interpreter, compute what ordinary operations in float64 do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import folx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.backends.jax.fake_devices import trace_for, traced_capability
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model import ferminet, pairs, tensor_products
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.features import geometry
from pinchpoint.systems.vmc.model.hamiltonian import local_energy
from pinchpoint.systems.vmc.model.layers import matmul
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.sampling import Walkers, moves, start

compiled = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})  # fast to slower code
SMALL = NetConfig("ferminet", one=64, two=16, layers=1, determinants=1)
D, N, W, P = 27, 6, 64, 16  # coordinates, electrons, width, columns of pairs


@pytest.fixture(autouse=True)
def _interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_products, "INTERPRET", True)


@pytest.fixture
def _on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_products, "device_applies", lambda: True)


def _parameters(init: Callable[[Any], Any]) -> Any:
    """Return random parameters: those of `init` are drawn by one program per array, and take seconds."""
    numbers = np.random.default_rng(0)
    return jax.tree_util.tree_map(
        lambda leaf: jnp.asarray(
            numbers.normal(size=leaf.shape) / np.sqrt(leaf.shape[0] if leaf.shape else 1), jnp.float32
        ),
        jax.eval_shape(init, jax.random.key(0)),
    )


def _arrays(*shapes: tuple[int, ...], seed: int = 0) -> list[Any]:
    numbers = np.random.default_rng(seed)
    return [jnp.asarray(numbers.normal(size=shape), jnp.float32) for shape in shapes]


def _in_float64(function: Callable[..., Any], *arguments: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(
            np.asarray, function(*(jnp.asarray(np.asarray(value), jnp.float64) for value in arguments))
        )


def _error(value: Any, exact: Any) -> float:
    return float(np.sqrt(np.mean((np.asarray(value, np.float64) - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize("columns", [W, 8])
def test_derivatives_after_a_layer_have_the_error_of_float32(columns: int) -> None:
    arrays = _arrays((D, N, columns), (D, N, P), (D, W), (N, W), (columns, W), (P, W))
    exact = _in_float64(tensor_products.plain_slopes_of_layer, *arrays)
    plain = tensor_products.plain_slopes_of_layer(*arrays)
    for value, other, truth in zip(tensor_products.slopes_of_layer(*arrays), plain, exact, strict=True):
        assert _error(value, truth) < 1.5 * max(_error(other, truth), 1e-7)


def test_numbers_beyond_the_range_of_halves_give_nan() -> None:
    arrays = _arrays((D, N, W), (D, N, P), (D, W), (N, W), (W, W), (P, W))
    arrays[0] = arrays[0].at[3, 2, 1].set(1e5)
    new, squares = tensor_products.slopes_of_layer(*arrays)
    assert jnp.isnan(new[3, 2]).all() and jnp.isnan(squares[2]).all()
    assert jnp.isfinite(new[:, 3:]).all()


def test_values_of_walkers_share_blocks_of_rows_and_have_derivatives() -> None:
    h, means, shift, own, of_pairs = _arrays((2, 11, N, W), (2, 11, N, P), (2, 11, W), (W, W), (P, W))
    axes = (0, 0, 0, None, None)
    arrays = h, means, shift, own / 8, of_pairs / 4
    new, plain = (
        jax.vmap(jax.vmap(form, axes), axes)
        for form in (tensor_products.values_of_layer, tensor_products.plain_values_of_layer)
    )
    np.testing.assert_allclose(new(*arrays), plain(*arrays), atol=5e-6)
    slope, other = (
        jax.grad(lambda w, form=form: form(*arrays[:3], w, arrays[4]).sum())(own) for form in (new, plain)
    )
    np.testing.assert_array_equal(slope, other)


@pytest.mark.parametrize(("up", "electrons"), [(3, 5), (5, 5)])
def test_means_of_pairs_are_those_of_stored_pairs(up: int, electrons: int) -> None:
    x, first, second = _arrays((12, electrons, 3), (4, 32), (32, 32))
    layers = [{"weights": first / 2, "bias": first[0] / 9}, {"weights": second / 6, "bias": second[0] / 9}]
    plain = partial(pairs.plain_pair_means, layers, up)
    new = partial(tensor_products.pair_values, pairs.plain_pair_means, layers, up)
    for value, other in zip(*(compiled(jax.vmap(form))(x) for form in (new, plain)), strict=True):
        np.testing.assert_allclose(value, other, atol=2e-6)


def test_streams_with_derivatives_agree_also_where_the_laplacian_is_no_half(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = system_of("B")
    params = _parameters(lambda key: ferminet.init_streams(key, system, SMALL))
    (x,) = _arrays((5, 3))
    results = []
    for use in (False, True):
        for module in (tensor_products, ferminet):
            monkeypatch.setattr(module, "applies", lambda use=use, **_: use)

        def run(x: Any) -> Any:
            # Slopes of 400 and Laplacians of 160,000.
            return ferminet.streams(params, system, geometry(system, jnp.sin(400 * x)))

        def all_of(x: Any, run: Any = run) -> Any:
            out = folx.forward_laplacian(run, disable_jit=True)(x)
            return out.x, out.jacobian.dense_array, out.laplacian

        results.append(compiled(all_of)(x))
    assert float(jnp.abs(results[0][2]).max()) > 65_504
    for plain, kernels in zip(*results, strict=True):
        np.testing.assert_allclose(kernels, plain, atol=3e-6 * float(jnp.abs(plain).max()))
    assert not np.array_equal(results[0][1], results[1][1])  # the kernels ran


def _pair_means(x: Any, *weights: Any) -> Any:
    return pairs.plain_pair_means([{"weights": value, "bias": value[0]} for value in weights], 3, x)


def _pair_values(x: Any, *weights: Any) -> Any:
    layers = [{"weights": value, "bias": value[0]} for value in weights]
    return tensor_products.pair_values(pairs.plain_pair_means, layers, 3, x)


SHAPES = {
    "slopes": [(D, N, W), (D, N, P), (D, W), (N, W), (W, W), (P, W)],
    "values": [(N, W), (N, P), (W,), (W, W), (P, W)],
    "linear": [(D, N, W), (W, W)],
    "pairs": [(5, 3), (4, 16), (16, 16)],
}


FORMS: dict[str, tuple[Any, Any]] = {
    "slopes": (tensor_products.slopes_of_layer, tensor_products.plain_slopes_of_layer),
    "values": (tensor_products.values_of_layer, tensor_products.plain_values_of_layer),
    "linear": (tensor_products.linear, matmul),
    "pairs": (_pair_values, _pair_means),
}


def _operations(program: Any) -> Iterator[Any]:
    """Yield the operations of a program outside of its kernels."""
    for operation in program.eqns:
        yield operation
        if operation.primitive.name != "pallas_call":
            for inner in jax.tree_util.tree_leaves(list(operation.params.values()), is_leaf=_is_program):
                if _is_program(inner):
                    yield from _operations(getattr(inner, "jaxpr", inner))


def _is_program(value: Any) -> bool:
    return hasattr(getattr(value, "jaxpr", value), "eqns")


@pytest.mark.usefixtures("_on_hopper")
@pytest.mark.parametrize("kind", list(SHAPES))
def test_xla_for_a_gpu_cannot_lose_the_low_halves_of_weights(kind: str) -> None:
    # It removes conversions to float16 and back, so there must be none outside of the kernels.
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in SHAPES[kind]]
    found = list(_operations(jax.make_jaxpr(FORMS[kind][0])(*arrays).jaxpr))
    names = [operation.primitive.name for operation in found]
    assert "pallas_call" in names and "reduce_precision" in names
    for operation in found:
        if operation.primitive.name == "convert_element_type":
            assert operation.invars[0].aval.dtype != jnp.float16


def test_weights_are_the_sum_of_their_halves() -> None:
    (weights,) = _arrays((64, 64))
    high, low = (np.asarray(part, np.float64) for part in tensor_products.halves_of_weights(weights))
    np.testing.assert_allclose(high + low / 2048, weights, rtol=2**-22)


@pytest.mark.usefixtures("_on_hopper")
@pytest.mark.parametrize("kind", ["slopes", "linear", "pairs"])
def test_derivatives_of_kernels_are_those_of_plain_forms(kind: str) -> None:
    at, towards = (_arrays(*SHAPES[kind], seed=seed) for seed in (0, 1))
    new, plain = (jax.jvp(form, at, towards) for form in FORMS[kind])
    for value, other in zip(*map(jax.tree_util.tree_leaves, (new, plain)), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-5)


def _shapes(init: Callable[[Any], Any], dtype: Any) -> Any:
    """Return the shapes of parameters and of a walker of five electrons."""
    return jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype),
        (jax.eval_shape(init, jax.random.key(0)), jax.ShapeDtypeStruct((5, 3), dtype)),
    )


@pytest.mark.usefixtures("_on_hopper")
@pytest.mark.parametrize("kind", ["ferminet", "psiformer"])
def test_kernels_are_for_a_ferminet_in_float32_alone(kind: Any) -> None:
    wave = wave_function(system_of("B"), replace(SMALL, kind=kind))
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            program = jax.make_jaxpr(wave.log)(*_shapes(wave.init, dtype))
            assert program.out_avals[0].dtype == dtype
            assert ("pallas_call" in str(program)) == (dtype == jnp.float32 and kind == "ferminet")
        if kind == "ferminet":
            energy = local_energy(wave.log, wave.system, method="forward")
            assert "pallas_call" not in str(jax.make_jaxpr(energy)(*_shapes(wave.init, jnp.float64)))


def test_log_psi_and_moves_are_those_of_ordinary_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    wave = wave_function(system_of("B"), SMALL)
    params, (x,) = _parameters(wave.init), _arrays((3, 5, 3))
    _compare_moves(monkeypatch, compiled, wave, params, x, renew=False)


@pytest.fixture
def _hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    if not tensor_products.device_applies():
        pytest.skip("JAX has no single Hopper GPU here")
    monkeypatch.setattr(tensor_products, "INTERPRET", False)


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
@pytest.mark.parametrize("kind", list(SHAPES))
def test_kernels_on_the_gpu_have_the_error_of_float32(kind: str) -> None:
    arrays = _arrays(*SHAPES[kind])
    new, plain = FORMS[kind]
    exact, values, others = _in_float64(plain, *arrays), jax.jit(new)(*arrays), jax.jit(plain)(*arrays)
    leaves = (jax.tree_util.tree_leaves(tree) for tree in (values, others, exact))
    for value, other, truth in zip(*leaves, strict=True):
        assert _error(value, truth) < 2 * max(_error(other, truth), 1e-7)


@pytest.mark.gpu
@pytest.mark.usefixtures("_hopper")
def test_log_psi_and_moves_on_the_gpu_are_those_of_ordinary_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wave = wave_function(system_of("N2"), NetConfig.preset("ferminet"))
    x = start(wave.system, 256, jax.random.key(2))
    _compare_moves(monkeypatch, jax.jit, wave, wave.init(jax.random.key(0)), x, renew=True)


def _compare_moves(
    monkeypatch: pytest.MonkeyPatch, jit: Any, wave: WaveFunction, params: Any, x: Any, *, renew: bool
) -> None:
    results = []
    for use in (True, False):
        monkeypatch.setattr(tensor_products, "device_applies", lambda use=use: use)

        def run(params: Any, x: Any) -> Any:
            at = Walkers(x, jnp.full(len(x), -30.0), jnp.asarray(0.2))
            return moves(wave.log, params, at, jax.random.key(3), steps=2, renew=renew)

        results.append(jit(run)(params, x))
    (after, accepted), (plain, fraction) = results
    assert not np.array_equal(after.log, plain.log)  # the kernels ran
    # A threshold may lie between two values that differ in their last bits.
    same = np.abs(after.x - plain.x).max((1, 2)) < 1e-6
    assert same.mean() > 0.97 and abs(accepted - fraction) < 0.03
    difference = np.abs(after.log - plain.log)[same]
    # Near a node of psi, its logarithm magnifies rounding.
    assert np.quantile(difference, 0.98) < 1e-4 and difference.max() < 1e-2


def test_a_forecast_is_made_with_the_kernels_of_its_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_products, "_has_backend", lambda: True)
    for capability, expected in (((9, 0), True), ((8, 0), False)):
        with trace_for(capability, 80 << 30):
            assert tensor_products.device_applies() is expected
    assert traced_capability() is None


@pytest.mark.parametrize(
    ("capability", "devices", "version", "missing", "expected"),
    [
        ("9.0", 1, "0.11.2", "", True),
        ("8.0", 1, "0.11.2", "", False),
        ("9.0", 2, "0.11.2", "", False),  # the second may belong to another process
        ("9.0", 1, "0.10.2", "", False),  # the kernels have not run there
        ("9.0", 1, "0.11.2", "jax.experimental.pallas.triton", False),
    ],
)
def test_devices_with_kernels(
    monkeypatch: pytest.MonkeyPatch,
    capability: str,
    devices: int,
    version: str,
    missing: str,
    expected: bool,
) -> None:
    device = SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda platform=None: [device])
    monkeypatch.setattr(jax, "__version__", version)
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    tensor_products._has_backend.cache_clear()
    try:
        assert tensor_products.device_applies() is expected
        for dtype in (jnp.float32, jnp.float64):
            found = tensor_products.applies(width=64, dtype=jnp.dtype(dtype))
            assert found is (expected and dtype == jnp.float32)
        assert not tensor_products.applies(width=32, dtype=jnp.float32)
    finally:
        tensor_products._has_backend.cache_clear()
