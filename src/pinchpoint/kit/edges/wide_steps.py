"""What `wide_mlp` runs for a slice of edges, made once for all networks of the same shape.

A step names its tensors and keeps none. A pass over slices looks their addresses up once, those of a chunk
once for each chunk: what the host does for a launch takes less time than the launch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pinchpoint.kit.triton_launch import BoundLauncher, are_aligned


class Chunk(NamedTuple):
    """The tensors of a chunk: those of forward are the first two, (e, inputs) and (e, outputs)."""

    inputs: Tensor
    out: Tensor | None = None
    gradient: Tensor | None = None
    of_inputs: Tensor | None = None
    values: Tensor | None = None


# A tensor: of a chunk by its name, of a network by what it is and its number. "buffer" and "parts" are the
# same memory, as numbers of the network's dtype and of fp16.
Slot = str | tuple[str, int]


class KernelStep(NamedTuple):
    """A kernel, which also takes where the slice begins, its edges, and the programs.

    edges: of a tile. programs: how many, if not one for each tile up to the most.
    """

    kernel: BoundLauncher
    slots: tuple[Slot, ...]
    edges: int
    programs: int | None


class CopyStep(NamedTuple):
    """Copies the outputs of a slice from a buffer to the values of its chunk."""

    buffer: int


Step = KernelStep | CopyStep


class SlicePass:
    """Steps with the tensors of a network, for slices of some edges.

    memory: that of the buffers, each (edges, width) of `dtype`. of_network: its other tensors. programs: the
    most of a launch.
    """

    def __init__(
        self,
        steps: list[Step],
        memory: Tensor,
        edges: int,
        width: int,
        dtype: torch.dtype,
        of_network: dict[str, list[Tensor]],
        programs: int,
    ) -> None:
        self._memory, self._edges, self._width, self._dtype = memory, edges, width, dtype
        self._of_network, self._programs = of_network, programs
        start, size = memory.data_ptr(), edges * width * dtype.itemsize
        fixed = {
            (name, at): one.data_ptr() for name, every in of_network.items() for at, one in enumerate(every)
        }
        # Every buffer begins `size` bytes after another.
        self._aligned = are_aligned((start, size, *fixed.values()))
        self._rows = {
            step.buffer: self._buffer(step.buffer).view(-1) for step in steps if isinstance(step, CopyStep)
        }
        self._steps: list[tuple[Step, list[int], list[tuple[int, int]]]] = []
        for step in steps:
            addresses, of_chunk = [], []
            for place, slot in enumerate(step.slots if isinstance(step, KernelStep) else ()):
                if isinstance(slot, str):
                    of_chunk.append((place, Chunk._fields.index(slot)))
                    addresses.append(0)
                else:
                    name, at = slot
                    is_buffer = name in ("buffer", "parts")
                    addresses.append(start + at * size if is_buffer else fixed[slot])
            self._steps.append((step, addresses, of_chunk))

    def run(self, chunk: Chunk) -> None:
        """Run all steps for one slice after another."""
        pointers = [0 if one is None else one.data_ptr() for one in chunk]
        aligned = self._aligned and are_aligned(pointers)
        for _, addresses, of_chunk in self._steps:
            for place, at in of_chunk:
                addresses[place] = pointers[at]
        edges = chunk.inputs.shape[0]
        for begin in range(0, edges, self._edges):
            count = min(self._edges, edges - begin)
            for step, addresses, _ in self._steps:
                if isinstance(step, CopyStep):
                    self._copy(self._rows[step.buffer], chunk, begin, count)
                    continue
                programs = step.programs
                if programs is None:
                    programs = min(self._programs, -(-count // step.edges))
                numbers = begin, count, programs
                if not (aligned and step.kernel.repeat(programs, addresses, *numbers)):
                    step.kernel(programs, tuple(self._tensor(slot, chunk) for slot in step.slots), *numbers)

    def _copy(self, rows: Tensor, chunk: Chunk, begin: int, count: int) -> None:
        assert chunk.values is not None
        width = chunk.values.shape[1]
        chunk.values.view(-1)[begin * width : (begin + count) * width] = rows[: count * width]

    def _tensor(self, slot: Slot, chunk: Chunk) -> Tensor:
        if isinstance(slot, str):
            tensor: Tensor = getattr(chunk, slot)
            return tensor
        name, at = slot
        if name in ("buffer", "parts"):
            # As two fp16 numbers for each of float32.
            return self._buffer(at) if name == "buffer" else self._buffer(at).view(torch.float16)
        return self._of_network[name][at]

    def _buffer(self, at: int) -> Tensor:
        size = self._edges * self._width * self._dtype.itemsize
        return self._memory[at * size : (at + 1) * size].view(self._dtype).view(self._edges, self._width)
