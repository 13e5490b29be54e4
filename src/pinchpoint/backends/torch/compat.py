"""Every private torch API that pinchpoint uses, in one place.

Tested with the torch of CI (2.13) and of the GPU machine (2.11). When torch moves one of these,
this is the only file to hint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.cuda.jiterator import _create_jit_fn
from torch.optim.optimizer import _foreach_supported_types
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = [
    "CUDA_HOOKS",
    "FAKE_ATTRIBUTES",
    "DispatchMode",
    "FakeTensor",
    "FakeTensorMode",
    "LoaderIterator",
    "accept_fake_in_foreach",
    "apply_to_module",
    "argument_names",
    "arguments_of",
    "attention_owner",
    "autograd_node",
    "close_library",
    "default_device",
    "fake_device",
    "fake_mode",
    "generator_key",
    "has_hooks",
    "in_kernel",
    "is_mutable",
    "is_of_fakes",
    "is_view",
    "load_anew",
    "loss_scale",
    "next_sequence",
    "node_name",
    "node_sequence",
    "one_pass",
    "op_device",
    "own_buffers",
    "own_parameters",
    "pass_over",
    "set_apply",
    "set_variable_functions",
    "sparse_parts",
    "storage_key",
    "tree_leaves",
    "tree_map_only",
    "variable_functions",
    "version",
    "without_autocast",
    "without_modes",
]

# What a fake tensor carries of its own in its __dict__, beside what a user set on it.
FAKE_ATTRIBUTES = ("_is_param", "fake_mode", "_fake", "constant", "real_tensor", "pytype", "dispatch_keys")
op_device = torch.ops.prim.device.default
CUDA_HOOKS = (
    "_lazy_init",
    "_sleep",
)  # functions of torch.cuda that libraries call though they are not public


class DispatchMode(TorchDispatchMode):
    """Sees every operation below autograd."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would wrap every dispatch in a guard against compilation; nothing is compiled here."""
        return False


def fake_mode() -> FakeTensorMode:
    """Fake tensors that take real tensors as inputs and never guess at data."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def in_kernel(fake: FakeTensor) -> bool:
    """Is a kernel for shapes running on it? It must then say that it is on the meta device."""
    return fake.fake_mode.in_kernel_invocation


def fake_device(fake: FakeTensor) -> torch.device:
    """The device that torch's own machinery goes by."""
    return fake.fake_device


def is_of_fakes(error: BaseException) -> bool:
    """Is it the fake machinery's own: an operation it does not know, or one that needs values?"""
    return type(error).__module__.startswith("torch._subclasses")


def arguments_of(operator: Any) -> list[Any]:
    """Each with its name, and whether it is written to."""
    return operator._schema.arguments


def argument_names(operator: Any) -> list[str]:
    return [argument.name for argument in operator._schema.arguments]


def is_mutable(operator: Any) -> bool:
    """Does it write to any of its arguments?"""
    return operator._schema.is_mutable


def close_library(library: torch.library.Library) -> None:
    """Take back the kernels it has registered."""
    library._destroy()


def is_view(tensor: torch.Tensor) -> bool:
    return tensor._is_view()


def version(tensor: torch.Tensor) -> int:
    """How often autograd has seen it written to."""
    return tensor._version


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values, without a copy."""
    return tensor._indices(), tensor._values()


def storage_key(storage: torch.UntypedStorage) -> int:
    """Identity of a storage, stable while it lives."""
    return storage._cdata


def has_hooks(module: torch.nn.Module) -> bool:
    """Does anything listen to its forward or backward pass?"""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def apply_to_module(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """Replace each parameter and buffer by what `fn` makes of it, as `Module.to` does."""
    return module._apply(fn)


def set_apply(patch: Callable[[Any, str, Any], Any], function: Callable[..., torch.nn.Module]) -> None:
    """Replace what `Module.to` and its like go through, by `patch(owner, name, value)`."""
    patch(torch.nn.Module, "_apply", function)


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """The module's own, to be replaced in place."""
    return module._parameters


def own_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return module._buffers


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


@cache
def _compiled_pass(code: str) -> Any:
    return _create_jit_fn(code)


def one_pass(tensor: torch.Tensor) -> bool:
    """Does `pass_over` take it? On a GPU it saves launches, which take longer than a short chain of operations runs."""
    return tensor.is_cuda and not isinstance(tensor, FakeTensor)


def pass_over(code: str, *tensors: torch.Tensor) -> torch.Tensor:
    """One pass over CUDA tensors by a C++ function of their elements, compiled when first used; their widest dtype."""
    return _compiled_pass(code)(*tensors)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Operations inside are dispatched as if no CPU autocast were on."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        yield


def accept_fake_in_foreach() -> list[type]:
    """The list optimizers consult before they choose their fused and foreach kernels."""
    return _foreach_supported_types


def generator_key(generator: torch.Generator) -> int:
    """The same for every Python object of one generator: an operation sees another than the user made."""
    return generator._cdata  # pyright: ignore[reportAttributeAccessIssue]


def loss_scale(scaler: torch.amp.GradScaler) -> torch.Tensor:
    """(): what it multiplies losses by, or will when it is first used; on the device, for which `get_scale` would wait."""
    held = scaler._scale
    return torch.full((), scaler.get_scale(), device=scaler._device) if held is None else held


def load_anew(iterator: Any) -> None:
    """Let a loader's iterator go on after a failure: a generator that raised is at its end, and its batch would be lost."""
    iterator._sampler_iter = islice(iter(iterator._index_sampler), iterator._num_yielded, None)
    fetcher = iterator._dataset_fetcher
    if hasattr(fetcher, "dataset_iter") and not iterator._num_yielded:  # of an iterable data set
        fetcher.dataset_iter = iter(fetcher.dataset)
