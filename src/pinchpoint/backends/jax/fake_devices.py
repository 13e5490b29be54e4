"""Let a target ask for CUDA devices on a machine that has none.

Only the question is answered: `jax.devices("cuda")` gives the CPU's devices, so that a factory which
puts its arrays on the device it is handed can be built. Where there is a GPU nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax

_ASKS = ("devices", "local_devices", "device_count", "local_device_count")
_CUDA = ("cuda", "gpu")


@contextmanager
def pretend_cuda() -> Iterator[None]:
    kept = {name: getattr(jax, name) for name in _ASKS}
    for name, ask in kept.items():
        setattr(jax, name, _answer(ask, place=1 if name == "local_devices" else 0))
    try:
        yield
    finally:
        for name, ask in kept.items():
            setattr(jax, name, ask)


def _answer(ask: Callable[..., Any], *, place: int) -> Callable[..., Any]:
    """place: the position of `backend` among the arguments."""

    def answer(*args: Any, **options: Any) -> Any:
        try:
            return ask(*args, **options)
        except RuntimeError:
            given = args[place] if len(args) > place else options.get("backend")
            if given not in _CUDA:
                raise
            args, options = args[:place], {**options, "backend": "cpu"}
            return ask(*args, **options)

    return answer
