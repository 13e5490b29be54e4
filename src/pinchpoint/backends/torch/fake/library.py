"""Patches of torch's libraries beyond tensors: modules, optimizers, loaders, compile, saving, autograd.

They track the current phase and module of a step, and keep the run in this process and off the disk.
What they change in the user's run is noted in the Observation.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.jit.frontend import FrontendError
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.backward_order import BackwardOrder
from pinchpoint.backends.torch.compiled import compile
from pinchpoint.backends.torch.fake import loaders, saving, threads
from pinchpoint.backends.torch.fake.devices import CUDA, place_of
from pinchpoint.backends.torch.fake.generation import Generation
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.backends.torch.ledger import Ledger
from pinchpoint.backends.torch.loops import lbfgs, script_loops
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.repeated_calls import RepeatedCalls


@contextlib.contextmanager
def install(patches: Patches, observer: Observer, progress: Progress) -> Iterator[None]:
    ledger = observer.ledger
    _autograd(patches, ledger, progress)
    patch_trainer = loaders.install(patches, observer, progress)
    script_loops.install(patches, observer, progress)
    threads.install(patches, progress)
    lbfgs.install(patches, observer, progress)
    patch_generation = Generation(patches, observer, progress.add_calls)
    progress.is_generating = patch_generation.is_starting
    _modules(patches, observer, progress, lambda: (patch_generation(), patch_trainer()))
    compile.install(patches, observer)
    _scripting(patches)
    _parallel(patches)
    saving.install(patches, observer, files=lambda: progress.files)
    with _optimizers(patches, ledger, progress):
        yield


# --- autograd


def _autograd(patches: Patches, ledger: Ledger, progress: Progress) -> None:
    original_backward, original_grad = torch.autograd.backward, torch.autograd.grad
    order = BackwardOrder(ledger)

    def backward(*args: Any, **kwargs: Any) -> None:
        ledger.observation.trained = True
        with ledger.enter_phase("backward"), order.backward_pass((args[:1], kwargs.get("tensors"))):
            original_backward(*args, **kwargs)
        progress.backwards += 1
        progress.check(progress)

    def grad(*args: Any, **kwargs: Any) -> Any:
        with order.backward_pass((args[:1], kwargs.get("outputs"))):
            if kwargs.get("create_graph"):
                # This pass is part of the loss: its result is differentiated again.
                return original_grad(*args, **kwargs)
            ledger.observation.trained = True
            with ledger.enter_phase("backward"):
                return original_grad(*args, **kwargs)

    ledger.backward_code += [backward.__code__, grad.__code__]
    patches.set(torch.autograd, "backward", backward)
    patches.set(torch.autograd, "grad", grad)


# --- modules


def _modules(
    patches: Patches, observer: Observer, progress: Progress, patch_imported: Callable[[], Any]
) -> None:
    ledger, repeated_calls = observer.ledger, RepeatedCalls(observer)
    names: dict[int, str] = {}
    original_call: Callable[..., Any] = torch.nn.Module.__call__

    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if ledger.module_path:
            return run(self, args, kwargs)
        ledger.step_started = True
        patch_imported()
        result = repeated_calls(self, args, kwargs, lambda: run(self, args, kwargs))
        if ledger.phase is None:
            progress.count_call(self, quiet=not torch.is_grad_enabled())
        return result

    def run(self: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        root = not ledger.module_path
        # A module that the backward pass calls again (checkpointing) keeps its name in the whole model.
        if root and (ledger.phase != "backward" or id(self) not in names):
            _name_tree(self, names, ledger)
        # A module that belongs to no other, such as a loss made in `forward`, is named after its caller.
        name = names.get(id(self)) or f"{ledger.module_path[-1]}.{type(self).__name__}"
        if observer.recomputation is None:
            return run_as(name, root, self, *args, **kwargs)
        return observer.recomputation.call(self, name, args, kwargs, partial(run_as, name, root, self))

    def run_as(name: str, root: bool, self: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        path = ledger.module_path
        path.append(name)
        try:
            with (
                torch.autocast("cuda", torch.bfloat16) if root and progress.half else contextlib.nullcontext()
            ):
                return original_call(self, *args, **kwargs)
        finally:
            path.pop()

    patches.set(torch.nn.Module, "__call__", call)
    original_to: Callable[..., Any] = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        """Name the device of a number, which torch cannot parse without an accelerator, and of a tensor."""
        example = kwargs.pop("tensor", None) if not args else args[0]
        if isinstance(example, torch.Tensor):  # in C, torch would read the device of the stand-in
            args = (example.device, example.dtype, *args[1:])
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        return original_to(self, *args, **kwargs)

    patches.set(torch.nn.Module, "to", to)
    compat.set_apply(patches.set, lambda self, fn, recurse=True: _apply(self, fn, recurse, ledger))


def _name_tree(root: torch.nn.Module, names: dict[int, str], ledger: Ledger) -> None:
    title = type(root).__name__
    for name, module in root.named_modules():
        names[id(module)] = full = f"{title}.{name}" if name else title
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
            ledger.set_role(tensor, "weights", full)


def _apply(
    self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool, ledger: Ledger
) -> torch.nn.Module:
    """Replace the method of `Module.to`, because torch's own creates new parameters if they are fake."""
    if recurse:
        for module in self.children():
            compat.apply_to_module(module, fn)
    parameters, buffers = compat.own_parameters(self), compat.own_buffers(self)
    for key, parameter in parameters.items():
        if parameter is None:
            continue
        gradient = parameter.grad
        with torch.no_grad():
            result = fn(parameter)
            result_gradient = None if gradient is None else fn(gradient)
        overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
        if overwrite or parameter.is_meta != result.is_meta:
            parameters[key] = parameter = torch.nn.Parameter(result, parameter.requires_grad)
            ledger.set_role(parameter, "weights")
        elif result is not parameter:
            parameter.data = result
        if result_gradient is not gradient:
            parameter.grad = result_gradient
    for key, buffer in buffers.items():
        if buffer is not None:
            buffers[key] = fn(buffer)
    return self


