"""Which kind of value an expression has, as far as its file shows.

Kinds: "device" for a torch tensor that may be on the device, "host" for one that is on the CPU, "jax" for a
JAX array, "numpy", "python" for numbers and lists, "module", "optimizer", "loader", "transformed" for a
function that jax.jit and the like return. Empty means unknown; rules say nothing about unknown values.

A name has the kind of its nearest assignment before the place where it is read. This is no data-flow
analysis: branches are not told apart.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine.devices import device_argument, is_host
from pinchpoint.rules.engine.source import Function, Source, argument


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TENSORS = ("device", "jax")
CREATION = _words(
    """
    tensor zeros ones full empty arange range linspace logspace eye rand randn randint randperm normal
    tril_indices triu_indices scalar_tensor frombuffer complex empty_strided sparse_coo_tensor hann_window
    """
)
TRANSFORMS = _words(
    """
    grad value_and_grad jit vmap pmap hessian jacfwd jacrev jacobian linearize checkpoint remat
    custom_jvp
    """
)
# Functions of torch that return no tensor.
_NO_TENSOR = _words(
    """
    device dtype Size Generator Tensor is_tensor is_floating_point is_complex is_grad_enabled numel
    get_default_dtype set_grad_enabled manual_seed seed initial_seed load save compile finfo iinfo
    Stream Event result_type promote_types can_cast get_num_threads set_num_threads get_rng_state
    broadcast_shapes typename no_grad inference_mode enable_grad autocast set_default_device
    set_default_dtype get_default_device is_storage
    """
)
# Packages inside torch whose functions return tensors.
_TENSOR_PACKAGES = ("torch.nn.functional.", "torch.linalg.", "torch.fft.", "torch.special.", "torch.func.")
_PLAIN_METHODS = _words(
    """
    item tolist size dim numel ndimension element_size stride get_device is_contiguous
    """
)
_PLAIN_ATTRIBUTES = _words(
    """
    shape device dtype ndim requires_grad is_cuda layout names itemsize nbytes size
    """
)
_TENSOR_ATTRIBUTES = _words(
    """
    grad data T mT H real imag loss logits weight bias last_hidden_state sample
    input_ids attention_mask
    """
)
_MODULE_NAME = re.compile(
    r"(^|_|\.)(model|net|network|criterion|crit|loss_fn|loss_func|loss_function|generator|discriminator|encoder|decoder"
    r"|loss|backbone|unet|vae|classifier|policy|critic|actor|transformer|autoencoder|mlp)(_?\d+)?$|^net[GD]$|^model_"
)
# A name such as `build_model` is a function that makes or takes a module.
_VERBS = re.compile(
    r"(step|train|create|build|get|load|make|test|eval|run|compute|prepare|init|save|setup|check)_"
)
_BUILTINS = _words(
    """
    float int len str bool list tuple dict set range repr format abs round isinstance hasattr
    """
)
_FRAMEWORKS = ("torch", "jax", "lightning", "pytorch_lightning", "transformers", "diffusers", "accelerate")
_DEPTH = 40


def kind(source: Source, node: ast.AST | None) -> str:
    """The kind of value that an expression has; empty if unknown."""
    return _kind(source, node, 0)


def is_tensor(source: Source, node: ast.AST | None) -> bool:
    """Whether a value may be an array on the device."""
    return kind(source, node) in TENSORS


def is_module(source: Source, node: ast.AST | None) -> bool:
    """Whether an expression is an nn.Module, by its assignment or by a usual name such as `model`."""
    if isinstance(node, ast.Call):
        return kind(source, node) == "module"
    known = kind(source, node)
    if known or not _named_like_module(node):
        return known == "module"
    # A function of the file may have such a name too.
    return not (isinstance(node, ast.Name) and node.id in source.function_names)


def is_model_call(source: Source, node: ast.AST | None) -> bool:
    """Whether an expression calls a module: `model(x)`."""
    return isinstance(node, ast.Call) and is_module(source, node.func)


def _named_like_module(node: ast.AST | None) -> bool:
    last = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return _MODULE_NAME.search(last) is not None and not _VERBS.match(last)


def _kind(source: Source, node: ast.AST | None, depth: int) -> str:
    if node is None or depth > _DEPTH:
        return ""
    if node not in source.memo:
        source.memo[node] = ""  # what refers to itself is unknown
        source.memo[node] = _find(source, node, depth + 1)
    return source.memo[node]


def _find(source: Source, node: ast.AST, depth: int) -> str:
    match node:
        case (
            ast.Constant()
            | ast.JoinedStr()
            | ast.List()
            | ast.Dict()
            | ast.Set()
            | ast.ListComp()
            | ast.DictComp()
        ):
            return "python"
        case ast.Name():
            return _of_name(source, node, depth)
        case ast.Attribute():
            return _of_attribute(source, node, depth)
        case ast.Call():
            return _of_call(source, node, depth)
        case ast.BinOp(left=left, right=right):
            return _join(_kind(source, left, depth), _kind(source, right, depth))
        case ast.UnaryOp(op=ast.Not()):
            return "python"
        case ast.UnaryOp(operand=operand) | ast.Starred(value=operand) | ast.Await(value=operand):
            return _kind(source, operand, depth)
        case ast.Compare(left=left, ops=ops, comparators=others):
            if any(isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in ops):
                return "python"
            return _join(_kind(source, left, depth), *(_kind(source, other, depth) for other in others))
        case ast.Subscript(value=value):
            known = _kind(source, value, depth)
            return known if known in ("device", "host", "jax", "numpy") else ""
        case ast.IfExp(body=first, orelse=second):
            kinds = {_kind(source, first, depth), _kind(source, second, depth)}
            return kinds.pop() if len(kinds) == 1 else ""
        case ast.NamedExpr(value=value):
            return _kind(source, value, depth)
        case _:
            return ""


def _join(*kinds: str) -> str:
    """The kind of an expression of several values."""
    for one in ("device", "jax"):
        if one in kinds:
            return one
    known = {kind for kind in kinds if kind != "python"}
    if not known:
        return "python"
    return known.pop() if len(known) == 1 else ""


def _of_name(source: Source, name: ast.Name, depth: int) -> str:
    if name.id in source.imports:
        return ""
    bound = source.binding(name)
    if isinstance(bound, ast.arg):
        return _of_annotation(source, bound.annotation)
    if bound is None or bound is name:
        return ""
    parent = source.parents[bound]
    if isinstance(parent, ast.AugAssign):
        before = _before(source, bound)
        return _join(_kind(source, before, depth) if before else "", _kind(source, parent.value, depth))
    value = source.assigned_value(bound)
    if value is not None:
        return _kind(source, value, depth)
    return _of_unpacking(source, bound, depth)


def _before(source: Source, store: ast.Name) -> ast.AST | None:
    """The value a name had before `x += y`."""
    earlier = [
        other
        for other in source.stores.get((source.scope(store), store.id), [])
        if (other.lineno, other.col_offset) < (store.lineno, store.col_offset)
    ]
    return source.assigned_value(earlier[-1]) if earlier else None


def _of_unpacking(source: Source, store: ast.Name, depth: int) -> str:
    """`a, b = f(x)`, `for a in values`, `for i, a in enumerate(values)`."""
    node: ast.AST = store
    parent = source.parents[node]
    path: list[int] = []
    while isinstance(parent, ast.Tuple | ast.List | ast.Starred):
        if not isinstance(parent, ast.Starred):
            path.append(parent.elts.index(node))  # pyright: ignore[reportArgumentType]
        node, parent = parent, source.parents[parent]
    path.reverse()
    if isinstance(parent, ast.Assign):
        value = parent.value
        for step in path:
            if not isinstance(value, ast.Tuple | ast.List) or len(value.elts) <= step:
                return _element(_kind(source, value, depth))
            value = value.elts[step]
        return _kind(source, value, depth)
    if isinstance(parent, ast.For | ast.AsyncFor | ast.comprehension):
        return _of_iteration(source, parent.iter, path, depth)
    return ""


def _of_iteration(source: Source, iterable: ast.expr, path: list[int], depth: int) -> str:
    called = source.called(iterable)
    if called == "enumerate" and isinstance(iterable, ast.Call) and iterable.args:
        return "python" if path[:1] == [0] else _of_iteration(source, iterable.args[0], path[1:], depth)
    if called == "zip" and isinstance(iterable, ast.Call) and path and len(iterable.args) > path[0]:
        return _of_iteration(source, iterable.args[path[0]], path[1:], depth)
    if called == "range":
        return "python"
    known = _kind(source, iterable, depth)
    return "host" if known == "loader" else _element(known)


def _element(known: str) -> str:
    return known if known in ("device", "host", "jax", "numpy") else ""


def _of_annotation(source: Source, annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        full = annotation.value
    elif isinstance(annotation, ast.BinOp):  # Tensor | None
        return _of_annotation(source, annotation.left) or _of_annotation(source, annotation.right)
    elif isinstance(annotation, ast.Subscript) and source.name(annotation.value).endswith("Optional"):
        return _of_annotation(source, annotation.slice)
    else:
        full = source.name(annotation)
    if full in ("torch.Tensor", "Tensor", "torch.FloatTensor", "torch.LongTensor"):
        return "device"
    if full in ("jax.Array", "jax.numpy.ndarray", "jnp.ndarray", "Array"):
        return "jax"
    if full in ("numpy.ndarray", "np.ndarray"):
        return "numpy"
    if full in ("int", "float", "str", "bool", "list", "dict"):
        return "python"
    return "module" if full in ("torch.nn.Module", "nn.Module") else ""


def _of_attribute(source: Source, node: ast.Attribute, depth: int) -> str:
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        return _of_member(source, node, depth)
    if node.attr in _PLAIN_ATTRIBUTES:
        return "python"
    known = _kind(source, node.value, depth)
    if known in ("device", "host", "jax", "numpy"):
        return known if node.attr in _TENSOR_ATTRIBUTES else ""
    if node.attr in ("weight", "bias") and is_module(source, node.value):
        return "device"
    return ""


def _of_member(source: Source, node: ast.Attribute, depth: int) -> str:
    """`self.x`: the kind of the first assignment to it in the class."""
    owner = source.class_of(node)
    if owner is None:
        return ""
    key = (owner, node.attr)
    if key not in source.memo:
        source.memo[key] = ""
        value = next((value for name, value in _members(source, owner) if name == node.attr), None)
        source.memo[key] = _kind(source, value, depth)
    return source.memo[key]


def _members(source: Source, owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The attributes of `self` that a class assigns, and their values."""
    for assign in source.all(ast.Assign):
        if source.inside(assign, owner):
            for target in assign.targets:
                if isinstance(target, ast.Attribute) and source.name(target.value) == "self":
                    yield target.attr, assign.value


