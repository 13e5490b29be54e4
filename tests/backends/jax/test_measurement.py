"""Measurement of JAX on this machine."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.backends.jax import measurement
from pinchpoint.core.errors import BadInput


def test_the_backend_is_found_by_name():
    assert backend("jax") is measurement


@pytest.mark.skipif(measurement.has_cuda(), reason="this machine has a GPU")
def test_without_a_gpu_auto_is_the_cpu():
    assert resolve_device("auto", measurement) == "cpu"


def test_cpu_peaks_are_unknown_not_zero():
    measurement.reset_peak("cpu")
    peaks = measurement.peaks("cpu")
    assert (peaks.allocated_bytes, peaks.reserved_bytes, peaks.total_bytes) == (None, None, None)


def test_waiting_returns_only_when_the_result_is_there():
    result = {"y": jnp.ones((300, 300)) @ jnp.ones((300, 300))}
    measurement.wait("cpu", result)
    assert result["y"].is_ready()
    measurement.wait("cpu")


def test_the_account_of_a_cpu_run_is_what_xla_assigned():
    x = jnp.ones((1000, 64))
    w = jnp.ones((64, 64))
    step = jax.jit(lambda w, x: jnp.tanh(x @ w) @ w)
    stats = step.lower(w, x).compile().memory_analysis()
    want = stats.argument_size_in_bytes + stats.output_size_in_bytes + stats.temp_size_in_bytes
    assert measurement.account(lambda: step(w, x)) == pytest.approx(want, rel=0.01)


def test_the_account_grows_with_the_points():
    def run(size):
        x = jnp.ones((size, 64))
        return lambda: jnp.sum(jnp.tanh(x @ jnp.ones((64, 64))) ** 2)

    small, large = measurement.account(run(1000)), measurement.account(run(3000))
    assert small is not None
    assert large is not None
    assert large - small >= 2000 * 64 * 4


def test_a_run_that_cannot_be_traced_has_no_account():
    x = jnp.ones(3)
    assert measurement.account(lambda: float(jnp.sum(x))) is None
    assert measurement.account(lambda: x * 2 if jnp.sum(x) > 2 else x) is None


@pytest.mark.parametrize(
    ("error", "oom"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 10 bytes."), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: x"), True),
        (RuntimeError("INVALID_ARGUMENT: shapes differ"), False),
        (ValueError("Out of memory is a song"), False),
    ],
)
def test_only_memory_errors_of_the_device_count_as_oom(error, oom):
    assert measurement.is_oom(error) is oom


def test_arrays_come_back_as_numpy():
    array = measurement.to_numpy(jnp.arange(3))
    assert type(array) is np.ndarray
    assert array.tolist() == [0, 1, 2]


def test_the_seed_repeats_what_numpy_draws():
    measurement.seed(7)
    first = np.random.rand(3)
    measurement.seed(7)
    assert np.array_equal(first, np.random.rand(3))


def test_a_cap_after_jax_started_is_refused():
    jnp.ones(1).block_until_ready()
    with pytest.raises(BadInput, match="already"):
        measurement.cap(1 << 30)


def test_a_cap_before_jax_starts_sets_the_fraction_of_the_card():
    code = (
        "import os\n"
        "from pinchpoint.backends.jax import measurement\n"
        "measurement._card_bytes = lambda: 100 << 30\n"
        "measurement.cap(25 << 30)\n"
        "print(os.environ['XLA_CLIENT_MEM_FRACTION'], os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])\n"
    )
    env = os.environ | {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "PYTHONPATH": "src"}
    process = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == ["0.250000", "false"]


@pytest.mark.gpu
def test_the_gpu_peak_covers_what_was_alive():
    if not measurement.has_cuda():
        pytest.skip("JAX sees no CUDA device")
    x = jax.device_put(np.ones(10_000_000, np.float32), jax.devices("cuda")[0])
    measurement.wait("cuda", x * 2)
    peak_bytes = measurement.peaks("cuda").allocated_bytes
    assert peak_bytes is not None
    assert peak_bytes >= 2 * x.nbytes
