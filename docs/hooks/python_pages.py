"""Reference pages of public Python names, read from the source without importing it.

A function has its signature and its docstring; a class also its fields, as in the source, and its public
methods. `homes` maps each name to the module that defines it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def page(title: str, text: str, names: list[str], homes: Mapping[str, str]) -> str:
    """Return the Markdown page of these names."""
    return "\n\n".join([f"# {title}", text, *(part for name in names for part in _entry(name, homes[name]))])


def is_class(name: str, home: str) -> bool:
    return isinstance(_definition(name, home)[0], ast.ClassDef)


def _definition(name: str, home: str) -> tuple[Function | ast.ClassDef, list[str]]:
    """Return the definition and the lines of its file; a package may import the name from a module."""
    path = SOURCE.joinpath(*home.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node, text.splitlines()
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            return _definition(name, node.module)
    raise LookupError(f"{home} does not define {name}.")


def _entry(name: str, home: str) -> Iterator[str]:
    node, lines = _definition(name, home)
    yield f"## {name}"
    if not isinstance(node, ast.ClassDef):
        yield _function(node)
        return
    yield _prose(ast.get_docstring(node) or "", set())
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    if fields:
        source = (line for item in fields for line in lines[item.lineno - 1 : item.end_lineno])
        yield "```python\n" + inspect.cleandoc("\n".join(["", *source])) + "\n```"
    for item in node.body:
        if isinstance(item, Function) and not item.name.startswith("_") and ast.get_docstring(item):
            yield f"### {name}.{item.name} {{: #{name.lower()}-{item.name} }}"
            yield _function(item)


def _function(node: Function) -> str:
    parameters = {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
    return f"```python\n{_signature(node)}\n```\n\n{_prose(ast.get_docstring(node) or '', parameters)}"


def _signature(node: Function) -> str:
    """Return name(arguments) -> result; one argument per line if it would be long."""
    arguments = node.args
    required = [None] * (len(arguments.args) - len(arguments.defaults))
    parts = [_argument(*pair) for pair in zip(arguments.args, [*required, *arguments.defaults], strict=True)]
    parts = [part for part in parts if part not in ("self", "cls")]
    if arguments.vararg is not None or arguments.kwonlyargs:
        parts.append("*" + (ast.unparse(arguments.vararg) if arguments.vararg else ""))
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parts += [_argument(*pair) for pair in pairs]
    if arguments.kwarg is not None:
        parts.append("**" + ast.unparse(arguments.kwarg))
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({', '.join(parts)}){result}"
    if len(line) <= 80:
        return line
    return "\n".join([f"{node.name}(", *(f"    {part}," for part in parts), f"){result}"])


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    text = ast.unparse(argument)
    if default is None:
        return text
    return f"{text}{' = ' if argument.annotation else '='}{ast.unparse(default)}"


def _prose(text: str, parameters: set[str]) -> str:
    """Return a docstring in which a paragraph `name: what it does. other: ...` is a list."""
    parts = []
    text = re.sub(r"docs/([\w/-]+)\.md", r"[\1](../../\1.md)", text)
    for part in re.split(r"\n\s*\n", text):
        starts = [
            mark.start()
            for mark in re.finditer(r"(?:^|(?<=[.;] )|(?<=[.;]\n))(\w+(?:, (?:and )?\w+)*): ", part)
            if set(re.findall(r"\w+", mark[1])) - {"and"} <= parameters
        ]
        if not starts or starts[0]:
            parts.append(part)
            continue
        items = [part[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]
        parts.append("\n".join(_item(" ".join(item.split())) for item in items))
    return "\n\n".join(parts)


def _item(text: str) -> str:
    names, _, rest = text.partition(": ")
    return f"- {re.sub(r'[a-z_0-9]+', lambda name: f'`{name[0]}`', names)}: {rest}"
