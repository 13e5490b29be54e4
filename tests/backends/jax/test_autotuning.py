"""Products that XLA would tune, read from its programs and compared with compilations on an H200."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pinchpoint.backends.jax import autotuning, compat, xla
from pinchpoint.backends.jax.captured_arrays import HoistedStep, hoist
from pinchpoint.backends.jax.compile_targets import chip_for
from pinchpoint.backends.jax.tracing import trace

WORKSPACE = 32 << 20
HOPPER = {"capability": (9, 0), "memory_bytes": 140 << 30}

PLAIN = """
  p0 = bf16[16384,2048]{1,0} parameter(0)
  p1 = bf16[2048,2048]{1,0} parameter(1)
  ROOT d = bf16[16384,2048]{1,0} dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
RELU_FIRST = """
  p0 = f32[16384,2048]{1,0} parameter(0)
  zero = f32[] constant(0)
  zeros = f32[16384,2048]{1,0} broadcast(zero), dimensions={}
  relu = f32[16384,2048]{1,0} maximum(p0, zeros)
  p1 = f32[2048,2048]{1,0} parameter(1)
  ROOT d = f32[16384,2048]{1,0} dot(relu, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
SCALED_BATCH = """
  p0 = f32[128,1024,1024]{2,1,0} parameter(0)
  s = f32[] constant(0.125)
  ss = f32[128,1024,1024]{2,1,0} broadcast(s), dimensions={}
  x = f32[128,1024,1024]{2,1,0} multiply(p0, ss)
  p1 = f32[128,1024,64]{2,1,0} parameter(1)
  ROOT d = f32[128,1024,64]{2,1,0} dot(x, p1), lhs_batch_dims={0}, lhs_contracting_dims={2},\
 rhs_batch_dims={0}, rhs_contracting_dims={1}
"""
BIAS_AFTER = """
  p0 = f32[8192,4096]{1,0} parameter(0)
  p1 = f32[4096,4096]{1,0} parameter(1)
  d = f32[8192,4096]{1,0} dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  p2 = f32[4096]{0} parameter(2)
  b = f32[8192,4096]{1,0} broadcast(p2), dimensions={1}
  ROOT sum = f32[8192,4096]{1,0} add(d, b)
