"""Layers: imports point down and form no cycles, frameworks stay where they belong, modules stay small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.contracts.source import PACKAGE, Module, read_module

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


def faults(module: Module) -> list[str]:
    """Why a module may not import what it does."""
    place = module.place
    layer = place.split("/")[0] if "/" in place else ""
    matches = []
    for name in module.imports:
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


def test_imports_point_down_and_frameworks_stay_home(package: list[Module]) -> None:
    assert [fault for module in package for fault in faults(module)] == []


def import_graph(package: list[Module]) -> dict[str, set[str]]:
    """The modules that each module imports, also late."""
    places = {}
    for module in package:
        parts = Path(module.place).with_suffix("").parts
        name = ".".join(("pinchpoint", *(parts[:-1] if parts[-1] == "__init__" else parts)))
        places[name] = module.place
    graph: dict[str, set[str]] = {}
    for module in package:
        graph[module.place] = set()
        for name in module.imports:
            while name and name not in places:
                name = name.rpartition(".")[0]  # `from module import name` ends in what the module holds
            if name and places[name] != module.place:
                graph[module.place].add(places[name])
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


def test_no_two_modules_import_each_other(package: list[Module]) -> None:
    assert cycles(import_graph(package)) == []


def test_the_check_sees_a_cycle_through_a_third_module_and_a_late_import() -> None:
    sources = {
        "core/a.py": "from pinchpoint.core import b",
        "core/b.py": "def f():\n    from .c import thing",
        "core/c.py": "import pinchpoint.core.a",
        "core/d.py": "from pinchpoint.core.a import name",
    }
    package = [read_module(text, place) for place, text in sources.items()]
    assert cycles(import_graph(package)) == [["core/a.py", "core/b.py", "core/c.py"]]


def test_the_toolkit_names_no_system(package: list[Module]) -> None:
    names = "|".join(path.name for path in (PACKAGE / "systems").iterdir() if (path / "cli.py").exists())
    offenders = [
        f"{module.place}:{number}"
        for module in package
        if module.place.split("/")[0] not in ("systems", "workloads")
        for number, line in enumerate(module.text.splitlines(), 1)
        if re.search(rf"systems[./]({names})\b", line)
    ]
    assert offenders == []


def test_every_folder_of_the_package_is_a_known_layer() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
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
    assert faults(read_module(source, place))


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
    assert faults(read_module(source, place)) == []


def test_every_module_says_what_it_provides_and_stays_readable(package: list[Module]) -> None:
    offenders = []
    for module in package:
        if not module.has_docstring:
            offenders.append(f"{module.place} has no docstring that says what it provides")
        lines = sum(bool(line.strip()) for line in module.text.splitlines())
        if lines > 420:
            offenders.append(f"{module.place} has {lines} lines, and at most 420 are allowed: split it")
    assert offenders == []


def test_no_error_is_caught_broadly_and_forgotten(package: list[Module]) -> None:
    assert [f"{module.place}:{line}" for module in package for line in module.silent_handlers] == []


@pytest.mark.parametrize("handler", ["except Exception:\n    pass", "except:\n    pass"])
def test_the_check_refuses_a_broad_handler_that_does_nothing(handler: str) -> None:
    assert read_module(f"try:\n    f()\n{handler}").silent_handlers == (3,)
