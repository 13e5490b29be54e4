"""The layers hold: imports point down, frameworks stay where they belong, modules stay small."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pinchpoint

ROOT = Path(pinchpoint.__file__).parent
# Lowest first; names in one tuple are neighbours that must not know each other.
ROWS = (
    ("core",),
    ("console",),
    ("backends", "rules", "reporting"),
    ("forecasting",),
    ("planning", "streaming", "studies", "profiling"),
    ("kit",),
    ("verification",),
    ("workloads",),
    ("systems", "checking"),
    ("cli",),
)
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}
FRAMEWORKS = {
    "torch",
    "jax",
    "jaxlib",
    "e3nn",
    "optax",
    "folx",
    "flax",
    "equinox",
    "torch_geometric",
    "pytorch_lightning",
    "transformers",
}
HOMES_OF_FRAMEWORKS = {"backends", "kit", "systems", "workloads"}
# Discovery walks the shipped workloads by name, so that adding one edits no registry.
WALKS = {("core/targets.py", "pinchpoint.workloads"), ("core/targets.py", "pinchpoint.systems")}


def modules() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Dotted names of everything imported anywhere in the tree, late imports and import_module("...") too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    package.split(".")[: len(package.split(".")) - node.level + 1] + ([base] if base else [])
                )
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Call)
            and getattr(node.func, "attr", getattr(node.func, "id", "")) == "import_module"
        ):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    yield name


def faults(source: str, place: str) -> list[str]:
    """Why a module at `place` (a path under the package) may not import what it does."""
    layer = place.split("/")[0] if "/" in place else ""
    package = ".".join(("pinchpoint", *Path(place).parent.parts))
    found = []
    for name in imports(ast.parse(source), package):
        parts = name.split(".")
        if parts[0] in FRAMEWORKS and layer not in HOMES_OF_FRAMEWORKS:
            found.append(f"{place} imports {name}")
        if parts[0] != "pinchpoint" or (place, name) in WALKS or not layer:
            continue
        other = parts[1] if len(parts) > 1 else ""
        if other == layer:
            continue
        if other not in RANK:
            if layer != "cli":
                found.append(f"{place} imports the package's front door ({name})")
        elif RANK[other] >= RANK[layer]:
            found.append(f"{place} imports {name}, which is not below it")
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_and_frameworks_stay_home(path: Path) -> None:
    place = path.relative_to(ROOT).as_posix()
    assert faults(path.read_text(encoding="utf-8"), place) == []


def test_every_folder_of_the_package_is_a_known_layer() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(RANK)


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("core/growth_law.py", "from pinchpoint.forecasting.cards import card"),
        ("core/growth_law.py", "def f():\n    import pinchpoint.studies.study"),
        ("core/growth_law.py", "from importlib import import_module\nimport_module('pinchpoint.workloads')"),
        ("forecasting/predict.py", "from pinchpoint.studies import timing"),
        ("forecasting/predict.py", "def f():\n    import torch"),
        ("forecasting/predict.py", "import torch.nn as nn"),
        ("reporting/report.py", "from pinchpoint.backends.base import backend"),
        ("planning/plan.py", "from pinchpoint.verification.verify import verify"),
        ("planning/plan.py", "from ..verification.verify import verify"),
        ("planning/plan.py", "from pinchpoint import verify"),
        ("kit/chunk.py", "from pinchpoint.verification import compare"),
        ("verification/verify.py", "from pinchpoint.console import printing as console"),
        ("cli/predict.py", "import torch"),
    ],
)
def test_the_check_refuses_an_import_that_points_up(place: str, source: str) -> None:
    assert faults(source, place)


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("backends/torch/real.py", "import torch\nfrom pinchpoint.core.errors import BadInput"),
        ("backends/torch/real.py", "from . import compat"),
        (
            "verification/verify.py",
            "from pinchpoint.kit.chunk import chunked\nfrom pinchpoint.studies import timing",
        ),
        ("cli/predict.py", "from pinchpoint import predict"),
        ("core/targets.py", "import importlib\nimportlib.import_module('pinchpoint.workloads')"),
    ],
)
def test_the_check_allows_an_import_that_points_down(place: str, source: str) -> None:
    assert faults(source, place) == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_gives_and_stays_readable(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text)), "the first thing in a module is what it gives"
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) <= 420, "one idea a module: split it"


def swallows(handler: ast.ExceptHandler) -> bool:
    """Catches everything and carries on without a word."""
    broad = handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )
    return broad and all(isinstance(step, ast.Pass | ast.Continue) for step in handler.body)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_error_is_caught_broadly_and_forgotten(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and swallows(node)]
    assert found == []
