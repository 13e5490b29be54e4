"""Launches look up compiled kernels, once for each kind of argument; tested with a stand-in for Triton."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pinchpoint
from pinchpoint.kit.triton_launch import Launcher, are_aligned


class Kernel:
    """Tells what it was launched with; the first launch of a kind gives what it compiled."""

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.chained: list[bool] = []
        self.direct: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, num_warps: int, num_stages: int, launch_pdl: bool = False) -> Any:
            self.compiled.append(args)
            self.chained.append(launch_pdl)
            return Compiled(self)

        return launch


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.kernel.direct.append((grid, *args))


class LaunchInC:
    """What Triton 3.6 keeps of a compiled kernel's launcher."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self.launch = lambda *arguments: calls.append(arguments)


def test_a_second_launch_of_a_kind_goes_to_what_was_compiled_with_its_own_numbers() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    launch(2, (x,), (5, 0.5), 16)
    launch(3, (x,), (7, 0.25), 16)
    assert len(kernel.compiled) == 1
    assert kernel.direct == [((3, 1, 1), x.data_ptr(), 7, 0.25, 16)]


def test_a_bound_launch_compiles_once_and_then_takes_addresses() -> None:
    launcher = Launcher(kernel := Kernel())
    x, y, z = (torch.zeros(8) for _ in range(3))
    bound = launcher.bind(16)
    addresses = [x.data_ptr(), z.data_ptr()]
    assert not bound.repeat(2, addresses, 5, 7) and not kernel.direct  # nothing is compiled yet
    bound(2, (x, y), 5, 7)
    assert kernel.compiled == [(x, y, 5, 7, 16)]
    assert bound.repeat(3, addresses, 6, 8)
    assert kernel.direct == [((3, 1, 1), *addresses, 6, 8, 16)]
    other = launcher.bind(16)
    other(1, (x, z), 1, 2)  # compiled already
    assert other.repeat(1, addresses, 1, 2) and len(kernel.compiled) == 1


def test_a_bound_launch_does_not_take_what_was_compiled_for_unaligned_tensors() -> None:
    bound = Launcher(kernel := Kernel()).bind(16)
    x = torch.zeros(9)
    bound(1, (x[1:],), 1)
    assert not bound.repeat(1, [x.data_ptr()], 1)
    assert are_aligned([x.data_ptr(), 32]) and not are_aligned([x.data_ptr(), x[1:].data_ptr()])
    bound(1, (x,), 1)
    assert bound.repeat(1, [x.data_ptr()], 1) and len(kernel.compiled) == 2


def test_a_chained_kernel_is_compiled_as_one_and_apart_from_others() -> None:
    launcher = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    launcher(1, (x,), (), 16)
    launcher.bind(16, chained=True)(1, (x,))
    launcher(1, (x,), (), 16, chained=True)  # compiled already
    assert kernel.chained == [False, True] and len(kernel.direct) == 1


def test_other_types_constants_and_warps_are_compiled_apart() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    launch(1, (x,), (3.0,), 16)
    launch(1, (x,), (3,), 16)  # a whole number is passed otherwise than a broken one
    launch(1, (x.double(),), (3.0,), 16)
    launch(1, (x,), (3.0,), 32)
    launch(1, (x,), (3.0,), 16, warps=8)
    launch(1, (x,), (3.0,), 16, stages=1)
    assert len(kernel.compiled) == 6 and not kernel.direct