def _of_call(source: Source, call: ast.Call, depth: int) -> str:
    full = source.name(call.func)
    package, _, last = full.rpartition(".")
    first = full.partition(".")[0]
    if first == "torch" and package:
        return _of_torch(source, call, full, package, last, depth)
    if first == "jax":
        return _of_jax(full, last)
    if first == "numpy":
        return "numpy"
    if first == "optax":
        return "optimizer" if package == "optax" else ""
    if full in _BUILTINS:
        return "python"
    if any(keyword.arg == "return_tensors" for keyword in call.keywords):
        return "host"  # a tokenizer
    if full in ("sum", "max", "min") and call.args:
        return _element(_kind(source, call.args[0], depth))
    if isinstance(call.func, ast.Attribute):
        known = _of_method(source, call, call.func, depth)
        if known is not None:
            return known
    owner = _kind(source, call.func, depth)
    if owner == "transformed":
        return "jax"
    if owner == "module":
        return "device"
    own = _of_own(source, call, depth)
    if own is not None:
        return own
    return "device" if not owner and _named_like_module(call.func) and source.uses(*_FRAMEWORKS) else ""


def _of_torch(source: Source, call: ast.Call, full: str, package: str, last: str, depth: int) -> str:
    if package == "torch.nn" or package.startswith("torch.nn.modules"):
        return (
            "module"
            if last[:1].isupper() and last != "Parameter"
            else "device"
            if last == "Parameter"
            else ""
        )
    if package == "torch.optim":
        return "optimizer"
    if full == "torch.utils.data.DataLoader":
        return "loader"
    if full == "torch.compile":
        return _kind(source, call.args[0], depth) if call.args else ""
    if full == "torch.from_numpy":
        return "host"
    if package == "torch" and (last in CREATION or last == "as_tensor"):
        device = argument(call, "device")
        if device is not None:
            return "host" if is_host(device) else "device"
        if last == "as_tensor" and call.args:
            return "device" if _kind(source, call.args[0], depth) == "device" else "host"
        return "device" if _default_device(source) else "host"
    if full == "torch.autograd.grad" or any(full.startswith(prefix) for prefix in _TENSOR_PACKAGES):
        return _of_operation(source, call, depth)
    if package == "torch" and last not in _NO_TENSOR and not last.startswith(("is_", "get_", "set_", "use_")):
        return _of_operation(source, call, depth)
    return ""


