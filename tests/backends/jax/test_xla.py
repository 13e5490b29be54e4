"""XLA's memory analysis, with this machine's CPU in place of the compile-only card."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pinchpoint.backends.jax import compat, xla
from pinchpoint.backends.jax.captured_arrays import HoistedStep, hoist
from pinchpoint.backends.jax.compile_targets import CHIPS, chip_for, matmul_workspace, target_config
from pinchpoint.backends.jax.tracing import trace

X = jax.ShapeDtypeStruct((500, 64), jnp.float32)
W = jax.ShapeDtypeStruct((64, 64), jnp.float32)
HOPPER = {"capability": (9, 0), "memory_bytes": 140 << 30}


def on_cpu(config: str) -> list[Any]:
    assert 'platform_name: "CUDA"' in config
    return jax.devices("cpu")


@pytest.fixture
def plugin(monkeypatch):
    monkeypatch.setattr(compat, "cuda_plugin", lambda: "jax-cuda13-plugin 0.0")


def step(w, x):
    return w - jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)))(w)


@pytest.mark.parametrize("donated", [(), (0,)])
def test_the_peak_is_what_xla_assigned_to_the_whole_step(plugin, donated):
    jitted = jax.jit(step, donate_argnums=donated)
    analysis = xla.analyse(hoist(trace(jitted, (W, X))), devices=on_cpu, **HOPPER).expected
    stats = jitted.lower(W, X).compile().memory_analysis()
    assert analysis.arguments == stats.argument_size_in_bytes == (64 * 64 + 500 * 64) * 4
    assert analysis.outputs == stats.output_size_in_bytes == 64 * 64 * 4
    assert analysis.aliases == stats.alias_size_in_bytes == (64 * 64 * 4 if donated else 0)
    assert analysis.temporaries == pytest.approx(stats.temp_size_in_bytes, rel=0.02)
    assert (
        analysis.peak_bytes == analysis.arguments + analysis.outputs + analysis.temporaries - analysis.aliases
    )
    assert analysis.target == "H200 by jax-cuda13-plugin 0.0"


def test_captured_arrays_count_as_arguments(plugin):
    points = jnp.ones((500, 64))
    weights = jnp.ones((64, 64))

    @jax.jit
    def inner(w):
        return jnp.tanh(points @ w)

    def closure():
        return jnp.sum(inner(weights) * points)

    analysis = xla.analyse(hoist(trace(closure)), devices=on_cpu, **HOPPER).expected
    assert analysis.arguments == points.nbytes + weights.nbytes


def test_hoisting_changes_no_result():
    array = jnp.arange(12.0).reshape(3, 4)

    @jax.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, g: (g * 2,))

    @jax.jit
    def inner(x):
        total, rows = jax.lax.scan(lambda s, row: (s + jnp.sum(row * array), s), 0.0, x)
        return jax.checkpoint(jnp.tanh)(doubled(x)) * total + rows[:, None]

    def run(x):
        return jax.grad(lambda x: jnp.sum(jax.nn.softplus(inner(x)) * array))(x)

    traced = trace(run, (jax.ShapeDtypeStruct((3, 4), jnp.float32),))
    hoisted_step = hoist(traced)
    x = jnp.linspace(-1, 1, 12).reshape(3, 4)
    assert len(hoisted_step.inputs) == 2
    assert jnp.allclose(hoisted_step.run(*traced.captured_arrays, x)[0], run(x), atol=1e-6)
    # The captured array really is an argument: another value gives another result.
    assert not jnp.allclose(hoisted_step.run(array + 1, x)[0], run(x), atol=1e-3)


def test_an_argument_nobody_reads_still_counts(plugin):
    analysis = xla.analyse(
        hoist(trace(jax.jit(lambda w, x: jnp.sum(w)), (W, X))), devices=on_cpu, **HOPPER
    ).expected
    assert analysis.arguments == (64 * 64 + 500 * 64) * 4


def test_without_the_plugin_there_is_no_analysis_and_no_compiling():
    def refuse(config: str) -> list[Any]:
        raise AssertionError("a device was requested")

    assert compat.cuda_plugin() is None, "this test is for machines without the plugin"
    with pytest.raises(xla.NoAnalysis, match="plugin is not installed"):
        xla.analyse(hoist(trace(jax.jit(step), (W, X))), devices=refuse, **HOPPER)


@pytest.mark.parametrize(
    "error",
    [NotImplementedError("topology not implemented"), RuntimeError("FAILED_PRECONDITION: parse\nmore")],
)
def test_a_plugin_without_topologies_says_why(plugin, error):
    def devices(config: str) -> list[Any]:
        raise error

    with pytest.raises(xla.NoAnalysis, match="no compile-only device") as caught:
        xla.analyse(hoist(trace(jax.jit(step), (W, X))), devices=devices, **HOPPER)
    assert "more" not in str(caught.value)


@dataclass
class FakeLowered:
    """Compiles only when Triton is off, like a plugin that requires tuning."""

    stats: Any
    refuse_all: bool = False
    options_tried: list[dict[str, Any]] = field(default_factory=list)

    def compile(self, compiler_options: dict[str, Any]) -> Any:
        self.options_tried.append(compiler_options)
        if self.refuse_all or "xla_gpu_enable_triton_gemm" not in compiler_options:
            raise RuntimeError("INTERNAL: autotuning needs a device")
        return SimpleNamespace(memory_analysis=lambda: self.stats)


def fake(lowered: FakeLowered, monkeypatch: pytest.MonkeyPatch) -> HoistedStep:
    monkeypatch.setattr(HoistedStep, "lower", lambda self, sharding: lowered)
    return hoist(trace(jax.jit(step), (W, X)))


def test_a_kernel_generator_that_insists_on_tuning_is_switched_off(plugin, monkeypatch):
    stats = SimpleNamespace(
        argument_size_in_bytes=10, output_size_in_bytes=5, temp_size_in_bytes=7, alias_size_in_bytes=2
    )
    lowered = FakeLowered(stats)
    analysis = xla.analyse(fake(lowered, monkeypatch), devices=on_cpu, **HOPPER).expected
    assert analysis.peak_bytes == 20
    assert analysis.live_peak is None
    assert all(options["xla_gpu_autotune_level"] == 0 for options in lowered.options_tried)
    assert analysis.options == {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


def test_a_step_that_does_not_compile_says_why(plugin, monkeypatch):
    with pytest.raises(xla.NoAnalysis, match="autotuning needs a device"):
        xla.analyse(fake(FakeLowered(None, refuse_all=True), monkeypatch), devices=on_cpu, **HOPPER)


def test_no_statistics_is_no_analysis(plugin, monkeypatch):
    with pytest.raises(xla.NoAnalysis, match="no memory analysis"):
        xla.analyse(fake(FakeLowered(None), monkeypatch), devices=on_cpu, **HOPPER)


def test_a_card_is_compiled_for_as_the_nearest_listed_one():
    assert chip_for((9, 0), 80 << 30).name == "H100"
    assert chip_for((9, 0), 140 << 30).name == "H200"
    assert chip_for((8, 9), 24 << 30).name == "RTX 4090"
    assert chip_for((8, 7), 24 << 30).name == "RTX 3090"
    assert chip_for((12, 1), 32 << 30).name == "RTX 5090"
    assert chip_for((6, 1), 8 << 30).name == "V100"
    assert [chip.capability for chip in CHIPS] == sorted(chip.capability for chip in CHIPS)


def test_a_target_config_states_the_card_it_was_asked_for():
    text = target_config((8, 9), 24 << 30)
    lines = [line.strip() for line in text.splitlines()]
    assert "major: 8" in lines
    assert "minor: 9" in lines
    assert f"device_memory_size: {24 << 30}" in lines
    assert text.count("{") == text.count("}") == 4


def test_products_ask_for_more_workspace_from_hopper_on():
    assert matmul_workspace((8, 9)) == 4 << 20
    assert matmul_workspace((9, 0)) == 32 << 20
