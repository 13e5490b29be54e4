"""Layers: imports point down and form no cycles, frameworks stay where they belong, modules stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pinchpoint

ROOT = Path(pinchpoint.__file__).parent
# Lowest first. Names in one row are neighbours that must not import each other; some may not exist yet.
ROWS = (
    ("core",),
    ("console",),
    ("backends", "rules", "reporting"),
    ("forecasting",),
    ("planning", "streaming", "studies", "profiling"),
    ("kit",),
    ("verification",),
    ("workloads", "checking", "demo"),
    ("systems",),
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
    matches = []
    for name in imports(ast.parse(source), package):
        parts = name.split(".")
        if parts[0] in FRAMEWORKS and layer not in HOMES_OF_FRAMEWORKS:
            matches.append(f"{place} imports {name}")
        if parts[0] != "pinchpoint" or (place, name) in WALKS or not layer:
            continue
        other = parts[1] if len(parts) > 1 else ""
        if other == layer:
            continue
        if other not in RANK:
            if layer != "cli":
                matches.append(f"{place} imports the package's front door ({name})")
        elif RANK[other] >= RANK[layer]:
            matches.append(f"{place} imports {name}, which is not below it")
    return matches


def test_imports_point_down_and_frameworks_stay_home() -> None:
    offenders = [
        fault
        for path in modules()
        for fault in faults(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert offenders == []


def import_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports, also late. sources: text by path under the package."""
    packages = {}
    for place in sources:
        parts = Path(place).with_suffix("").parts
        packages[place] = ".".join(("pinchpoint", *(parts[:-1] if parts[-1] == "__init__" else parts)))
    places = {name: place for place, name in packages.items()}
    graph: dict[str, set[str]] = {}
    for place, source in sources.items():
        graph[place] = set()
        package = ".".join(("pinchpoint", *Path(place).parent.parts))
        for name in imports(ast.parse(source), package):
            module = name
            while module and module not in places:
                module = module.rpartition(".")[0]  # `from module import name` ends in what the module holds
            if module and places[module] != place:
                graph[place].add(places[module])
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""

    def reachable(start: str) -> set[str]:
        names, waiting = set(), [start]
        while waiting:
            new = graph[waiting.pop()] - names
            names |= new
            waiting.extend(new)
        return names

    reach = {name: reachable(name) for name in graph}
    groups = {
        tuple(sorted(other for other in graph if other in reach[name] and name in reach[other]))
        for name in graph
        if name in reach[name]
    }
    return sorted(list(group) for group in groups)


def test_no_two_modules_import_each_other() -> None:
    graph = import_graph({p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in modules()})
    assert cycles(graph) == []


def test_the_check_sees_a_cycle_through_a_third_module_and_a_late_import() -> None:
    sources = {
        "core/a.py": "from pinchpoint.core import b",
        "core/b.py": "def f():\n    from .c import thing",
        "core/c.py": "import pinchpoint.core.a",
        "core/d.py": "from pinchpoint.core.a import name",
    }
    assert cycles(import_graph(sources)) == [["core/a.py", "core/b.py", "core/c.py"]]


def test_the_toolkit_names_no_system() -> None:
    names = "|".join(path.name for path in (ROOT / "systems").iterdir() if (path / "cli.py").exists())
    offenders = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in modules()
        if path.relative_to(ROOT).parts[0] not in ("systems", "workloads")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(rf"systems[./]({names})\b", line)
    ]
    assert offenders == []


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
        ("core/growth_law.py", "from pinchpoint.console import printing as console"),
        ("workloads/field.py", "from pinchpoint.systems.common import training"),
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


def test_every_module_says_what_it_provides_and_stays_readable() -> None:
    offenders = []
    for path in modules():
        text = path.read_text(encoding="utf-8")
        if not ast.get_docstring(ast.parse(text)):
            offenders.append(f"{path.relative_to(ROOT)} has no docstring that says what it provides")
        lines = sum(bool(line.strip()) for line in text.splitlines())
        if lines > 420:
            offenders.append(
                f"{path.relative_to(ROOT)} has {lines} lines, and at most 420 are allowed: split it"
            )
    assert offenders == []


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches everything and carries on silently."""
    broad = handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )
    return broad and all(isinstance(step, ast.Pass | ast.Continue) for step in handler.body)


def test_no_error_is_caught_broadly_and_forgotten() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    assert offenders == []


@pytest.mark.parametrize("handler", ["except Exception:\n    pass", "except:\n    pass"])
def test_the_check_refuses_a_broad_handler_that_does_nothing(handler: str) -> None:
    tree = ast.parse(f"try:\n    f()\n{handler}")
    assert [swallows(node) for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)] == [True]