def _of_operation(source: Source, call: ast.Call, depth: int) -> str:
    """A function of torch returns a tensor on the device, except where all its tensors are on the host."""
    arguments = [
        item for arg in call.args for item in (arg.elts if isinstance(arg, ast.Tuple | ast.List) else [arg])
    ]
    kinds = {_kind(source, item, depth) for item in arguments} - {"python"}
    return "host" if kinds and kinds <= {"host", "numpy"} else "device"


def _default_device(source: Source) -> bool:
    return "set_default_device" in source.text or "set_default_tensor_type" in source.text


def _of_jax(full: str, last: str) -> str:
    if full in ("jax.device_get",):
        return "numpy"
    if last in ("shape", "ndim", "size", "dtype", "result_type", "issubdtype", "finfo", "iinfo"):
        return "python"
    if full.startswith("jax.") and full.count(".") == 1 and last in TRANSFORMS:
        return "transformed"
    if (
        full.startswith(("jax.numpy.", "jax.random.", "jax.nn.", "jax.lax.", "jax.scipy."))
        or last == "device_put"
    ):
        return "jax"
    return ""


def _of_method(source: Source, call: ast.Call, func: ast.Attribute, depth: int) -> str | None:
    """The kind that a method returns; None if the call is not one of a tensor or unknown object."""
    name = func.attr
    known = _kind(source, func.value, depth)
    if name in _PLAIN_METHODS:
        return "python"
    if name == "numpy":
        return "numpy"
    if name == "cpu":
        return "module" if known == "module" else "host"
    if name in ("cuda", "to"):
        if known in ("module", "numpy", "jax"):
            return known
        device = device_argument(source, call)
        if device is None:
            return known
        if isinstance(func.value, ast.Call) and not known:
            called = source.name(func.value.func).rpartition(".")[2]
            if called[:1].isupper() or called.startswith(
                ("create_", "build_", "get_model", "from_pretrained")
            ):
                return "module"
        if not known and _named_like_module(func.value):
            return "module"
        return "host" if is_host(device) else "device"
    if known in ("device", "host", "jax", "numpy"):
        return known
    if known in ("module", "optimizer", "loader"):
        if name in ("eval", "train", "half", "float", "double", "requires_grad_", "bfloat16"):
            return known
        return "" if _kind(source, func, depth) != "module" else None
    if name in ("state_dict", "parameters", "items", "keys", "values", "get"):
        return ""
    return None


