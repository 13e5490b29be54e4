"""Launches look up compiled kernels, once for each kind of argument; tested with a stand-in for Triton."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import torch

import pinchpoint
from pinchpoint.kit.triton_launch import Launcher


class Kernel:
    """Tells what it was launched with; the first launch of a kind gives what it compiled."""

    def __init__(self) -> None:
        self.compiled: list[tuple[Any, ...]] = []
        self.direct: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, num_warps: int) -> Any:
            self.compiled.append(args)
            return Compiled(self)

        return launch


class Compiled:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *args: self.kernel.direct.append((grid, *args))


def test_a_second_launch_of_a_kind_goes_to_what_was_compiled_with_its_own_numbers() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    launch(2, (x,), (5, 0.5), 16)
    launch(3, (x,), (7, 0.25), 16)
    assert len(kernel.compiled) == 1
    assert kernel.direct == [((3, 1, 1), x, 7, 0.25, 16)]


def test_other_types_constants_and_warps_are_compiled_apart() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(8)
    launch(1, (x,), (3.0,), 16)
    launch(1, (x,), (3,), 16)  # a whole number is passed otherwise than a broken one
    launch(1, (x.double(),), (3.0,), 16)
    launch(1, (x,), (3.0,), 32)
    launch(1, (x,), (3.0,), 16, warps=8)
    assert len(kernel.compiled) == 5 and not kernel.direct


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
