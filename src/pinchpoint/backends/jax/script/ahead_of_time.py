"""Ahead-of-time compilation in a script: `jitted.lower(x).compile()(x)` calls the jitted function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pinchpoint.backends.jax import compat
from pinchpoint.backends.patches import Patches


class _Compiled:
    """Stands for a compiled program; what it says about itself comes from JAX's own, on the CPU."""

    def __init__(self, call: Callable[..., Any], lowered: Callable[[], Any]) -> None:
        self._call, self._lowered = call, lowered

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._call(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered().compile(), name)


class _Lowered:
    def __init__(self, call: Callable[..., Any], lowered: Callable[[], Any]) -> None:
        self._call, self._lowered = call, lowered

    def compile(self, *_: Any, **__: Any) -> _Compiled:
        return _Compiled(self._call, self._lowered)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lowered(), name)


def call_instead_of_compiling(patches: Patches) -> None:
    """Let `lower` of jitted functions return a stand-in whose program is the function itself."""

    def lower(jitted: Any, *args: Any, **options: Any) -> _Lowered:
        static, names = compat.static_arguments(jitted)
        fixed = {name: value for name, value in options.items() if name in names}

        def call(*traced_args: Any, **more: Any) -> Any:
            rest = iter(traced_args)
            full = [value if i in static else next(rest) for i, value in enumerate(args)]
            return jitted(*full, **more, **fixed)

        return _Lowered(call, lambda: original(jitted, *args, **options))

    original = compat.replace_lower(patches, lower)
