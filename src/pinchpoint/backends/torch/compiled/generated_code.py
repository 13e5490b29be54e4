"""`GeneratedCode`: the code that inductor generates for a graph, run on the simulated device.

Its Triton kernels do nothing, because the code around them allocates their buffers. What they write to has
unknown values afterwards.
"""

from __future__ import annotations

import ast
import contextlib
import re
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.fake.progress import peaks_between
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

_PARAMETERS = re.compile(r"^def \w+\((.*?)\)\s*:", re.MULTILINE | re.DOTALL)


# Torch times a kernel while it overwrites a buffer of the size of the L2 cache. An H200 has 60 MiB of it, and
# cards that have more have much more memory.
_FLUSHED_BYTES = 64 * MIB


class _Kernel:
    """A kernel that does nothing.

    outputs: positions of the arguments that it writes to; None: unknown.
    changed: positions of those that it also reads. saves: whether copies of these may not raise the peak.
    """

    def __init__(
        self,
        observer: Observer,
        outputs: Sequence[int] | None,
        changed: Sequence[int] = (),
        saves: bool = False,
    ) -> None:
        self._observer = observer
        self._outputs = outputs
        self._changed = changed
        self._saves = saves
        self._has_run = False

    def _time(self, args: tuple[Any, ...]) -> None:
        """Torch may time a kernel when it runs first, with copies of what the kernel changes.

        Whether it does depends on the kernel and on what earlier runs have left in torch's cache.
        """
        ledger = self._observer.ledger
        copies = sum(args[at].nbytes for at in self._changed if isinstance(args[at], torch.Tensor))
        if copies and self._saves:  # what would raise the peak is copied to the host
            peaks, alive = peaks_between(ledger.observation, [len(ledger.observation.events)])
            copies = min(copies, peaks[0] - alive[0])
        taken = Span(0, 0, _FLUSHED_BYTES + copies)
        phase = ledger.phase or "forward"
        ledger.free_temporary(ledger.add_temporary(taken, phase=phase, site=ledger.site(), op="timing"))

    def __call__(self, *args: Any, **_: Any) -> None:
        if not self._has_run:
            self._has_run = True
            self._time(args)
        positions = range(len(args)) if self._outputs is None else self._outputs
        for tensor in (args[position] for position in positions if position < len(args)):
            if type(tensor) is FakeTensor:
                self._observer.shadows.forget(tensor)

    run = __call__


class _Kernels:
    """Replaces torch's AsyncCompile: nothing is compiled."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def triton(self, name: str, source: str, **_: Any) -> _Kernel:
        match = _PARAMETERS.search(source)
        if match is None:
            return _Kernel(self._observer, None)
        names = [parameter.partition(":")[0].strip() for parameter in match[1].split(",")]
        outputs = [at for at, name in enumerate(names) if not name.startswith(("in_ptr", "arg_"))]
        changed = [at for at, name in enumerate(names) if name.startswith("in_out_ptr")]
        return _Kernel(self._observer, outputs, changed, "'optimize_mem': True" in source)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_, **__: _Kernel(self._observer, None)

    def wait(self, scope: dict[str, Any]) -> None: ...


class GeneratedCode:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def kernels(self) -> Any:
        return _Kernels(self._observer)

    def load(self, source: str) -> types.ModuleType:
        """A module made of inductor's Python code."""
        module = types.ModuleType("pinchpoint_generated_code")
        module.__file__ = "<generated code>"
        names = vars(module)
        for statement in ast.parse(source).body:
            code = compile(ast.Module([statement], []), module.__file__, "exec")
            # Triton need not be installed, and a build for the CPU has no streams; neither is used.
            is_import = isinstance(statement, (ast.Import, ast.ImportFrom))
            with contextlib.suppress(*[ImportError] if is_import else []):
                exec(code, names)
        names["empty_strided_cuda"] = self._empty
        names["reinterpret_tensor"] = _reinterpret
        names["get_raw_stream"] = lambda *_: 0
        return module

    def _empty(self, size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty_strided(size, stride, dtype=dtype, device="cuda")
        if type(tensor) is FakeTensor:
            self._observer.shadows.forget(tensor)
        return tensor


def _reinterpret(tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)
