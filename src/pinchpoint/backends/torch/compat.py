"""Every private torch API that pinchpoint uses, in one place.

Tested with torch 2.13 on a CPU and 2.11 on a GPU, and with the other supported versions by
benchmarks/versions. If torch moves one of these APIs, this is the only file to change.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import islice
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.fake_tensor import disable_fake_tensor_cache as without_cache
from torch.cuda.jiterator import _create_jit_fn
from torch.optim.optimizer import _foreach_supported_types as _types_in_optimizers
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._foreach_utils import _foreach_supported_types as _types_in_clipping
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as without_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data.dataloader import _BaseDataLoaderIter as LoaderIterator

__all__ = [
    "ATTENTION_ORDER",
    "DispatchMode",
    "FakeTensor",
    "FakeTensorMode",
    "LoaderIterator",
    "apply_to_module",
    "argument_names",
    "arguments_of",
    "attention_order",
    "attention_owner",
    "become",
    "call_by_shape",
    "close_library",
    "convolutions_use_tf32",
    "cuda_autocasts",
    "cudnn_version",
    "default_device",
    "end_failed_capture",
    "fake_device",
    "fake_factory",
    "fake_in_foreach",
    "fake_mode",
    "flat_weights",
    "generator_key",
    "has_dispatch",
    "has_fused_rms_norm",
    "has_hooks",
    "has_parts",
    "hide_fake_tensors",
    "in_kernel",
    "is_fake_mode_error",
    "is_foreign",
    "is_mutable",
    "is_part_of_sparse",
    "is_random",
    "is_view",
    "loss_scale",
    "one_pass",
    "op_device",
    "own_buffers",
    "own_device",
    "own_parameters",
    "pass_over",
    "products_use_tf32",
    "remember_factories",
    "restart_loader",
    "returns_nothing",
    "set_apply",
    "set_module_call",
    "set_variable_functions",
    "sparse_parts",
    "storage_key",
    "storage_users",
    "tree_leaves",
    "tree_map_only",
    "variable_functions",
    "version",
    "view_base",
    "without_autocast",
    "without_cache",
    "without_functions",
    "without_modes",
    "wrapper",
]

_META = torch.device("meta")
ATTENTION_ORDER = ["flash", "efficient", "plain", "cudnn"]  # unless a program sets another
op_device = torch.ops.prim.device.default
EARLY_STOP = "_check_early_stop_heuristic"  # a method of transformers' GenerationMixin
UPDATE_ARGUMENTS = "_update_model_kwargs_for_generation"  # of the same, after every token
DEVICE_MAP = "_get_device_map"  # a function of transformers.modeling_utils
CUDA_HOOKS = ("_lazy_init", "_sleep")  # private functions of torch.cuda that libraries call


class DispatchMode(TorchDispatchMode):
    """Intercepts every operation below autograd."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Skip the guard against compilation around every dispatch, because nothing is compiled here."""
        return False


def fake_mode() -> FakeTensorMode:
    """A mode for fake tensors that accepts real tensors as inputs and never guesses data."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_factory(mode: FakeTensorMode, device: torch.device) -> Callable[[torch.Tensor], FakeTensor]:
    """A function that makes a fake tensor of a meta tensor without gradients, as `FakeTensor(...)` does.

    The attributes of a new fake tensor are always the same, and setting them one by one takes long.
    """
    first = FakeTensor(mode, torch.empty(0, device="meta"), device)
    attributes = dict(vars(first))

    def make(meta: torch.Tensor) -> FakeTensor:
        fake = torch.Tensor._make_subclass(  # pyright: ignore
            FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_warn_deprecated_on_mutable_data_ptr(fake)  # pyright: ignore[reportAttributeAccessIssue]
        cast(Any, fake).__dict__.update(attributes)
        return fake

    return make


def hide_fake_tensors(patch: Callable[[Any, str, Any], Any], is_hidden: Callable[[], bool]) -> None:
    """Let libraries that ask whether a tensor is fake, and then take another way, see a real one.

    patch: sets an attribute until the end of the run. is_hidden: whether torch's own code is not running.
    """

    class Hidden(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return not is_hidden() and isinstance(instance, FakeTensor)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return not is_hidden() and issubclass(subclass, FakeTensor)

    patch(torch._subclasses, "FakeTensor", Hidden("FakeTensor", (), {}))


def in_kernel(fake: FakeTensor) -> bool:
    """Whether a shape kernel is running on the tensor, which must then report the meta device."""
    return fake.fake_mode.in_kernel_invocation


def own_device(fake: FakeTensor) -> torch.device:
    """The answer of the fake tensor's class when torch itself asks for its device."""
    return _META if fake.fake_mode.in_kernel_invocation else fake.fake_device


