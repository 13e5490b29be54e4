"""A check that a network of any kind treats every edge by itself, on a few edges of the graph.

A transform in chunks computes a network again in the backward pass, and for some of the edges at a time. A
module that draws random numbers, or whose result for an edge depends on the others, has wrong gradients then.
Effects that are small beside the outputs, or that do not show in the edges chosen, are not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges.autograd_mlp import AutogradMLP
from pinchpoint.kit.edges.edge_ops import is_fake

MOST_EDGES = 16
_FIRST_PART = 5  # edges of these that are computed apart from the others
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-2}  # of the largest output, TF32 included
_TOLERANCE_16_BITS = 0.1
_TIMES_NOISE = 8  # what rounding of the inputs does to the outputs, more than which is not rounding


def can_check(x: Tensor) -> bool:
    """Whether values on the device of x can be read now; not in a forecast, a trace or a CUDA graph."""
    if is_fake(x) or torch.compiler.is_compiling():
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def require_independent(name: str, module: nn.Module, inputs: Tensor, *, recomputes_chance: bool) -> bool:
    """Raise `BadInput` if the results for edges change when they are computed again, or in two parts.

    inputs: (e, W) of at least two edges. recomputes_chance: whether the backward pass draws the same random
    numbers. Returns False if the outputs are all zero or not finite, so that a later call has to check them.
    """
    device = inputs.device.type
    autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    network = AutogradMLP(module, autocast)
    first = min(_FIRST_PART, len(inputs) // 2)
    with torch.no_grad(), _state_kept(module, inputs):

        def values_of(some: Tensor) -> Tensor:
            return network.forward(some.clone()).double()  # a module may write to its inputs

        once = values_of(inputs)
        again = values_of(inputs)
        parts = torch.cat([values_of(inputs[:first]), values_of(inputs[first:])])
        noisy = values_of(_rounded(inputs, autocast))
    if parts.shape != once.shape:
        raise _not_apart(name, module)
    largest, drift, apart, noise = torch.stack(
        [one.abs().max() for one in (once, again - once, parts - once, noisy - once)]
    ).tolist()
    tolerance = largest * _tolerance(inputs, autocast)
    if drift > tolerance:
        if recomputes_chance:
            return True
        raise BadInput(
            f"`{name}` ({type(module).__name__}) gives different results for the same edges when it is "
            "computed again, as in the backward pass: it draws random numbers or changes its state.",
            hint="Use memory='eager', or call eval() on the module if that makes it deterministic.",
        )
    if apart > max(tolerance, _TIMES_NOISE * noise):
        raise _not_apart(name, module)
    return 0 < largest < float("inf")


def _not_apart(name: str, module: nn.Module) -> BadInput:
    return BadInput(
        f"`{name}` ({type(module).__name__}) gives different results in chunks: its result for an edge "
        "depends on the other edges, of which a chunk has only some.",
        hint="Use memory='eager', or a module that treats every edge by itself.",
    )


def _tolerance(inputs: Tensor, autocast: tuple[bool, torch.dtype]) -> float:
    if autocast[0] and inputs.dtype is not torch.float64:
        return _TOLERANCE_16_BITS
    return _TOLERANCE.get(inputs.dtype, _TOLERANCE_16_BITS)


def _rounded(inputs: Tensor, autocast: tuple[bool, torch.dtype]) -> Tensor:
    """The inputs, each moved by the rounding of the arithmetic, up or down at random."""
    step = torch.finfo(inputs.dtype).eps
    if autocast[0] and inputs.dtype is torch.float32:
        step = torch.finfo(autocast[1]).eps
    elif inputs.dtype is torch.float32 and inputs.is_cuda and compat.products_use_tf32():
        step = 2.0**-10
    ways = torch.randint(0, 2, inputs.shape, generator=torch.Generator().manual_seed(0))
    return inputs * (1 + step * (2 * ways - 1)).to(inputs)


@contextmanager
def _state_kept(module: nn.Module, inputs: Tensor) -> Iterator[None]:
    """Leave the buffers of a module and torch's random numbers as they were."""
    before = [
        (compat.own_buffers(part), name, buffer, buffer.clone(), compat.version(buffer))
        for part in module.modules()
        for name, buffer in compat.own_buffers(part).items()
        if buffer is not None and not buffer.is_inference()
    ]
    devices = [inputs.device] if inputs.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for registered, name, buffer, values, version in before:
                registered[name] = buffer
                if compat.version(buffer) != version:  # a write that autograd would refuse later
                    buffer.copy_(values)
