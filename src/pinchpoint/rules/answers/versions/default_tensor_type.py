"""The default tensor type is set for the whole program.

`torch.set_default_tensor_type("torch.cuda.FloatTensor")` is deprecated. It puts every tensor on the GPU,
including those of data loading, and breaks generators and workers. Pass `device=` where tensors are
created.

Bad:

    import torch

    torch.set_default_tensor_type("torch.cuda.FloatTensor")

    def grid(size):
        return torch.linspace(-1, 1, size)

Good:

    import torch

    def grid(size, device):
        return torch.linspace(-1, 1, size, device=device)
"""

from __future__ import annotations

from collections.abc import Iterator

from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source


def check(source: Source) -> Iterator[Match]:
    for call in source.calls:
        if source.name(call.func) == "torch.set_default_tensor_type":
            yield Match(call)


RULE = Rule(
    number=546,
    name="default-tensor-type",
    message="`torch.set_default_tensor_type` is deprecated and puts every new tensor on one device.",
    hint="Pass device= and dtype= where tensors are created.",
    check=check,
)
