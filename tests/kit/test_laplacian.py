"""The Laplacian's methods give one answer, the closed forms' where there is one, in chunks of any size and inside a budget."""

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
from pinchpoint.kit.laplacians import derivatives
from pinchpoint.kit.laplacians.chunk_plan import choose, plan_laplacian, predicted_cost  # noqa: E402

METHODS = ("nested", "hessian", "loop", "forward")
QUICK = ("hessian", "loop", "forward")
HURRY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.fixture
def double() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def antisymmetric(n: int, *, seed: int = 0) -> Callable[[Any], Any]:
    """log|psi| of n electrons: the product of g_i - g_j over pairs of a spin, g of a small network. x: (n, 3)."""
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

    return jax.jit(
        log_psi
    )  # so that its derivatives are compiled once, also where `nested` asks for each by itself


def determinant(x: Any) -> Any:
    """log|psi| of a determinant of powers of the distances under an envelope. x: (n, 3)."""
    far = jnp.sqrt(jnp.sum(x**2, axis=1, keepdims=True))
    return jnp.linalg.slogdet(
        far ** jnp.arange(x.shape[0]) * jnp.exp(-far) + jnp.sin(x @ jnp.ones((3, x.shape[0]), x.dtype))
    )[1]


def walkers(count: int, n: int, *, seed: int = 1, dtype: Any = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, n, 3)).astype(dtype)


def smooth(x: Any) -> Any:
    """A function that is quick to compile where which one it is does not matter."""
    return jnp.sum(jnp.sin(x) * jnp.cumsum(x**2, axis=0))


def run(g: Callable[[Any], Any], x: Any) -> Any:
    """In one program, compiled in a hurry."""
    return jax.jit(g).lower(x).compile(compiler_options=dict(HURRY))(x)


def relative(got: Any, wanted: Any) -> float:
    return float(np.max(np.abs(np.asarray(got, np.float64) - wanted) / np.maximum(np.abs(wanted), 1.0)))


@pytest.mark.parametrize("n", [1, 2, 4, 10, 14])
def test_all_methods_agree_in_float64(n: int, double: None) -> None:
    f, x = antisymmetric(n), walkers(1, n)[0]
    wanted = run(laplacian(f, "hessian"), x)
    assert abs(float(wanted.laplacian)) > 1e-2
    for method in ("nested", "loop", "forward"):
        # Nested is d programs: as one they would take long to compile.
        found = laplacian(f, method)(x) if method == "nested" else run(laplacian(f, method), x)
        for got, want in zip(found, wanted, strict=True):
            assert got.shape == want.shape
            assert relative(got, np.asarray(want)) < 1e-10, (method, n)


@pytest.mark.parametrize("method", ["loop", "forward"])
def test_a_determinant_is_differentiated_alike(method: Any, double: None) -> None:
    x = walkers(1, 4)[0]
    wanted, found = (run(laplacian(determinant, one), x) for one in ("hessian", method))
    assert relative(found.laplacian, np.asarray(wanted.laplacian)) < 1e-10


@pytest.mark.parametrize("n", [1, 2, 4, 10, 14])
def test_methods_in_float32_keep_to_float64(n: int) -> None:
    f, xs = antisymmetric(n), walkers(2, n, dtype=np.float32)
    with jax.enable_x64(True):
        wanted = np.asarray(run(jax.vmap(laplacian(f, "loop")), xs.astype(np.float64)).laplacian)
    for method in METHODS:
        # Nested is d programs, of one walker.
        nested = method == "nested"
        found = (
            laplacian(f, method)(xs[0]).laplacian
            if nested
            else run(jax.vmap(laplacian(f, method)), xs).laplacian
        )
        assert found.dtype == np.float32
        assert relative(found, wanted[0] if nested else wanted) < 1e-4, method