def test_a_second_launch_calls_what_triton_compiled_in_c_unless_a_profiler_has_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[Any, ...]] = []
    hooks = SimpleNamespace(calls=[]), SimpleNamespace(calls=[])
    runtime = SimpleNamespace(launch_enter_hook=hooks[0], launch_exit_hook=hooks[1])
    driver = SimpleNamespace(active=SimpleNamespace(get_current_stream=lambda device: ("stream", device)))
    triton = SimpleNamespace(knobs=SimpleNamespace(runtime=runtime), __path__=[], __version__="3.6.0")
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.runtime", SimpleNamespace(driver=driver))
    monkeypatch.setattr(Compiled, "run", LaunchInC(calls), raising=False)
    monkeypatch.setattr(Compiled, "function", "function", raising=False)
    monkeypatch.setattr(Compiled, "packed_metadata", "metadata", raising=False)
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    for number in (5, 7):
        launch(number, (x,), (number,), 16)
    start = (7, 1, 1, ("stream", None), "function", False, True, None, None, "metadata", None, None, None)
    assert calls == [(*start, x.data_ptr(), 7, 16)] and not kernel.direct
    hooks[1].calls.append(print)
    launch(9, (x,), (9,), 16)
    assert len(calls) == 1 and kernel.direct == [((9, 1, 1), x.data_ptr(), 9, 16)]
    triton.__version__ = "3.7.0"
    launch = Launcher(kernel := Kernel())
    for number in (5, 7):
        launch(number, (x,), (number,), 16)
    assert len(calls) == 1 and len(kernel.direct) == 1


def test_a_kernel_that_needs_memory_of_its_own_is_launched_by_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, ...]] = []
    in_c = LaunchInC(calls)
    in_c.global_scratch_size = 128
    monkeypatch.setattr(Compiled, "run", in_c, raising=False)
    launch = Launcher(kernel := Kernel())
    for _ in range(2):
        launch(1, (torch.zeros(8),), (), 16)
    assert not calls and len(kernel.direct) == 1


def test_whole_numbers_of_32_and_64_bits_are_compiled_apart() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    numbers = [5, 2**31, 2**31 - 1, -(2**31), -(2**31) - 1]
    for number in numbers:
        launch(1, (x,), (number,), 16)
    assert [number for _, number, _ in kernel.compiled] == [5, 2**31]
    assert [number for *_, number, _ in kernel.direct] == numbers[2:]


def test_tensors_that_begin_off_a_round_address_are_never_taken_for_others() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(9)
    launch(1, (x,), (), 16)
    for _ in range(2):
        launch(1, (x[1:],), (), 16)
    assert len(kernel.compiled) == 3 and not kernel.direct


def specialised_numbers(source: str) -> list[str]:
    """Kernels launched with a number that is not in `do_not_specialize`; they are not imported.

    The numbers follow the tensors, so those listed are the last arguments that are not constants. There are
    as many as a launch in the same module passes, unless it unpacks some of them.
    """
    tree = ast.parse(source)
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    listed: dict[str, list[str]] = {}
    wrong: list[str] = []
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or "Launcher" not in map(ast.unparse, node.decorator_list):
            continue
        keywords = [
            word for call in node.decorator_list if isinstance(call, ast.Call) for word in call.keywords
        ]
        values = [word.value for word in keywords if word.arg == "do_not_specialize"] or [ast.List([])]
        value = constants[values[0].id] if isinstance(values[0], ast.Name) else values[0]
        names = listed[node.name] = ast.literal_eval(value)
        plain = [argument.arg for argument in node.args.args if argument.annotation is None]
        if set(names) != set(plain[len(plain) - len(names) :]):
            wrong.append(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in listed:
            numbers = node.args[2]
            if not isinstance(numbers, ast.Tuple) or any(isinstance(n, ast.Starred) for n in numbers.elts):
                continue
            if len(numbers.elts) != len(listed[node.func.id]):
                wrong.append(node.func.id)
    return wrong


KERNEL = """
def read(x): kernel(1, (x,), (3, x.stride(0)), 16)

@Launcher
@triton.jit(do_not_specialize=["count", "row"])
def kernel(x, count, row, WIDE: tl.constexpr): pass
"""


def test_no_kernel_is_specialised_on_a_number() -> None:
    assert specialised_numbers(KERNEL) == []
    assert "kernel" in specialised_numbers(KERNEL.replace('"count", "row"', '"count"'))
    assert "kernel" in specialised_numbers(KERNEL.replace('"count", "row"', '"row"'))
    paths = [
        path
        for path in Path(pinchpoint.__file__).parent.rglob("*_triton.py")
        if "@Launcher" in path.read_text("utf-8")
    ]
    assert paths
    wrong = {path.name: specialised_numbers(path.read_text("utf-8")) for path in paths}
    assert not {name: kernels for name, kernels in wrong.items() if kernels}
