"""Operations known to take more on the GPU than is predicted: each is named once in the Forecast's notes.

Found against an H200's allocator: the exceptions of tests/backends/torch/test_operations.py that only go one way.
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
_MISSING = {
    "aten::_linalg_eigh": "cuSOLVER's workspace, a gigabyte for some batches, is not modelled",
    "aten::linalg_eig": _SOLVER,
    "aten::_linalg_svd": _SOLVER,
    "aten::linalg_qr": _SOLVER,
    "aten::_linalg_slogdet": _SOLVER,
    "aten::linalg_pinv": _SOLVER,
    "aten::_fft_r2c": _FFT,
    "aten::_fft_c2r": _FFT,
    "aten::_fft_c2c": _FFT,
    "aten::multinomial": "the tensor of exponentials it draws through is not modelled",
    "aten::randperm": "the sort of its random keys is not modelled",
    "aten::im2col": "its copy of each point of the batch is not modelled",
    "aten::_cdist_backward": "its buffer of all pairs by coordinates is not modelled",
}
_CELLS = (torch.nn.LSTMCell, torch.nn.GRUCell)


def missing(func: Any, args: Any, kwargs: Any) -> str | None:
    """What the prediction of this operation leaves out, if anything is known to be."""
    name = func.name().split(".")[0]
    if name.startswith("aten::scatter_reduce"):
        reduce = kwargs.get("reduce", args[4] if len(args) > 4 else "")
        return (
            "the tensor in which a mean counts its contributions is not modelled"
            if reduce == "mean"
            else None
        )
    if name == "aten::convolution" and torch.backends.cudnn.benchmark:
        return "torch.backends.cudnn.benchmark is on: cuDNN may take more while it searches"
    return _MISSING.get(name)


class Notes:
    """Says what is missing, once an operation, at the first line that runs it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._said: set[str] = set()

    def say(self, name: str, what: str, site: Site) -> None:
        if name not in self._said:
            self._said.add(name)
            where = shown_path(f"{site.file}:{site.line}")
            self.ledger.seen.notes.append(f"{name} at {where}: {what}, the peak may be higher")


def install(patches: Patches, notes: Notes, on_device: Callable[[object], bool]) -> None:
    """The fused cells of CUDA, which the host composes of operations that look like any others."""
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
