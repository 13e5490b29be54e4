"""`Observer`: runs every operation and records what it allocates on the simulated device.

Operations run for real on the host and on fake tensors on the device. The observer sits below
autograd. A tensor on the device is a `FakeTensor` whose storage is in the ledger; a host tensor is
real, or fake if it is too large to allocate. Shadows are real values that accompany small device
tensors computed from data, so that masks and counts stay exact.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

from pinchpoint.backends.torch import autograd_nodes, compat
from pinchpoint.backends.torch.compat import FakeTensor, tree_map_only
from pinchpoint.backends.torch.data_dependent.decisions import exchanged_by_package
from pinchpoint.backends.torch.data_dependent.operations import Dynamic
from pinchpoint.backends.torch.data_dependent.shadow_values import Shadows, written_arguments
from pinchpoint.backends.torch.fake import operation_errors
from pinchpoint.backends.torch.fake.devices import at_user_line, check_same_device, mark_origin, place_of
from pinchpoint.backends.torch.fake.shape_cache import ShapeCache
from pinchpoint.backends.torch.kernels import unmodelled, workspaces
from pinchpoint.backends.torch.kernels.matrix_products import COMPOSED
from pinchpoint.backends.torch.kernels.shape_rules import RULES
from pinchpoint.backends.torch.ledger import Ledger, Site
from pinchpoint.backends.torch.ranks.collectives import Collectives
from pinchpoint.backends.torch.ranks.compat import fsdp_operation, local_part
from pinchpoint.core import failures
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.events import Phase, Span

_HOST_LIMIT = 50_000_000  # elements; a larger host tensor is fake ...
# ... and so is a larger empty one: weights before initialisation, whose values do not matter.
_EMPTY_LIMIT = 1_000_000
_CALIBRATED_WEIGHTS = 500_000_000  # elements of weights that a calibration holds: 2 GB in fp32
_WRITE_LIMIT = 1_000_000  # elements; values written in place to a larger device tensor are forgotten
_RECEIVED_LIMIT = 65_536  # whole numbers of other ranks, such as lengths, for which those of this rank stand
_MANY_TENSORS = 16  # inputs of an operation, from which on they are compared by number
# Wraps the result of a collective, to wait for it when it is used: takes no memory, unlike its shape rule.
_WRAPS = "_c10d_functional::_wrap_tensor_autograd"
_ENGINE = "_engine_run_backward"  # the function of torch that calls the engine of the backward pass
_ALWAYS_REAL = {"aten::randperm"}  # samplers read it element by element

# Autograd runs these in place unless a dispatch mode is active; see `Ledger.mark_foldable`.
_FOLDED = {
    "aten::add.Tensor",
    "aten::index_put",
    "aten::scatter_add",
    "aten::index_add",
    "aten::scatter.src",
    "aten::scatter.value",
    "aten::masked_scatter",
    "aten::slice_scatter",
    "aten::select_scatter",
    "aten::diagonal_scatter",
    "aten::masked_fill.Scalar",
}
_FOLDED_IN_NODE = {"BinaryCrossEntropyWithLogitsBackward0": ("aten::sub.Tensor", "aten::mul.Tensor")}
_RESIZES = {"aten::resize_", "aten::resize_as_"}  # other operations resize only their `out` argument
_aten = torch.ops.aten
_CPU = torch.device("cpu")


class Observer(compat.DispatchMode):
    """Observes one fake run. `place`: where storages of operations without device inputs belong."""

    def __init__(self, ledger: Ledger, kernel_model: workspaces.KernelModel, dynamic: Dynamic) -> None:
        super().__init__()
        self.ledger = ledger
        self.kernel_model = kernel_model
        self.dynamic = dynamic
        self.fake_mode = compat.fake_mode()
        self.shapes = ShapeCache(self.fake_mode)
        self.progress: Any = None  # set by the session: what the loop has done so far
        self.stand_ins: Any = None  # set by the session: replacements of packages that need CUDA
        self.foreign: Any = None  # set by the session: operations of libraries other than torch
        self.recomputation: Any = None  # set where a plan asks what recomputing modules frees and costs
        self.collectives = Collectives()
        self.objects: Any = None  # what ranks send to each other: see ranks/objects.py
        self.place: str | None = None
        self.operations = 0  # observed so far
        self.written: list[int] | None = None  # blocks that operations write to, while a call is recorded
        self._weights_left = _CALIBRATED_WEIGHTS
        self.generators: set[int] = set()  # keys of the generators on the device
        # > 0 while torch's own fake mode runs, during which tensors report their true devices
        self.inside = 0
        self.shadows = Shadows(self.without_recording)
        self.notes = unmodelled.Notes(ledger)
        dynamic.add_reason = self.notes.add_reason
        dynamic.most = lambda: max(ledger.observation.counts, default=1)

    # --- devices

    def on_device(self, value: object) -> bool:
        return type(value) is FakeTensor and self.ledger.holds(value)

    @contextmanager
    def use_place(self, place: str) -> Iterator[None]:
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before

    def note(self, text: str) -> None:
        """Add a note to the result, once."""
        if text not in self.ledger.observation.notes:
            self.ledger.observation.notes.append(text)

    def shadow(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The real values behind a fake tensor, if they are known."""
        return self.shadows.real(tensor) if type(tensor) is FakeTensor else tensor

    def _receive(self, tensor: torch.Tensor, own: torch.Tensor | None) -> None:
        """Give a tensor whose values depend on other ranks those of this rank: few numbers, if known."""
        is_small = tensor.numel() <= (1 if tensor.is_floating_point() else _RECEIVED_LIMIT)
        value = None
        if own is not None and is_small and not compat.is_view(tensor):
            value = _repeated(self.shadow(own), tensor)
        site = self.ledger.site()
        where = f"{site.file}:{site.line}"
        if value is None:
            self.shadows.lose(tensor)
            if is_small and not tensor.is_floating_point():
                self.dynamic.miss_received(where)
            return
        value = self.dynamic.receive(value, where)
        self.shadows.set_value(tensor, value)  # type: ignore[arg-type]

    def forget_values(self, weight: torch.Tensor) -> None:
        """Forget the values of a weight, except while counts are calibrated on a real run."""
        weight = local_part(weight)
        if type(weight) is FakeTensor and not self.dynamic.calibrating:
            self.shadows.forget(weight)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage on the device has another size now."""
        site = self.ledger.site()
        self.ledger.resize(storage, phase=self._phase(fresh=False), site=site, op="resize_")

    def read_unknown(self, tensor: torch.Tensor) -> Any:
        """What reading one unknown value gives: the answer of aten::_local_scalar_dense, without the call.

        Loops that read the elements of a result one by one do little else.
        """
        self.operations += 1
        site = self.ledger.site()
        if self.ledger.phase != "backward" and torch.is_grad_enabled():
            self.ledger.remember_node(site)
        self.dynamic.reads += 1
        return self.dynamic.value(tensor, None, f"{site.file}:{site.line}")

    def copy_to(self, tensor: torch.Tensor, place: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A copy on the device or on the host, recorded by autograd."""
        source = self.as_fake(tensor)
        with self.use_place(place):
            return _aten._to_copy.default(source, dtype=dtype or tensor.dtype)

    @contextmanager
    def without_recording(self) -> Iterator[None]:
        """Run operations in this context as torch would: nothing is recorded, and devices are real."""
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    def as_fake(self, tensor: torch.Tensor) -> FakeTensor:
        """The tensor itself, or a fake of it on the host if it is real."""
        if type(tensor) is FakeTensor:
            return tensor
        with self.without_recording():
            fake = self.fake_mode.from_tensor(tensor.clone() if compat.is_part_of_sparse(tensor) else tensor)
        if self.dynamic.calibrating or not isinstance(tensor, torch.nn.Parameter):
            self.shadows.set_value(fake, tensor.detach())
        return fake

    # --- operations

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.inside or func is compat.op_device:
            if func is compat.op_device and type(args[0]) is FakeTensor:
                return compat.own_device(args[0])
            return func(*args, **(kwargs or {}))
        if any(kind is not FakeTensor and compat.has_dispatch(kind) for kind in types):
            return NotImplemented  # a nested or other composed tensor: its class calls its parts' operations
        kwargs = dict(kwargs or {})
        place = self.place
        if kwargs.get("pin_memory"):  # host memory as any other, and there may be no driver to pin it
            kwargs["pin_memory"] = False
        device = kwargs.get("device")
        if isinstance(device, torch.device) and place_of(device) == "device":
            kwargs["device"], place = _CPU, "device"
        elif isinstance(device, torch.device) and device.type == "meta":
            place = "host"  # takes no memory, also if it is made like a tensor on the device
        tensors = _tensors(args, kwargs)
        fakes = [t for t in tensors if type(t) is FakeTensor]
        caller = sys._getframe(1)
        if not tensors and place is None and self._is_gradient(caller):
            place = "device"
        if not fakes and place != "device":
            return mark_origin(self._on_host(func, args, kwargs, bool(tensors)), func, args, caller)
        on_device = any(self.ledger.holds(t) for t in fakes)
        if on_device and (len(fakes) < len(tensors) or not all(map(self.ledger.holds, fakes))):
            check_same_device(func, args, kwargs, self.on_device, caller)
        if place is None and on_device:
            place = "device"
        if len(fakes) < len(tensors):
            out = self._with_host_tensors(func, args, kwargs, place, fresh=not on_device)
        else:
            out = self._fake(func, args, kwargs, place, fresh=not on_device)
        return out if place == "device" else mark_origin(out, func, args, caller)

    def _is_gradient(self, caller: FrameType) -> bool:
        """Whether a new tensor is the gradient, zero, of a result on the device that the loss does not use.

        The engine creates it for a function of Python, on the device of the result; but for torch's C++ code
        the simulated device is the host. No Python code is between `_ENGINE` and the operation.
        """
        if caller.f_code.co_name != _ENGINE:
            return False
        roots = caller.f_locals.get("t_outputs", ())
        return any(type(root) is FakeTensor and self.ledger.holds(root) for root in roots)

    def _on_host(self, func: Any, args: Any, kwargs: Any, has_inputs: bool) -> Any:
        """Run an operation on the host; a huge new tensor stays fake, because only its shape can matter."""
        is_meta = getattr(kwargs.get("device"), "type", None) == "meta"  # takes no memory anyway
        if not has_inputs and not is_meta and func.name().split(".")[0] not in _ALWAYS_REAL:
            with self.without_recording(), self.fake_mode:
                result = func(*args, **kwargs)
            is_empty = func.name().startswith("aten::empty")
            if isinstance(result, torch.Tensor) and self._is_too_large(result.numel(), is_empty):
                return result
        if func.name().startswith("c10d::") and self.collectives.received(func, args):
            own = "has this rank's own values in place of those of other ranks"
            self.note(f"a collective on the host{at_user_line()} {own}")
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:  # a GPU may have a kernel that the host lacks
            setattr(error, failures.OPERATION, func.name())
            raise

    def _is_too_large(self, elements: int, is_empty: bool) -> bool:
        """Whether a new host tensor stays fake. A calibration needs the values of weights, up to a limit."""
        if not is_empty or elements <= _EMPTY_LIMIT or not self.dynamic.calibrating:
            return elements > (_EMPTY_LIMIT if is_empty else _HOST_LIMIT)
        self._weights_left -= elements
        return elements > _HOST_LIMIT or self._weights_left < 0

    def _with_host_tensors(self, func: Any, args: Any, kwargs: Any, place: str | None, *, fresh: bool) -> Any:
        """Replace host tensors among device tensors by fake ones for the call.

        A host tensor that the operation returns is returned as the original.
        """
        original: dict[int, torch.Tensor] = {}

        def to_fake(tensor: torch.Tensor) -> torch.Tensor:
            if type(tensor) is FakeTensor:
                return tensor
            fake = self.as_fake(tensor)
            original[id(fake)] = tensor
            return fake

        args, kwargs = tree_map_only(torch.Tensor, to_fake, (args, kwargs))
        out = self._fake(func, args, kwargs, place, fresh=fresh)
        return tree_map_only(torch.Tensor, lambda t: original.get(id(t), t), out)

    def _fake(self, func: Any, args: Any, kwargs: Any, place: str | None, *, fresh: bool) -> Any:
        if place == "device" and func in COMPOSED:
            return COMPOSED[func](lambda op, *a: self._fake(op, a, {}, place, fresh=fresh), *args)
        ledger = self.ledger
        self.operations += 1
        name = func.name()
        if name.startswith("c10d::"):
            for tensor, own in self.collectives.received(func, args):
                self._receive(tensor, own)
            return self.collectives.run(func, args)
        if name == _WRAPS:
            return args[0]
        if name.startswith("fsdp::") and (whole := fsdp_operation(name)) is not None:
            with self:  # its parts are recorded
                return whole(*args, **kwargs)
        if place == "device" and compat.is_foreign(name) and (body := self.foreign.body(func)) is not None:
            with self:  # its parts are recorded
                return body(*args, **kwargs)
        if name.startswith(("_c10d_functional", "_dtensor")):
            self.collectives.use_functional(func, args)
        site = ledger.site()
        phase = self._phase(fresh)
        if ledger.phase != "backward" and torch.is_grad_enabled():
            ledger.remember_node(site)
        if "generator" in kwargs:  # a simulated device has no generator; overloads with one accept None
            generator, kwargs["generator"] = kwargs["generator"], None
            if (
                place == "device"
                and generator is not None
                and compat.generator_key(generator) not in self.generators
            ):
                # torch's own message on a real card.
                raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        inputs = _tensors(args, kwargs)

        # Python reports every call of `id` to audit hooks, which pays only for many tensors.
        ids = {id(t) for t in inputs} if len(inputs) > _MANY_TENSORS else None

        def is_new(tensor: torch.Tensor) -> bool:
            if ids is not None:
                return id(tensor) not in ids
            return all(tensor is not one for one in inputs)

        def record(result: Any, op: str, size_bytes: int | None = None) -> Any:
            if place == "device":
                for tensor in _tensors((result,), {}):
                    if tensor.layout is not torch.strided:
                        raise operation_errors.sparse_output(op, site)
                    if is_new(tensor):
                        ledger.add(tensor, phase=phase, site=site, op=op, size_bytes=size_bytes)
            return result

        def plain(op: Any, *a: Any, **k: Any) -> Any:
            """Run one of pinchpoint's own operations on fake tensors and record its output."""
            return record(self._call(op, a, k, site), op.name())

        if self.written is not None and compat.is_mutable(func):
            self.written += [
                ledger.block_of(t) for t in (*written_arguments(func, args), *_tensors((), kwargs))
            ]
        if self.dynamic.handles(func):
            real = self.shadows.result(func, args, kwargs)
            self.shadows.after_write(func, args, is_known=real is not None)
            out = self.dynamic.run(
                func, args, kwargs, shadow=real, plain=plain, site=site, shadows=self.shadows
            )
            for fake, value in zip(_tensors((out,), {}), _tensors((real,), {}), strict=False):
                if fake.shape == value.shape and is_new(fake):
                    self.shadows.set_value(fake, value)  # type: ignore[arg-type]
        else:
            rule = self.foreign.rule(func) if compat.is_foreign(name) else func
            out = self._call(rule, args, kwargs, site)
            if type(out) is FakeTensor:
                out._pinchpoint_op = name  # type: ignore[attr-defined]
            limit = self.dynamic.shadow_limit(_WRITE_LIMIT)
            if name.startswith("_c10d_functional") and self.collectives.communicates(func, args):
                for tensor, own in self.collectives.received_functional(func, args, out):
                    self._receive(tensor, None if exchanged_by_package() else own)
            else:
                self.shadows.follow(func, args, kwargs, out, limit=limit, now=self.dynamic.calibrating)
        self.dynamic.nonzero.follow(func, args, kwargs, out, self.shadow)
        if place == "device" and func is _aten.convolution_backward.default:
            copies, rounds = self.kernel_model.convolution_gradients(args)
            copied = [ledger.add_temporary(size, phase=phase, site=site, op=name) for size in copies]
            for gradient, sizes in zip(out, rounds, strict=True):
                record(gradient, name)
                self._record_temporaries(sizes, phase, site, name)
            for block in copied:
                ledger.free_temporary(block)
        else:
            record(
                workspaces.in_order_of_allocation(func, args, out),
                name,
                workspaces.kept_bytes(name.split(".")[0], args, kwargs) if place == "device" else None,
            )
        if place == "device" and compat.is_mutable(func):
            for tensor in _tensors(args[:1] if name in _RESIZES else (), kwargs):
                ledger.regrow(tensor, phase=phase, site=site, op=name)
        if (
            ledger.phase == "backward"
            and type(out) is FakeTensor
            and not torch.is_grad_enabled()
            and _in_place_unobserved(name)
            and not compat.is_view(args[0])  # a view shares its storage with its base
        ):
            ledger.mark_foldable(args[0], out)
        if place == "device":
            self._record_kernel(func, args, kwargs, out, phase, site)
            if self.recomputation is not None:
                self.recomputation.count(func, args, kwargs, out)
        return out

    def _record_kernel(self, func: Any, args: Any, kwargs: Any, out: Any, phase: Phase, site: Site) -> None:
        """Record the GPU kernel's own memory: temporaries while it runs, and lasting workspaces."""
        name = func.name()
        if compat.is_foreign(name):
            self.foreign.ran(func, args, kwargs)
        note = unmodelled.note_on(name.split(".")[0])
        if note is not None:
            self.notes.say(name.split(".")[0], note, site)
        if torch.backends.cudnn.benchmark:
            observation = self.ledger.observation
            sizes = self.kernel_model.new_searches(func, args, out, phase)
            observation.searches += [(len(observation.events), size) for size in sizes]
        self.kernel_model.workspace(name.split(".")[0], ledger=self.ledger, phase=phase, site=site)
        for sizes in self.kernel_model.temporaries(func, args, kwargs, out):
            self._record_temporaries(sizes, phase, site, name)

    def _record_temporaries(self, sizes: Sequence[int | Span], phase: Phase, site: Site, name: str) -> None:
        blocks = [self.ledger.add_temporary(size, phase=phase, site=site, op=name) for size in sizes if size]
        for block in blocks:
            self.ledger.free_temporary(block)

    def _call(self, func: Any, args: Any, kwargs: Any, site: Site) -> Any:
        self.inside += 1
        try:
            return self.shapes.call(func, args, kwargs, lambda: self._run_fake(func, args, kwargs))
        except PinchpointError:
            raise
        except (NotImplementedError, RuntimeError, TypeError, AssertionError) as error:
            if (
                hasattr(func, "name")
                and operation_errors.is_missing_on_host(error)
                and not compat.is_mutable(func)
            ):
                dtype = torch.bfloat16 if func.name() == "aten::_grouped_mm" else None
                with contextlib.suppress(NotImplementedError, RuntimeError, TypeError):
                    return compat.call_by_shape(self.fake_mode, func, args, kwargs, dtype=dtype)
            if operation_errors.is_users_mistake(error):
                raise operation_errors.as_on_gpu(error, is_certain=not self.dynamic.unknown_site) from None
            if not hasattr(func, "name"):
                raise
            raise operation_errors.no_shape_rule(func, site, error) from error
        finally:
            self.inside -= 1

    def _run_fake(self, func: Any, args: Any, kwargs: Any) -> Any:
        rule: Any = RULES.get(func, func)
        with self.fake_mode:
            return rule(*args, **kwargs)

    def _phase(self, fresh: bool) -> Phase:
        if self.ledger.phase is not None:
            return self.ledger.phase
        if not self.ledger.step_started or (fresh and not self.ledger.module_path):
            return "data"
        return "forward"


def _tensors(args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Every tensor among an operation's arguments; schemas nest lists only once."""
    tensors: list[torch.Tensor] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, torch.Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [item for item in value if isinstance(item, torch.Tensor)]
    return tensors


def _repeated(own: torch.Tensor | None, tensor: torch.Tensor) -> torch.Tensor | None:
    """Values of this rank as often as the tensor has room for: it gets those of every rank."""
    if own is None or not own.numel() or tensor.numel() % own.numel():
        return None
    return own.reshape(-1).repeat(tensor.numel() // own.numel()).view(tensor.shape)


def _in_place_unobserved(name: str) -> bool:
    """Whether autograd would run this in place if no dispatch mode were active."""
    if name in _FOLDED:
        return True
    node = autograd_nodes.autograd_node()
    return node is not None and name in _FOLDED_IN_NODE.get(autograd_nodes.node_name(node), ())
