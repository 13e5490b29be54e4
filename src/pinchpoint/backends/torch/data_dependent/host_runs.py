"""`OnHost`: runs an operation of the device on the host, for values that only pinchpoint reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import tree_map_only


class OnHost:
    """Runs operations on real values. below: a context in which they run as torch would run them.

    The device has random numbers of its own: a draw there does not change what the script draws on the host
    afterwards, which may determine sizes.
    """

    def __init__(self, below: Callable[[], AbstractContextManager[Any]]) -> None:
        self._below = below
        self._random_state: torch.Tensor | None = None  # of the device, once it was used

    def __call__(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation; None, which means unknown, if the host cannot compute it.

        A GPU has kernels for types that the host lacks, such as histograms of integers: these are computed
        in float64. No failure of a value that is computed only for pinchpoint's own use is an error of the
        script.
        """
        with torch.no_grad(), self._below(), self._random() if compat.is_random(func) else nullcontext():
            try:
                return func(*args, **kwargs)
            except Exception as error:
                if compat.is_mutable(func) or "not implemented for" not in str(error):
                    return None
            wide_args, wide_kwargs = tree_map_only(torch.Tensor, _widened, (args, kwargs))
            try:
                return func(*wide_args, **wide_kwargs)
            except Exception:
                return None

    @contextmanager
    def _random(self) -> Iterator[None]:
        before = torch.get_rng_state()
        state = self._random_state
        torch.set_rng_state(torch.Generator().manual_seed(0).get_state() if state is None else state)
        try:
            yield
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(before)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_complex() or tensor.dtype is torch.bool else tensor.double()
