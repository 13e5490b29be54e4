"""Private names of torch and JAX are used in one file each, which is where a new version is fixed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pinchpoint

ROOT = Path(pinchpoint.__file__).parent
COMPAT = {
    "backends/torch/autograd_nodes.py",
    "backends/torch/compat.py",
    "backends/torch/compiled/compat.py",
    "backends/torch/fake/compat.py",
    "backends/torch/compiled/shortcuts.py",
    "backends/torch/ranks/compat.py",
    "backends/torch/recording/compat.py",
    "backends/jax/compat.py",
}
FRAMEWORKS = {"torch", "jax", "jaxlib"}
# Python's own, whose names only look private.
PYTHONS = {"sys._getframe", "os._exit", "_replace", "_asdict", "_fields", "_target"}
OURS = "_pinchpoint"
# Names that `patches.set` and its like take as text.
BY_NAME = {"set", "getattr", "setattr", "hasattr", "delattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", OURS)) and name != "_"


def modules() -> list[Path]:
    """Those that know a framework."""
    paths = [path for path in sorted(ROOT.rglob("*.py")) if path.relative_to(ROOT).as_posix() not in COMPAT]
    return [path for path in paths if FRAMEWORKS & set(imported(ast.parse(path.read_text(encoding="utf-8"))))]


def imported(tree: ast.AST) -> Iterator[str]:
    """Packages imported anywhere, late imports too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def own_names(tree: ast.AST) -> set[str]:
    """Private names a module gives itself: functions, classes, variables, and attributes set on self."""
    matches: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            matches.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            matches.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) in ("self", "cls")
        ):
            matches.add(node.attr)
    return matches


def faults(source: str) -> list[str]:
    """Private names of others that a module imports, reads, or names as text."""
    tree = ast.parse(source)
    own = own_names(tree)
    return [
        f"line {line}: {name}"
        for line, name in _private(tree)
        if name.split(".")[-1] not in own and name not in PYTHONS
    ]


def _private(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names if _of_framework(alias.name))
            case ast.ImportFrom(module=str(module), level=0):
                yield from (
                    (node.lineno, name)
                    for alias in node.names
                    if _of_framework(name := f"{module}.{alias.name}")
                )
            case ast.Attribute(attr=attr, value=value) if is_private(attr):
                base = ast.unparse(value)
                # Operators are called by their names, private or not.
                if not base.split(".")[-1].endswith("aten") and attr not in PYTHONS:
                    yield node.lineno, f"{base}.{attr}"
            case ast.Call(
                func=ast.Name(id=called) | ast.Attribute(attr=called),
                args=[_, ast.Constant(value=str(name)), *_],
            ):
                if called in BY_NAME and is_private(name):
                    yield node.lineno, name
            case _:
                pass


def _of_framework(name: str) -> bool:
    first, *parts = name.split(".")
    return first in FRAMEWORKS and any(is_private(part) for part in parts)


def test_private_names_of_others_stay_in_the_compat_modules() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}, {fault}"
        for path in modules()
        for fault in faults(path.read_text(encoding="utf-8"))
    ]
    assert offenders == []


@pytest.mark.parametrize(
    "source",
    [
        "from torch.utils._pytree import tree_map_only",
        "import torch._subclasses",
        "from torch.overrides import _get_current_function_mode_stack",
        "def f():\n    from jax._src import core",
        "import torch\ntorch._C._current_autograd_node()",
        "def f(func):\n    return func._schema.arguments",
        "def f(value):\n    return value._version",
        "def f(self):\n    return self._parameters",
        "library._destroy()",
        "patches.set(rnn_module, '_VF', functions)",
        "getattr(tensor, '_is_param', False)",
    ],
)
def test_the_check_refuses_a_private_name_of_another(source: str) -> None:
    assert faults(source)


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n def __init__(self):\n  self._size = 1\n def f(self):\n  return self._size, self.__dict__",
        "import torch\n_aten = torch.ops.aten\n_aten._to_copy.default(x)",
        "import torch\ntorch.ops.aten._unique2(x)",
        "import os\nos._exit(0)",
        "tensor._pinchpoint_op = 'mm'\ngetattr(tensor, '_pinchpoint_op', '')",
        "span._replace(least=0)",
        "from pinchpoint.reporting.sections._series import Series",
    ],
)
def test_the_check_allows_our_own_names_and_operators(source: str) -> None:
    assert faults(source) == []