# --- optimizers


@contextlib.contextmanager
def _optimizers(patches: Patches, ledger: Ledger, progress: Progress) -> Iterator[None]:
    original_init = torch.optim.Optimizer.__init__

    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        progress.add_optimizer(self)
        for group in self.param_groups:
            for parameter in group["params"]:
                progress.on_weight(parameter)

    scaled_step: Callable[..., Any] = torch.amp.GradScaler.step

    def step(self: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
        if self.is_enabled():
            progress.count_scaled_step()
        return scaled_step(self, *args, **kwargs)

    patches.set(torch.amp.GradScaler, "step", step)

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                ledger.set_role(parameter, "weights")
                ledger.set_role(parameter.grad, "gradients")
        ledger.observation.trained = True
        ledger.phase = "optimizer"
        args = (args[0], *(_outside_phase(ledger, a) if callable(a) else a for a in args[1:]))
        return args, {k: _outside_phase(ledger, v) if k == "closure" and v else v for k, v in kwargs.items()}

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        ledger.phase = None
        for parameter, state in optimizer.state.items():
            module = ledger.module_of(parameter) if isinstance(parameter, torch.Tensor) else ""
            for value in state.values() if isinstance(state, dict) else ():
                if isinstance(value, torch.Tensor):
                    ledger.set_role(value, "optimizer", module)
        progress.count_step(optimizer)

    patches.set(torch.optim.Optimizer, "__init__", init)
    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        with compat.fake_in_foreach():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _outside_phase(ledger: Ledger, closure: Callable[[], Any]) -> Callable[[], Any]:
    """Run a closure outside the optimizer's phase: it is a whole forward and backward pass."""

    def run() -> Any:
        before, ledger.phase = ledger.phase, None
        try:
            return closure()
        finally:
            ledger.phase = before

    return run


# --- data parallel


def _scripting(patches: Patches) -> None:
    """Let what TorchScript cannot compile run as Python, because it may call a function that is replaced."""
    original = torch.jit.script

    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1  # where names are looked up: past this frame
        try:
            return original(obj, *args, **kwargs)
        except (FrontendError, RuntimeError, TypeError, ValueError):
            return obj

    patches.set(torch.jit, "script", script)


def _parallel(patches: Patches) -> None:
    """Let nn.DataParallel call its module on the only device; more devices are refused."""
    module = sys.modules[torch.nn.DataParallel.__module__]  # the package has a function of the same name
    original_init = torch.nn.DataParallel.__init__

    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        for device in device_ids or ():
            place_of(device)
        original_init(self, module, device_ids, *args, **kwargs)

    def scatter(inputs: Any, kwargs: Any, target_gpus: Any, dim: int = 0) -> Any:
        for device in target_gpus:
            place_of(device)
        device_inputs, device_kwargs = compat.tree_map_only(
            torch.Tensor, lambda tensor: tensor.to(CUDA), (inputs, kwargs or {})
        )
        return (device_inputs,), (device_kwargs,)

    patches.set(torch.nn.DataParallel, "__init__", init)
    patches.set(module, "scatter_kwargs", scatter)
