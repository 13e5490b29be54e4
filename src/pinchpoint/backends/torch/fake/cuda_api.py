"""`torch.cuda` without a GPU: one simulated device, whose memory statistics come from the ledger.

Every function that training scripts call is replaced; what needs a real device (graphs, IPC) raises
an error that says why.
"""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat, versions
from pinchpoint.backends.torch.fake.devices import CUDA, at_user_line, cuda_device, device_count, place_of
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.ranks.compat import set_accelerator
from pinchpoint.core.errors import CannotFake
from pinchpoint.core.events import FREE_CACHE

_NOTHING = (
    *compat.CUDA_HOOKS,
    "init",
    "manual_seed",
    "manual_seed_all",
    "seed",
    "seed_all",
    "ipc_collect",
    "set_sync_debug_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
)
_NOTHING_OF_DEVICE = (
    "set_device",
    "synchronize",
    "reset_peak_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_accumulated_memory_stats",
)


_NCCL_VERSION = (2, 27, 5)  # the answer to libraries that check what NCCL supports


class _Stream:
    """Replaces torch.cuda.Stream: waiting does nothing, but each stream has memory of its own."""

    device_index = 0
    device_type = 1  # CUDA, as torch numbers it

    def __init__(self, *_: Any, stream_id: int | None = None, **__: Any) -> None:
        self.stream_id = next(_stream_numbers) if stream_id is None else stream_id
        self.cuda_stream = self.stream_id
        self._contexts: list[_StreamContext] = []

    @property
    def device(self) -> torch.device:
        return cuda_device()

    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def synchronize(self) -> None: ...
    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> _Stream:
        self._contexts.append(torch.cuda.stream(self))  # type: ignore[arg-type]
        self._contexts[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id


_stream_numbers = count(1)  # 0 is the default stream


class _Context:
    """Selects a device; there is only one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse_second_device(*args, **kwargs)

    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


class _StreamContext:
    """Replaces torch.cuda.stream: what is allocated in it belongs to the stream."""

    current: list[_Stream]
    select: Callable[[Any], None]

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self._before = self.current[-1]
        self.select(self.stream)

    def __exit__(self, *_: object) -> None:
        self.select(self._before)


class _Event:
    """Replaces torch.cuda.Event; no time passes on a simulated device."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 1.0


def _generator_state() -> torch.Tensor:
    """The state of a generator on CUDA: eight bytes of a seed and eight of an offset, on the host."""
    return torch.zeros(16, dtype=torch.uint8)


def _refuse_second_device(*args: Any, **kwargs: Any) -> None:
    """Refuse a second device; a stream, a tensor or nothing is accepted."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, (int, str, torch.device)):
            place_of(value)


def _for_only_device(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function of a device that returns the answer for the only device."""

    def ask(device: Any = None, *_: Any, **__: Any) -> Any:
        _refuse_second_device(device)
        return answer()

    return ask


def _for_every_device(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function of a device that describes any one of this machine, which are alike."""

    def ask(device: Any = None, *_: Any, **__: Any) -> Any:
        try:
            _refuse_second_device(device)
        except CannotFake:
            named = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            if named.index >= device_count():
                raise
        return answer()

    return ask


def _replace(patches: Patches, name: str, value: Any) -> None:
    """Replace a function of torch.cuda, also under its name in torch.cuda.memory or torch.cuda.random."""
    original = getattr(torch.cuda, name, None)
    patches.set(torch.cuda, name, value)
    for module in (torch.cuda.memory, torch.cuda.random):
        if original is not None and getattr(module, name, None) is original:
            patches.set(module, name, value)


def install(
    patches: Patches,
    observer: Observer,
    *,
    memory_bytes: int,
    capability: tuple[int, int],
    processors: int,
    title: str,
) -> None:
    cuda = torch.cuda
    properties = types.SimpleNamespace(
        name=title,
        major=capability[0],
        minor=capability[1],
        total_memory=memory_bytes,
        multi_processor_count=processors,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
        L2_cache_size=50 * 2**20,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=232448,
        shared_memory_per_multiprocessor=233472,
        gcnArchName="",
        uuid="pinchpoint",
    )
    for name in _NOTHING:
        _replace(patches, name, lambda *_, **__: None)
    for name in _NOTHING_OF_DEVICE:  # torch.compile tells functions apart by identity
        _replace(patches, name, _for_only_device(lambda: None))
    live_bytes = observer.ledger.live_bytes
    default_stream = _Stream(stream_id=0)
    streams = [default_stream]  # the current one is the last

    def set_stream(stream: Any) -> None:
        if stream is not None:
            streams[-1] = stream
            observer.ledger.stream = stream.stream_id

    class StreamContext(_StreamContext):
        current = streams
        select = staticmethod(set_stream)

    def empty_cache() -> None:
        observer.ledger.observation.events.append(FREE_CACHE)

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: capability >= (8, 0),
        "is_tf32_supported": lambda: capability >= (8, 0),
        "device_count": device_count,
        "current_device": lambda: cuda_device().index,
        "get_device_name": _for_every_device(lambda: title),
        "get_device_capability": _for_every_device(lambda: capability),
        "get_device_properties": _for_every_device(lambda: properties),
        "get_arch_list": lambda: [f"sm_{capability[0]}{capability[1]}"],
        "memory_allocated": _for_only_device(live_bytes),
        "max_memory_allocated": _for_only_device(live_bytes),
        "memory_reserved": _for_only_device(live_bytes),
        "max_memory_reserved": _for_only_device(live_bytes),
        "memory_cached": _for_only_device(live_bytes),
        "mem_get_info": _for_only_device(lambda: (memory_bytes - live_bytes(), memory_bytes)),
        "memory_stats": _for_only_device(
            lambda: {"allocated_bytes.all.current": live_bytes(), "allocated_bytes.all.peak": live_bytes()}
        ),
        "memory_summary": _for_only_device(lambda: ""),
        "empty_cache": empty_cache,
        "utilization": _for_only_device(lambda: 0),
        "current_stream": _for_only_device(lambda: streams[-1]),
        "default_stream": _for_only_device(lambda: default_stream),
        "set_stream": set_stream,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "device": _Context,
        "device_of": _Context,
        "get_rng_state": lambda device="cuda": _generator_state(),
        "get_rng_state_all": lambda: [_generator_state()],
        "initial_seed": lambda: 0,
        "can_device_access_peer": lambda *_: False,
        "is_current_stream_capturing": lambda: False,
        "get_sync_debug_mode": lambda: 0,
        "Stream": _Stream,
        "Event": _Event,
    }
    for name, answer in answers.items():
        _replace(patches, name, answer)
    for name in ("CUDAGraph", "graph", "make_graphed_callables"):
        patches.set(cuda, name, _Graph)
    _pools(patches, observer)
    nccl: Any = importlib.import_module("torch.cuda.nccl")
    patches.set(nccl, "version", lambda: _NCCL_VERSION)
    patches.set(torch, "Event", _Event)
    patches.set(torch, "Stream", _Stream)
    if cuda.nvtx is not None:
        for name in ("range_push", "range_pop", "mark"):
            patches.set(cuda.nvtx, name, lambda *_, **__: None)
        patches.set(cuda.nvtx, "range", lambda *_, **__: contextlib.nullcontext())
    _accelerator(patches, live_bytes, empty_cache, memory_bytes, lambda: streams[-1])
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    cudnn = compat.cudnn_version() or versions.rules().cudnn
    patches.set(torch.backends.cudnn, "version", lambda: cudnn)
    patches.set(torch, "Generator", _generator_type(observer))


def _accelerator(
    patches: Patches,
    live_bytes: Callable[[], int],
    empty_cache: Callable[[], None],
    memory_bytes: int,
    current_stream: Callable[[], _Stream],
) -> None:
    """Patch `torch.accelerator`, the device-neutral module of newer torch."""
    module = getattr(torch, "accelerator", None)
    if module is None:
        return
    cuda = torch.device("cuda")
    set_accelerator(patches.set, cuda)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": device_count,
        "current_accelerator": lambda check_available=False: cuda,
        "current_device_index": lambda: cuda_device().index,
        "current_device_idx": lambda: cuda_device().index,
        "set_device_index": _for_only_device(lambda: None),
        "set_device_idx": _for_only_device(lambda: None),
        "device_index": _Context,
        "synchronize": _for_only_device(lambda: None),
        "current_stream": _for_only_device(current_stream),
        "memory_allocated": _for_only_device(live_bytes),
        "max_memory_allocated": _for_only_device(live_bytes),
        "memory_reserved": _for_only_device(live_bytes),
        "max_memory_reserved": _for_only_device(live_bytes),
        "empty_cache": empty_cache,
        "reset_peak_memory_stats": _for_only_device(lambda: None),
        "get_memory_info": _for_only_device(lambda: (memory_bytes - live_bytes(), memory_bytes)),
    }
    for name, answer in answers.items():
        if hasattr(module, name):
            patches.set(module, name, answer)


class _MemPool:
    """Replaces torch.cuda.MemPool."""

    id = (0, 1)

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def use_count(self) -> int:
        return 1

    def snapshot(self, *_: Any, **__: Any) -> list[Any]:
        return []


def _pools(patches: Patches, observer: Observer) -> None:
    """Memory pools of the user's own: what they allocate is exact, what they reserve is not modelled."""

    @contextlib.contextmanager
    def use(pool: Any, device: Any = None) -> Iterator[None]:
        _refuse_second_device(device)
        what = "a pool has segments of its own, so more may be reserved than predicted"
        observer.notes.say("torch.cuda.use_mem_pool", what, observer.ledger.site(), is_reason=True)
        yield

    class Allocator:
        def __init__(self, *_: Any, **__: Any) -> None:
            raise CannotFake(
                f"The script uses an allocator of its own{at_user_line()}, which pinchpoint does not support "
                "yet.",
                hint="Predict it with PyTorch's own allocator.",
            )

    for owner in (torch.cuda, torch.cuda.memory):
        for name, value in (("MemPool", _MemPool), ("use_mem_pool", use)):
            if hasattr(owner, name):
                patches.set(owner, name, value)
        patches.set(owner, "CUDAPluggableAllocator", Allocator)


class _Graph:
    """A class rather than a function, because libraries use the original in annotations."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise CannotFake(
            f"The script captures a CUDA graph{at_user_line()}, which pinchpoint does not support yet.",
            hint="Predict the step without capture. A replayed graph keeps its memory pool, "
            "which is about the peak of one step.",
        )


def _generator_type(observer: Observer) -> type:
    """A `torch.Generator` that accepts device="cuda", reports it, and generates on the host."""
    original = torch.Generator

    class Generator(original):
        def __new__(cls, device: Any = "cpu") -> Generator:
            _refuse_second_device(device)
            generator = original.__new__(cls, "cpu")  # pyright: ignore[reportCallIssue]
            key, keys = compat.generator_key(generator), observer.generators
            # A freed generator of the device may have had the same key; this one belongs to the host.
            (keys.add if place_of(device) == "device" else keys.discard)(key)
            return generator

        @property
        def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
            return CUDA if compat.generator_key(self) in observer.generators else torch.device("cpu")

    return Generator