def fake_device(fake: FakeTensor) -> torch.device:
    """The device that torch itself uses for a fake tensor."""
    return fake.fake_device


def call_by_shape(
    mode: FakeTensorMode, func: Any, args: Any, kwargs: Any, *, dtype: torch.dtype | None = None
) -> Any:
    """Run an operation by the shape rules that hold for every device, on tensors without a device.

    Fake tensors report the host's device, for which some rules refuse types that only a GPU supports.
    dtype: the type that replaces the one of floating point tensors, for a rule that accepts no other.
    """
    floats = [t.dtype for t in tree_leaves((args, kwargs)) if _is_float(t)]

    def to_meta(tensor: torch.Tensor) -> torch.Tensor:
        kind = dtype if dtype is not None and _is_float(tensor) else tensor.dtype
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device="meta")

    def to_fake(tensor: torch.Tensor) -> torch.Tensor:
        kind = floats[0] if dtype is not None and _is_float(tensor) else tensor.dtype
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind)

    with without_modes():
        meta_args, meta_kwargs = tree_map_only(torch.Tensor, to_meta, (args, kwargs))
        meta_kwargs = {name: v for name, v in meta_kwargs.items() if name != "device"}
        result = func(*meta_args, **meta_kwargs)
    return tree_map_only(torch.Tensor, to_fake, result)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def is_fake_mode_error(error: BaseException) -> bool:
    """Whether the fake mode raised the error: the operation is not supported, or it needs values."""
    return type(error).__module__.startswith("torch._subclasses")


def arguments_of(operator: Any) -> list[Any]:
    """Arguments of an operator, each with its name and whether it is written to."""
    return operator._schema.arguments


def argument_names(operator: Any) -> list[str]:
    return [argument.name for argument in operator._schema.arguments]


def is_mutable(operator: Any) -> bool:
    """Whether an operator writes to any of its arguments."""
    return operator._schema.is_mutable


def is_random(operator: Any) -> bool:
    """Whether an operator draws random numbers."""
    return torch.Tag.nondeterministic_seeded in operator.tags


# Libraries whose operations are torch's own; torchvision's are modelled like them.
_TORCH_LIBRARIES = frozenset(
    [
        "aten",
        "prim",
        "prims",
        "profiler",
        "c10d",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "inductor",
        "quantized",
        "_quantized",
        "higher_order",
        "rngprims",
        "debugprims",
        "torchvision",
        "mkldnn",
        "mkl",
        "symm_mem",
        "fsdp",
    ]
)


def is_foreign(name: str) -> bool:
    """Whether an operation, named "library::operation", belongs to a library other than torch."""
    return name.partition("::")[0] not in _TORCH_LIBRARIES


def body_on_cuda(func: Any) -> Callable[..., Any]:
    """The function that an operation of a library, registered from Python, runs on CUDA."""
    keys = torch._C.DispatchKey
    has_own = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA")
    return partial(func._op_dk, keys.CUDA if has_own else keys.CompositeExplicitAutograd)


def returns_nothing(operator: Any) -> bool:
    return not operator._schema.returns


def close_library(library: torch.library.Library) -> None:
    """Unregister the kernels of a library."""
    library._destroy()


def is_view(tensor: torch.Tensor) -> bool:
    return tensor._is_view()


