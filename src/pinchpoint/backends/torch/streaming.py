"""Lanes for functions of torch tensors: where points and results live, and chunks on a CPU.

Functions run without gradients. On a CPU the bytes of a trial are those of the tensors alive while the
function runs, weights included (`real.account`): scratch memory inside kernels is not seen.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pinchpoint.backends import stream_backend as seam
from pinchpoint.backends.base import resolve_device
from pinchpoint.backends.stream_backend import Form, Function, Lane, Points, Room, room_on_host
from pinchpoint.backends.torch import measurement
from pinchpoint.core import host_memory
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.units import show_bytes


def open_lane(
    function: Function, points: Points, *, device: str, out: Any, extra: tuple[Any, ...], pad: bool
) -> Lane:
    """The lane for a device: "auto" is a tensor's or module's own device, otherwise CUDA if there is one."""
    for array in points.arrays:
        if not isinstance(array, (np.ndarray, Tensor)):
            raise BadInput(f"points are {type(array).__name__}", hint="give numpy arrays or torch tensors")
    chosen = _device(device, function, points)
    from pinchpoint.backends.torch.streaming_cuda import CudaLane

    kind = CudaLane if chosen.type == "cuda" else CpuLane
    return kind(function, points, device=chosen, out=out, extra=extra, pad=pad)


def _device(asked: str, function: Function, points: Points) -> torch.device:
    if asked == "auto":
        tensors = [
            array for array in points.arrays if isinstance(array, Tensor) and array.device.type != "cpu"
        ]
        weights = next(function.parameters(), None) if isinstance(function, nn.Module) else None
        owner = tensors[0] if tensors else weights
        if owner is not None:
            asked = str(owner.device)
    kind, _, number = asked.partition(":")
    chosen = torch.device(resolve_device(kind, measurement))  # type: ignore[arg-type]
    if chosen.type == "cuda":
        if number and not (number.isdigit() and int(number) < torch.cuda.device_count()):
            raise BadInput(
                f"there is no device {asked!r}", hint=f"use cuda:0 to cuda:{torch.cuda.device_count() - 1}"
            )
        return torch.device("cuda", int(number) if number else torch.cuda.current_device())
    return chosen


class Outputs:
    """The arrays that are filled: handed in, or made when the first results tell their shapes."""

    def __init__(self, points: Points, *, out: Any, device: torch.device) -> None:
        self.count = points.count
        self.arrays = list(seam.given_outputs(out, points.count) or ())
        self.form: Form | None = None
        for array in self.arrays:
            if not isinstance(array, (np.ndarray, Tensor)) or (
                isinstance(array, np.ndarray) and not array.flags.writeable
            ):
                raise BadInput(
                    f"out is {type(array).__name__} and cannot be written",
                    hint="give numpy arrays or tensors",
                )
        if isinstance(out, str) and out not in ("numpy", "device"):
            raise BadInput(f"out={out!r} is no place", hint='give arrays to be filled, "numpy" or "device"')
        first = points.arrays[0] if points.arrays else None
        # As the points are: a tensor's own device, numpy for arrays and for indices.
        self.place: torch.device | None = first.device if isinstance(first, Tensor) else None
        if isinstance(out, str):
            self.place = None if out == "numpy" else device

    def take(self, returned: Any, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """The tensors a function gave, checked; the first time, arrays are made for them."""
        parts, single = seam.parts_of(
            returned,
            rows=rows,
            kind=Tensor,
            shown="a tensor",
            hint='return tensors, or use device="numpy" for numpy arrays',
        )
        for part in parts:
            if part.device != device:
                raise BadInput(
                    f"the function gave a tensor on {part.device}; it runs on {device}",
                    hint="leave results on the device: stream brings them to where they belong",
                )
        parts = tuple(part.detach() for part in parts)
        form = Form(
            tuple((tuple(part.shape[1:]), str(part.dtype).removeprefix("torch.")) for part in parts), single
        )
        if self.form is None:
            self._open(parts, form)
        else:
            seam.check_same(self.form, form)
        return parts

    def is_host(self, part: int) -> bool:
        array = self.arrays[part]
        return isinstance(array, np.ndarray) or array.device.type == "cpu"

    def fetched_type(self, part: int, dtype: torch.dtype) -> torch.dtype:
        """What results of a type are brought to the host as: numpy has no bfloat16."""
        return (
            torch.float32 if dtype == torch.bfloat16 and isinstance(self.arrays[part], np.ndarray) else dtype
        )

    def store(self, part: int, start: int, stop: int, rows: Tensor) -> None:
        """rows: (stop - start, ...), on the host where the array is."""
        array = self.arrays[part]
        if isinstance(array, np.ndarray):
            np.copyto(array[start:stop], measurement.to_numpy(rows), casting="same_kind")
        else:
            array[start:stop].copy_(rows)

    def result(self) -> Any:
        single = len(self.arrays) == 1 if self.form is None else self.form.single
        return self.arrays[0] if single else tuple(self.arrays)

    def _open(self, parts: tuple[Tensor, ...], form: Form) -> None:
        if not self.arrays:
            self.arrays = [_empty((self.count, *part.shape[1:]), part.dtype, self.place) for part in parts]
        seam.check_given(self.arrays, form)
        for array, part in zip(self.arrays, parts, strict=True):
            if isinstance(array, Tensor):
                allowed = torch.promote_types(part.dtype, array.dtype) == array.dtype
            else:
                allowed = np.can_cast(_numpy_type(part.dtype), array.dtype, "safe")
            if not allowed:
                raise seam.no_cast(part.dtype, array.dtype)
        self.form = form


class CpuLane:
    """Chunks one at a time, copied in and out."""

    depth = 1

    def __init__(
        self,
        function: Function,
        points: Points,
        *,
        device: torch.device,
        out: Any,
        extra: tuple[Any, ...],
        pad: bool,
    ) -> None:
        self.device = str(device)
        self.place = device
        self.points = points
        self.pad = pad
        self.chunk = 0
        self.outputs = Outputs(points, out=out, device=device)
        self._function = function
        self._extra = tuple(_shared(value, device) for value in extra)
        self._types = [_tensor_type(array) for array in points.arrays]
        self._buffers: list[Tensor] = []
        self._results: tuple[Tensor, ...] = ()
        self._span = (0, 0)
        self._peak: int | None = None

    def room(self, budget_bytes: int | None) -> Room:
        return room_on_host(budget_bytes)

    def free_bytes(self) -> int:
        return host_memory.free_bytes()

    def held_bytes(self) -> int:
        return 0

    def resize(self, chunk: int) -> None:
        self.chunk = chunk
        self._buffers = self.new_inputs(chunk, self.place)

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        rows = self.rows(start, stop)
        for buffer, array in zip(self._buffers, self.points.arrays, strict=True):
            fill(buffer[:rows], array, start, stop)
        inputs = [buffer[:rows] for buffer in self._buffers] or [self.numbers(start, stop, rows)]
        returned: list[Any] = []
        if watch:
            self._peak = measurement.account(lambda: returned.append(self.call(inputs)))
        else:
            self._peak = None
            returned.append(self.call(inputs))
        self._results = self.outputs.take(returned[0], rows, self.place)
        self._span = (start, stop)

    def land(self) -> None:
        start, stop = self._span
        for part, rows in enumerate(self._results):
            self.outputs.store(part, start, stop, rows[: stop - start])
        self._results = ()

    def peak_bytes(self) -> int | None:
        return self._peak

    def clear(self) -> None:
        self.close()
        gc.collect()

    def close(self) -> None:
        self._buffers, self._results = [], ()

    def is_oom(self, error: BaseException) -> bool:
        return measurement.is_oom(error)

    def try_rows(self, rows: np.ndarray[Any, Any]) -> list[tuple[Any, str]]:
        index = torch.from_numpy(rows)
        inputs = [self._pick(array, index) for array in self.points.arrays] or [
            self._numbered(index.to(self.place))
        ]
        parts, _ = seam.parts_of(
            self.call(inputs),
            rows=len(rows),
            kind=Tensor,
            shown="a tensor",
            hint='return tensors, or use device="numpy" for numpy arrays',
        )
        return [
            (np.array(measurement.to_numpy(part)), str(part.dtype).removeprefix("torch.")) for part in parts
        ]

    def result(self, *, trial: int) -> Any:
        if self.outputs.form is None and not self.outputs.arrays:
            inputs = [buffer.zero_() for buffer in self.new_inputs(trial, self.place)]
            inputs = inputs or [torch.zeros(trial, dtype=torch.int64, device=self.place)]
            self.outputs.take(self.call(inputs), trial, self.place)
        return self.outputs.result()

    # -- shared with the lane on CUDA ---------------------------------------------------------

    def rows(self, start: int, stop: int) -> int:
        """Rows of a call: the whole chunk when padded."""
        return self.chunk if self.pad else stop - start

    def call(self, inputs: list[Tensor]) -> Any:
        with torch.no_grad():
            return self._function(*inputs, *self._extra)

    def new_inputs(self, chunk: int, place: torch.device) -> list[Tensor]:
        shapes = [tuple(array.shape[1:]) for array in self.points.arrays]
        return [
            torch.empty((chunk, *shape), dtype=t, device=place)
            for shape, t in zip(shapes, self._types, strict=True)
        ]

    def numbers(self, start: int, stop: int, rows: int) -> Tensor:
        """Indices start..stop made on the device, the last one repeated: (rows,) int64."""
        index = torch.arange(start, start + rows, device=self.place).clamp_(max=stop - 1)
        return self._numbered(index)

    def _numbered(self, index: Tensor) -> Tensor:
        numbers = self.points.numbers
        assert numbers is not None, "points are arrays or numbers"
        return index if numbers.start == 0 and numbers.step == 1 else index * numbers.step + numbers.start

    def _pick(self, array: Any, index: Tensor) -> Tensor:
        if isinstance(array, Tensor):
            return array.detach()[index.to(array.device)].to(self.place)
        return torch.from_numpy(np.array(array[index.numpy()], array.dtype.newbyteorder("="))).to(self.place)


def fill(buffer: Tensor, array: Any, start: int, stop: int) -> None:
    """Points start..stop into a buffer (rows, ...), the last one repeated to its end. numpy arrays: host buffers only."""
    count = stop - start
    if isinstance(array, Tensor):
        source: Any = array.detach()
        buffer[:count].copy_(source[start:stop])
        if count < len(buffer):
            buffer[count:] = source[stop - 1]
        return
    rows = buffer.numpy()
    rows[:count] = array[start:stop]
    rows[count:] = array[stop - 1]


def _tensor_type(array: Any) -> torch.dtype:
    if isinstance(array, Tensor):
        return array.dtype
    try:
        return torch.from_numpy(np.empty(0, array.dtype.newbyteorder("="))).dtype
    except TypeError as error:
        raise BadInput(
            f"points of type {array.dtype} have no counterpart in torch",
            hint="convert them, such as to float32",
        ) from error


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """Numpy lacks bfloat16, which is given as float32."""
    return measurement.to_numpy(torch.empty(0, dtype=dtype)).dtype


def _empty(shape: tuple[int, ...], dtype: torch.dtype, place: torch.device | None) -> Any:
    try:
        return (
            np.empty(shape, _numpy_type(dtype))
            if place is None
            else torch.empty(shape, dtype=dtype, device=place)
        )
    except (MemoryError, RuntimeError) as error:
        if not measurement.is_oom(error):
            raise
        size = torch.Size(shape).numel() * dtype.itemsize
        raise DoesNotFit(
            f"the result {shape} takes {show_bytes(size)}, more than {place or 'main memory'} has",
            hint='give out=numpy.memmap(...), which lies on disk, or out="numpy" to keep it off the device',
        ) from error


def _shared(value: Any, device: torch.device) -> Any:
    """Arrays and tensors go to the device once; anything else is handed on as it is."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))
    return value.detach().to(device) if isinstance(value, Tensor) else value