"""


def program(body: str, kind: str) -> str:
    """An HLO module that calls one fusion with this body."""
    lines = [line.strip() for line in body.strip().splitlines()]
    shapes = [line.split(" = ")[1].split(" ")[0] for line in lines if " parameter(" in line]
    result = lines[-1].split(" = ")[1].split(" ")[0]
    arguments = "\n".join(f"  a{i} = {shape} parameter({i})" for i, shape in enumerate(shapes))
    operands = ", ".join(f"a{i}" for i in range(len(shapes)))
    return (
        f"HloModule m\n\nfused {{{body}}}\n\nENTRY main {{\n{arguments}\n"
        f"  ROOT f = {result} fusion({operands}), kind={kind}, calls=fused\n}}\n"
    )


def products(folder: Path, body: str, *, kind: str = "kCustom") -> tuple[autotuning.Product, ...]:
    path = folder / "module_0001.before_config_assignment.txt"
    path.write_text(program(body, kind), encoding="utf-8")
    fusions = autotuning.read_fusions(folder)
    assert fusions is not None
    return fusions.products


@pytest.mark.parametrize(
    ("body", "measured"),
    [
        (PLAIN, 310_378_752),
        (RELU_FIRST, 654_311_680),
        (SCALED_BATCH, 1_275_068_672),
        (BIAS_AFTER, 1_230_439_168 - 643_219_968),  # that much was alive
    ],
)
def test_tuning_a_fusion_takes_what_it_took_on_the_card(tmp_path: Path, body: str, measured: int) -> None:
    (product,) = products(tmp_path, body)
    assert 0 <= measured - product.tuning_bytes(WORKSPACE) <= 256


def test_a_product_has_its_sizes(tmp_path: Path) -> None:
    (product,) = products(tmp_path, SCALED_BATCH)
    assert (product.batch, product.rows, product.inner, product.columns) == (128, 1024, 1024, 64)
    assert product.operand_bytes == (512 << 20, 32 << 20)
    assert product.prepared_bytes == 512 << 20


@pytest.mark.parametrize(
    ("rows", "columns", "inner", "prefers_cublas"),
    [
        (8192, 4096, 4096, True),  # 651 us by cuBLAS and 1,265 by XLA's own kernel on an H200
        (100352, 96, 384, True),  # 53 and 67
        (20000, 256, 128, True),  # 16 and 19
        (8192, 4096, 10, False),  # 50 and 36
        (602112, 64, 16, False),  # 130 and 112
        (14336, 128, 64, False),  # 8 and 7
        (256, 256, 256, False),
        (28672, 256, 64, False),
        # Widths that are no powers of two, and few results of long sums: as an H200 chose.
        (2048, 208, 64, True),
        (512, 208, 64, False),
        (32768, 40, 64, True),
        (2048, 40, 64, False),
        (7168, 224, 256, True),
        (4, 8, 4096, True),
        (64, 8, 512, False),
    ],
)
def test_narrow_and_small_products_are_left_to_xla(
    rows: int, columns: int, inner: int, prefers_cublas: bool
) -> None:
    product = autotuning.Product("", 1, rows, columns, inner, (), 0, 0)
    assert product.prefers_cublas is prefers_cublas


def test_cublas_is_not_worth_an_operand_that_must_be_computed_first() -> None:
    wide = {"batch": 1, "rows": 16384, "columns": 2048, "inner": 2048}
    computed = {"operand_bytes": (), "output_bytes": 0, "prepared_bytes": 134 << 20}
    assert autotuning.Product(key="", **wide, **computed).prefers_cublas  # 438 us and 805 on an H200
    assert not autotuning.Product(key="", **wide, **computed, itemsize=2).prefers_cublas
    short = {**wide, "rows": 65536, "columns": 128, "inner": 128}  # 41 and 27
    assert not autotuning.Product(key="", **short, **computed | {"prepared_bytes": 32 << 20}).prefers_cublas
    uneven = {**wide, "rows": 28672, "columns": 224, "inner": 256}  # an H200 chose cuBLAS
    assert autotuning.Product(key="", **uneven, **computed | {"prepared_bytes": 28 << 20}).prefers_cublas


def test_fusions_with_a_reduction_or_a_transposition_are_tuned_too(tmp_path: Path) -> None:
    """One of a neural wave function on an H200: 832,440,576 bytes, of which 395,520 were alive."""
    body = """
  p0 = f32[1024,14,64,42]{3,2,1,0} parameter(0)
  p1 = f32[1024,64,42]{2,1,0} parameter(1)
  b = f32[1024,14,64,42]{3,2,1,0} broadcast(p1), dimensions={0,2,3}
  c = f32[1024,14,128,42]{3,2,1,0} concatenate(p0, b), dimensions={2}
  ROOT t = f32[1024,42,14,128]{3,2,1,0} transpose(c), dimensions={0,3,1,2}
