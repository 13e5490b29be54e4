"""Notes about operations that use more memory on a GPU than predicted; each appears once in a Forecast.

They come from comparisons with an H200's allocator: the exceptions in
tests/backends/torch/test_operations.py that are always predicted too low.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.ledger import Ledger, Site
from pinchpoint.core.files import shown_path

_SOLVER = "cuSOLVER's workspace is not modelled"
_FFT = "cuFFT's workspace is not modelled"
_UNMODELLED = {
    "aten::_linalg_eigh": "cuSOLVER's workspace, a gigabyte for some batches, is not modelled",
    "aten::linalg_eig": _SOLVER,
    "aten::_linalg_svd": _SOLVER,
    "aten::linalg_qr": _SOLVER,
    "aten::_linalg_slogdet": _SOLVER,
    "aten::linalg_pinv": _SOLVER,
    "aten::_fft_r2c": _FFT,
    "aten::_fft_c2r": _FFT,
    "aten::_fft_c2c": _FFT,
    "aten::multinomial": "the tensor of exponentials it samples with is not modelled",
    "aten::randperm": "the sort of its random keys is not modelled",
    "aten::im2col": "its copy of each point of the batch is not modelled",
    "aten::_cdist_backward": "its buffer of all pairs times coordinates is not modelled",
}
_CELLS = (torch.nn.LSTMCell, torch.nn.GRUCell)


def omission_of(func: Any, args: Any, kwargs: Any) -> str | None:
    """What the prediction of this operation does not include, or None."""
    name = func.name().split(".")[0]
    if name.startswith("aten::scatter_reduce"):
        reduce = kwargs.get("reduce", args[4] if len(args) > 4 else "")
        return (
            "the tensor in which a mean counts its contributions is not modelled"
            if reduce == "mean"
            else None
        )
    if name == "aten::convolution" and torch.backends.cudnn.benchmark:
        return "torch.backends.cudnn.benchmark is on: cuDNN may use more while it searches"
    return _UNMODELLED.get(name)


class Notes:
    """Adds a note about what is missing, once per operation, with the first line that runs it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._names: set[str] = set()

    def say(self, name: str, what: str, site: Site) -> None:
        if name not in self._names:
            self._names.add(name)
            where = shown_path(f"{site.file}:{site.line}")
            self.ledger.observation.notes.append(f"{name} at {where}: {what}, so the peak may be higher")


def install(patches: Patches, notes: Notes, on_device: Callable[[object], bool]) -> None:
    """Note the fused cells of CUDA, which the host composes from ordinary operations."""
    for kind in _CELLS:
        original: Callable[..., Any] = kind.forward

        def forward(
            self: Any, source: torch.Tensor, *args: Any, _original: Any = original, **kwargs: Any
        ) -> Any:
            if on_device(source):
                what = "CUDA's fused cell keeps its gates, which is not modelled"
                notes.say(type(self).__name__, what, notes.ledger.site())
            return _original(self, source, *args, **kwargs)

        patches.set(kind, "forward", forward)
