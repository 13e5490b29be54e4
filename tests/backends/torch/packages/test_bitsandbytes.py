"""Layers of bitsandbytes: the package's own Python runs on the simulated device, with an inert library."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.packages import int8_outliers

MIB = 2**20
# A package with the parts of bitsandbytes that are replaced: a library that cannot be loaded, an operation
# with kernels by device, and a parameter that is quantised when it moves.
FILES = {
    "__init__.py": "from . import _ops, functional, nn, optim\nfrom .backends import cuda\n",
    "_ops.py": """
import torch
torch.library.define("bitsandbytes::halve", "(Tensor A) -> Tensor")
@torch.library.register_fake("bitsandbytes::halve")
def _(A):
    raise AssertionError("the kernel's own Python must run")
""",
    "cextension.py": """
import torch
lib = None if torch.cuda.is_available() else "the library for the CPU"
BNB_BACKEND = "CPU"
""",
    "backends/__init__.py": "",
    "backends/cuda.py": """
import torch
from bitsandbytes.cextension import lib
@torch.library.register_kernel("bitsandbytes::halve", "cuda")
def _(A):
    scratch = torch.empty(A.numel(), device=A.device, dtype=torch.uint8)
    out = torch.empty((A.numel() // 2, 1), device=A.device, dtype=torch.uint8)
    assert lib.chalve(A.data_ptr(), out.data_ptr(), torch._C._cuda_getCurrentRawStream(0)) == 0
    return out
""",
    "functional.py": """
import torch
class QuantState:
    shape = None
    def to(self, device): ...
def quantize_4bit(A, **_):
    state = QuantState()
    state.shape = A.shape
    return torch.ops.bitsandbytes.halve.default(A), state
def int8_vectorwise_quant(A):
    return A.to(torch.int8), torch.empty(A.shape[0], device=A.device), None
""",
    "nn/__init__.py": "from .modules import Int8Params, Params4bit\n",
    "nn/modules.py": """
import torch
import bitsandbytes as bnb
import bitsandbytes.functional
class Params4bit(torch.nn.Parameter): ...
class Int8Params(torch.nn.Parameter): ...
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        path = tmp_path / "bitsandbytes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


Simulate = Callable[..., AbstractContextManager[Any]]


def test_a_parameter_is_quantised_by_the_packages_own_kernel(
    package: None, simulate: Simulate, count: Any
) -> None:
    with simulate() as observer:
        import bitsandbytes as bnb  # type: ignore[import-not-found]

        layer: Any = torch.nn.Linear(1024, 1024, bias=False)
        layer.weight = bnb.nn.Params4bit(layer.weight.data, quant_type="nf4", module=layer)
        allocated = count(observer.ledger.observation, lambda: layer.to("cuda"))
        # The weight in fp32, the kernel's scratch of a byte per element, and half a byte per element.
        assert (allocated.peak, allocated.kept_bytes) == (4 * MIB + MIB + MIB // 2, MIB // 2)
        weight: Any = layer.weight
        assert weight.is_cuda and weight.dtype == torch.uint8 and isinstance(weight, bnb.nn.Params4bit)
        assert not isinstance(weight, bnb.nn.Int8Params) and isinstance(weight, torch.nn.Parameter)
        state = getattr(weight, "quant_state")  # noqa: B009
        assert state.shape == layer.quant_state.shape == (1024, 1024)
        assert layer.to("cuda").weight.quant_state is state  # it is quantised once
    assert "bitsandbytes" not in sys.modules


def test_a_parameter_of_8_bits_has_a_statistic_per_row(package: None, simulate: Simulate, count: Any) -> None:
    with simulate() as observer:
        import bitsandbytes as bnb  # type: ignore[import-not-found]

        weight = bnb.nn.Int8Params(torch.randn(1024, 1024), requires_grad=False)
        allocated = count(observer.ledger.observation, weight.cuda)
        assert allocated.kept_bytes == MIB + 4096
        assert allocated.peak == 3 * MIB + 4096  # the weight in fp16 beside them
        moved = weight.cpu()
        assert not moved.is_cuda and moved.dtype == torch.int8 and not moved.SCB.is_cuda


def test_the_package_can_be_imported_again(package: None, simulate: Simulate) -> None:
    for _ in range(2):
        with simulate():
            import bitsandbytes as bnb  # type: ignore[import-not-found]

            assert bnb.optim.AdamW8bit  # a stand-in


needs_package = pytest.mark.skipif(
    importlib.machinery.PathFinder.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed"
)


@needs_package
def test_a_layer_of_4_bits_keeps_half_a_byte_per_weight(observer: Any, take: Any) -> None:
    import bitsandbytes as bnb  # type: ignore[import-not-found]

    layer = bnb.nn.Linear4bit(1024, 1024, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    moved = take(lambda: layer.to("cuda"))
    blocks = MIB // 64  # each has a scale of 8 bits; besides, there are maps and the scales of the scales
    assert 0 < moved.kept_bytes - MIB // 2 - blocks <= 4096
    x = torch.randn(1024, 1024, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    out = layer(x)
    gradient = torch.ones_like(out)
    backward = take(lambda: out.backward(gradient))
    # The weight is dequantised to its former type, fp32, and converted to that of the gradient.
    assert backward.peak >= 4 * MIB + 2 * MIB


def test_columns_with_outliers_are_kept_for_the_backward_pass_as_an_interval(
    simulate: Simulate, count: Any
) -> None:
    ran = []

    def scaled_mm(A: Any, CA: Any, CB: Any, SCA: Any, SCB: Any, outlier_cols: Any) -> Any:
        ran.append(outlier_cols.numel())
        return torch.empty(A.shape[0], CB.shape[0], device="cuda"), A[:, outlier_cols].contiguous()

    with simulate() as observer:
        kernels = int8_outliers.kernels(observer, {("int8_mixed_scaled_mm", "default"): scaled_mm})
        x = torch.randn(512, 400, dtype=torch.float16, device="cuda")
        weight = torch.empty(300, 400, dtype=torch.int8, device="cuda")
        quantised = kernels["int8_vectorwise_quant"](x, 6.0)
        assert quantised[0].dtype == torch.int8 and quantised[0].shape == x.shape and ran == []
        output, kept = kernels["int8_mixed_scaled_mm"](
            x, quantised[0], weight, quantised[1], None, quantised[2]
        )
        blocks = [block for block in observer.ledger.observation.blocks if block.op == "int8 outliers"]
        # One of 400 columns is a tensor; 4 are usual and 100 the most. First those of the weights, as bytes,
        # in fp32, and in fp16, and then those of the input.
        weights, inputs = 300 * (1 + 4 + 2), 512 * 2
        assert [block.span for block in blocks] == [(3 * each, 0, 99 * each) for each in (weights, inputs)]
        assert kept.nbytes == inputs and output.shape == (512, 300) and ran == [1]
        numbers = [observer.ledger.observation.blocks.index(block) for block in blocks]
        events = observer.ledger.observation.events
        assert [events.count(number) for number in numbers] == [2, 1]
        del kept
        assert [events.count(number) for number in numbers] == [2, 2]
        assert any("LLM.int8" in note for note in observer.ledger.observation.notes)
