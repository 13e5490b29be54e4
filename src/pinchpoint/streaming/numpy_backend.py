"""Streaming for functions of NumPy arrays: chunks are copied in and out one at a time, on the host.

Bytes are counted by tracemalloc during a trial, which includes NumPy arrays but not memory that a library
allocates outside Python. The function may return anything that NumPy can convert to an array.
"""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from pinchpoint.backends import stream_backend
from pinchpoint.backends.stream_backend import Form, Function, HostMemory, Points
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.units import show_bytes


class HostLane(HostMemory):
    """Streams NumPy arrays into NumPy arrays."""

    device = "numpy"
    depth = 1

    def __init__(
        self, function: Function, points: Points, *, out: Any, extra: tuple[Any, ...], pad: bool
    ) -> None:
        if isinstance(out, str) and out not in ("numpy", "device"):
            raise BadInput(
                f"out={out!r} is not a valid destination for the results.",
                hint='Give arrays to fill, "numpy" or "device".',
            )
        self._function, self._extra, self._pad = function, extra, pad
        self._arrays = [_readable(array) for array in points.arrays]
        self._points = points
        self._out = [_writable(array) for array in stream_backend.output_arrays(out, points.count) or ()]
        self._form: Form | None = None
        self._buffers: list[np.ndarray[Any, Any]] = []
        self._chunk = 0
        self._results: tuple[Any, ...] = ()
        self._span = (0, 0)
        self._peak: int | None = None

    def resize(self, chunk: int) -> None:
        self._chunk = chunk
        self._buffers = [np.empty((chunk, *array.shape[1:]), _native(array)) for array in self._arrays]

    def launch(self, start: int, stop: int, *, watch: bool) -> None:
        rows = self._chunk if self._pad else stop - start
        inputs = self._inputs(start, stop, rows)
        value, self._peak = _track(lambda: self._call(inputs)) if watch else (self._call(inputs), None)
        if self._peak is not None:
            self._peak += sum(array.nbytes for array in inputs)
        self._results = self._take(value, rows)
        self._span = (start, stop)

    def land(self) -> None:
        if not self._results:
            return
        start, stop = self._span
        for array, part in zip(self._out, self._results, strict=True):
            np.copyto(array[start:stop], part[: stop - start], casting="same_kind")
        self._results = ()

    def peak_bytes(self) -> int | None:
        return self._peak

    def clear(self) -> None:
        self.close()

    def close(self) -> None:
        self._buffers, self._results = [], ()

    def is_oom(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def try_rows(self, rows: np.ndarray[Any, Any]) -> list[tuple[Any, str]]:
        if self._points.numbers is not None:
            inputs = [_numbers(self._points.numbers, rows)]
        else:
            inputs = [np.array(array[rows], _native(array)) for array in self._arrays]
        parts, _ = _parts(self._call(inputs), len(rows))
        return [(part.copy(), str(part.dtype)) for part in parts]

    def result(self, *, trial: int) -> Any:
        if self._form is None and not self._out:
            inputs = [np.zeros((trial, *array.shape[1:]), _native(array)) for array in self._arrays]
            self._take(self._call(inputs or [np.zeros(trial, np.int64)]), trial)
        single = len(self._out) == 1 if self._form is None else self._form.single
        return self._out[0] if single else tuple(self._out)

    def _call(self, inputs: list[np.ndarray[Any, Any]]) -> Any:
        return self._function(*inputs, *self._extra)

    def _inputs(self, start: int, stop: int, rows: int) -> list[np.ndarray[Any, Any]]:
        """Points start..stop as `rows` rows, copied so that the function may write to them.

        The last point is repeated to fill up the rows.
        """
        if self._points.numbers is not None:
            return [_numbers(self._points.numbers, np.minimum(np.arange(start, start + rows), stop - 1))]
        for buffer, array in zip(self._buffers, self._arrays, strict=True):
            buffer[: stop - start] = array[start:stop]
            buffer[stop - start : rows] = array[stop - 1]
        return [buffer[:rows] for buffer in self._buffers]

    def _take(self, value: Any, rows: int) -> tuple[Any, ...]:
        parts, single = _parts(value, rows)
        form = Form(tuple((part.shape[1:], str(part.dtype)) for part in parts), single)
        if self._form is not None:
            stream_backend.check_same(self._form, form)
            return parts
        if not self._out:
            self._out = [_empty((self._points.count, *part.shape[1:]), part.dtype) for part in parts]
        stream_backend.check_output_arrays(self._out, form)
        for array, part in zip(self._out, parts, strict=True):
            if not np.can_cast(part.dtype, array.dtype, "safe"):
                raise stream_backend.cast_error(part.dtype, array.dtype)
        self._form = form
        return parts


def _track(run: Callable[[], Any]) -> tuple[Any, int]:
    """The result of `run`, and its peak in bytes."""
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        value = run()
        return value, tracemalloc.get_traced_memory()[1] - before
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _parts(value: Any, rows: int) -> tuple[tuple[np.ndarray[Any, Any], ...], bool]:
    def read(part: Any) -> Any:
        return np.asarray(part) if hasattr(part, "__array__") else part

    arrays = [read(part) for part in value] if isinstance(value, (tuple, list)) else read(value)
    return stream_backend.parts_of(
        arrays,
        rows=rows,
        kind=np.ndarray,
        kind_name="a numpy array",
        hint="Return arrays with one row per point.",
    )


def _numbers(numbers: range, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return numbers.start + numbers.step * rows.astype(np.int64)


def _readable(array: Any) -> np.ndarray[Any, Any]:
    values = np.asarray(array)
    if values.dtype.hasobject:
        raise BadInput(f"Points of type {values.dtype} cannot be streamed.", hint="Give an array of numbers.")
    return values


def _native(array: np.ndarray[Any, Any]) -> np.dtype[Any]:
    """The type of an array in this machine's byte order."""
    return array.dtype.newbyteorder("=")


def _writable(array: Any) -> np.ndarray[Any, Any]:
    if not isinstance(array, np.ndarray) or not array.flags.writeable:
        raise BadInput(
            f"out= is a {type(array).__name__} that cannot be written to.",
            hint="Give writable NumPy arrays.",
        )
    return array


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise DoesNotFit(
            f"The result of shape {shape} takes {show_bytes(math.prod(shape) * dtype.itemsize)},"
            " which is more than the available main memory.",
            hint="Give out=numpy.memmap(...), which is stored on disk.",
        ) from error