def is_part_of_sparse(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of the indices or values of a sparse tensor, which has no fake version."""
    return tensor._is_view() and tensor._base is not None and tensor._base.layout is not torch.strided


def view_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor that a view is of."""
    return tensor._base


def version(tensor: torch.Tensor) -> int:
    """The number of writes to a tensor, as counted by autograd."""
    return tensor._version


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices and values of a sparse tensor, without a copy."""
    return tensor._indices(), tensor._values()


def storage_key(storage: torch.UntypedStorage) -> int:
    """Identity of a storage, stable while it lives."""
    return storage._cdata


def become(tensor: Any, content: Any) -> None:
    """Turn a leaf tensor into `content` and keep its identity, the user's attributes, and its hooks.

    Unlike `torch.utils.swap_tensors`, tensors with weak references or a graph are allowed, as by `.data =`.
    """
    hooks = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    vars(content).update(vars(tensor))
    torch._C._swap_tensor_impl(tensor, content)  # pyright: ignore[reportAttributeAccessIssue]
    tensor.__class__, content.__class__ = content.__class__, tensor.__class__
    tensor.__dict__, content.__dict__ = content.__dict__, tensor.__dict__
    if hooks[0] is not None:
        tensor._backward_hooks = hooks[0]
    if hooks[1] is not None:
        tensor._post_accumulate_grad_hooks = hooks[1]


def wrapper(cls: type, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of a Python class without a storage of its own."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device="cpu")  # pyright: ignore


def has_dispatch(kind: type) -> bool:
    """Whether a class of tensors runs operations itself."""
    own, plain = (getattr(one, "__torch_dispatch__", None) for one in (kind, torch.Tensor))
    return own is not None and own is not plain


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether a module has hooks on its forward or backward pass."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def has_parts(module: torch.nn.Module) -> bool:
    """Whether a module has modules of its own."""
    return bool(module._modules)


def apply_to_module(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> torch.nn.Module:
    """Apply `fn` to each parameter and buffer and replace it by the result, as `Module.to` does."""
    return module._apply(fn)


def set_apply(patch: Callable[[Any, str, Any], Any], function: Callable[..., torch.nn.Module]) -> None:
    """Replace the method that `Module.to` and similar methods use, with `patch(owner, name, value)`."""
    patch(torch.nn.Module, "_apply", function)


def set_module_call(
    patch: Callable[[Any, str, Any], Any], call: Any
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Replace `nn.Module.__call__`.

    Returns two functions: one makes torch.compile take it for the original, and must be called after its
    import; the other is for after the replacement is undone.
    """
    original = torch.nn.Module.__call__

    def tell_compiler(function: Any) -> None:
        for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
            if (module := sys.modules.get(name)) is not None and hasattr(module, "unpatched_nn_module_call"):
                module.unpatched_nn_module_call = function  # pyright: ignore[reportAttributeAccessIssue]

    patch(torch.nn.Module, "__call__", call)
    return lambda: tell_compiler(call), lambda: tell_compiler(original)


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """The module's own parameters, which may be replaced in place."""
    return module._parameters


def own_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    return module._buffers


def flat_weights(layer: torch.nn.RNNBase) -> list[torch.Tensor | None]:
    """The weights and biases of a recurrent layer, in the order that cuDNN needs."""
    return layer._flat_weights


def default_device() -> torch.device:
    """The default device of factory functions; torch's own query creates a tensor to find the index."""
    devices = [mode.device for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)]
    return devices[-1] if devices else torch.device("cpu")


def remember_factories() -> None:
    """Let `with torch.device(...)` know the factories as they are now, because it looks them up only once."""
    _device_constructors()


def attention_owner() -> Any:
    """The C module whose attention `torch.nn.functional` re-exports."""
    return torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]


def attention_order() -> list[str]:
    """The order in which attention kernels are tried, as `sdpa_kernel(..., set_priority=True)` sets it."""
    names = {0: "plain", 1: "flash", 2: "efficient", 3: "cudnn"}
    order = torch._C._get_sdp_priority_order()  # pyright: ignore[reportAttributeAccessIssue]
    return [names[number] for number in order[: len(names)] if number in names]


def cudnn_version() -> int | None:
    """The version of the cuDNN that torch has loaded, such as 91900; None for a build without CUDA."""
    library = getattr(torch._C, "_cudnn", None)
    if library is None:
        return None
    major, minor, patch = library.getRuntimeVersion()
    return 10_000 * major + 100 * minor + patch


def end_failed_capture(graph: Any, pool: Any, *, has_begun: bool) -> None:
    """Make the caching allocator forget the capture of a CUDA graph into a pool if CUDA invalidated it.

    Some versions of torch (2.11) do not end such a capture in the allocator. As long as one is under way
    there, memory that another stream has used is never given back, nor any memory to the device. Later ones
    (2.12) end it and do not release the pool. has_begun: whether the capture has begun.

    In the allocator of pinned memory, 2.11 does not end it either, and nothing here can: a later capture into
    the same pool is refused, so it needs another pool.
    """
    try:
        graph.pool()
    except RuntimeError:  # the capture did not end well
        pass
    else:
        return
    device, has_ended = torch.cuda.current_device(), False
    for name in ("_cuda_endAllocateToPool", "_cuda_endAllocateCurrentStreamToPool"):  # the second until 2.7
        end = getattr(torch._C, name, None)
        if end is not None:
            with suppress(RuntimeError):  # torch has ended it
                end(device, pool)
                has_ended = True
            break
    if has_begun or has_ended:
        with suppress(RuntimeError):  # torch has released it
            torch._C._cuda_releasePool(device, pool)  # pyright: ignore[reportAttributeAccessIssue]
        # The allocator of pinned memory still points to the graph (2.11), and versions that release the pool
        # with the graph would release it twice. So the graph is never destroyed.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))


