"""Every private torch API that pinchpoint uses, in one place.

Tested with the torch of CI (2.13) and of the GPU machine (2.11). When torch moves one of these,
this is the only file to mend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import _foreach_supported_types
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = [
    "DispatchMode", "FakeTensor", "FakeTensorMode", "LoaderIterator", "accept_fake_in_foreach", "apply_to_module",
    "attention_owner", "autograd_node", "default_device", "fake_mode", "next_sequence", "node_name", "node_sequence", "op_device",
    "set_variable_functions", "storage_key", "tree_leaves", "tree_map_only", "variable_functions", "without_autocast", "without_modes",
]  # fmt: skip

op_device = torch.ops.prim.device.default


def fake_mode() -> FakeTensorMode:
    """Fake tensors that take real tensors as inputs and never guess at data."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def storage_key(storage: torch.UntypedStorage) -> int:
    """Identity of a storage, stable while it lives."""
    return storage._cdata


def apply_to_module(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """Replace each parameter and buffer by what `fn` makes of it, as `Module.to` does."""
    return module._apply(fn)


def default_device() -> torch.device:
    """Where factories build by default; torch's own answer makes a tensor to find its index."""
    chosen = [mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return chosen[-1] if chosen else torch.device("cpu")


def autograd_node() -> Any | None:
    """The node the backward pass is in, if any."""
    return torch._C._current_autograd_node()


def node_sequence(node: Any) -> int:
    """The number that ties a backward node to the forward operation that made it."""
    return node._sequence_nr()


def node_name(node: Any) -> str:
    return node.name()


def next_sequence() -> int:
    return torch._C._autograd._get_sequence_nr()  # pyright: ignore[reportAttributeAccessIssue]


def attention_owner() -> Any:
    """The C module whose attention `torch.nn.functional` re-exports."""
    return torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]


def variable_functions() -> dict[str, Any]:
    """Every function of torch's C namespace, which the recurrent modules call their kernels from."""
    namespace = torch._C._VariableFunctions  # pyright: ignore[reportAttributeAccessIssue]
    return {name: getattr(namespace, name) for name in dir(namespace) if not name.startswith("__")}


def set_variable_functions(patch: Callable[[Any, str, Any], Any], module: Any, functions: Any) -> None:
    """Give a module of torch's other kernels to call, through `patch(owner, name, value)`."""
    patch(module, "_VF", functions)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Operations inside are dispatched as if no CPU autocast were on."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        yield


def accept_fake_in_foreach() -> list[type]:
    """The list optimizers consult before they choose their fused and foreach kernels."""
    return _foreach_supported_types
