"""`install`: make JAX report to a recorder: jitted calls, compilations, waits, copies, and rebuilt functions.

A function that the program jits is replaced by a `Jitted`, which does the same and reports each call. A
step ends with such a call. JAX itself reports how long it traces and compiles. Waits are calls that need the
values of an array: they stand still until the device has computed it, on the CPU too.
"""

from __future__ import annotations

import sys
from functools import update_wrapper, wraps
from types import FrameType
from typing import Any

import jax

from pinchpoint.backends.jax import compat
from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.process_memory import ProcessMemory
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.recording.steps import BUILT_AGAIN, COMPILATION, COMPUTATION, WAITING

_BUILDERS = (
    "grad",
    "value_and_grad",
    "vmap",
    "pmap",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "vjp",
    "linearize",
)
_METHODS = {
    "item": "Array.item",
    "tolist": "Array.tolist",
    "block_until_ready": "Array.block_until_ready",
    "__array__": "NumPy of an array",
    "__bool__": "bool of an array",
    "__int__": "int of an array",
    "__float__": "float of an array",
    "__index__": "index from an array",
    "__repr__": "printing an array",
    "__format__": "formatting an array",
}
_COMPILED = "/jax/core/compile/backend_compile_duration"
_BEFORE = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")


class Jitted:
    """A jitted function that reports its calls; everything else is the function's own."""

    def __init__(self, function: Any, recorder: Recorder) -> None:
        update_wrapper(self, function)
        self._pinchpoint_function, self._pinchpoint_recorder = function, recorder
        # A function that is built again in every step is the same for us, though not for JAX.
        self._pinchpoint_key = getattr(getattr(function, "__wrapped__", None), "__code__", id(function))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, recorder = self._pinchpoint_function, self._pinchpoint_recorder
        if recorder.is_closed or recorder.phase == COMPUTATION or not recorder.is_here:
            return function(*args, **kwargs)
        if compat.is_tracing():
            return function(*args, **kwargs)
        recorder.begin(COMPUTATION)
        recorder.parts["jitted call"] = (self, args, kwargs)
        try:
            return function(*args, **kwargs)
        finally:
            del recorder.parts["jitted call"]  # it would keep the arguments alive
            recorder.end()
            recorder.mark("jitted call", self._pinchpoint_key)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        return lambda *args, **kwargs: self(instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_pinchpoint_function"), name)

    def __hash__(self) -> int:
        return hash(self._pinchpoint_function)

    def __eq__(self, other: object) -> bool:
        mine = self._pinchpoint_function
        return mine == (other._pinchpoint_function if isinstance(other, Jitted) else other)


def install(recorder: Recorder, patches: Patches) -> None:
    """Replace functions of JAX until `patches.undo()` and the recorder's `on_close`."""
    recorder.frameworks.add("jax")
    _watch_device(recorder)
    _watch_jit(recorder, patches)
    _watch_compilation(recorder)
    _watch_waits(recorder, patches)
    _watch_memory(recorder)
    if not recorder.light:
        _watch_builders(recorder, patches)
        _watch_copies(recorder, patches)


def _watch_device(recorder: Recorder) -> None:
    wait: Any = jax.block_until_ready  # before it is watched

    def synchronize() -> bool:
        wait(jax.live_arrays())
        return True

    recorder.synchronize.append(synchronize)


def _watch_jit(recorder: Recorder, patches: Patches) -> None:
    original: Any = jax.jit

    def jit(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not _is_of_user(sys._getframe(1)) or compat.is_tracing():
            return result
        if not recorder.light:
            recorder.event("build", "jax.jit", recorder.lines.place(1))
        if hasattr(result, "lower"):
            return Jitted(result, recorder)
        return lambda function: Jitted(result(function), recorder)  # jit(static_argnames=...) as a decorator

    patches.set(jax, "jit", wraps(original)(jit))


def _is_of_user(frame: FrameType | None) -> bool:
    """Whether a call comes from the user's code, directly or through a library, and not from an import."""
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return True
        if frame.f_code.co_name == "<module>":
            return False
        frame = frame.f_back
    return False


def _watch_builders(recorder: Recorder, patches: Patches) -> None:
    for name in _BUILDERS:
        original: Any = getattr(jax, name)

        def build(*args: Any, _original: Any = original, _name: str = name, **kwargs: Any) -> Any:
            # Inside a jitted function this happens once, while it is traced.
            if recorder.is_here and not compat.is_tracing() and is_user_file(_caller()):
                recorder.event("build", f"jax.{_name}", recorder.lines.place(1))
            return _original(*args, **kwargs)

        patches.set(jax, name, wraps(original)(build))


def _caller() -> str:
    return sys._getframe(2).f_code.co_filename


def _watch_compilation(recorder: Recorder) -> None:
    counts: dict[tuple[Any, Any], int] = {}
    compiled: dict[Any, tuple[Any, dict[str, str]]] = {}

    def reason() -> str:
        """Why the jitted function that is called now is compiled again; empty if it is the first time."""
        call = recorder.parts.get("jitted call")
        if call is None:
            return ""
        jitted, args, kwargs = call
        function, kinds = jitted._pinchpoint_function, _kinds(args, kwargs)
        before = compiled.get(jitted._pinchpoint_key)
        compiled[jitted._pinchpoint_key] = (function, kinds)
        if before is None:
            return ""
        if before[0] is not function:
            return BUILT_AGAIN
        changes = [
            f"{name} was {before[1].get(name, 'absent')}, now it is {kind}"
            for name, kind in kinds.items()
            if before[1].get(name) != kind
        ]
        return "; ".join(changes[:3]) or "the reason is unknown"

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event != _COMPILED and event not in _BEFORE:
            return
        spent_ns = round(duration_secs * 1e9)
        recorder.insert(COMPILATION, spent_ns)
        if event == _COMPILED:
            function = str(kwargs.get("fun_name", "a function")).removeprefix("jit(").removesuffix(")")
            place = recorder.lines.place(1)
            count = counts[(function, place)] = counts.get((function, place), 0) + 1
            kind = "compile" if count == 1 else "recompile"
            recorder.event(kind, function, place, spent_ns, detail=reason())

    jax.monitoring.register_event_duration_secs_listener(listen)
    recorder.on_close.append(lambda: jax.monitoring.unregister_event_duration_listener(listen))


def _kinds(args: Any, kwargs: Any) -> dict[str, str]:
    """Shape and type of each array among the arguments, and the values of others, by their path."""
    leaves = jax.tree_util.tree_flatten_with_path((args, kwargs))[0]
    return {_path(path): _kind(leaf) for path, leaf in leaves}


def _path(path: Any) -> str:
    first, *rest = path  # of the positional or the keyword arguments
    where = jax.tree_util.keystr(tuple(rest))
    return f"argument {where}" if first.idx == 0 else f"keyword argument {where}"


def _kind(leaf: Any) -> str:
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"the {type(leaf).__name__} {str(leaf)[:30]}"


def _watch_waits(recorder: Recorder, patches: Patches) -> None:
    is_busy = False

    def watch(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_busy
            if is_busy or not recorder.is_here:
                return original(*args, **kwargs)
            is_busy = True
            start_ns = recorder.clock_ns()
            recorder.begin(WAITING)
            try:
                return original(*args, **kwargs)
            finally:
                recorder.end()
                is_busy = False
                recorder.event("wait", what, recorder.lines.place(1), recorder.clock_ns() - start_ns)

        # Methods of C++ classes have no proper __qualname__ to take over.
        patches.set(owner, name, wraps(original, ("__doc__", "__name__"))(call))

    for name, what in _METHODS.items():
        watch(compat.ArrayImpl, name, what)
    watch(jax, "device_get", "jax.device_get")
    watch(jax, "block_until_ready", "jax.block_until_ready")


def _watch_copies(recorder: Recorder, patches: Patches) -> None:
    original: Any = jax.device_put

    def put(x: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_here or compat.is_tracing():
            return original(x, *args, **kwargs)
        start_ns = recorder.clock_ns()
        result = original(x, *args, **kwargs)
        leaves = [leaf for leaf in jax.tree_util.tree_leaves(x) if not isinstance(leaf, jax.Array)]
        size = sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
        if leaves:
            spent_ns = recorder.clock_ns() - start_ns
            recorder.event("copy", "jax.device_put", recorder.lines.place(1), spent_ns, size=size)
        return result

    patches.set(jax, "device_put", wraps(original)(put))


def _watch_memory(recorder: Recorder) -> None:
    process = ProcessMemory()
    device: Any = None

    def now() -> int | None:
        nonlocal device
        if device is None:
            device = jax.local_devices()[0]
            if device.platform == "gpu":
                recorder.device = "cuda"
        stats = device.memory_stats()
        return process.resident_bytes() if stats is None else int(stats["bytes_in_use"])

    def report() -> None:
        stats = device.memory_stats() if device is not None else None
        if stats is None:
            recorder.parts.setdefault("memory", process.report())
            return
        recorder.parts["memory"] = {
            "method": "XLA allocator",
            "allocated_bytes": int(stats.get("peak_bytes_in_use", 0)),
            "reserved_bytes": int(stats["peak_pool_bytes"]) if "peak_pool_bytes" in stats else None,
            "per_step_is": "bytes in use at the end of each step",
            "lines": [],
        }

    if recorder.memory_now is None:
        recorder.memory_now = now
        recorder.on_finish.append(report)
