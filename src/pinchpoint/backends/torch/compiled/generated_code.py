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
from pinchpoint.backends.torch.observer import Observer

_PARAMETERS = re.compile(r"^def \w+\((.*?)\)\s*:", re.MULTILINE | re.DOTALL)


class _Kernel:
    """A kernel that does nothing. outputs: positions of the arguments that it writes to; None: unknown."""

    def __init__(self, observer: Observer, outputs: Sequence[int] | None) -> None:
        self._observer = observer
        self._outputs = outputs

    def __call__(self, *args: Any, **_: Any) -> None:
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
        return _Kernel(self._observer, outputs)

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
