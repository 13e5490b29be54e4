"""A stand-in for Triton: kernels can be defined and launched, but a launch computes nothing.

The outputs of a Triton kernel are tensors that the caller allocated with torch, so their memory is known.
What a launch writes is not: the tensors that the kernel's source stores to lose their values.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages.unknown_kernels import launched, overwritten
from pinchpoint.core.units import MIB

# Packages whose kernels use no memory besides their arguments, according to their source.
_KNOWN = ("liger_kernel", "mamba_ssm", "pinchpoint")
# Before each timing, `triton.testing.do_bench` clears the cache by writing a tensor of this size.
_AUTOTUNE_BYTES = 256 * MIB
_DTYPES = (
    *("void", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float8e4nv", "float8e4b8", "float8e4b15", "float8e5", "float8e5b16"),
    *("float16", "bfloat16", "float32", "float64"),
)


class Kernel:
    """A function decorated with `triton.jit`."""

    def __init__(self, fn: Callable[..., Any], observer: Observer) -> None:
        self.fn, self.observer = fn, observer
        self.__name__, self.__module__, self.__doc__ = fn.__name__, fn.__module__, fn.__doc__
        self.arg_names = list(inspect.signature(fn).parameters)
        self._stored: set[str] | None = None

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return _Compiled()
        arguments = dict(zip(self.arg_names, args, strict=False)) | kwargs
        if self._stored is None:
            self._stored = stored_arguments(self.fn)
        written = [value for name, value in arguments.items() if name in self._stored]
        if self.__module__.partition(".")[0] in _KNOWN:
            overwritten(self.observer, written)
        else:
            launched(self.observer, self.__name__, list(arguments.values()), written)
        return _Compiled()

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
        return _Compiled()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class Autotuned:
    """A kernel that times its configurations at the first launch for each key."""

    def __init__(
        self, kernel: Any, configs: Sequence[Any], key: Sequence[str], clones: Sequence[str]
    ) -> None:
        self.fn, self.configs, self.keys, self.clones = kernel, configs, key, clones
        self.__name__ = kernel.__name__
        self.arg_names: list[str] = kernel.arg_names
        self.observer: Observer = kernel.observer
        self.best_config = next(iter(configs), None)
        self._timed: set[Any] = set()

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> Any:
        arguments = dict(zip(self.arg_names, args, strict=False)) | kwargs
        tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
        key = (*(str(arguments.get(name)) for name in self.keys), *(t.dtype for t in tensors))
        if len(self.configs) > 1 and key not in self._timed and not warmup:
            self._timed.add(key)
            device = tensors[0].device if tensors else torch.device("cuda")
            copies = [arguments[name].clone() for name in self.clones if name in arguments]
            cache = torch.empty(_AUTOTUNE_BYTES // 4, dtype=torch.int32, device=device)
            del cache, copies
        return self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)

    warmup = Kernel.warmup


class Config:
    """One configuration of an autotuned kernel."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Any = None,
        **_: Any,
    ) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.num_ctas, self.maxnreg, self.pre_hook = num_ctas, maxnreg, pre_hook

    def all_kwargs(self) -> dict[str, Any]:
        return {**self.kwargs, "num_warps": self.num_warps, "num_stages": self.num_stages}


class Constexpr:
    """`tl.constexpr`: a constant, or the annotation of an argument."""

    def __init__(self, value: Any = None) -> None:
        self.value = value.value if isinstance(value, Constexpr) else value

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, Constexpr) else other)

    def __hash__(self) -> int:
        return hash(self.value)


class Dtype:
    """`tl.float32` and the others."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"triton.language.{self.name}"


class _Compiled:
    """What a compiled kernel says about itself; the figures are those of a small kernel."""

    n_regs, n_spills, num_warps = 32, 0, 4

    def __init__(self) -> None:
        self.metadata = types.SimpleNamespace(shared=0, num_warps=4, num_stages=3)
        self.asm: dict[str, str] = {}

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: None


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    def jit(fn: Any = None, **_: Any) -> Any:
        return (lambda function: Kernel(function, observer)) if fn is None else Kernel(fn, observer)

    def autotune(
        configs: Sequence[Any], key: Sequence[str] = (), restore_value: Any = None, **_: Any
    ) -> Callable[[Any], Any]:
        return lambda kernel: Autotuned(kernel, configs, key, restore_value or ())

    driver = types.SimpleNamespace(active=_Driver(observer))
    language: dict[str, Any] = {name: Dtype(name) for name in _DTYPES}
    language |= {"constexpr": Constexpr, "dtype": Dtype, "tensor": torch.Tensor}
    common = {
        "jit": jit,
        "autotune": autotune,
        "heuristics": lambda values: lambda kernel: kernel,
        "Config": Config,
        "JITFunction": Kernel,
        "KernelInterface": Kernel,
        "Autotuner": Autotuned,
        "cdiv": lambda x, y: (x + y - 1) // y,
        "next_power_of_2": lambda n: 1 << max(int(n) - 1, 0).bit_length(),
        "set_allocator": lambda allocator: None,
    }
    return {
        "triton": common,
        "triton.language": language,
        "triton.language.math": {},
        "triton.language.core": language,
        "triton.language.extra": {},
        "triton.language.extra.libdevice": {},
        "triton.runtime": {"driver": driver, **common},
        "triton.runtime.jit": common,
        "triton.runtime.autotuner": common,
        "triton.runtime.driver": {"active": driver.active},
        "triton.testing": {},
        "triton.compiler": {},
    }


class _Driver:
    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.utils = types.SimpleNamespace(get_device_properties=self._properties)

    def _properties(self, device: Any = None) -> dict[str, int]:
        return {
            "multiprocessor_count": self._observer.kernel_model.processors,
            "max_num_regs": 65_536,
            "max_shared_mem": 101_376 if self._observer.kernel_model.capability[0] == 8 else 232_448,
            "warpSize": 32,
        }

    def get_current_target(self) -> Any:
        major, minor = self._observer.kernel_model.capability
        return types.SimpleNamespace(backend="cuda", arch=10 * major + minor, warp_size=32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_current_device(self) -> int:
        return 0


def stored_arguments(fn: Callable[..., Any]) -> set[str]:
    """Arguments of a kernel that may be part of an address it stores to; all if its source is not clear."""
    parameters = set(inspect.signature(fn).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError):
        return parameters
    sources: dict[str, set[str]] = {name: {name} for name in parameters}

    def origins(node: ast.AST) -> set[str]:
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        return set().union(*(sources.get(name, set()) for name in names))

    stored: set[str] = set()
    for _ in range(2):  # twice, because a loop may use what it assigns later
        for node in ast.walk(tree):
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    for name in ast.walk(target):
                        if isinstance(name, ast.Name):
                            sources.setdefault(name.id, set()).update(origins(node.value))
            elif isinstance(node, ast.Call):
                stored |= _stored_by(node, origins)
    return stored & parameters


def _stored_by(call: ast.Call, origins: Callable[[ast.AST], set[str]]) -> set[str]:
    function, values = call.func, [*call.args, *(keyword.value for keyword in call.keywords)]
    if isinstance(function, ast.Attribute):
        if not function.attr.startswith(("store", "atomic", "async_", "inline_asm")):
            return set()
        of_object = origins(function.value) if not isinstance(function.value, ast.Name) else set()
        first = origins(values[0]) if values else set()
        return first | of_object | origins(function)
    if isinstance(function, ast.Name) and function.id in ("range", "min", "max", "float", "int", "len"):
        return set()
    return set().union(*(origins(value) for value in values))  # another kernel, which may store
