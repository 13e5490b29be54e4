"""A network over edges from any module: autograd runs the backward pass, one chunk at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import BadInput

# Keyed by the parameter's position among the module's parameters; each chunk adds to its gradient.
Gradients = dict[int, Tensor]


@dataclass(frozen=True)
class AutogradMLP:
    """A `Network` of any module, differentiated by autograd."""

    module: nn.Module
    autocast: tuple[bool, torch.dtype]
    dtype: torch.dtype | None = None
    adds_at_end = False

    def forward(self, inputs: Tensor) -> Tensor:
        with self._autocast(inputs):
            values = self.module(inputs)
        require_rows(self.module, values, len(inputs))
        return values.contiguous()  # type: ignore[no-any-return]

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        leaf = inputs.detach().requires_grad_(want_inputs)
        # Use separate leaves, so that a hook on a parameter runs once with its whole gradient, not per chunk.
        # A scripted or a recurrent module reads only its own parameters.
        own = any(isinstance(part, torch.jit.ScriptModule | nn.RNNBase) for part in self.module.modules())
        parameters = list(self.module.parameters())
        values = [value if own else value.detach() for value in parameters]
        leaves = [values[at].requires_grad_() for at in into] + ([leaf] if want_inputs else [])
        with torch.enable_grad(), self._autocast(inputs), _replaced(self.module, parameters, values):
            outputs = self.module(leaf)
        gradients: Sequence[Tensor | None] = [None] * len(leaves)
        if leaves and outputs.requires_grad:
            gradients = torch.autograd.grad(outputs, leaves, gradient.to(outputs.dtype), allow_unused=True)
        for at, value in zip(into, gradients, strict=False):
            if value is not None:
                into[at].add_(value)
        of_inputs = gradients[-1] if want_inputs else None
        # Copy the outputs: they may be a view of another tensor, and the caller overwrites them.
        values_copy = outputs.detach().clone(memory_format=torch.contiguous_format) if want_values else None
        return None if of_inputs is None else of_inputs.contiguous(), values_copy

    def finish(self, into: Gradients) -> None:
        """Do nothing, because no gradient is deferred."""

    def _autocast(self, inputs: Tensor) -> torch.autocast:
        """The autocast of the forward pass without its cache, whose cast weights would carry no gradients."""
        enabled, dtype = self.autocast
        return torch.autocast(inputs.device.type, dtype, enabled=enabled, cache_enabled=False)


def require_rows(module: nn.Module, values: object, edges: int) -> None:
    """Raise `BadInput` unless a network returns channels for each edge: (e, C)."""
    if isinstance(values, Tensor):
        if values.dim() == 2 and len(values) == edges:
            return
        what = f"shape {tuple(values.shape)} for {edges:,} edges"
    else:
        what = f"a {type(values).__name__}"
    raise BadInput(
        f"{type(module).__name__} returns {what}, not one row of channels for each edge.",
        hint="Return (e, C); one channel is values[:, None].",
    )


@contextmanager
def _replaced(module: nn.Module, parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Put values in the place of a module's parameters, wherever these are registered, and put them back.

    torch.func.functional_call does not put back the parameters of a layer that is registered twice.
    """
    value_of = {id(own): value for own, value in zip(parameters, values, strict=True)}
    places = [
        (compat.own_parameters(part), name, own)
        for part in module.modules()
        for name, own in compat.own_parameters(part).items()
        if own is not None and value_of[id(own)] is not own
    ]
    try:
        for registered, name, own in places:
            registered[name] = value_of[id(own)]  # type: ignore[assignment]
        yield
    finally:
        for registered, name, own in places:
            registered[name] = own


def saved_bytes(module: nn.Module, inputs: Tensor) -> int:
    """Twice the bytes (to include gradients) that autograd saves in a module's pass, without parameters."""
    own = {compat.storage_key(parameter.untyped_storage()) for parameter in module.parameters()}
    sizes: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (key := compat.storage_key(storage)) not in own:
            sizes[key] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        out = module(inputs.requires_grad_())
    return 2 * (sum(sizes.values()) + out.untyped_storage().nbytes())
