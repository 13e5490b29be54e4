"""Kernels that are not modelled: named, a reason or an error, and definite once they are registered."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.cpp_extension

from pinchpoint import register_kernel
from pinchpoint.core import kernel_registry
from pinchpoint.core.errors import BadInput, CannotFake

MIB = 2**20
TRITON = """
import torch, triton, triton.language as tl

@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])(twice)

def double(x, kernel=twice):
    y = torch.zeros_like(x)
    kernel[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
    return y
"""


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_registry, "_KERNELS", {})


@pytest.fixture
def kernels(observer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "triton_kernels_of_a_test.py").write_text(TRITON)
    monkeypatch.syspath_prepend(str(tmp_path))
    observer.stand_ins.serve(["triton"])
    import triton_kernels_of_a_test  # type: ignore[import-not-found]

    yield triton_kernels_of_a_test
    import sys

    del sys.modules["triton_kernels_of_a_test"]


def test_a_triton_kernel_is_a_reason_and_its_values_are_unknown(kernels: Any, observer: Any) -> None:
    x = torch.arange(4.0).cuda()
    y = kernels.double(x)
    (reason,) = observer.ledger.observation.reasons
    assert reason.startswith("twice at ") and 'register_kernel("twice"' in reason
    assert observer.shadow(y) is None and observer.shadow(x).tolist() == [0, 1, 2, 3]


def test_a_kernel_that_writes_to_a_view_changes_its_base(kernels: Any, observer: Any) -> None:
    base = torch.zeros(2, 4, device="cuda")
    kernels.twice[(1,)](torch.ones(4, device="cuda"), base[0], 4, BLOCK=64)
    assert observer.shadow(base) is None


def test_a_registered_triton_kernel_has_its_scratch_memory_and_no_reason(
    kernels: Any, observer: Any, take: Any
) -> None:
    register_kernel("twice", scratch_bytes=lambda x, y, n, BLOCK: 3 * MIB)
    x = torch.zeros(MIB, device="cuda")
    allocated = take(lambda: kernels.double(x))
    assert (allocated.peak, allocated.kept_bytes) == (7 * MIB, 4 * MIB)
    assert observer.ledger.observation.reasons == []


def test_autotuning_takes_256_mib_at_the_first_launch_of_each_key(kernels: Any, take: Any) -> None:
    x = torch.zeros(MIB, device="cuda")
    peaks = [take(lambda: kernels.double(x, kernels.tuned)).peak for _ in range(2)]
    assert peaks == [260 * MIB, 4 * MIB]


def test_an_operation_with_a_shape_rule_is_a_reason_until_it_is_registered(observer: Any, take: Any) -> None:
    library = torch.library.Library("pinchpoint_foreign", "DEF")
    library.define("scaled(Tensor x) -> Tensor")
    library.impl("scaled", lambda x: torch.empty_like(x), "Meta")
    try:
        x = torch.zeros(MIB, device="cuda")
        torch.ops.pinchpoint_foreign.scaled(x)
        (reason,) = observer.ledger.observation.reasons
        assert reason.startswith("pinchpoint_foreign::scaled at ") and "register_kernel" in reason
        observer.ledger.observation.reasons.clear()
        register_kernel("pinchpoint_foreign::scaled", scratch_bytes=2 * MIB)
        assert take(lambda: torch.ops.pinchpoint_foreign.scaled(x)).peak == 6 * MIB
        assert observer.ledger.observation.reasons == []
    finally:
        library._destroy()


def test_an_operation_of_an_absent_library_runs_once_it_is_registered(observer: Any) -> None:
    with pytest.raises(AttributeError):
        _ = torch.ops.absent_library.blur
    assert not hasattr(torch.ops.absent_library, "blur")
    register_kernel("absent_library::blur", lambda x: torch.empty_like(x))
    assert torch.ops.absent_library.blur(torch.zeros(3, device="cuda")).shape == (3,)


def test_a_library_that_cannot_be_loaded_names_the_operation(observer: Any) -> None:
    torch.ops.load_library("/no/such/libmine_cuda.so")
    with pytest.raises(CannotFake, match=r"'mine_cuda::blur' at .*test_unknown_kernels\.py:\d+") as caught:
        torch.ops.mine_cuda.blur(torch.zeros(3, device="cuda"))
    assert caught.value.hint.startswith('Describe it with pinchpoint.register_kernel("mine_cuda::blur"')


def test_a_compiled_extension_is_named_and_can_be_registered(observer: Any, take: Any) -> None:
    extension: Any = torch.utils.cpp_extension.load_inline("mine", cpp_sources="", cuda_sources="")
    x = torch.zeros(MIB, device="cuda")
    with pytest.raises(CannotFake, match=r"'mine\.blur' at .* kernel that pinchpoint does not know"):
        extension.blur(x)
    register_kernel("mine.blur", lambda x: torch.empty_like(x), scratch_bytes=MIB)
    assert take(lambda: extension.blur(x)).peak == 5 * MIB


def test_a_package_without_a_stand_in_can_be_described(observer: Any) -> None:
    with pytest.raises(ImportError) as caught:
        import tinycudann  # type: ignore[import-not-found]
    packages = observer.stand_ins.wanted(caught.value)
    assert packages == ["tinycudann"]
    observer.stand_ins.serve(packages)
    register_kernel("tinycudann.Encoding", lambda inputs, config: torch.nn.Linear(inputs, 32).cuda())
    import tinycudann  # type: ignore[import-not-found]

    assert tinycudann.Encoding(3, {})(torch.zeros(5, 3, device="cuda")).shape == (5, 32)
    with pytest.raises(CannotFake, match=r"tinycudann\.Network"):
        tinycudann.Network(3, 4, {})


def test_a_registration_without_a_function_is_refused() -> None:
    with pytest.raises(BadInput, match="needs a name and a function"):
        register_kernel("mine.blur", 3)  # type: ignore[arg-type]


def test_the_example_of_the_docs_describes_three_kinds_of_kernels(
    kernels: Any, observer: Any, take: Any
) -> None:
    page = (Path(__file__).parents[4] / "docs" / "reference" / "packages.md").read_text(encoding="utf-8")
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "twice" in block]
    library = torch.library.Library("mylib", "DEF")
    library.define("blur(Tensor image) -> Tensor")
    library.impl("blur", lambda image: torch.empty_like(image), "Meta")
    try:
        exec(example, {})
        x = torch.zeros(MIB, device="cuda")
        kernels.double(x)
        assert take(lambda: torch.ops.mylib.blur(x)).peak == 3 * 4 * MIB
        extension: Any = torch.utils.cpp_extension.load(name="my_extension", sources=[])
        assert extension.pool(x, 4).shape == (MIB // 4,)
        assert observer.ledger.observation.reasons == []
    finally:
        library._destroy()


def test_the_parts_of_an_operation_of_quanto_are_recorded_but_not_those_of_its_kernel(
    observer: Any, take: Any
) -> None:
    library = torch.library.Library("quanto", "FRAGMENT")  # as the package registers its operations
    for name in ("test_part", "unpack"):
        if not hasattr(torch.ops.quanto, name):
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, lambda x: x.repeat(8)[: x.numel()].clone(), "CompositeExplicitAutograd")
    x = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    parts, whole = take(lambda: torch.ops.quanto.test_part(x)), take(lambda: torch.ops.quanto.unpack(x))
    assert (parts.peak, parts.kept_bytes) == (9 * MIB, MIB)
    assert (whole.peak, whole.kept_bytes) == (MIB, MIB)
    assert not observer.ledger.observation.reasons
