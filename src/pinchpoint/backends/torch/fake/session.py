"""`simulate_device`: run code as if a CUDA device existed, and observe what it allocates."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.data_dependent.operations import Dynamic
from pinchpoint.backends.torch.fake import (
    autocast,
    cuda_api,
    lazy_modules,
    library,
    nested_tensors,
    sparse_tensors,
    tensors,
    typed_tensors,
)
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.backends.torch.kernels import attention, packed_sequences, recurrent
from pinchpoint.backends.torch.kernels.cudnn_library import CudnnLibrary
from pinchpoint.backends.torch.kernels.layouts import batch_norm_layout, has_channels_last
from pinchpoint.backends.torch.kernels.workspaces import KernelModel
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages import finder, unknown_kernels
from pinchpoint.backends.torch.ranks import process_group
from pinchpoint.backends.torch.ranks.compat import local_part, run_on_parts

_aten = torch.ops.aten


@dataclass(frozen=True)
class Device:
    """What a fake run must know about the simulated card."""

    title: str
    memory_bytes: int
    capability: tuple[int, int]
    cublas_workspace_bytes: int
    cublaslt_workspace_bytes: int
    processors: int


@contextlib.contextmanager
def simulate_device(
    device: Device, *, dynamic: Dynamic, progress: Progress | None = None
) -> Iterator[Observer]:
    """Run everything in this context as if `device` were cuda:0. Use it only in a separate process."""
    ledger = Ledger()
    model = KernelModel(
        device.cublas_workspace_bytes, device.cublaslt_workspace_bytes, device.processors, device.capability
    )
    if device.capability == (9, 0) and torch.version.cuda:  # only Hopper was compared
        model.cudnn = CudnnLibrary(capability=device.capability, processors=device.processors)
    progress = progress or Progress()
    observer = Observer(ledger, model, dynamic)
    observer.progress = progress
    progress.observer = observer
    dynamic.optimizer_steps = lambda: sum(progress.steps.values())
    dynamic.events = lambda: len(ledger.observation.events)
    dynamic.is_late = lambda: progress.is_late
    progress.on_weight = observer.forget_values
    # torch.compile sees torch as it is, except that there is a device and that autocast works on it.
    with contextlib.ExitStack() as stack, Patches() as kept_patches, Patches() as patches:
        if model.cudnn is not None:
            stack.callback(model.cudnn.close)
        cuda_api.install(
            kept_patches,
            observer,
            memory_bytes=device.memory_bytes,
            capability=device.capability,
            processors=device.processors,
            title=device.title,
        )
        tensors.install(patches, observer)
        typed_tensors.install(patches, observer)
        sparse_tensors.install(patches, observer)
        attention.install(patches, observer, capability=device.capability)
        nested_tensors.install(patches, observer)
        lazy_modules.install(patches)
        recurrent.install(patches, observer)
        packed_sequences.install(patches, observer)
        _inference_mode(patches)
        _dropout(patches, observer)
        _one_hot(patches, observer)
        _softmax(patches, observer)
        _fused(patches, observer)
        _batch_norm(patches, observer)
        _group_norm(patches, observer)
        process_group.install(patches, observer)
        stack.callback(process_group.close)
        unknown_kernels.install(patches, observer)
        autocast_kernels = autocast.install(kept_patches)
        try:
            with (
                finder.install(patches, observer) as observer.stand_ins,
                library.install(patches, observer, progress),
                observer,
            ):
                yield observer
        finally:
            compat.close_library(autocast_kernels)


def _inference_mode(patches: Patches) -> None:
    """Turn gradients off in place of inference mode, where autocast also keeps no copies of the weights.

    In inference mode, torch gives composite operations (linear, attention) to the observer in one piece, so
    that it would not see what they allocate on the way, and it does not count writes.
    """
    mode = torch.inference_mode
    set_cache = torch.set_autocast_cache_enabled
    active: list[bool] = []

    def enter(self: Any) -> None:
        self._before = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        torch.set_grad_enabled(not self.mode)
        active.append(self.mode)
        set_cache(self._before[1] and not self.mode)

    def leave(self: Any, *_: object) -> None:
        active.pop()
        torch.set_grad_enabled(self._before[0])
        set_cache(self._before[1])

    patches.set(torch, "set_autocast_cache_enabled", lambda on: set_cache(on and not (active and active[-1])))

    patches.set(mode, "__enter__", enter)
    patches.set(mode, "__exit__", leave)


def _fused(patches: Patches, observer: Observer) -> None:
    """Replace RMS norm, for which CUDA has one kernel, while the host composes it from several.

    CUDA composes it as well before torch 2.9, for channels-last and complex inputs, and for a weight of
    another type.
    """
    has_kernel = compat.has_fused_rms_norm()
    original = F.rms_norm

    def rms_norm(
        input: torch.Tensor,
        normalized_shape: Any,
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        part = local_part(input)
        if not observer.on_device(part) or observer.dynamic.calibrating:
            return original(input, normalized_shape, weight, eps)
        if part is not input:  # of a DTensor: the kernel runs on each rank's part
            result = run_on_parts(
                lambda x, w: rms_norm(x, normalized_shape, w, eps), input, weight, len(normalized_shape)
            )
            return original(input, normalized_shape, weight, eps) if result is None else result
        if torch.is_autocast_enabled("cpu") and compat.cuda_autocasts("rms_norm"):
            input, weight = input.float(), weight if weight is None else weight.float()
        is_composed = not has_kernel or input.is_complex() or has_channels_last(input)
        if is_composed or (weight is not None and weight.dtype != input.dtype):
            return original(input, normalized_shape, weight, eps)
        return _RmsNorm.apply(observer, input, weight, tuple(normalized_shape))  # type: ignore[return-value]

    patches.set(F, "rms_norm", rms_norm)


def _batch_norm(patches: Patches, observer: Observer) -> None:
    """Replace batch norm: cuDNN reads a copy of an input with gaps and keeps it, the host needs none."""
    original = torch.batch_norm

    def batch_norm(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs or not observer.on_device(input) or observer.dynamic.calibrating:
            return original(input, *args, **kwargs)
        layout = batch_norm_layout(input, *args[:4], training=args[4])
        return original(input if layout is None else input.contiguous(memory_format=layout), *args)

    patches.set(torch, "batch_norm", batch_norm)


def _group_norm(patches: Patches, observer: Observer) -> None:
    """Replace group norm: CUDA copies a channels-last tensor to the standard layout, the host does not."""
    original = torch.group_norm

    def group_norm(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not observer.on_device(input) or observer.dynamic.calibrating:
            return original(input, *args, **kwargs)
        cast = input.float() if torch.is_autocast_enabled("cpu") else input  # autocast keeps it until the end
        return original(cast.contiguous(), *args, **kwargs)

    patches.set(torch, "group_norm", group_norm)


class _RmsNorm(torch.autograd.Function):
    """Allocates what the fused kernel does: the output, and one reciprocal root per row for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        observer: Observer,
        source: torch.Tensor,
        weight: torch.Tensor | None,
        shape: tuple[int, ...],
    ) -> torch.Tensor:
        rows = source.shape[: source.dim() - len(shape)]
        copy = source.contiguous()  # lives while the kernel runs, if the source has gaps
        out = torch.empty_like(copy)
        roots = source.new_empty(*rows, *[1] * len(shape), dtype=torch.float32)
        ctx.dims = tuple(range(-len(shape), 0))
        ctx.save_for_backward(source, roots, *([] if weight is None else [weight]))
        observer.shadows.forget(out)
        del copy
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        source, roots, *weights = ctx.saved_tensors
        if not torch.is_grad_enabled():
            copies = source.contiguous(), gradient.contiguous()
            return (
                None,
                torch.empty_like(copies[0]),
                *[torch.empty_like(w) for w in weights],
                *[None] * (2 - len(weights)),
            )
        # For a second derivative, torch composes RMS norm from several operations.
        roots = source.float().square().mean(ctx.dims, keepdim=True).rsqrt()
        scaled_gradient = gradient * weights[0] if weights else gradient
        normal = source * roots
        input_gradient = roots * (
            scaled_gradient - normal * (scaled_gradient * normal).mean(ctx.dims, keepdim=True)
        )
        lead = tuple(range(source.dim() - len(ctx.dims)))
        return (
            None,
            input_gradient,
            *[(gradient * normal).sum(lead) for _ in weights],
            *[None] * (2 - len(weights)),
        )


