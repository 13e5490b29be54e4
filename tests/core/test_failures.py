"""Which exceptions of a target are its own, and which belong to the simulation or to pinchpoint itself."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest

import pinchpoint
from pinchpoint.core.errors import Bug, CannotFake, PinchpointError, TargetFailed
from pinchpoint.core.failures import OPERATION, SAME_ON_GPU, failure

OURS = str(Path(pinchpoint.__file__).parent)
TORCH = "/usr/lib/python3.11/site-packages/torch"


def raised(code: str, *files: str) -> BaseException:
    """The exception of `code`, whose innermost frame is in the last file; each file calls the next."""
    codes: list[Any] = []
    for file in reversed(files):
        source = "exec(codes.pop())" if codes else code
        linecache.cache[file] = (len(source), None, [source], file)
        codes.append(compile(source, file, "exec"))
    with pytest.raises(BaseException) as caught:
        exec(codes.pop(), {"codes": codes})
    error = caught.value
    assert error.__traceback__ is not None
    return error.with_traceback(error.__traceback__.tb_next)  # without the frame of this test


CHECK = "int('not implemented for \\'Int\\'')"  # an error of C code, whose line has no `raise`
OWN = [
    ("{}['a']", ["train.py"]),
    ("raise NotImplementedError('my meta model')", ["train.py"]),
    ("if 1: raise RuntimeError('no fake images')", ["train.py", "/x/site-packages/timm/a.py"]),
    ("raise RuntimeError('mat1 and mat2 shapes')", ["train.py", f"{OURS}/backends/torch/observer.py"]),
    ("raise IndexError('out of range')", ["train.py", f"{TORCH}/_meta_registrations.py"]),
    ("assert 0", ["train.py", f"{OURS}/systems/cloud/train.py"]),
    ("def f(): pass\nf(1)", ["train.py"]),
]
SIMULATION = [
    ("raise KeyError('seen')", ["train.py", f"{OURS}/forecasting/assembly.py"]),
    ("raise NotImplementedError", ["train.py", f"{TORCH}/_subclasses/fake_impls.py"]),
    (
        "raise AssertionError('Torch not compiled with CUDA enabled')",
        ["train.py", f"{TORCH}/cuda/__init__.py"],
    ),
    (CHECK, ["train.py"]),
]


def test_a_mesh_that_is_larger_than_the_job_asks_for_another_world_size() -> None:
    text = "Mesh should not be bigger than default world size 4, but found 6 ranks!"
    error = raised(f"raise RuntimeError({text!r})", "train.py", f"{TORCH}/distributed/device_mesh.py")
    fault = failure("train.py", error, "running")
    assert text in fault.what and "--world-size" in fault.hint


@pytest.mark.parametrize(("code", "files"), OWN)
def test_what_the_targets_own_code_raises_is_its_own(code: str, files: list[str]) -> None:
    error = raised(code, *files)
    fault = failure("train.py", error, "running")
    assert isinstance(fault, TargetFailed)
    assert fault.what.startswith(f"Running train.py raised {type(error).__name__}")
    assert fault.hint.startswith("Fix the line. If it works on a GPU, it is pinchpoint that does not support")


SHAPES = [
    "shape '[4, 5]' is invalid for input of size 16",
    "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 0",
    "Given groups=1, weight of size [4, 3, 3, 3], expected input[1, 1, 8, 8] to have 3 channels",
    "Expected 4-dimensional input for 4-dimensional weight",
]


@pytest.mark.parametrize("text", SHAPES)
def test_a_wrong_shape_is_certainly_the_targets(text: str) -> None:
    """`exec` stands for torch's C++ code, whose line has no `raise`."""
    code = f"(_ for _ in ()).throw(RuntimeError({text!r}))"
    hint = "A GPU would raise this error too: fix the line. --debug shows the whole traceback."
    assert failure("train.py", raised(code, "train.py"), "running").hint == hint
    by_target = raised(f"raise RuntimeError({text!r})", "train.py")
    assert failure("train.py", by_target, "running").hint != hint


def test_an_operation_that_fails_on_a_gpu_too_is_certainly_the_targets() -> None:
    error = raised("raise RuntimeError('mat1 and mat2')", "train.py", f"{OURS}/backends/torch/observer.py")
    setattr(error, SAME_ON_GPU, True)
    assert failure("train.py", error, "running").hint.startswith("A GPU would raise this error too")


def test_a_tensor_on_the_wrong_device_is_to_be_moved() -> None:
    error = raised("raise RuntimeError('Expected all tensors to be on the same device')", "train.py")
    assert '.to("cuda")' in failure("train.py", error, "running").hint


@pytest.mark.parametrize(("code", "files"), SIMULATION)
def test_what_the_simulation_raises_names_the_line_and_never_blames_the_target(
    code: str, files: list[str]
) -> None:
    fault = failure("train.py", raised(code, *files), "running")
    assert isinstance(fault, CannotFake)
    assert fault.what.startswith("pinchpoint cannot simulate `")
    assert "` at train.py:1: " in fault.what
    assert "--debug" in fault.hint


def test_an_operation_is_named_if_it_is_known() -> None:
    error = raised(CHECK, "train.py")
    setattr(error, OPERATION, "aten::histc")
    assert failure("train.py", error, "running").what.startswith(
        "pinchpoint cannot simulate 'aten::histc' at train.py:1: ValueError: "
    )


def test_a_missing_argument_of_our_own_function_is_ours() -> None:
    import pinchpoint.backends.patches

    assert pinchpoint.backends.patches.Patches is not None
    own = raised("raise TypeError('mine() takes 1 positional argument')", "train.py")
    ours = raised("raise TypeError('Patches.set() got an unexpected keyword argument')", "train.py")
    assert isinstance(failure("train.py", own, "running"), TargetFailed)
    assert isinstance(failure("train.py", ours, "running"), CannotFake)


def test_an_exception_without_a_line_of_the_target_is_a_bug_of_ours() -> None:
    for code in ("raise KeyError('seen')", "raise RuntimeError('anything')"):
        fault = failure("the target", raised(code, f"{OURS}/forecasting/assembly.py"), "predicting")
        assert isinstance(fault, Bug) and fault.exit_code == 70
        assert fault.what.startswith("pinchpoint failed while it predicted the target: ")


def test_an_error_of_ours_that_a_library_wrapped_is_shown_itself() -> None:
    cause = CannotFake("op x at line 3", hint="do y")
    error = RuntimeError("wrapped")
    error.__cause__ = cause
    assert failure("train.py", error, "running") is cause
    assert isinstance(cause, PinchpointError)
