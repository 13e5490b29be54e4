"""Nested tensors on the simulated device: those of the jagged layout, as their values and offsets.

torch composes their operations from those of the values, which are observed as usual. Attention over nested
tensors is not modelled, so whether it fits is unknown. The strided layout is refused.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.fake import compat
from pinchpoint.backends.torch.fake.compat import NestedTensor
from pinchpoint.backends.torch.fake.devices import at_user_line
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import CannotFake


def install(patches: Patches, observer: Observer) -> None:
    original_new, original_to, original_cuda = NestedTensor.__new__, torch.Tensor.to, torch.Tensor.cuda
    attention = F.scaled_dot_product_attention

    def new(cls: type, values: torch.Tensor, offsets: torch.Tensor, **kwargs: Any) -> Any:
        # Inside, fake tensors report the host, which is the only device that autograd may see here.
        with observer.without_recording():
            return original_new(cls, values, offsets, **kwargs)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, NestedTensor):
            _refuse_strided(self)
            return original_to(self, *args, **kwargs)
        return _with_parts(self, lambda part: original_to(part, *args, **kwargs))

    def cuda(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, NestedTensor):
            _refuse_strided(self)
            return original_cuda(self, *args, **kwargs)
        return _with_parts(self, lambda part: original_cuda(part, *args, **kwargs))

    # Under its own name, by which `context_parallel` replaces it.
    def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kwargs: Any
    ) -> Any:
        if not isinstance(query, NestedTensor) or not query.is_cuda:
            return attention(query, key, value, *args, **kwargs)
        what = "attention over nested tensors is not modelled beyond its output"
        observer.notes.say("scaled_dot_product_attention", what, observer.ledger.site(), is_reason=True)
        return query + 0 * key + 0 * value

    patches.set(NestedTensor, "__new__", staticmethod(new))
    patches.set(NestedTensor, "device", property(lambda self: compat.nested_parts(self)[0].device))
    patches.set(NestedTensor, "is_cuda", property(lambda self: compat.nested_parts(self)[0].is_cuda))
    patches.set(FakeTensor, "get_nested_int", compat.nested_int)
    patches.set(torch.Tensor, "to", to)
    patches.set(torch.Tensor, "cuda", cuda)
    patches.set(F, "scaled_dot_product_attention", scaled_dot_product_attention)


def _with_parts(nested: Any, convert: Any) -> Any:
    values, offsets, lengths = compat.nested_parts(nested)
    moved = convert(values)
    if moved is values:
        return nested
    # Clones, because torch relates the originals to the ragged size of the tensor on the host.
    parts: list[Any] = [
        part if part is None else part.clone().to(moved.device) for part in (offsets, lengths)
    ]
    return torch.nested.nested_tensor_from_jagged(moved, *parts, **compat.nested_lengths(nested))


def _refuse_strided(tensor: torch.Tensor) -> None:
    if tensor.is_nested:
        raise CannotFake(
            f"pinchpoint does not support nested tensors of the strided layout on the GPU yet"
            f"{at_user_line()}.",
            hint="Create them with layout=torch.jagged, or predict the step with padded tensors.",
        )
