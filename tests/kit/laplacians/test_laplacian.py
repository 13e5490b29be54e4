"""Laplacian methods agree with each other and with closed forms, in chunks of any size, within a budget."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the Laplacian is JAX's")
pytest.importorskip("folx", reason="the forward Laplacian is folx's")

import jax.numpy as jnp  # noqa: E402

from pinchpoint.core.errors import BadInput, DoesNotFit, Missing  # noqa: E402
from pinchpoint.kit import kinetic_energy, laplacian, laplacian_of_batch  # noqa: E402
from pinchpoint.kit.laplacians import derivatives  # noqa: E402
from pinchpoint.kit.laplacians.chunk_plan import choose_method, plan_laplacian, predicted_cost  # noqa: E402

METHODS = ("nested", "hessian", "loop", "forward")
QUICK = ("hessian", "loop", "forward")
QUICK_OPTIONS = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def antisymmetric(n: int, *, seed: int = 0) -> Callable[[Any], Any]:
    """log|psi| of n electrons: the product of g_i - g_j over pairs of a spin, g of a small network.

    x: (n, 3).
    """
    rng = np.random.default_rng(seed)
    own, mean, out = (rng.standard_normal(shape) / 2 for shape in ((4, 6), (3, 6), (6,)))
    same = np.arange(n) < -(-n // 2)  # half of them are up
    pairs = [(i, j) for i in range(n) for j in range(i) if same[i] == same[j]]
    first, second = np.array(pairs, np.int32).reshape(-1, 2).T  # one kind of index for both precisions

    def log_psi(x: Any) -> Any:
        far = jnp.sqrt(jnp.sum(x**2, axis=1))
        h = jnp.tanh(
            jnp.concatenate([x, far[:, None]], axis=1) @ own.astype(x.dtype)
            + jnp.mean(x, axis=0) @ mean.astype(x.dtype)
        )
        g = h @ out.astype(x.dtype)
        return jnp.sum(jnp.log(jnp.abs(g[first] - g[second]))) - jnp.sum(far) + jnp.sum(g**2)

    # Jitted, so that its derivatives are compiled once, also for `nested`, which evaluates each separately.
    return jax.jit(log_psi)


def determinant(x: Any) -> Any:
    """log|psi| of a determinant of powers of the distances under an envelope. x: (n, 3)."""
    far = jnp.sqrt(jnp.sum(x**2, axis=1, keepdims=True))
    return jnp.linalg.slogdet(
        far ** jnp.arange(x.shape[0]) * jnp.exp(-far) + jnp.sin(x @ jnp.ones((3, x.shape[0]), x.dtype))
    )[1]


def walkers(count: int, n: int, *, seed: int = 1, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, n, 3)).astype(dtype)


def smooth(x: Any) -> Any:
    """A function that compiles quickly, for tests in which any function will do."""
    return jnp.sum(jnp.sin(x) * jnp.cumsum(x**2, axis=0))


def compile_quickly(g: Callable[[Any], Any], x: Any) -> Callable[[Any], Any]:
    """g as one program for arguments like x, compiled with few optimisations."""
    return jax.jit(g).lower(x).compile(compiler_options=dict(QUICK_OPTIONS))


def run(g: Callable[[Any], Any], x: Any) -> Any:
    return compile_quickly(g, x)(x)


def relative(got: Any, wanted: Any) -> float:
    return float(np.max(np.abs(np.asarray(got, np.float64) - wanted) / np.maximum(np.abs(wanted), 1.0)))


@pytest.mark.parametrize("n", [1, 2, 14])
def test_all_methods_agree_in_float64(n: int, double: None) -> None:
    f, x = antisymmetric(n), walkers(1, n)[0]
    wanted = run(laplacian(f, "hessian"), x)
    assert abs(float(wanted.laplacian)) > 1e-2
    for method in ("nested", "loop", "forward"):
        # Nested consists of d programs, which would take long to compile as one.
        result = laplacian(f, method)(x) if method == "nested" else run(laplacian(f, method), x)
        for got, want in zip(result, wanted, strict=True):
            assert got.shape == want.shape
            assert relative(got, np.asarray(want)) < 1e-10, (method, n)


def test_methods_agree_on_a_determinant(double: None) -> None:
    x = walkers(1, 3)[0]
    wanted, *others = (run(laplacian(determinant, one), x).laplacian for one in QUICK)
    for other in others:
        assert relative(other, np.asarray(wanted)) < 1e-10


def test_methods_in_float32_are_close_to_float64() -> None:
    f, xs = antisymmetric(14), walkers(2, 14, dtype=np.float32)
    with jax.enable_x64(True):
        wanted = np.asarray(run(jax.vmap(laplacian(f, "loop")), xs.astype(np.float64)).laplacian)
    for method in METHODS:
        # Nested consists of d programs for one walker.
        nested = method == "nested"
        result = (
            laplacian(f, method)(xs[0]).laplacian
            if nested
            else run(jax.vmap(laplacian(f, method)), xs).laplacian
        )
        assert result.dtype == np.float32
        assert relative(result, wanted[0] if nested else wanted) < 1e-4, method


@pytest.mark.parametrize("method", METHODS)
def test_a_quadratic_has_the_laplacian_of_its_trace(method: Any, double: None) -> None:
    a = np.random.default_rng(3).standard_normal((6, 6))
    b, x = np.arange(6.0), walkers(1, 2)[0]
    result = run(
        laplacian(lambda x: x.reshape(-1) @ a @ x.reshape(-1) / 2 + x.reshape(-1) @ b + 7, method), x
    )
    assert float(result.laplacian) == pytest.approx(np.trace(a), rel=1e-12)
    np.testing.assert_allclose(result.gradient, ((a + a.T) @ x.reshape(-1) / 2 + b).reshape(2, 3), rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_harmonic_function_has_no_laplacian(method: Any, double: None) -> None:
    x = np.array([0.3, -0.4, 1.2])
    assert abs(float(run(laplacian(lambda x: 1 / jnp.sqrt(jnp.sum(x**2)), method), x).laplacian)) < 1e-13


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_has_neither_gradient_nor_laplacian(method: Any, double: None) -> None:
    result = run(laplacian(lambda x: jnp.ones((), x.dtype), method), np.ones((2, 3)))
    assert float(result.value) == 1 and float(result.laplacian) == 0
    np.testing.assert_array_equal(result.gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_the_kinetic_energy_of_hydrogen_matches_the_closed_form(method: Any, double: None) -> None:
    places = np.array([[(0.3, -0.4, 1.2)], [(2.0, 1.0, -3.0)], [(0.0, 0.0, 0.01)]])
    energy = compile_quickly(
        lambda x: kinetic_energy(lambda x: -jnp.sqrt(jnp.sum(x**2)), x, method=method), places[0]
    )
    for x in places:  # log psi = -r: T = 1 / r - 1/2
        assert float(energy(x)) == pytest.approx(1 / np.linalg.norm(x) - 0.5, abs=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_the_local_energy_of_a_trapped_pair_is_the_same_everywhere(method: Any, double: None) -> None:
    places = walkers(3, 2)  # log psi = -r^2 / 2: T = 3 n / 2 - r^2 / 2
    kinetic = compile_quickly(
        lambda x: kinetic_energy(lambda x: -jnp.sum(x**2) / 2, x, method=method), places[0]
    )
    for x in places:
        assert float(kinetic(x)) + (x**2).sum() / 2 == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 100, None, "auto"])
def test_the_answer_does_not_depend_on_the_chunk(chunk: Any, double: None) -> None:
    xs = walkers(7, 2)
    result = run(lambda xs: laplacian_of_batch(smooth, xs, method="loop", chunk=chunk), xs)
    for i, x in enumerate(xs):
        up = np.cumsum(np.sin(x)[::-1], axis=0)[::-1]  # sum of sin below each row
        wanted = (2 * up - np.sin(x) * np.cumsum(x**2, axis=0) + 4 * x * np.cos(x)).sum()
        assert result.laplacian[i] == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(
            result.gradient[i], np.cos(x) * np.cumsum(x**2, axis=0) + 2 * x * up, rtol=1e-12
        )
        assert result.value[i] == pytest.approx((np.sin(x) * np.cumsum(x**2, axis=0)).sum(), rel=1e-12)


def test_a_chunk_limits_the_temporary_memory(double: None) -> None:
    xs = walkers(512, 4)

    def temporaries(chunk: int | None) -> int:
        whole = jax.jit(lambda xs: laplacian_of_batch(smooth, xs, method="forward", chunk=chunk).laplacian)
        return whole.lower(xs).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(64) < temporaries(None) / 4


def test_a_budget_sets_the_chunk_and_the_program_stays_within_it(double: None) -> None:
    xs = walkers(512, 4)
    budget = predicted_cost(smooth, xs[0], "forward").bytes(100)
    assert plan_laplacian(smooth, xs, method="forward", budget=budget) == ("forward", 100)
    compiled = (
        jax.jit(lambda xs: laplacian_of_batch(smooth, xs, method="forward", budget=budget))
        .lower(xs)
        .compile()
    )
    # All points and their gradients exist beside the chunk, and XLA fuses less on a CPU than on the predicted
    # GPU.
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * budget + 3 * xs.nbytes


def test_the_loop_is_predicted_to_take_less_than_the_quicker_methods() -> None:
    f, point = antisymmetric(6), jax.ShapeDtypeStruct((6, 3), np.float32)
    slopes = {method: predicted_cost(f, point, method).bytes_per_point for method in QUICK}
    assert slopes["loop"] < slopes["forward"] / 3
    assert slopes["loop"] < slopes["hessian"] / 3


def test_auto_uses_the_fastest_method_that_fits_or_else_the_loop() -> None:
    f, point = antisymmetric(6), jax.ShapeDtypeStruct((6, 3), np.float32)
    forward = predicted_cost(f, point, "forward")
    many = jax.ShapeDtypeStruct((256, 6, 3), np.float32)
    assert choose_method(f, point, points=256, budget=forward.bytes(256)) == "forward"
    assert choose_method(f, point, points=256, budget=forward.bytes(255)) == "loop"
    assert plan_laplacian(f, many, budget=forward.bytes(40)) == ("forward", 40)
    method, chunk = plan_laplacian(f, many, budget=forward.bytes(16))
    assert method == "loop" and chunk > 16


def test_a_budget_holds_inside_a_traced_program() -> None:
    xs = walkers(40, 2, dtype=np.float32)

    def scaled(scale: Any, xs: Any) -> Any:
        return laplacian_of_batch(lambda x: scale * smooth(x), xs, budget="8KiB").laplacian

    wanted = jax.jit(jax.vmap(laplacian(lambda x: 2 * smooth(x), "hessian")))(xs).laplacian
    np.testing.assert_allclose(jax.jit(scaled)(jnp.float32(2.0), xs), wanted, rtol=1e-4, atol=1e-5)


def test_a_budget_below_one_point_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="One point needs") as caught:
        laplacian_of_batch(smooth, walkers(8, 4, dtype=np.float32), budget=100)
    assert "budget of at least" in caught.value.hint


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda f, x: laplacian(f, "fwd"), "method 'fwd' does not exist"),  # pyright: ignore[reportArgumentType]
        (lambda f, x: laplacian(3.0), "not a function"),  # pyright: ignore[reportArgumentType]
        (lambda f, x: laplacian(lambda x: x)(x), "not one real number"),
        (lambda f, x: laplacian(lambda x: (f(x), f(x)))(x), "a tuple for one point, not one real number"),
        (lambda f, x: laplacian(lambda x: jnp.sum(x) * 1j)(x), "not one real number"),
        (lambda f, x: laplacian(f)(np.ones((2, 3), int)), "points are int"),
        (lambda f, x: laplacian(f)(np.ones((0, 3))), "no coordinates"),
        (lambda f, x: laplacian(f, points=0), "`points` is 0"),
        (lambda f, x: laplacian_of_batch(f, x[:0]), "points have shape"),
        (lambda f, x: laplacian_of_batch(f, x, chunk=0), "chunk is 0"),
        (lambda f, x: laplacian_of_batch(f, x, chunk=True), "chunk is True"),
        (lambda f, x: laplacian_of_batch(f, x, chunk=2.5), "chunk is 2.5"),  # pyright: ignore[reportArgumentType]
        (lambda f, x: laplacian_of_batch(f, x, budget="24"), "not a number of bytes"),
    ],
)
def test_invalid_arguments_are_refused_with_a_hint(call: Callable[..., Any], what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        call(lambda x: jnp.sum(x**2), np.ones((2, 3), np.float32))
    assert caught.value.hint


def test_without_folx_forward_is_missing_and_auto_chooses_another_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "folx", None)
    monkeypatch.setattr(derivatives.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="folx") as caught:
        laplacian(smooth, "forward")(walkers(1, 2, dtype=np.float32)[0])
    assert "pip install" in caught.value.hint and "loop" in caught.value.hint
    assert derivatives.fastest_method(6) == "hessian"
    assert derivatives.fastest_method(30) == "loop"
    result = run(laplacian(smooth), walkers(1, 2, dtype=np.float32)[0])
    assert np.isfinite(float(result.laplacian))


def test_the_kit_imports_jax_late_and_laplacian_is_a_function() -> None:
    code = (
        "import sys, pinchpoint.kit as kit; assert 'jax' not in sys.modules; "
        "assert callable(kit.laplacian); assert 'torch' not in sys.modules and 'folx' not in sys.modules; "
        "from pinchpoint.kit import laplacian; assert callable(laplacian)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
