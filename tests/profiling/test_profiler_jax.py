"""What a Profiler sees of a JAX program, and that it changes nothing."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest

import pinchpoint
from pinchpoint.backends.recording.observation import Observation
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.core.records import Trace, TraceEvent

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


def events(trace: Trace, kind: str) -> list[TraceEvent]:
    return [event for event in trace.events if event.kind == kind]


def line_with(text: str) -> int:
    lines = inspect.getsource(inspect.getmodule(line_with)).splitlines()  # pyright: ignore[reportArgumentType]
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_with" not in line)


def loss_of(weights: Any, x: Any) -> Any:
    return jnp.mean((x @ weights) ** 2)


def test_a_loop_has_steps_compilations_and_waits_with_their_lines() -> None:
    results = []

    def run() -> None:
        @jax.jit
        def update(weights: Any, x: Any) -> Any:
            return weights - 0.1 * jax.grad(loss_of)(weights, x)

        weights = jnp.ones((4, 2))
        for step in range(6):
            weights = update(weights, jnp.full((3, 4), float(step)))
            results.append(float(weights.sum()))

    trace = pinchpoint.profile(run)
    assert (trace.framework, trace.steps, trace.step_is) == ("jax", 6, "jitted call")
    assert {"computation", "compilation"} <= {name for row in trace.timeline for name in row["phases"]}
    compiled = [event for event in events(trace, "compile") if event.what == "update"]
    assert [(event.count, event.line) for event in compiled] == [
        (1, line_with("weights = update(weights, jnp"))
    ]
    assert [event.what for event in events(trace, "build")] == ["jax.jit"]  # grad is inside what is traced
    (wait,) = events(trace, "wait")
    assert (wait.what, wait.count, wait.line) == (
        "float of an array",
        6,
        line_with("results.append(float(weights.sum()))"),
    )
    plain = list(results)
    results.clear()
    run()
    assert results == plain


def test_a_function_that_is_compiled_again_for_every_shape_is_a_problem() -> None:
    def run() -> None:
        double = jax.jit(lambda x: x * 3)
        for size in range(5, 11):
            double(jnp.ones(size))

    trace = pinchpoint.profile(run)
    again = [event for event in events(trace, "recompile") if event.what == "<lambda>"]
    assert [event.count for event in again] == [5]
    assert again[0].detail == "argument [0] was float32[9], now it is float32[10]"
    assert any("<lambda> was compiled again 5 times" in problem.what for problem in trace.problems)


def test_operations_outside_jit_are_no_problem_before_the_loop() -> None:
    def run() -> None:
        parts = [jnp.zeros((size, 3)) for size in (13, 17)]
        double = jax.jit(lambda x: x * 5)
        for _ in range(5):
            double(parts[0])

    trace = pinchpoint.profile(run)
    assert events(trace, "recompile")
    assert trace.problems == ()


def test_functions_built_in_the_loop_are_a_problem() -> None:
    def run() -> None:
        weights, x = jnp.ones((4, 2)), jnp.ones((3, 4))
        for _ in range(12):
            weights = weights - 0.1 * jax.grad(loss_of)(weights, x)

    trace = pinchpoint.profile(run)
    (event,) = events(trace, "build")
    assert (event.what, event.count, event.line) == (
        "jax.grad",
        12,
        line_with("weights = weights - 0.1 * jax"),
    )
    assert "jax.grad is built 12 times" in trace.problems[0].what or any(
        "jax.grad is built 12 times" in problem.what for problem in trace.problems
    )


def test_a_jitted_function_keeps_its_interface() -> None:
    seen: dict[str, Any] = {}

    def run() -> None:
        class Model:
            @partial(jax.jit, static_argnums=0)
            def double(self, x: Any) -> Any:
                """Twice x."""
                return 2 * x

        function = jax.jit(loss_of)
        seen["lowered"] = function.lower(jnp.ones((2, 1)), jnp.ones((3, 2))).as_text()
        seen["grad"] = jax.grad(function)(jnp.ones((2, 1)), jnp.ones((3, 2)))
        seen["name"], seen["doc"] = function.__name__, Model.double.__doc__
        seen["method"] = Model().double(jnp.ones(2))
        seen["vmap"] = jax.vmap(function, in_axes=(None, 0))(jnp.ones((2, 1)), jnp.ones((4, 3, 2)))
        seen["function"] = function

    pinchpoint.profile(run)
    assert "module" in seen["lowered"]
    assert (seen["name"], seen["doc"]) == ("loss_of", "Twice x.")
    assert seen["method"].tolist() == [2.0, 2.0]
    assert seen["vmap"].shape == (4,)
    assert float(seen["function"](jnp.ones((2, 1)), jnp.ones((3, 2)))) == 4.0  # also after the profile


def test_everything_of_jax_is_put_back() -> None:
    before = jax.jit, jax.grad, jax.device_get, type(jnp.ones(1)).item
    pinchpoint.profile(lambda: jnp.ones(2))
    assert (jax.jit, jax.grad, jax.device_get, type(jnp.ones(1)).item) == before


def test_a_jitted_function_built_in_the_loop_says_so() -> None:
    def run() -> None:
        for _ in range(4):
            jax.jit(lambda x: x * 5)(jnp.ones(7))

    trace = pinchpoint.profile(run)
    assert trace.steps == 4
    assert [event.detail for event in events(trace, "recompile") if event.what == "<lambda>"] == [
        "the function was built again"
    ]
    assert any("jax.jit is built once per step" in problem.what for problem in trace.problems)


def test_a_jax_loop_is_left_after_its_steps() -> None:
    def run() -> None:
        triple = jax.jit(lambda x: x * 3)
        for _ in range(50):
            triple(jnp.ones(3))

    trace = pinchpoint.profile(run, steps=4)
    assert (trace.steps, trace.ended) == (4, "stopped")


def test_all_arrays_are_computed_after_a_synchronisation() -> None:
    recorder = Recorder(light=True)
    observation = Observation(recorder)
    observation.start()
    try:
        multiply = jax.jit(lambda x: x @ x * 1e-3)
        x = multiply(jnp.ones((600, 600)))  # compiled
        for _ in range(20):
            x = multiply(x)
        (synchronize,) = recorder.synchronize[-1:]
        assert synchronize()
        assert x.is_ready()
    finally:
        observation.close()