def _of_own(source: Source, call: ast.Call, depth: int) -> str | None:
    """The kind that a function or class of the same file returns; None if the call is of something else."""
    if not isinstance(call.func, ast.Name):
        return None
    owner = source.class_names.get(call.func.id)
    if owner is not None:
        return "module" if derives_from_module(source, owner) else ""
    function = source.function_names.get(call.func.id)
    if function is None or isinstance(source.parents[function], ast.ClassDef):
        return None
    return _of_return(source, function, depth)


def _of_return(source: Source, function: Function, depth: int) -> str:
    if any(
        "jit" in source.name(d).rpartition(".")[2]
        for d in function.decorator_list
        if source.name(d).startswith("jax")
    ):
        return "jax"
    annotated = _of_annotation(source, function.returns)
    if annotated:
        return annotated
    values = [
        node.value
        for node in source.walk(function)
        if isinstance(node, ast.Return) and node.value is not None and source.function(node) is function
    ]
    kinds = {_kind(source, value, depth) for value in values}
    return kinds.pop() if len(kinds) == 1 else ""


def derives_from_module(source: Source, node: ast.ClassDef) -> bool:
    """Whether a class is an nn.Module, through other classes of the file too."""
    bases = [source.name(base) for base in node.bases]
    if any(base.rpartition(".")[2] in ("Module", "LightningModule", "PreTrainedModel") for base in bases):
        return not any(base.startswith(("equinox.", "flax.", "haiku.")) for base in bases)
    classes = {other.name: other for other in source.all(ast.ClassDef) if other is not node}
    return any(base in classes and base != node.name and _derives(source, classes[base], 5) for base in bases)


def _derives(source: Source, node: ast.ClassDef, depth: int) -> bool:
    bases = [source.name(base) for base in node.bases]
    if any(base.rpartition(".")[2] == "Module" for base in bases):
        return True
    classes = {other.name: other for other in source.all(ast.ClassDef) if other is not node}
    return depth > 0 and any(base in classes and _derives(source, classes[base], depth - 1) for base in bases)