@pytest.mark.parametrize("method", METHODS)
def test_a_quadratic_has_the_laplacian_of_its_trace(method: Any, double: None) -> None:
    a = np.random.default_rng(3).standard_normal((6, 6))
    b, x = np.arange(6.0), walkers(1, 2)[0]
    found = laplacian(lambda x: x.reshape(-1) @ a @ x.reshape(-1) / 2 + x.reshape(-1) @ b + 7, method)(x)
    assert float(found.laplacian) == pytest.approx(np.trace(a), rel=1e-12)
    np.testing.assert_allclose(found.gradient, ((a + a.T) @ x.reshape(-1) / 2 + b).reshape(2, 3), rtol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_harmonic_function_has_none(method: Any, double: None) -> None:
    x = np.array([0.3, -0.4, 1.2])
    assert abs(float(laplacian(lambda x: 1 / jnp.sqrt(jnp.sum(x**2)), method)(x).laplacian)) < 1e-13


@pytest.mark.parametrize("method", METHODS)
def test_a_function_of_nothing_has_neither_slope_nor_curvature(method: Any, double: None) -> None:
    found = laplacian(lambda x: jnp.ones((), x.dtype), method)(np.ones((2, 3)))
    assert float(found.value) == 1 and float(found.laplacian) == 0
    np.testing.assert_array_equal(found.gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("method", ["auto", *METHODS])
@pytest.mark.parametrize("place", [(0.3, -0.4, 1.2), (2.0, 1.0, -3.0), (0.0, 0.0, 0.01)])
def test_the_kinetic_energy_of_hydrogen_matches_the_closed_form(
    method: Any, place: tuple[float, ...], double: None
) -> None:
    x = np.array([place])  # log psi = -r: T = 1 / r - 1/2
    wanted = 1 / np.linalg.norm(x) - 0.5
    assert float(kinetic_energy(lambda x: -jnp.sqrt(jnp.sum(x**2)), x, method=method)) == pytest.approx(
        wanted, abs=1e-6
    )


@pytest.mark.parametrize("method", METHODS)
def test_the_local_energy_of_a_trapped_pair_is_the_same_everywhere(method: Any, double: None) -> None:
    for x in walkers(3, 2):  # log psi = -r^2 / 2: T = 3 n / 2 - r^2 / 2
        energy = kinetic_energy(lambda x: -jnp.sum(x**2) / 2, x, method=method) + (x**2).sum() / 2
        assert float(energy) == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 5, 7, 100, None, "auto"])
def test_the_answer_does_not_depend_on_the_chunk(chunk: Any, double: None) -> None:
    xs = walkers(7, 2)
    found = run(lambda xs: laplacian_of_batch(smooth, xs, method="loop", chunk=chunk), xs)
    for i, x in enumerate(xs):
        up = np.cumsum(np.sin(x)[::-1], axis=0)[::-1]  # sum of sin below each row
        wanted = (2 * up - np.sin(x) * np.cumsum(x**2, axis=0) + 4 * x * np.cos(x)).sum()
        assert found.laplacian[i] == pytest.approx(wanted, rel=1e-12)
        np.testing.assert_allclose(
            found.gradient[i], np.cos(x) * np.cumsum(x**2, axis=0) + 2 * x * up, rtol=1e-12
        )
        assert found.value[i] == pytest.approx((np.sin(x) * np.cumsum(x**2, axis=0)).sum(), rel=1e-12)


def test_a_chunk_bounds_what_xla_holds(double: None) -> None:
    xs = walkers(512, 4)

    def temporaries(chunk: int | None) -> int:
        whole = jax.jit(lambda xs: laplacian_of_batch(smooth, xs, method="forward", chunk=chunk).laplacian)
        return whole.lower(xs).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(64) < temporaries(None) / 4