def variable_functions() -> dict[str, Any]:
    """Every function of torch's C namespace, from which the recurrent modules call their kernels."""
    namespace = torch._C._VariableFunctions  # pyright: ignore[reportAttributeAccessIssue]
    return {name: getattr(namespace, name) for name in dir(namespace) if not name.startswith("__")}


def set_variable_functions(patch: Callable[[Any, str, Any], Any], module: Any, functions: Any) -> None:
    """Replace the kernels that a module of torch calls, with `patch(owner, name, value)`."""
    patch(module, "_VF", functions)


@cache
def _compiled_pass(code: str) -> Any:
    return _create_jit_fn(code)


def one_pass(tensor: torch.Tensor) -> bool:
    """Whether `pass_over` supports a tensor. One pass saves launches, which cost more than short kernels."""
    return tensor.is_cuda and not isinstance(tensor, FakeTensor)


def pass_over(code: str, *tensors: torch.Tensor) -> torch.Tensor:
    """Apply a C++ function elementwise to CUDA tensors in one pass; returns their widest dtype.

    The function is compiled on first use.
    """
    return _compiled_pass(code)(*tensors)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Dispatch operations within this context as if CPU autocast were off."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
        yield


def cuda_autocasts(name: str) -> bool:
    """Whether CUDA autocast of this torch has a rule of its own for an operation, such as `pow.Scalar`."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA")


def has_fused_rms_norm() -> bool:
    """Whether CUDA has a kernel for RMS norm in this torch, as since 2.9; it came with its backward pass."""
    return hasattr(torch.ops.aten, "_fused_rms_norm_backward")


def products_use_tf32() -> bool:
    """Whether cuBLAS may round fp32 to tf32; torch refuses the old question if the new setting was used."""
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if precision is None else precision == "tf32"


def convolutions_use_tf32() -> bool:
    """Whether cuDNN may round fp32 to tf32; torch refuses the old question where the new setting was used."""
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return torch.backends.cudnn.allow_tf32 if precision is None else precision == "tf32"


def without_functions() -> Any:
    """A context in which a class's `__torch_function__` is not called."""
    return torch._C.DisableTorchFunctionSubclass()


@contextmanager
def fake_in_foreach() -> Iterator[None]:
    """Have optimizers, averaged models, and gradient clipping use kernels for many tensors on fake ones too.

    They group tensors by device in C++, where a tensor on the simulated device has its true one, the host.
    """
    lists: list[list[Any]] = [_types_in_optimizers, _types_in_clipping]
    group: Any = torch._C._group_tensors_by_device_and_dtype

    def group_simulated(tensors: Any, with_indices: bool = False) -> dict[Any, Any]:
        groups: dict[Any, Any] = {}
        for (_, dtype), (columns, indices) in group(tensors, with_indices).items():
            for at, first in enumerate(columns[0]):
                parts, numbers = groups.setdefault((first.device, dtype), ([[] for _ in columns], []))
                for part, whole in zip(parts, columns, strict=True):
                    part += whole[at : at + 1]
                numbers += indices[at : at + 1]
        return groups

    for types in lists:
        types.append(FakeTensor)
    torch._C._group_tensors_by_device_and_dtype = group_simulated
    try:
        yield
    finally:
        torch._C._group_tensors_by_device_and_dtype = group
        for types in lists:
            types.remove(FakeTensor)


def generator_key(generator: torch.Generator) -> int:
    """Identity of a generator: operations receive a different Python object for it than the user has."""
    return generator._cdata  # pyright: ignore[reportAttributeAccessIssue]


def loss_scale(scaler: torch.amp.GradScaler) -> torch.Tensor:
    """The factor of the losses: (), on the device. `get_scale` would synchronise."""
    scale = scaler._scale
    return torch.full((), scaler.get_scale(), device=scaler._device) if scale is None else scale


def storage_users(tensor: torch.Tensor) -> int:
    """How many tensors share the storage of this one, itself included."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) - 1  # less Python's own reference


def restart_loader(iterator: Any) -> None:
    """Let a loader's iterator continue after an error, without losing the batch that failed.

    A generator that raised cannot continue, so its index iterator is created again.
    """
    iterator._sampler_iter = islice(iter(iterator._index_sampler), iterator._num_yielded, None)
    fetcher = iterator._dataset_fetcher
    if hasattr(fetcher, "dataset_iter") and not iterator._num_yielded:  # an iterable dataset
        fetcher.dataset_iter = iter(fetcher.dataset)
