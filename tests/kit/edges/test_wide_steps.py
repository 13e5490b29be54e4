"""Steps are launched with the addresses of the tensors that they name; tested with a stand-in for Triton."""

from __future__ import annotations

import pytest
import torch
from tests.kit.test_triton_launch import Kernel
from torch import Tensor

from pinchpoint.kit.edges.wide_steps import Chunk, CopyStep, KernelStep, SlicePass
from pinchpoint.kit.triton_launch import Launcher

WIDTH, SLICE, PROGRAMS = 4, 8, 3


def slice_pass(
    kernel: Kernel, memory: Tensor, weight: Tensor, dtype: torch.dtype, programs: int | None
) -> SlicePass:
    slots = "inputs", ("buffer", 1), ("parts", 0), ("weight", 0), "out"
    step = KernelStep(Launcher(kernel).bind("constant"), slots, 4, programs)
    return SlicePass([step], memory, SLICE, WIDTH, dtype, {"weight": [weight]}, PROGRAMS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("programs", [None, 2])
def test_later_slices_and_chunks_are_launched_with_the_addresses_of_their_tensors(
    dtype: torch.dtype, programs: int | None
) -> None:
    size = SLICE * WIDTH * dtype.itemsize
    memory, weight = torch.zeros(2 * size, dtype=torch.uint8), torch.zeros(4)
    run = slice_pass(kernel := Kernel(), memory, weight, dtype, programs)
    first, second = (Chunk(torch.zeros(edges, 4), torch.zeros(edges, 4)) for edges in (20, 9))
    run.run(first)
    run.run(second)
    ((inputs, buffer, parts, own, out, *numbers),) = kernel.compiled
    assert inputs is first.inputs and out is first.out and own is weight
    assert (buffer.data_ptr(), buffer.shape, buffer.dtype) == (
        memory.data_ptr() + size,
        (SLICE, WIDTH),
        dtype,
    )
    assert parts.data_ptr() == memory.data_ptr() and parts.dtype is torch.float16
    expected = []
    for chunk, begin, count in ((first, 0, 8), (first, 8, 8), (first, 16, 4), (second, 0, 8), (second, 8, 1)):
        number = programs or -(-count // 4)
        assert chunk.out is not None
        pointers = chunk.inputs, buffer, parts, weight, chunk.out
        addresses = (one.data_ptr() for one in pointers)
        expected.append(((number, 1, 1), *addresses, begin, count, number, "constant"))
    assert numbers == [0, 8, programs or 2, "constant"]
    assert kernel.direct == expected[1:]


def test_there_are_no_more_programs_than_the_most() -> None:
    memory = torch.zeros(2 * 64 * WIDTH * 4, dtype=torch.uint8)
    step = KernelStep(Launcher(kernel := Kernel()).bind(), ("inputs",), 4, None)
    run = SlicePass([step], memory, 64, WIDTH, torch.float32, {}, PROGRAMS)
    for _ in range(2):
        run.run(Chunk(torch.zeros(64, 4)))
    assert kernel.direct[0][0] == (PROGRAMS, 1, 1)


@pytest.mark.parametrize("which", ["chunk", "weight"])
def test_tensors_at_other_addresses_than_compiled_for_are_launched_as_tensors(which: str) -> None:
    size = SLICE * WIDTH * 4
    memory, weight = torch.zeros(2 * size, dtype=torch.uint8), torch.zeros(5)
    off = torch.zeros(4 * SLICE + 1)[1:].view(SLICE, 4)  # not at a multiple of 16 bytes
    own = weight[1:] if which == "weight" else weight[:4]
    run = slice_pass(kernel := Kernel(), memory, own, torch.float32, None)
    for inputs in (torch.zeros(SLICE, 4), off if which == "chunk" else torch.zeros(SLICE, 4)):
        run.run(Chunk(inputs, torch.zeros(SLICE, 4)))
        assert kernel.compiled[-1][0] is inputs
    assert len(kernel.compiled) == 2 and not kernel.direct


def test_rows_of_a_buffer_are_copied_to_their_slices_of_the_values() -> None:
    memory = torch.zeros(2 * SLICE * WIDTH * 4, dtype=torch.uint8)
    rows = memory.view(torch.float32)[SLICE * WIDTH :]  # the second buffer
    rows.copy_(torch.arange(1.0, 1 + SLICE * WIDTH))
    values = torch.zeros(11, 3)
    chunk = Chunk(torch.zeros(11, 4), values=values)
    SlicePass([CopyStep(1)], memory, SLICE, WIDTH, torch.float32, {}, PROGRAMS).run(chunk)
    expected = torch.cat([rows[: SLICE * 3].view(SLICE, 3), rows[:9].view(3, 3)])
    assert torch.equal(values, expected)