def _dropout(patches: Patches, observer: Observer) -> None:
    """Replace dropout: CUDA's fused kernel saves a one-byte mask, the host's composition a float mask."""
    original = F.dropout

    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not observer.on_device(local_part(input)) or inplace or not training or p in (0.0, 1.0):
            return original(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    patches.set(F, "dropout", dropout)
    original_torch = torch.dropout
    patches.set(
        torch,
        "dropout",
        lambda input, p, train: dropout(input, p, train) if train else original_torch(input, p, train),
    )


def _one_hot(patches: Patches, observer: Observer) -> None:
    """Replace one_hot: CUDA writes ones into zeros, torch's fallback compares with all classes."""
    original = F.one_hot

    def one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
        if not observer.on_device(tensor) or tensor.dtype is not torch.int64:
            return original(tensor, num_classes)
        classes = int(tensor.max().item()) + 1 if num_classes == -1 else num_classes
        return tensor.new_zeros(*tensor.shape, classes).scatter_(-1, tensor.unsqueeze(-1), 1)

    patches.set(F, "one_hot", one_hot)


def _softmax(patches: Patches, observer: Observer) -> None:
    """Replace softmax of fp16 into fp32: CUDA's kernel converts by itself, the host copies first."""
    for name, kernel in (("softmax", _aten._softmax), ("log_softmax", _aten._log_softmax)):
        for owner in (torch, torch.Tensor):
            patches.set(owner, name, _half_to_float(getattr(owner, name), kernel.default, observer))


def _half_to_float(original: Callable[..., Any], kernel: Any, observer: Observer) -> Callable[..., Any]:
    def softmax(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not observer.on_device(input) or input.dtype is not torch.float16 or observer.dynamic.calibrating:
            return original(input, *args, **kwargs)
        dim, dtype = (*args, *[kwargs.get(name) for name in ("dim", "dtype")[len(args) :]])
        is_raised = dtype is None and torch.is_autocast_enabled("cpu")
        if type(dim) is not int or "out" in kwargs or not (is_raised or dtype is torch.float32):
            return original(input, *args, **kwargs)
        return kernel(input, dim, True)

    return softmax
