"""`KernelModel`: library workspaces and temporaries that GPU kernels allocate besides their outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pinchpoint.backends.torch import autograd_nodes
from pinchpoint.backends.torch.kernels import convolution, convolution_search, detection
from pinchpoint.backends.torch.kernels.cudnn_library import CudnnLibrary
from pinchpoint.backends.torch.kernels.layouts import has_channels_last
from pinchpoint.backends.torch.kernels.library_buffers import Sizes, bytes_of
from pinchpoint.backends.torch.kernels.temporaries import (
    FAMILIES,
    broadcast_bytes,
    efficient_attention_backward,
    reduce_sizes,
)
from pinchpoint.backends.torch.ledger import Ledger, Site
from pinchpoint.core.events import Phase, Span

_aten = torch.ops.aten

MATRIX_OPS = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_addmm_activation",
    "aten::mv",
    "aten::addmv",
    "aten::dot",
    "aten::_grouped_mm",
    "aten::_scaled_mm",
    "aten::linear",  # of the values of a nested tensor; other tensors reach the products above
}


@dataclass
class KernelModel:
    """Knows the sizes that depend on the card, and the workspaces that this run has already allocated."""

    cublas_workspace_bytes: int
    cublaslt_workspace_bytes: int
    processors: int
    capability: tuple[int, int]
    cudnn: CudnnLibrary | None = None
    _workspaces: dict[tuple[str, str], int] = field(default_factory=dict)
    _has_workspaces: bool = True
    _searches: set[tuple[bool, convolution_search.Search]] = field(default_factory=set)

    def workspace(self, name: str, *, ledger: Ledger, phase: Phase, site: Site) -> None:
        """Allocate cuBLAS's workspace, one per handle; forward and backward threads have their own.

        A pass that creates a graph (`create_graph=True`) is part of the loss and runs in the backward thread.
        A product with a bias uses cuBLASLt, which has its own workspace or (0 bytes) shares that of cuBLAS.
        """
        if name not in MATRIX_OPS or not self._has_workspaces:
            return
        is_backward = phase == "backward" or autograd_nodes.autograd_node() is not None
        thread = "backward" if is_backward else "forward"
        fused_bias = name in ("aten::addmm", "aten::_addmm_activation", "aten::linear")
        for library, size in (
            ("cublas", self.cublas_workspace_bytes),
            ("cublaslt", self.cublaslt_workspace_bytes),
        ):
            if size and (library == "cublas" or fused_bias) and (library, thread) not in self._workspaces:
                self._workspaces[library, thread] = ledger.add_permanent(
                    size, phase=phase, site=site, op=library, role="workspace"
                )

    def free_workspaces(self, ledger: Ledger) -> None:
        """Free the workspaces, as torch does before and after it captures a CUDA graph."""
        for block in self._workspaces.values():
            ledger.free_temporary(block)
        self._workspaces.clear()

    @contextlib.contextmanager
    def without_workspaces(self) -> Iterator[None]:
        """Within this context, products need no workspace."""
        self._has_workspaces = False
        try:
            yield
        finally:
            self._has_workspaces = True

    def temporaries(self, func: Any, args: Any, kwargs: Any, out: Any) -> Sequence[Sequence[int | Span]]:
        """Rounds of bytes allocated together while the kernel runs; a Span if a library chooses its size."""
        name = func.name().split(".")[0]
        if name == "aten::convolution":
            return convolution.forward(args, out, self.cudnn)
        if name == "aten::_scaled_dot_product_efficient_attention_backward":
            return efficient_attention_backward(args)
        if name == "torchvision::nms":
            return [detection.suppression(args[0].shape[0])]
        if name == "torchvision::deform_conv2d":
            return [detection.deformable_convolution(args, out)]
        if name == "torchvision::_deform_conv2d_backward":
            return [detection.deformable_convolution_backward(args, out)]
        family = FAMILIES.get(name)
        return [] if family is None else [family(self, func, args, kwargs, out)]

    def convolution_gradients(self, args: Any) -> tuple[list[int], list[Sizes]]:
        """Copies made before a convolution's backward pass, and the temporaries of its three gradients."""
        copies, rounds = convolution.backward(args, self.capability, self.cudnn)
        return copies, [*rounds, self._bias_gradient(args)]

    def new_searches(self, func: Any, args: Any, out: Any, phase: Phase) -> list[int]:
        """Bytes of every search that `torch.backends.cudnn.benchmark` makes for this call.

        torch remembers what it found, in each thread for itself: forward and backward search both.
        """
        name = func.name().split(".")[0]
        if name == "aten::convolution":
            searches = convolution_search.forward_searches(args, out)
        elif name == "aten::convolution_backward":
            searches = convolution_search.backward_searches(args)
        else:
            return []
        new = [search for search in searches if (phase == "backward", search) not in self._searches]
        self._searches |= {(phase == "backward", search) for search in new}
        return [convolution_search.search_bytes(search, self.cudnn) for search in new]

    def _bias_gradient(self, args: Any) -> Sizes:
        """The sum over all dimensions except the channels; torch computes it for channels-last tensors."""
        gradient, source, weight, has_bias = args[0], args[1], args[2], args[10][2]
        if not has_bias or not any(map(has_channels_last, (source, weight))):
            return []
        return reduce_sizes(
            self, gradient, gradient.shape[1], 4, tuple(d for d in range(gradient.dim()) if d != 1)
        )


def kept_bytes(name: str, args: Any, kwargs: Any) -> int | None:
    """Bytes of an output whose storage on the GPU is larger than its shape says, or None.

    mse_loss and smooth_l1_loss with a reduction return a scalar that keeps the unreduced buffer; fold
    (col2im), which is also the gradient of unfold, returns a buffer that was as large as its input.
    """
    if name == "aten::col2im":
        return bytes_of(args[0])
    if name not in ("aten::mse_loss", "aten::smooth_l1_loss"):
        return None
    reduction = kwargs.get("reduction", args[2] if len(args) > 2 else 1)
    return broadcast_bytes(args[0], args[1]) if reduction else None


def in_order_of_allocation(func: Any, args: Any, out: Any) -> Any:
    """The outputs that the kernel allocates, in its order."""
    if func is _aten.native_dropout.default:
        return out[::-1]
    if func is _aten._scaled_dot_product_cudnn_attention.default:
        result, row_sums, *_, seed, offset, _ = out
        return (seed, offset, result, *((row_sums,) if args[4] else ()))  # the sums are for backward
    return out
