"""A network over edges that may be any module: its backward pass is torch's own, a chunk at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pinchpoint.backends.torch import compat

Gradients = dict[
    int, Tensor
]  # by the parameter's place among the module's parameters, added to chunk by chunk


@dataclass(frozen=True)
class ByAutograd:
    """Any module, through torch's own backward pass."""

    module: nn.Module
    autocast: tuple[bool, torch.dtype]
    dtype: torch.dtype | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        with self._cast(inputs):
            return self.module(inputs).contiguous()

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: Gradients, *, want_inputs: bool, want_values: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        leaf = inputs.detach().requires_grad_(want_inputs)
        # Leaves of our own: a hook on a parameter sees its whole gradient, once, not that of every chunk.
        scripted = any(
            isinstance(part, torch.jit.ScriptModule) for part in self.module.modules()
        )  # takes none but its own
        named = {
            name: value if scripted else value.detach() for name, value in self.module.named_parameters()
        }
        own = list(named.values())
        asked = [own[at].requires_grad_() for at in into] + ([leaf] if want_inputs else [])
        with torch.enable_grad(), self._cast(inputs):
            made = self.module(leaf) if scripted else torch.func.functional_call(self.module, named, (leaf,))
        found: Sequence[Tensor | None] = [None] * len(asked)
        if asked and made.requires_grad:
            found = torch.autograd.grad(made, asked, gradient.to(made.dtype), allow_unused=True)
        for at, value in zip(into, found, strict=False):
            if value is not None:
                into[at].add_(value)
        of_inputs = found[-1] if want_inputs else None
        # Copied: what is made may be part of something else, and is written over.
        values = made.detach().clone(memory_format=torch.contiguous_format) if want_values else None
        return None if of_inputs is None else of_inputs.contiguous(), values

    def finish(self, into: Gradients) -> None:
        """Nothing is held back."""

    def _cast(self, inputs: Tensor) -> torch.autocast:
        """The autocast of the forward pass, which keeps no cast weights: made without gradients, they would cut them off."""
        enabled, dtype = self.autocast
        return torch.autocast(inputs.device.type, dtype, enabled=enabled, cache_enabled=False)


def saved_bytes(module: nn.Module, inputs: Tensor) -> int:
    """What autograd keeps of one pass through a module, without its parameters, and as much again for gradients."""
    own = {compat.storage_key(parameter.untyped_storage()) for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if (key := compat.storage_key(storage)) not in own:
            kept[key] = storage.nbytes()
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = module(inputs.requires_grad_())
    return 2 * (sum(kept.values()) + out.untyped_storage().nbytes())