def test_a_budget_sets_the_chunk_and_what_it_takes_stays_inside(double: None) -> None:
    xs = walkers(512, 4)
    budget = predicted_cost(smooth, xs[0], "forward").bytes(100)
    assert plan_laplacian(smooth, xs, method="forward", budget=budget) == ("forward", 100)
    compiled = (
        jax.jit(lambda xs: laplacian_of_batch(smooth, xs, method="forward", budget=budget))
        .lower(xs)
        .compile()
    )
    # Beside a chunk lie all points once and their gradients, and XLA for CPUs fuses less than the prediction's GPU.
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * budget + 3 * xs.nbytes


def test_the_loop_is_predicted_to_take_less_than_the_quicker_methods() -> None:
    f, point = antisymmetric(10), jax.ShapeDtypeStruct((10, 3), np.float32)
    slopes = {method: predicted_cost(f, point, method).bytes_per_point for method in QUICK}
    assert slopes["loop"] < slopes["forward"] / 3
    assert slopes["loop"] < slopes["hessian"] / 3


def test_auto_takes_the_quickest_that_fits_and_the_loop_where_none_does() -> None:
    f, point = antisymmetric(10), jax.ShapeDtypeStruct((10, 3), np.float32)
    forward = predicted_cost(f, point, "forward")
    many = jax.ShapeDtypeStruct((256, 10, 3), np.float32)
    assert choose(f, point, points=256, budget=forward.bytes(256)) == "forward"
    assert choose(f, point, points=256, budget=forward.bytes(255)) == "loop"
    assert plan_laplacian(f, many, budget=forward.bytes(40)) == ("forward", 40)
    method, chunk = plan_laplacian(f, many, budget=forward.bytes(16))
    assert method == "loop" and chunk > 16


def test_a_budget_is_kept_to_inside_a_traced_program() -> None:
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
        (lambda f, x: laplacian(f, "fwd"), "no Laplacian method 'fwd'"),
        (lambda f, x: laplacian(3.0), "not a function"),
        (lambda f, x: laplacian(lambda x: x)(x), "not one real number"),
        (lambda f, x: laplacian(lambda x: (f(x), f(x)))(x), "a tuple, not one real number"),
        (lambda f, x: laplacian(lambda x: jnp.sum(x) * 1j)(x), "not one real number"),
        (lambda f, x: laplacian(f)(np.ones((2, 3), int)), "points of type int"),
        (lambda f, x: laplacian(f)(np.ones((0, 3))), "no coordinates"),
        (lambda f, x: laplacian(f, points=0), "0 points at one time"),
        (lambda f, x: laplacian_of_batch(f, x[:0]), "points of shape"),
        (lambda f, x: laplacian_of_batch(f, x, chunk=0), "a chunk of 0 points"),
        (lambda f, x: laplacian_of_batch(f, x, chunk=True), "a chunk of True points"),
        (lambda f, x: laplacian_of_batch(f, x, chunk=2.5), "a chunk of 2.5 points"),
        (lambda f, x: laplacian_of_batch(f, x, budget="24"), "not a number of bytes"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_hint(call: Callable[..., Any], what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        call(lambda x: jnp.sum(x**2), np.ones((2, 3), np.float32))
    assert caught.value.hint


def test_without_folx_forward_is_missed_and_auto_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "folx", None)
    monkeypatch.setattr(derivatives.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="folx") as caught:
        laplacian(smooth, "forward")(walkers(1, 2, dtype=np.float32)[0])
    assert "pip install" in caught.value.hint and "loop" in caught.value.hint
    assert derivatives.fastest(6) == "hessian"
    assert derivatives.fastest(30) == "loop"
    found = laplacian(smooth)(walkers(1, 2, dtype=np.float32)[0])
    assert np.isfinite(float(found.laplacian))


def test_the_kit_gives_the_laplacian_late_and_never_a_module() -> None:
    code = (
        "import sys, pinchpoint.kit as kit; assert 'jax' not in sys.modules; "
        "assert callable(kit.laplacian); assert 'torch' not in sys.modules and 'folx' not in sys.modules; "
        "from pinchpoint.kit import laplacian; assert callable(laplacian)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
