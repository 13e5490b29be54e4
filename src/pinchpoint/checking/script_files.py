"""`script_files`: a script and the modules beside it that it imports, found without running anything."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from pinchpoint.core.targets import Target
from pinchpoint.rules.engine.reading import CannotRead, read_file

# torch and JAX, and packages whose users need not import them themselves
_FRAMEWORKS = {
    "torch",
    "torchvision",
    "torch_geometric",
    "pytorch_lightning",
    "lightning",
    "transformers",
    "accelerate",
    "diffusers",
    "timm",
    "jax",
    "flax",
    "equinox",
    "optax",
}


def script_files(script: Target) -> tuple[tuple[str, ...], bool]:
    """The files to scan, the script first, and whether any of them imports torch, JAX or what needs them."""
    root = Path.cwd() if script.name else Path(script.where).parent
    package = script.name.rpartition(".")[0] if script.name else ""
    files: dict[str, None] = {}
    waiting = [(script.where, package)]
    uses_framework = False
    while waiting:
        file, package = waiting.pop()
        if file in files:
            continue
        files[file] = None
        try:
            tree = read_file(file).tree
        except CannotRead:  # the scan names it
            continue
        for name in _imported(tree, package):
            uses_framework |= name.partition(".")[0] in _FRAMEWORKS
            waiting += _module_files(root, name)
    return tuple(files), uses_framework


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The dotted names of all imports; a name that is imported from a module may be a module as well."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if package else []
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" if module else alias.name for alias in node.names)


def _module_files(root: Path, name: str) -> Iterator[tuple[str, str]]:
    """The files below a folder that the import of a dotted name runs, each with its package."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        path = root.joinpath(*parts[:count])
        package = ".".join(parts[:count])
        if (path / "__init__.py").is_file():
            yield os.path.realpath(path / "__init__.py"), package
        elif path.with_suffix(".py").is_file():
            yield os.path.realpath(path.with_suffix(".py")), package.rpartition(".")[0]
        elif not path.is_dir():
            return
