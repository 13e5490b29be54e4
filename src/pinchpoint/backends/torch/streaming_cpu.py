"""`CpuLane` for functions of torch tensors on a CPU, and what it shares with the lane on CUDA.

Functions run without gradients. The bytes of a trial are those of the tensors that are alive while the
function runs, weights included (`measurement.account`); scratch memory inside kernels is not counted.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends import stream_backend
from pinchpoint.backends.stream_backend import Form, Function, HostMemory, Points
from pinchpoint.backends.torch import measurement
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.units import show_bytes


class Outputs:
    """The arrays to fill: passed in by the caller, or created with the shapes of the first results."""

    def __init__(self, points: Points, *, out: Any, device: torch.device) -> None:
        self.count = points.count
        self.arrays = list(stream_backend.output_arrays(out, points.count) or ())
        self.form: Form | None = None
        for array in self.arrays:
            if not isinstance(array, (np.ndarray, Tensor)) or (
                isinstance(array, np.ndarray) and not array.flags.writeable
            ):
                raise BadInput(
                    f"The argument out= is a {type(array).__name__} that cannot be written to.",
                    hint="Pass writable numpy arrays or tensors.",
                )
        if isinstance(out, str) and out not in ("numpy", "device"):
            raise BadInput(
                f"The argument out={out!r} is not valid.",
                hint='Pass arrays to be filled, or "numpy" or "device".',
            )
        first = points.arrays[0] if points.arrays else None
        # Results live where the points do: on a tensor's own device, or in numpy for arrays and indices.
        self.place: torch.device | None = first.device if isinstance(first, Tensor) else None
        if isinstance(out, str):
            self.place = None if out == "numpy" else device

    def take(self, value: Any, rows: int, device: torch.device) -> tuple[Tensor, ...]:
        """Check the tensors a function returned; the first call creates the output arrays for them."""
        parts, single = _parts(value, rows)
        for part in parts:
            if part.device != device:
                raise BadInput(
                    f"The function returned a tensor on {part.device}, but it runs on {device}.",
                    hint="Leave results on the device; stream copies them to the outputs.",
                )
        parts = tuple(part.detach() for part in parts)
        form = Form(
            tuple((tuple(part.shape[1:]), str(part.dtype).removeprefix("torch.")) for part in parts), single
        )
        if self.form is None:
            self._open(parts, form)
        else:
            stream_backend.check_same(self.form, form)
        return parts

    def is_host(self, part: int) -> bool:
        array = self.arrays[part]
        return isinstance(array, np.ndarray) or array.device.type == "cpu"

    def fetched_type(self, part: int, dtype: torch.dtype) -> torch.dtype:
        """The dtype in which results are copied to the host: float32 for bfloat16, which numpy lacks."""
        return (
            torch.float32 if dtype == torch.bfloat16 and isinstance(self.arrays[part], np.ndarray) else dtype
        )

    def store(self, part: int, start: int, stop: int, rows: Tensor) -> None:
        """Write rows to start..stop of one output. rows: (stop - start, ...), on the host if the array is."""
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
        stream_backend.check_output_arrays(self.arrays, form)
        for array, part in zip(self.arrays, parts, strict=True):
            if isinstance(array, Tensor):
                can_cast = torch.promote_types(part.dtype, array.dtype) == array.dtype
            else:
                can_cast = np.can_cast(_numpy_type(part.dtype), array.dtype, "safe")
            if not can_cast:
                raise stream_backend.cast_error(part.dtype, array.dtype)
        self.form = form


class CpuLane(HostMemory):
    """Runs one chunk at a time and copies points in and results out."""

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
        self._extra = tuple(_to_device(value, device) for value in extra)
        self._types = [_tensor_type(array) for array in points.arrays]
        self._buffers: list[Tensor] = []
        self._results: tuple[Tensor, ...] = ()
        self._span = (0, 0)
        self._peak: int | None = None

    def resize(self, chunk: int) -> None:
        self.chunk = chunk
        self._buffers = self.new_inputs(chunk, self.place)

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        rows = self.rows(start, stop)
        for buffer, array in zip(self._buffers, self.points.arrays, strict=True):
            fill(buffer[:rows], array, start, stop)
        inputs = [buffer[:rows] for buffer in self._buffers] or [self.numbers(start, stop, rows)]
        values: list[Any] = []
        if watch:
            self._peak = measurement.account(lambda: values.append(self.call(inputs)))
        else:
            self._peak = None
            values.append(self.call(inputs))
        self._results = self.outputs.take(values[0], rows, self.place)
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
            self._point_numbers(index.to(self.place))
        ]
        parts, _ = _parts(self.call(inputs), len(rows))
        return [
            (np.array(measurement.to_numpy(part)), str(part.dtype).removeprefix("torch.")) for part in parts
        ]

    def result(self, *, trial: int) -> Any:
        if self.outputs.form is None and not self.outputs.arrays:
            inputs = [buffer.zero_() for buffer in self.new_inputs(trial, self.place)]
            inputs = inputs or [torch.zeros(trial, dtype=torch.int64, device=self.place)]
            self.outputs.take(self.call(inputs), trial, self.place)
        return self.outputs.result()

    # --- shared with the lane on CUDA

    def rows(self, start: int, stop: int) -> int:
        """The number of rows in a call: the whole chunk if chunks are padded."""
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
        """Indices start..stop created on the device, the last one repeated: (rows,) int64."""
        index = torch.arange(start, start + rows, device=self.place).clamp_(max=stop - 1)
        return self._point_numbers(index)

    def _point_numbers(self, index: Tensor) -> Tensor:
        numbers = self.points.numbers
        assert numbers is not None, "points are arrays or numbers"
        return index if numbers.start == 0 and numbers.step == 1 else index * numbers.step + numbers.start

    def _pick(self, array: Any, index: Tensor) -> Tensor:
        if isinstance(array, Tensor):
            return array.detach()[index.to(array.device)].to(self.place)
        return torch.from_numpy(np.array(array[index.numpy()], array.dtype.newbyteorder("="))).to(self.place)


def fill(buffer: Tensor, array: Any, start: int, stop: int) -> None:
    """Copy points start..stop into a buffer (rows, ...) and repeat the last one to its end.

    numpy arrays can be copied to host buffers only.
    """
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


def _parts(value: Any, rows: int) -> tuple[tuple[Tensor, ...], bool]:
    """The tensors a function returned, and whether it returned one; each must have a row for every point."""
    return stream_backend.parts_of(
        value,
        rows=rows,
        kind=Tensor,
        kind_name="a tensor",
        hint='Return tensors, or use device="numpy" for numpy arrays.',
    )


def _tensor_type(array: Any) -> torch.dtype:
    if isinstance(array, Tensor):
        return array.dtype
    try:
        return torch.from_numpy(np.empty(0, array.dtype.newbyteorder("="))).dtype
    except TypeError as error:
        raise BadInput(
            f"The points have dtype {array.dtype}, which torch does not support.",
            hint="Convert the points, for example to float32.",
        ) from error


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """The numpy dtype for a torch dtype; float32 for bfloat16, which numpy lacks."""
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
            f"The result of shape {shape} needs {show_bytes(size)}, which does not fit in "
            f"{place or 'main memory'}.",
            hint='Pass out=numpy.memmap(...) to store it on disk, or out="numpy" to keep it off the device.',
        ) from error


def _to_device(value: Any, device: torch.device) -> Any:
    """Copy an array or tensor to the device once; any other value is passed on unchanged."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))
    return value.detach().to(device) if isinstance(value, Tensor) else value
