"""The modules of the package, each parsed once, with what the contracts look at.

To parse all of src/ takes seconds, so that the contracts share one pass over it: `read_module` collects what
they judge, and the syntax trees are not kept.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pinchpoint

Node = TypeVar("Node", bound=ast.AST)
PACKAGE = Path(pinchpoint.__file__).parent
PLACEHOLDER = "{}"
ERRORS = {
    "PinchpointError",
    "BadInput",
    "NotConverged",
    "TargetFailed",
    "CannotFake",
    "TimedOut",
    "Missing",
    "Bug",
    "DoesNotFit",
    "Diverged",
}
FRAMEWORKS = {"torch", "jax", "jaxlib"}
# Python's own, whose names only look private.
PYTHONS = {"sys._getframe", "os._exit", "_replace", "_asdict", "_fields", "_target"}
OURS = "_pinchpoint"
# Names that `patches.set` and its like take as text.
BY_NAME = {"set", "getattr", "setattr", "hasattr", "delattr"}


class Nodes:
    """The nodes of a tree by their class: most contracts look at few of them."""

    def __init__(self, tree: ast.AST) -> None:
        self._by_class: dict[type, list[Any]] = {}
        for node in ast.walk(tree):
            self._by_class.setdefault(type(node), []).append(node)

    def of(self, kind: type[Node]) -> list[Node]:
        return self._by_class.get(kind, [])


@dataclass(frozen=True)
class Module:
    place: str  # path under the package
    text: str
    has_docstring: bool
    imports: tuple[str, ...]  # dotted names, also of late imports and of import_module("...")
    early_imports: tuple[str, ...]  # of those, what is imported when the module is
    classes: tuple[tuple[str, frozenset[str]], ...]  # name and bases
    messages: tuple[tuple[int, str], ...]  # line and text of every error of ours
    silent_handlers: tuple[int, ...]  # lines where every error is caught and forgotten
    private_names: tuple[str, ...]  # of others, with the line


def read_module(text: str, place: str = "core/module.py") -> Module:
    tree = ast.parse(text)
    nodes = Nodes(tree)
    package = ".".join(("pinchpoint", *Path(place).parent.parts))
    return Module(
        place=place,
        text=text,
        has_docstring=bool(ast.get_docstring(tree)),
        imports=tuple(imports(nodes, package)),
        early_imports=tuple(early_imports(nodes)),
        classes=tuple(
            (node.name, frozenset(ast.unparse(base) for base in node.bases))
            for node in nodes.of(ast.ClassDef)
        ),
        messages=tuple(messages(nodes)),
        silent_handlers=tuple(node.lineno for node in nodes.of(ast.ExceptHandler) if swallows(node)),
        private_names=tuple(private_names(nodes)),
    )


def read_package() -> list[Module]:
    return [
        read_module(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix())
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def imports(nodes: Nodes, package: str) -> Iterator[str]:
    """Dotted names of everything imported anywhere, late imports and import_module("...") too."""
    for node in nodes.of(ast.Import):
        yield from (alias.name for alias in node.names)
    for node in nodes.of(ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join(
                package.split(".")[: len(package.split(".")) - node.level + 1] + ([base] if base else [])
            )
        yield from (f"{base}.{alias.name}" for alias in node.names)
    for node in nodes.of(ast.Call):
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module":
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    yield name


def early_imports(nodes: Nodes) -> Iterator[str]:
    """Modules that are imported when the module is: neither within a function nor for type checkers only."""
    statements = [*nodes.of(ast.Import), *nodes.of(ast.ImportFrom)]
    spans = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in [*nodes.of(ast.FunctionDef), *nodes.of(ast.AsyncFunctionDef), *nodes.of(ast.If)]
        if not isinstance(node, ast.If) or ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    for node in statements:
        if any(start <= node.lineno <= end for start, end in spans):
            continue
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        else:
            yield from (alias.name for alias in node.names)


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be, values replaced by a placeholder; none where that is not known."""
    match node:
        case ast.Constant(value=str(value)):
            yield value
        case ast.JoinedStr(values=parts):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else PLACEHOLDER for p in parts)
        case ast.IfExp(body=first, orelse=second):
            yield from texts(first)
            yield from texts(second)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = list(texts(right)) or [PLACEHOLDER]
            yield from (start + end for start in list(texts(left)) or [PLACEHOLDER] for end in ends)
        case _:
            pass


def messages(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Line and message of every error of ours that a module creates."""
    for node in nodes.of(ast.Call):
        if node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ERRORS:
                yield from ((node.lineno, text) for text in texts(node.args[0]))


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and carries on silently."""
    broad = handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )
    return broad and all(isinstance(step, ast.Pass | ast.Continue) for step in handler.body)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith(("__", OURS)) and name != "_"


def own_names(nodes: Nodes) -> set[str]:
    """Private names a module gives itself: functions, classes, variables, and attributes set on self."""
    definitions = (*nodes.of(ast.FunctionDef), *nodes.of(ast.AsyncFunctionDef), *nodes.of(ast.ClassDef))
    names = {node.name for node in definitions}
    names |= {node.id for node in nodes.of(ast.Name) if isinstance(node.ctx, ast.Store)}
    return names | {
        node.attr
        for node in nodes.of(ast.Attribute)
        if isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "cls")
    }


def private_names(nodes: Nodes) -> Iterator[str]:
    """Private names of others that a module imports, reads, or names as text."""
    own = own_names(nodes)
    for line, name in _private(nodes):
        if name.split(".")[-1] not in own and name not in PYTHONS:
            yield f"line {line}: {name}"


def _private(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for node in nodes.of(ast.Import):
        yield from ((node.lineno, alias.name) for alias in node.names if _of_framework(alias.name))
    for node in nodes.of(ast.ImportFrom):
        names = [f"{node.module}.{alias.name}" for alias in node.names if node.level == 0]
        yield from ((node.lineno, name) for name in names if _of_framework(name))
    for node in nodes.of(ast.Attribute):
        if is_private(node.attr):
            base = ast.unparse(node.value)
            # Operators are called by their names, private or not.
            if not base.split(".")[-1].endswith("aten") and node.attr not in PYTHONS:
                yield node.lineno, f"{base}.{node.attr}"
    for node in nodes.of(ast.Call):
        match node:
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
