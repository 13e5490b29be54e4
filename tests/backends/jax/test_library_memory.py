"""Laws of the memory that XLA's choices take, compared with compilations on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pinchpoint.backends.jax import library_memory

RECORD = json.loads(
    (Path(__file__).parents[3] / "benchmarks/results/jax_scripts_h200.json").read_text(encoding="utf-8")
)
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16}
MIB = 1 << 20


def tuning(function: Any, *shapes: tuple[int, ...], dtype: str) -> tuple[int, int]:
    structs = [jax.ShapeDtypeStruct(shape, DTYPES[dtype]) for shape in shapes]
    return library_memory.tuning_bytes(jax.make_jaxpr(function)(*structs).jaxpr)


def test_tuning_a_product_takes_what_it_took_on_the_card() -> None:
    cases = [case for case in RECORD["products"] if case["kind"] == "product"]
    assert len(cases) >= 14
    for case in cases:
        m, k, n = case["shape"]
        usual, most = tuning(jnp.matmul, (m, k), (k, n), dtype=case["dtype"])
        assert usual == pytest.approx(case["peak_bytes"], rel=0.02), case
        assert case["peak_bytes"] <= most + 2 * MIB, case


def convolve(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def kernel_gradient(x: Any, kernel: Any, g: Any) -> Any:
    return jax.vjp(lambda kernel: convolve(x, kernel), kernel)[1](g)


def input_gradient(x: Any, kernel: Any, g: Any) -> Any:
    return jax.vjp(lambda x: convolve(x, kernel), x)[1](g)


def test_tuning_a_convolution_takes_at_most_what_is_allowed_for() -> None:
    cases = RECORD["convolutions"]
    assert len(cases) >= 25
    for case in cases:
        batch, side, channels, features, width = case["shape"]
        x, g = (batch, side, side, channels), (batch, side, side, features)
        kernel = (width, width, channels, features)
        if case["kind"] == "forward":
            _, most = tuning(convolve, x, kernel, dtype=case["dtype"])
        else:
            function = kernel_gradient if case["kind"] == "kernel gradient" else input_gradient
            _, most = tuning(function, x, kernel, g, dtype=case["dtype"])
        assert case["peak_bytes"] <= most, case


def test_intervals_hold_for_the_programs_that_were_compiled_on_the_card() -> None:
    cases = [case for case in RECORD["programs"] if "walk_bytes" in case and case["program"] != "sorting"]
    assert len(cases) >= 19
    for case in cases:
        interval = library_memory.liveness_interval(
            0,
            case["walk_bytes"],
            case["plain_walk_bytes"],
            output_bytes=0,
            workspace=case["walk_bytes"] - case["walk_without_workspace_bytes"],
            scratch=32 * MIB if case["program"] == "solve" else 0,
            tuning=(0, 0),
            first_live_bytes=0,
        )
        assert interval.low <= case["added_bytes"] <= interval.high, case
        analyses = [added for added in case["analyses_bytes"].values() if added is not None]
        interval = library_memory.xla_interval(0, analyses, sorts=0, tuning=(0, 0), first_live_bytes=0)
        assert interval.low <= case["added_bytes"] <= interval.high, case


def test_a_sort_has_scratch_that_xla_does_not_know_without_the_card() -> None:
    """Measured: 611 MiB beside 64 MiB of keys, where the analysis without the card says 160."""
    jaxpr = jax.make_jaxpr(lambda x: jnp.sort(x)[::2] + jnp.argsort(x)[::2])(
        jax.ShapeDtypeStruct((1 << 24,), jnp.float32)
    )
    sorts = library_memory.scratch_bytes(jaxpr.jaxpr, only_sorts=True)
    interval = library_memory.xla_interval(0, [160 * MIB], sorts=sorts, tuning=(0, 0), first_live_bytes=0)
    assert interval.high > 611 * MIB