"""
    assert products(tmp_path, body, kind="kInput") == ()
    assert autotuning.read_fusions(tmp_path) == autotuning.Fusions((), 832_440_576 - 395_520)
    assert products(tmp_path, body, kind="kCustom") == ()  # XLA has chosen its kernel before
    assert autotuning.read_fusions(tmp_path) == autotuning.Fusions(())


def test_floats_other_than_0_and_1_have_no_value_in_keys(tmp_path: Path) -> None:
    assert "constant({...})" in products(tmp_path, SCALED_BATCH)[0].key
    assert "constant(0)" in products(tmp_path, RELU_FIRST)[0].key


def test_a_program_that_xla_did_not_write_has_no_products(tmp_path: Path) -> None:
    assert autotuning.read_fusions(tmp_path) is None


def test_the_step_is_compiled_with_the_kernels_to_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in shows its product and refuses, like XLA; then it needs a choice for that product."""
    stats = SimpleNamespace(
        argument_size_in_bytes=10, output_size_in_bytes=5, temp_size_in_bytes=7, alias_size_in_bytes=2
    )

    def compile_(compiler_options: dict[str, Any]) -> Any:
        folder = Path(str(compiler_options.get("xla_dump_to", "")))
        if "xla_dump_to" in compiler_options:
            products(folder, PLAIN)
            raise RuntimeError("NOT_FOUND: no cached config")
        cache = Path(compiler_options["xla_gpu_per_fusion_autotune_cache_dir"])
        answers = {path.read_text() for path in cache.iterdir()}
        assert answers == {f"gemm {{ algorithm: 0 autotune_workspace_size: {WORKSPACE} }}\n"}
        return SimpleNamespace(memory_analysis=lambda: stats)

    monkeypatch.setattr(compat, "cuda_plugin", lambda: "jax-cuda13-plugin 0.0")
    monkeypatch.setattr(HoistedStep, "lower", lambda self, sharding: SimpleNamespace(compile=compile_))
    step = hoist(trace(jax.jit(jnp.tanh), (jax.ShapeDtypeStruct((4,), jnp.float32),)))
    analyses = xla.analyse(step, devices=lambda config: jax.devices("cpu"), **HOPPER)
    assert analyses.added_bytes == (10,)
    assert analyses.tuning is not None and analyses.tuning[0] == 310_378_752 - 256


def test_a_product_without_a_kernel_of_xla_is_left_to_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA names the product; a narrow one, for which its own kernel would be expected."""
    stats = SimpleNamespace(
        argument_size_in_bytes=10, output_size_in_bytes=5, temp_size_in_bytes=7, alias_size_in_bytes=2
    )
    compilations: list[int] = []

    def compile_(compiler_options: dict[str, Any]) -> Any:
        if "xla_dump_to" in compiler_options:
            products(Path(compiler_options["xla_dump_to"]), SCALED_BATCH)
            raise RuntimeError("NOT_FOUND: no cached config")
        cache = Path(compiler_options["xla_gpu_per_fusion_autotune_cache_dir"])
        compilations.append(len(list(cache.iterdir())))
        if not compilations[-1]:
            raise RuntimeError(
                "INTERNAL: No supported config found for HLO: %d = f32[128,1024,64]{2,1,0} fusion(%a, %b), "
                "kind=kCustom, calls=%fused, metadata={}"
            )
        return SimpleNamespace(memory_analysis=lambda: stats)

    monkeypatch.setattr(compat, "cuda_plugin", lambda: "jax-cuda13-plugin 0.0")
    monkeypatch.setattr(HoistedStep, "lower", lambda self, sharding: SimpleNamespace(compile=compile_))
    step = hoist(trace(jax.jit(jnp.tanh), (jax.ShapeDtypeStruct((4,), jnp.float32),)))
    analyses = xla.analyse(step, devices=lambda config: jax.devices("cpu"), **HOPPER)
    assert analyses.added_bytes == (10,) and len(compilations) == 2 and compilations[1]


def test_the_products_that_a_message_names_are_found() -> None:
    one, two, three = (
        autotuning.Product("", 1, 1, 1, 1, (), 0, 0, names=names) for names in (("a", "b"), ("c",), ("d.1",))
    )
    message = (
        "2 of 3. No supported config found for HLO: %x = f32[] fusion(%p), calls=%b, metadata={calls=%c}\n"
        "No supported config found for HLO: %y = f32[] fusion(%q), calls=%d.1, backend"
    )
    assert autotuning.without_kernel([one, two, three], message) == [one, three]
    assert autotuning.without_kernel([one, two, three], "RESOURCE_EXHAUSTED") == []


def test_the_card_in_a_key_is_the_one_compiled_for() -> None:
    assert autotuning.card_key(chip_for(**HOPPER)) == (
        "CUDA: 9.0, Cores: 132, GPU clock: 1.98 GHz, Memory bandwidth: 4814 GB/s, L2 cache: 60 MB, "
        "DNN version: 0.0.0"
    )
