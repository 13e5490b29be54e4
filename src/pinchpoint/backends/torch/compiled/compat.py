"""The private parts of torch's compiler that the simulation of torch.compile needs, torch 2.6 to 2.15.

Everything here imports Dynamo and inductor late, because that takes seconds.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._guards import TracingContext
from torch._subclasses import fake_tensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.utils import _python_dispatch

from pinchpoint.backends.torch import versions
from pinchpoint.backends.torch.autograd_nodes import autograd_node
from pinchpoint.backends.torch.compat import DispatchMode, FakeTensor, op_device

Patch = Callable[[Any, str, Any], Any]  # sets an attribute until the end of a context
_CPU, _META = torch.device("cpu"), torch.device("meta")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_PACKAGE = str(Path(__file__).parents[3])


def without_modes() -> contextlib.AbstractContextManager[Any]:
    """Within this context, no dispatch mode is active."""
    return _python_dispatch._disable_current_modes()


@contextlib.contextmanager
def with_modes(modes: Sequence[Any]) -> Iterator[None]:
    """Within this context, dispatch modes that `without_modes` returned are active again."""
    for mode in reversed(modes):
        _python_dispatch._push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            _python_dispatch._pop_mode()


def make_states_outside(patch: Patch, outside: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Let a compiled optimizer make its states within `outside()`, which it does while it is traced."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    call, move = OptimizerVariable.call_method, OptimizerVariable.move_step_if_cpu

    def call_method(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        make = getattr(self.value, name, None)
        if name != "_init_group" or make is None:
            return call(self, tx, name, args, kwargs)

        def make_states(*args: Any, **kwargs: Any) -> Any:
            with outside():
                return make(*args, **kwargs)

        with mock.patch.object(self.value, name, make_states):
            return call(self, tx, name, args, kwargs)

    def move_steps(self: Any) -> None:
        with outside():
            move(self)

    patch(OptimizerVariable, "call_method", call_method)
    patch(OptimizerVariable, "move_step_if_cpu", move_steps)


def watch_frames(
    section: Callable[[], contextlib.AbstractContextManager[None]], failed: Callable[[Exception], None]
) -> Callable[[Patch], None]:
    """Let the compiler look at a frame of the user's within `section()`; returns what installs that.

    failed: called with the error of a frame that cannot be compiled, and is run as it is.
    """
    from torch._dynamo import convert_frame

    original = convert_frame.CatchErrorsWrapper.__call__

    def look(self: Any, *args: Any) -> Any:
        try:
            with section():
                return original(self, *args)
        except Exception as error:
            failed(error)
            return getattr(convert_frame, "ConvertFrameReturn", lambda: None)()

    return lambda patch: patch(convert_frame.CatchErrorsWrapper, "__call__", look)


def leave_package(patch: Patch) -> None:
    """Let functions of this package run as they are."""
    from torch._dynamo import trace_rules

    pattern = f"{trace_rules.SKIP_DIRS_RE.pattern}|^{re.escape(_PACKAGE)}"
    patch(trace_rules, "SKIP_DIRS", [*trace_rules.SKIP_DIRS, _PACKAGE])
    patch(trace_rules, "SKIP_DIRS_RE", re.compile(pattern))


def run_without_driver(patch: Patch) -> None:
    """Let generated code select the device without the driver."""
    patch(torch.cuda, "_DeviceGuard", lambda *_: contextlib.nullcontext())


def guard_less(patch: Patch, is_replaced: Callable[[Any], bool]) -> None:
    """Let compiled code be used again though functions and classes of torch have been replaced since."""
    from torch._dynamo.guards import GuardBuilder

    for name in ("ID_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "CLOSURE_MATCH", "CLASS_MATCH"):
        original = getattr(GuardBuilder, name, None)
        if original is None:
            continue

        def match(self: Any, guard: Any, *args: Any, _original: Any = original, **kwargs: Any) -> None:
            value = _guarded_value(self, guard)
            if not isinstance(value, _FUNCTIONS) and not is_replaced(value):
                _original(self, guard, *args, **kwargs)

        patch(GuardBuilder, name, functools.wraps(original)(match))


def _guarded_value(builder: Any, guard: Any) -> Any:
    try:
        return builder.get(guard)
    except (AttributeError, TypeError):  # before torch 2.10
        return builder.get(guard.name)


def guard_scalars(patch: Patch) -> None:
    """Let compiled code be used again with other tensors of the host without dimensions, such as a step.

    Torch's guard on a tensor also compares whether a dispatch mode is active, which is so when the code runs
    but not while it is compiled.
    """
    from torch._dynamo.guards import GuardBuilder

    original = GuardBuilder.TENSOR_MATCH

    @functools.wraps(original)
    def match(self: Any, guard: Any, value: Any = None) -> None:
        tensor = _guarded_value(self, guard)
        if type(tensor) is not torch.Tensor or tensor.dim():
            original(self, guard, value)
            return
        dtype, requires_grad = tensor.dtype, tensor.requires_grad

        def is_alike(other: Any) -> bool:
            is_scalar = type(other) is torch.Tensor and other.dim() == 0
            return is_scalar and other.dtype is dtype and other.requires_grad is requires_grad

        stack = [guard.user_stack] if versions.number(versions.installed()) >= (2, 11) else []
        self.get_guard_manager(guard).add_lambda_guard(is_alike, [f"{guard.name} is a scalar"], *stack)

    patch(GuardBuilder, "TENSOR_MATCH", match)


def ignore_modes(patch: Patch) -> None:
    """Compile although a dispatch mode was active before."""
    from torch._dynamo import convert_frame

    for name in ("is_in_torch_dispatch_mode", "is_in_any_mode_without_ignore_compile_internals"):
        if hasattr(convert_frame, name):
            patch(convert_frame, name, lambda *_, **__: False)


def pretend_cuda(patch: Patch) -> None:
    """Let fake tensors on the CUDA device be tensors of the host for torch's C++ code."""
    make: Any = torch.Tensor._make_subclass

    def make_subclass(cls: Any, elem: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device_for_backend_keys")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device_for_backend_keys"] = _CPU
        return make(cls, elem, *args, **kwargs)

    dispatch: Any = FakeTensor.__torch_dispatch__.__func__  # pyright: ignore

    def device_of(args: Any) -> torch.device:
        fake = args[0]
        if fake.fake_mode.in_kernel_invocation:
            return _META
        return _CPU if fake.fake_device.type == "cuda" else fake.fake_device

    def dispatch_fake(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is op_device:
            return device_of(args)
        return dispatch(cls, func, types, args, kwargs or {})

    def functional_device(self: FunctionalTensor) -> torch.device:
        return torch._from_functional_tensor(self.elem).device  # pyright: ignore

    patch(FunctionalTensor, "device", property(functional_device))
    patch(FakeTensor, "is_cuda", property(lambda self: self.device.type == "cuda"))
    patch(FakeTensor, "is_cpu", property(lambda self: self.device.type == "cpu"))
    patch(torch.Tensor, "_make_subclass", staticmethod(make_subclass))
    patch(FakeTensor, "__torch_dispatch__", classmethod(dispatch_fake))
    handlers = fake_tensor._DISPATCH_META_HANDLERS
    patch(fake_tensor, "_DISPATCH_META_HANDLERS", {**handlers, op_device: device_of})
    patch(fake_tensor, "init_gpu_context", lambda *_: None)
    patch(fake_tensor.FakeTensorMode, "avoid_device_init", True)


def place_new_tensors(patch: Patch, cuda: torch.device) -> None:
    """Put tensors that C++ code makes like others, or for a backward pass, on the device of the others.

    A copy to the host is not made while torch traces: for C++ code, the tensor is there already.
    """

    def correct(func: Any, args: Any, kwargs: Any) -> Any:
        device = (kwargs or {}).get("device")
        if device is None or torch.device(device).type != "cpu":
            return kwargs
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        if any(tensor.device.type == "cuda" for tensor in tensors) or (
            not tensors and autograd_node() is not None
        ):
            return {**kwargs, "device": cuda}
        return kwargs

    for mode in (FunctionalTensorMode, ProxyTorchDispatchMode, fake_tensor.FakeTensorMode):
        original: Any = mode.__torch_dispatch__

        def dispatch(
            self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None, _original: Any = original
        ) -> Any:
            return _original(self, func, types, args, correct(func, args, kwargs))

        patch(mode, "__torch_dispatch__", dispatch)


class _OnHost(DispatchMode):
    """Runs operations with real values on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs = {**kwargs, "device": _CPU}
        return func(*args, **kwargs)


def fold_constants_on_host(patch: Patch) -> None:
    """Let inductor compute constants on the host."""
    from torch._inductor.constant_folding import ConstantFolder

    original = ConstantFolder.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _OnHost():
            return original(self, *args, **kwargs)

    patch(ConstantFolder, "run", run)


def describe_device(patch: Patch) -> None:
    """Let inductor see the properties of the simulated device."""
    from torch._dynamo.device_interface import CudaInterface
    from torch.utils import _triton

    properties = torch.cuda.get_device_properties

    def capability(device: Any = None) -> Any:
        major, minor = torch.cuda.get_device_capability()
        return f"{major}{minor}"

    patch(CudaInterface.Worker, "get_device_properties", staticmethod(lambda device=None: properties(0)))
    patch(CudaInterface.Worker, "current_device", staticmethod(lambda: 0))
    patch(CudaInterface, "get_device_properties", staticmethod(lambda device=None: properties(0)))
    patch(CudaInterface, "get_compute_capability", staticmethod(capability))
    for name in ("is_available", "is_bf16_supported", "is_triton_capable"):
        patch(CudaInterface, name, staticmethod(lambda *_, **__: True))
    for name in ("current_device", "get_raw_stream"):
        patch(CudaInterface, name, staticmethod(lambda *_: 0))
    patch(CudaInterface, "device_count", staticmethod(lambda: 1))
    patch(CudaInterface, "raise_if_triton_unavailable", staticmethod(lambda *_: None))
    for name in ("triton_key", "triton_backend", "triton_hash_with_backend", "triton_hash_to_path_key"):
        if hasattr(_triton, name):
            patch(_triton, name, lambda *_, **__: "pinchpoint")
    for name in list(vars(_triton)):
        if name.startswith("has_triton_") and name != "has_triton_package":
            patch(_triton, name, lambda *_, **__: False)
    if not _triton.has_triton_package():
        patch(_triton, "has_triton", lambda *_, **__: False)


def _assume_triton() -> contextlib.AbstractContextManager[Any]:
    """Let inductor generate code for Triton, whether it is installed or not."""
    stack = contextlib.ExitStack()
    for name, module in list(sys.modules.items()):
        is_asked = name.startswith("torch._inductor") or name == "torch.utils._triton"
        if is_asked and "has_triton" in vars(module):
            stack.enter_context(mock.patch.object(module, "has_triton", return_value=True))
    return stack


def compile_backward_within(
    patch: Patch, section: Callable[[], contextlib.AbstractContextManager[None]]
) -> None:
    """Compile backward graphs within `section()` too, which torch does when they are needed first."""
    from torch._inductor import compile_fx

    original: Any = compile_fx.aot_autograd  # pyright: ignore

    def aot_autograd(**options: Any) -> Any:
        compiler = options["bw_compiler"]

        @functools.wraps(compiler)
        def compile_backward(*args: Any, **kwargs: Any) -> Any:
            with section(), _assume_triton(), _tensors_by_copy():
                return compiler(*args, **kwargs)

        return original(**{**options, "bw_compiler": compile_backward})

    patch(compile_fx, "aot_autograd", aot_autograd)


def stop_at_code(patch: Patch, load: Callable[[str], Any], kernels: Callable[[], Any]) -> None:
    """Let inductor pass the code that it generates to `load`.

    kernels: replaces the class whose methods the code calls to define kernels.
    """
    from torch._inductor import async_compile
    from torch._inductor.codecache import CacheBase
    from torch._inductor.graph import GraphLowering

    def compile_to_module(self: Any) -> Any:
        code: Any = self.codegen()
        while not isinstance(code, str):  # one or two pairs, of different types by version
            code = code.value if hasattr(code, "value") else code[0]
        with mock.patch.object(async_compile, "AsyncCompile", kernels):
            return load(code)

    patch(GraphLowering, "_compile_to_module", compile_to_module)
    patch(CacheBase, "get_system", staticmethod(lambda: {"device": {}, "version": {}, "hash": "pinchpoint"}))


def capture_with(patch: Patch, graphs: Any) -> None:
    """Let `graphs` capture functions as CUDA graphs."""
    from torch._inductor import compile_fx, cudagraph_trees

    patch(compile_fx, "cudagraphify", graphs.capture)
    patch(cudagraph_trees, "get_manager", lambda device, create=True: graphs if create else None)
    patch(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)


def generation() -> int:
    """A number that changes when the script calls a compiled function, or marks a step."""
    from torch._dynamo.mutation_guard import GenerationTracker
    from torch._inductor.cudagraph_trees import MarkStepBox

    return MarkStepBox.mark_step_counter or GenerationTracker.generation


def is_step_marked() -> bool:
    """Whether the script marks its steps by `torch.compiler.cudagraph_mark_step_begin`."""
    from torch._inductor.cudagraph_trees import MarkStepBox

    return MarkStepBox.mark_step_counter != 0


def pad_products(patch: Patch) -> None:
    """Let inductor pad the products that it would time with and without padding."""
    from torch._inductor.fx_passes import pad_mm

    patch(pad_mm, "get_cached_should_pad", lambda key: True)


def inductor_options(
    mode: str | None, options: dict[str, Any] | None, dynamic: bool | None
) -> dict[str, Any]:
    """The settings of inductor for the arguments of torch.compile."""
    return dict(torch._TorchCompileInductorWrapper(mode, options, dynamic).config)


def lower(graph: torch.fx.GraphModule, inputs: list[Any], config: dict[str, Any]) -> Any:
    """Compile a graph of Dynamo's for the fake tensors with which Dynamo made it."""
    from torch._functorch import config as aot_config
    from torch._inductor.compile_fx import compile_fx

    # Code in torch's caches was generated for a real device; and nothing is compiled in other processes.
    config = {**config, "fx_graph_cache": False, "compile_threads": 1}
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    fakes = [_fake(node.meta["example_value"], value) for node, value in zip(nodes, inputs, strict=True)]
    options = {"enable_autograd_cache": False, "force_non_lazy_backward_lowering": True}
    known = {name: value for name, value in options.items() if hasattr(aot_config, name)}
    with aot_config.patch(known), _assume_triton(), _tensors_by_copy():
        return compile_fx(graph, fakes, config_patches=config)


@contextlib.contextmanager
def _tensors_by_copy() -> Iterator[None]:
    """Let `torch.tensor(..., device="cuda")` copy from the host, for versions that need a device for it."""
    original = torch.tensor

    def tensor(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != "cuda":
            return original(*args, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        copy = torch.ops.aten._to_copy.default(original(*args, **kwargs), device=torch.device(device))
        return copy.requires_grad_(requires_grad)

    if versions.number(versions.installed()) >= (2, 11):
        yield
        return
    with mock.patch.object(torch, "tensor", tensor):
        yield


def _fake(fake: Any, value: Any) -> Any:
    """The fake tensor of an input in the mode of the backend, which older versions make anew."""
    context: Any = TracingContext.get()
    if not isinstance(fake, FakeTensor) or fake.fake_mode is context.fake_mode:
        return fake
    symbolic = context.tensor_to_context.get(value)
    source = getattr(symbolic, "tensor_source", None)
    return context.fake_mode.from_tensor(value, symbolic_context=symbolic, source=source)
