"""Launches look up compiled kernels, once for each kind of argument; tested with a stand-in for Triton."""

from __future__ import annotations

from typing import Any

import torch

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


def test_tensors_that_begin_off_a_round_address_are_never_taken_for_others() -> None:
    launch = Launcher(kernel := Kernel())
    x = torch.zeros(9)
    launch(1, (x,), (), 16)
    for _ in range(2):
        launch(1, (x[1:],), (), 16)
    assert len(kernel.compiled) == 3 and not kernel.direct
