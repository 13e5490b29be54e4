"""Sparse matrices on the simulated device: COO and CSR as index and value tensors, and their products.

Host tensors are torch's own. On the device, a matrix can be created, moved, coalesced, transposed, converted,
scaled, and multiplied with a dense matrix, also under autograd. Everything else raises an error that names
the operation. The sparse gradient of an embedding is predicted as a dense one, and `fits` is then unknown.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.fake.devices import CUDA, at_user_line, place_of
from pinchpoint.backends.torch.kernels import sparse_products
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import CannotFake

_CPU = torch.device("cpu")


class DeviceSparse(torch.Tensor):
    """A sparse matrix on the device. indices: (2, nnz) of COO, or the two index tensors of CSR."""

    observer: Observer
    indices_: tuple[torch.Tensor, ...]
    values_: torch.Tensor
    is_coalesced_: bool

    @staticmethod
    def __new__(
        cls,
        observer: Observer,
        indices: tuple[torch.Tensor, ...],
        values: torch.Tensor,
        shape: Any,
        *,
        is_coalesced: bool = False,
    ) -> DeviceSparse:
        self: Any = compat.wrapper(cls, tuple(shape), values.dtype)
        self.observer, self.indices_, self.values_ = observer, indices, values
        self.is_coalesced_ = is_coalesced
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    @property
    def count(self) -> int:
        """The number of stored entries."""
        return self.values_.shape[0]

    @property
    def is_csr(self) -> bool:
        return len(self.indices_) == 2

    device = property(lambda self: CUDA)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]
    is_sparse = property(lambda self: not self.is_csr)  # type: ignore[assignment]
    is_sparse_csr = property(lambda self: self.is_csr)  # type: ignore[assignment]
    layout = property(  # type: ignore[assignment]
        lambda self: torch.sparse_csr if self.is_csr else torch.sparse_coo
    )

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Convert the values. A copy to the host would need values, which a matrix on the device lacks."""
        call = self.values_.to(*args, **kwargs)
        if not call.is_cuda:
            raise _unsupported("a copy to the host")
        return self if call is self.values_ else self.with_values(call)

    def cuda(self, *args: Any, **kwargs: Any) -> DeviceSparse:
        return self

    def cpu(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.to(_CPU)

    def with_values(self, values: torch.Tensor, *, clone: bool = True) -> DeviceSparse:
        """A matrix of the same pattern with other values; the pattern is copied, as torch does."""
        indices = tuple(index.clone() for index in self.indices_) if clone else self.indices_
        return DeviceSparse(self.observer, indices, values, self.shape, is_coalesced=self.is_coalesced_)

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"tensor(..., device='cuda:0', size={tuple(self.shape)}, nnz={self.count})"

    def __deepcopy__(self, memo: dict[int, Any]) -> DeviceSparse:
        return self.with_values(self.values_.detach().clone())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        handler = _HANDLERS.get(name)
        if handler is not None:
            return handler(*args, **(kwargs or {}))
        if name in _PLAIN:
            with compat.without_functions():
                return func(*args, **(kwargs or {}))
        raise _unsupported(name)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return args[0].with_values(args[0].values_.detach(), clone=False)
        raise _unsupported(str(func))


def install(patches: Patches, observer: Observer) -> None:
    _constructors(patches, observer)
    _conversions(patches, observer)
    _embeddings(patches, observer)


def to_device(observer: Observer, matrix: torch.Tensor, dtype: torch.dtype | None = None) -> DeviceSparse:
    """A copy of a host matrix on the device."""
    if matrix.dim() != 2 or matrix.dense_dim():
        raise _unsupported(f"a sparse tensor of {matrix.dim()} dimensions")
    if matrix.layout == torch.sparse_csr:
        parts = matrix.crow_indices(), matrix.col_indices()
        values, is_coalesced = matrix.values(), True
    elif matrix.layout == torch.sparse_coo:
        indices, values = compat.sparse_parts(matrix)
        parts, is_coalesced = (indices,), matrix.is_coalesced()
    else:
        raise _unsupported(f"the layout {matrix.layout}")
    copies = tuple(observer.copy_to(part, "device") for part in parts)
    values = observer.copy_to(values.detach(), "device", dtype)
    return DeviceSparse(observer, copies, values, matrix.shape, is_coalesced=is_coalesced)


def _constructors(patches: Patches, observer: Observer) -> None:
    def wrap(name: str, count: int) -> None:
        original: Callable[..., Any] = getattr(torch, name)

        def construct(*args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
            parts = list(args[: count + 1])
            given = [part for part in parts if isinstance(part, torch.Tensor)]
            on_device = any(observer.on_device(part) for part in given)
            if device is None and not given:
                device = compat.default_device()
            if not on_device and place_of(device) != "device":
                return original(*args, device=device, requires_grad=requires_grad, **kwargs)
            if requires_grad:
                raise _unsupported("a sparse matrix that requires gradients")
            size = args[count + 1] if len(args) > count + 1 else kwargs.pop("size", None)
            coalesced = kwargs.pop("is_coalesced", None) or count == 2
            kwargs.pop("check_invariants", None)
            if not on_device:
                host = original(*args[: count + 1], *([size] if size is not None else []), **kwargs)
                return to_device(observer, host)
            if size is None:
                raise _unsupported("a sparse tensor without a size")
            tensors = [torch.as_tensor(part, device=CUDA) for part in parts]
            indices = tuple(part.long() if count == 1 else part for part in tensors[:count])
            values = tensors[count].to(kwargs.get("dtype") or tensors[count].dtype)
            if len(size) != 2 or values.dim() != 1:
                raise _unsupported(f"a sparse tensor of {len(size)} dimensions")
            return DeviceSparse(observer, indices, values, size, is_coalesced=coalesced)

        patches.set(torch, name, construct)

    wrap("sparse_coo_tensor", 1)
    wrap("sparse_csr_tensor", 2)


def _conversions(patches: Patches, observer: Observer) -> None:
    """`to`, `cuda`, `to_sparse` and `to_sparse_csr` of tensors that are not yet a `DeviceSparse`."""
    to, sparse, csr = torch.Tensor.to, torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr

    def convert(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.layout == torch.strided or type(self) is FakeTensor:
            return to(self, *args, **kwargs)
        probe = to(torch.empty(0, dtype=self.dtype), *args, **kwargs)  # where to, and as which dtype
        return to_device(observer, self, probe.dtype) if probe.is_cuda else to(self, *args, **kwargs)

    def to_sparse(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not observer.on_device(self):
            return sparse(self, *args, **kwargs)
        if self.dim() != 2 or args or kwargs.get("layout", torch.sparse_coo) != torch.sparse_coo:
            raise _unsupported("to_sparse of this tensor")
        indices = self.nonzero().t().contiguous()
        values = self[indices[0], indices[1]]
        return DeviceSparse(observer, (indices,), values, self.shape, is_coalesced=True)

    def to_sparse_csr(self: Any, *args: Any, **kwargs: Any) -> Any:
        return _to_csr(to_sparse(self)) if observer.on_device(self) else csr(self, *args, **kwargs)

    patches.set(torch.Tensor, "to", convert)
    cuda = torch.Tensor.cuda
    patches.set(
        torch.Tensor,
        "cuda",
        lambda self, *args, **kwargs: (
            cuda(self, *args, **kwargs) if self.layout == torch.strided else convert(self, CUDA)
        ),
    )
    patches.set(torch.Tensor, "to_sparse", to_sparse)
    patches.set(torch.Tensor, "to_sparse_csr", to_sparse_csr)


def _embeddings(patches: Patches, observer: Observer) -> None:
    """Embeddings with `sparse=True`: a dense gradient, which may be larger or smaller than the sparse one."""

    def wrap(name: str) -> None:
        original: Callable[..., Any] = getattr(F, name)
        signature = inspect.signature(original)

        def look_up(*args: Any, **kwargs: Any) -> torch.Tensor:
            call = signature.bind(*args, **kwargs)
            if call.arguments.get("sparse") and observer.on_device(call.arguments["weight"]):
                call.arguments["sparse"] = False
                what = "its sparse gradient is predicted as a dense one"
                observer.notes.say(name, what, observer.ledger.site(), is_reason=True)
            return original(*call.args, **call.kwargs)

        patches.set(F, name, look_up)

    def step(self: torch.optim.SparseAdam, closure: Any = None) -> Any:
        """The state of the optimizer, which is dense, without the update, for which it refuses dense ones."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            state = self.state[parameter]
            for key in ("exp_avg", "exp_avg_sq"):
                if key not in state:
                    state[key] = torch.zeros_like(parameter)
            state["step"] = state.get("step", 0) + 1
        return loss

    wrap("embedding")
    wrap("embedding_bag")
    original_step: Callable[..., Any] = torch.optim.SparseAdam.step

    def step_or_original(self: Any, closure: Any = None) -> Any:
        parameters = [p for group in self.param_groups for p in group["params"]]
        on_device = any(observer.on_device(parameter) for parameter in parameters)
        return step(self, closure) if on_device else original_step(self, closure)

    patches.set(torch.optim.SparseAdam, "step", step_or_original)


# --- operations


class _Product(torch.autograd.Function):
    """`matrix @ dense`: the output, and what cuSPARSE and torch's preparation of its arguments allocate."""

    @staticmethod
    def forward(ctx: Any, matrix: DeviceSparse, values: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        ctx.matrix, ctx.width = matrix, dense.shape[0]
        ctx.save_for_backward(*([dense] if values.requires_grad else []))
        return sparse_products.multiply(matrix, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (gradient,) = gradients
        matrix = ctx.matrix
        _, need_values, need_dense = ctx.needs_input_grad
        for_values = for_dense = None
        if need_values:
            for_values = sparse_products.gradient_of_values(matrix, gradient, ctx.saved_tensors[0])
        if need_dense:
            for_dense = sparse_products.multiply(sparse_products.transpose(matrix), gradient)
        return None, for_values, for_dense


def _multiply(matrix: Any, dense: Any, **_: Any) -> torch.Tensor:
    if not isinstance(matrix, DeviceSparse) or type(dense) is not FakeTensor:
        raise _unsupported("a product with a sparse matrix on the right")
    if dense.dim() == 1:
        return _multiply(matrix, dense.unsqueeze(1)).squeeze(1)
    if dense.dim() != 2 or matrix.shape[1] != dense.shape[0]:
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({tuple(matrix.shape)} and {tuple(dense.shape)})"
        )
    product: Any = _Product.apply(matrix, matrix.values_, dense)
    return product


def _add_product(bias: torch.Tensor, matrix: Any, dense: Any, **scale: Any) -> torch.Tensor:
    return torch.add(_multiply(matrix, dense), bias)


def _to_csr(matrix: DeviceSparse, *_: Any, **__: Any) -> DeviceSparse:
    if matrix.is_csr:
        return matrix
    matrix = sparse_products.coalesce(matrix)
    starts = torch.empty(matrix.shape[0] + 1, dtype=torch.int64, device=CUDA)
    parts = (starts, matrix.indices_[0][1])  # columns and values are shared
    return DeviceSparse(matrix.observer, parts, matrix.values_, matrix.shape, is_coalesced=True)


def _to_dense(matrix: DeviceSparse, dtype: Any = None, **_: Any) -> torch.Tensor:
    return torch.zeros(tuple(matrix.shape), dtype=dtype or matrix.values_.dtype, device=CUDA)


def _scaled(function: Callable[..., Any]) -> Callable[..., DeviceSparse]:
    def scale(matrix: Any, other: Any) -> DeviceSparse:
        if not isinstance(matrix, DeviceSparse) or (isinstance(other, torch.Tensor) and other.dim()):
            raise _unsupported("an elementwise operation with another matrix")
        return matrix.with_values(function(matrix.values_, other))

    return scale


def _requires_grad(matrix: DeviceSparse, requires_grad: bool = True) -> DeviceSparse:
    if requires_grad:
        raise _unsupported("a sparse matrix that requires gradients")
    return matrix


def _unsupported(what: str) -> CannotFake:
    return CannotFake(
        f"pinchpoint does not support {what} for sparse matrices on the GPU yet{at_user_line()}.",
        hint="Do it on the host before the matrix is moved, or predict the step with dense tensors.",
    )


_HANDLERS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mm", "spmm", "matmul", "__matmul__", "_sparse_mm", "mv"), _multiply),
    **dict.fromkeys(("addmm", "_sparse_addmm", "sspaddmm"), _add_product),
    **dict.fromkeys(("mul", "__mul__", "__rmul__"), _scaled(torch.mul)),
    **dict.fromkeys(("div", "__truediv__", "true_divide"), _scaled(torch.div)),
    "neg": lambda matrix: matrix.with_values(-matrix.values_),
    "coalesce": sparse_products.coalesce,
    "is_coalesced": lambda matrix: matrix.is_coalesced_,
    **dict.fromkeys(("t", "transpose"), lambda matrix, *_: sparse_products.transpose(matrix)),
    **dict.fromkeys(("indices", "_indices"), lambda matrix: matrix.indices_[0]),
    **dict.fromkeys(("values", "_values"), lambda matrix: matrix.values_),
    "crow_indices": lambda matrix: matrix.indices_[0],
    "col_indices": lambda matrix: matrix.indices_[1],
    "_nnz": lambda matrix: matrix.count,
    "sparse_dim": lambda matrix: 2,
    "dense_dim": lambda matrix: 0,
    "to_dense": _to_dense,
    "to_sparse": lambda matrix, *_, **__: matrix,
    "to_sparse_csr": _to_csr,
    "detach": lambda matrix: matrix.with_values(matrix.values_.detach(), clone=False),
    "clone": lambda matrix, **_: matrix.with_values(matrix.values_.clone()),
    "float": lambda matrix: matrix.to(torch.float32),
    "half": lambda matrix: matrix.to(torch.float16),
    "bfloat16": lambda matrix: matrix.to(torch.bfloat16),
    "double": lambda matrix: matrix.to(torch.float64),
    "requires_grad_": _requires_grad,
}
_PLAIN = {
    "__get__",
    "__set__",
    "size",
    "dim",
    "ndimension",
    "numel",
    "is_floating_point",
    "is_complex",
    "element_size",
    "__len__",
    "__hash__",
}
