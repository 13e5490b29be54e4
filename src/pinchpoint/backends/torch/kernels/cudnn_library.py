"""`CudnnLibrary`: asks an installed cuDNN which kernels it would use for a convolution on a described card.

cuDNN answers from a description of the card, so no GPU is needed; only builds of torch for CUDA install the
library. It is asked through its C interface, whose numbers below are those of cudnn_graph.h. On an H200, the
list is the same as with the card itself, except that some kernels take a few MiB more for partial sums.

Some of its kernels crash where no GPU is visible. So a process of its own asks the library; it is replaced
when it dies, and the kernel that it died of is left out.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import os
import resource
import signal
import warnings
from collections.abc import Iterator, Sequence
from ctypes import byref, c_float, c_int, c_int64, c_void_p
from multiprocessing import Pipe
from typing import Any, NamedTuple

_MOST_DEATHS = 40
_LEAST_VERSION = 91900  # the oldest that was compared with a GPU

# Descriptors.
_CONVOLUTION, _ENGINE, _CONFIG, _HEURISTIC, _PLAN, _GRAPH, _TENSOR, _DEVICE = 1, 2, 3, 4, 5, 15, 17, 38
# For each way: the operation, and its attributes x, y, w, convolution, alpha, beta.
_OPERATIONS = {
    "forward": (10, (704, 705, 703, 702, 700, 701)),
    "data": (12, (710, 711, 709, 708, 706, 707)),
    "weight": (11, (716, 717, 715, 714, 712, 713)),
}
# Types of attributes.
_C_TYPES = {1: c_int, 3: c_int64, 4: c_float, 7: c_int, 8: c_int, 15: c_void_p}
_DTYPE, _INT64, _FLOAT, _MODE, _HEUR_MODE, _NOTE, _DESCRIPTOR, _CHAR = 1, 3, 4, 7, 8, 11, 15, 24
_DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
_INSTANT, _FALLBACK = 0, 2  # torch takes the kernels of both lists, in this order


class Convolution(NamedTuple):
    """An ordinary convolution from x to y, and which of its tensors is computed. Shapes: (N, C, *sides)."""

    way: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    w: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    dtype: str
    channels_last: bool
    excluded: frozenset[int]  # notes on kernels that torch does not use


TENSOR_CORE, ROUNDS_INPUTS, NONDETERMINISTIC = 0, 1, 4  # notes


class _Refused(Exception):
    """cuDNN returned an error."""


class CudnnLibrary:
    """An installed cuDNN, asked about one card in another process."""

    def __init__(self, *, capability: tuple[int, int], processors: int) -> None:
        """Start the process, which must happen before a script is sandboxed."""
        self._answers: dict[Convolution, tuple[list[int], bool]] = {}
        self._questions = 0
        self._pipe, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # the child starts no threads and uses no locks
            self._server, self._owner = os.fork(), os.getpid()
        if self._server == 0:
            self._pipe.close()
            _keep_serving(theirs, capability, processors)
        theirs.close()

    def close(self) -> None:
        """End the process, which has nothing to finish. A fork of the process that started it leaves it."""
        self._pipe.close()
        if self._owner == os.getpid():
            os.kill(self._server, signal.SIGTERM)
            os.waitpid(self._server, 0)

    def workspaces(self, call: Convolution) -> list[int] | None:
        """Bytes of the kernels that torch tries, the one it uses without a search first; None: no answer."""
        return self._ask(call)[0] or None

    def all_workspaces(self, call: Convolution) -> list[int] | None:
        """The same, but None if the library did not survive all of them."""
        sizes, is_complete = self._ask(call)
        return (sizes or None) if is_complete else None

    def _ask(self, call: Convolution) -> tuple[list[int], bool]:
        if call not in self._answers:
            try:
                self._answers[call] = self._exchange(call)
            except (EOFError, OSError):  # there is no library, or it died too often
                self._answers[call] = [], False
        return self._answers[call]

    def _exchange(self, call: Convolution) -> tuple[list[int], bool]:
        sizes: list[int] = []
        done, deaths, current = 0, 0, -1
        number = self._send(call, done)
        while True:
            answered, kind, value = self._pipe.recv()
            if answered != number:
                continue  # the rest of an answer that nobody waited for
            if kind == "kernel":
                current = value
            elif kind == "size":
                sizes.append(value)
            elif kind == "end":
                return sizes, not deaths
            elif current < done:  # it died before the first kernel
                return sizes, False
            else:
                done, deaths = current + 1, deaths + 1
                number = self._send(call, done)

    def _send(self, call: Convolution, start: int) -> tuple[int, int]:
        """Ask, and return the number of the question; forks of this process share the pipe."""
        self._questions += 1
        number = os.getpid(), self._questions
        self._pipe.send((number, call, start))
        return number


def _keep_serving(pipe: Any, capability: tuple[int, int], processors: int) -> None:
    """Pass questions on to a process that asks the library; this one does nothing that may crash."""
    with contextlib.suppress(BaseException):  # the pipe is closed when the forecast ends
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead servers need no wait
        server, deaths = None, 0
        while True:
            number, *question = pipe.recv()
            try:
                if server is None and deaths < _MOST_DEATHS:
                    server = _start_server(capability, processors)
                if server is None:
                    raise EOFError
                server.send(question)
                kind = ""
                while kind != "end":
                    kind, value = server.recv()
                    pipe.send((number, kind, value))
            except (EOFError, OSError):
                server, deaths = None, deaths + 1
                pipe.send((number, "died", None))
    os._exit(0)


def _start_server(capability: tuple[int, int], processors: int) -> Any:
    """The pipe to a new process that answers questions until its pipe is closed."""
    ours, theirs = Pipe()
    if os.fork():
        theirs.close()
        return ours
    with contextlib.suppress(BaseException):
        ours.close()
        asker = _Asker.open(capability, processors)
        while asker is not None:
            call, start = theirs.recv()
            with contextlib.suppress(_Refused, KeyError):
                asker.answer(call, start, theirs)
            theirs.send(("end", None))
    os._exit(0)


class _Asker:
    """Asks the library in this process."""

    def __init__(self, library: Any, *, capability: tuple[int, int], processors: int) -> None:
        self._library = library
        self._descriptors: list[c_void_p] = []
        text = json.dumps(_description(capability, processors)).encode()
        self._device = self._make(_DEVICE)
        self._set(self._device, 2702, _CHAR, text)
        self._finalize(self._device)
        self._descriptors.clear()  # the description stays

    @staticmethod
    def open(capability: tuple[int, int], processors: int) -> _Asker | None:
        """The library that torch uses, or None if there is none, or one that cannot be asked."""
        try:
            library = ctypes.CDLL("libcudnn.so.9")
            library.cudnnGetVersion.restype = ctypes.c_size_t
            if library.cudnnGetVersion() < _LEAST_VERSION:
                return None
            return _Asker(library, capability=capability, processors=processors)
        except (OSError, AttributeError, _Refused):
            return None

    def answer(self, call: Convolution, start: int, pipe: Any) -> None:
        """Send the workspace of each kernel that torch may use, from the kernel number `start` on."""
        with self._cleaned():
            graph = self._graph(call)
            configs = [config for mode in (_INSTANT, _FALLBACK) for config in self._configs(graph, mode)]
            for number, config in enumerate(configs[start:], start):
                pipe.send(("kernel", number))
                with contextlib.suppress(_Refused):
                    if not call.excluded & set(self._notes(config)):
                        pipe.send(("size", self._workspace(config)))

    def _graph(self, call: Convolution) -> c_void_p:
        convolution = self._make(_CONVOLUTION)
        self._set(convolution, 100, _DTYPE, [_DTYPES["float32"]])  # sums are in fp32
        self._set(convolution, 101, _MODE, [1])  # cross-correlation
        for attribute, values in (
            (102, call.dilation),
            (103, call.stride),
            (104, call.padding),
            (105, call.padding),
            (106, [len(call.stride)]),
        ):
            self._set(convolution, attribute, _INT64, values)
        self._finalize(convolution)
        tensors = [
            self._tensor(shape, number, call) for number, shape in enumerate((call.x, call.y, call.w), 1)
        ]
        kind, attributes = _OPERATIONS[call.way]
        operation = self._make(kind)
        for attribute, value in zip(attributes, (*tensors, convolution), strict=False):
            self._set(operation, attribute, _DESCRIPTOR, [value])
        self._set(operation, attributes[4], _FLOAT, [1.0])
        self._set(operation, attributes[5], _FLOAT, [0.0])
        self._finalize(operation)
        graph = self._make(_GRAPH)
        self._set(graph, 801, _DESCRIPTOR, [operation])
        return self._finalize(graph)

    def _tensor(self, shape: Sequence[int], number: int, call: Convolution) -> c_void_p:
        tensor = self._make(_TENSOR)
        self._set(tensor, 900, _INT64, [16])  # alignment
        self._set(tensor, 901, _DTYPE, [_DTYPES[call.dtype]])
        self._set(tensor, 902, _INT64, shape)
        self._set(tensor, 903, _INT64, _strides(shape, call.channels_last))
        self._set(tensor, 906, _INT64, [number])
        return self._finalize(tensor)

    def _configs(self, graph: c_void_p, mode: int) -> list[c_void_p]:
        heuristic = self._make(_HEURISTIC)
        self._set(heuristic, 201, _DESCRIPTOR, [graph])
        self._set(heuristic, 200, _HEUR_MODE, [mode])
        self._set(heuristic, 204, _DESCRIPTOR, [self._device])
        self._finalize(heuristic)
        count = self._get(heuristic, 202, _DESCRIPTOR, 0, None)
        configs = (c_void_p * count)(*[self._make(_CONFIG).value for _ in range(count)])
        count = self._get(heuristic, 202, _DESCRIPTOR, count, configs)
        return [c_void_p(config) for config in configs[:count]]

    def _notes(self, config: c_void_p) -> list[int]:
        engine = (c_void_p * 1)(self._make(_ENGINE).value)
        self._get(config, 300, _DESCRIPTOR, 1, engine)
        notes = (c_int * 20)()
        return notes[: self._get(c_void_p(engine[0]), 1303, _NOTE, 20, notes)]

    def _workspace(self, config: c_void_p) -> int:
        plan = self._make(_PLAN)
        self._set(plan, 401, _DESCRIPTOR, [config])
        self._set(plan, 407, _DESCRIPTOR, [self._device])
        self._finalize(plan)
        size = c_int64()
        self._get(plan, 402, _INT64, 1, byref(size))
        return size.value

    # --- the C interface

    def _make(self, kind: int) -> c_void_p:
        descriptor = c_void_p()
        self._check(self._library.cudnnBackendCreateDescriptor(kind, byref(descriptor)))
        self._descriptors.append(descriptor)
        return descriptor

    def _set(self, descriptor: c_void_p, attribute: int, kind: int, values: Any) -> None:
        count = c_int64(len(values))
        if kind != _CHAR:
            plain = [value.value if isinstance(value, c_void_p) else value for value in values]
            values = (_C_TYPES[kind] * len(plain))(*plain)
        self._check(self._library.cudnnBackendSetAttribute(descriptor, attribute, kind, count, values))

    def _get(self, descriptor: c_void_p, attribute: int, kind: int, most: int, values: Any) -> int:
        """Write the values of an attribute to `values` and return their number."""
        count = c_int64()
        self._check(
            self._library.cudnnBackendGetAttribute(
                descriptor, attribute, kind, c_int64(most), byref(count), values
            )
        )
        return count.value

    def _finalize(self, descriptor: c_void_p) -> c_void_p:
        self._check(self._library.cudnnBackendFinalize(descriptor))
        return descriptor

    @contextlib.contextmanager
    def _cleaned(self) -> Iterator[None]:
        try:
            yield
        finally:
            for descriptor in reversed(self._descriptors):
                self._library.cudnnBackendDestroyDescriptor(descriptor)
            self._descriptors.clear()

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise _Refused(status)


def _strides(shape: Sequence[int], channels_last: bool) -> list[int]:
    order = [0, *range(2, len(shape)), 1] if channels_last else list(range(len(shape)))
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return strides


def _description(capability: tuple[int, int], processors: int) -> dict[str, Any]:
    """The card as cuDNN writes it. What differs little between cards, or does not matter, is the H200's."""
    return {
        "deviceVer": 100 * capability[0] + 10 * capability[1],
        "multiProcessorCount": processors,
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 3201000,
        "l2CacheSize": 62914560,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": 232448,
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "pciDeviceId": 0,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "driverVer": 13000,
        "totalGlobalMem": 150109880320,
        "cudaDeviceId": 0,
        "deviceName": "NVIDIA H200",
    }
