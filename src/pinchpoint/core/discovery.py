"""Discovery of workloads: the built-in ones by walking two folders, those of other packages by entry points.

A built-in workload is the `WORKLOAD` of the package `pinchpoint.workloads.NAME` or `pinchpoint.systems.NAME`.
Another package adds one with an entry point of the group `pinchpoint.workloads`:

    [project.entry-points."pinchpoint.workloads"]
    mine = "my_package.workload:WORKLOAD"

Only the workload that is named is imported. No framework is imported here.
"""

from __future__ import annotations

import importlib
import pkgutil
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from types import ModuleType

from pinchpoint.core.errors import BadInput, Missing, PinchpointError, TargetFailed
from pinchpoint.core.workload import Workload

GROUP = "pinchpoint.workloads"
_FOLDERS = ("pinchpoint.workloads", "pinchpoint.systems")


def builtin_names() -> tuple[str, ...]:
    """Names of the workloads that are part of pinchpoint."""
    return tuple(name for name, folder in _packages() if _workload_in(f"{folder}.{name}") is not None)


def added_names() -> tuple[str, ...]:
    """Names of the workloads that other installed packages add; nothing is imported."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def is_workload(name: str) -> bool:
    """Whether a workload has this name. Imports at most a built-in package of that name."""
    return _builtin(name) is not None or name in added_names()


def entry_module(name: str) -> str | None:
    """The module of a workload that another package adds; None for a built-in one."""
    if _builtin(name) is not None:
        return None
    return next((entry.module for entry in entry_points(group=GROUP) if entry.name == name), None)


def load_workload(name: str) -> Workload:
    """Import the workload of this name, and no other."""
    workload = _builtin(name)
    if workload is not None:
        return workload
    entries = [entry for entry in entry_points(group=GROUP) if entry.name == name]
    if not entries:
        names = ", ".join((*builtin_names(), *added_names()))
        raise BadInput(f"There is no workload named {name!r}.", hint=f"Use one of: {names}.")
    if len(entries) > 1:
        packages = " and ".join(_package_of(entry) for entry in entries)
        raise BadInput(
            f"The workload {name!r} is defined by more than one package: {packages}.",
            hint="Uninstall all but one of them.",
        )
    return _load_entry(entries[0])


def find_workloads() -> tuple[dict[str, Workload], dict[str, PinchpointError]]:
    """All workloads by name, built-in ones first, and the error of each one that cannot be loaded."""
    workloads = {name: load_workload(name) for name in builtin_names()}
    broken: dict[str, PinchpointError] = {}
    for name in added_names():
        if name in workloads:
            continue
        try:
            workloads[name] = load_workload(name)
        except PinchpointError as error:
            broken[name] = error
    return workloads, broken


def demo_modules() -> list[ModuleType]:
    """The module `demo.py` of every built-in workload that has one; see `pinchpoint.core.demo`."""
    names = [f"{folder}.{name}.demo" for name, folder in _packages()]
    return [importlib.import_module(name) for name in names if _spec(name) is not None]


def _packages() -> list[tuple[str, str]]:
    """Name and parent of every package in the folders that contain built-in workloads."""
    return [
        (info.name, folder)
        for folder in _FOLDERS
        for info in pkgutil.iter_modules(importlib.import_module(folder).__path__)
    ]


def _builtin(name: str) -> Workload | None:
    parents = [folder for other, folder in _packages() if other == name]
    return _workload_in(f"{parents[0]}.{name}") if parents else None


def _workload_in(module: str) -> Workload | None:
    workload = getattr(importlib.import_module(module), "WORKLOAD", None)
    return workload if isinstance(workload, Workload) else None


def _spec(module: str) -> ModuleSpec | None:
    try:
        return find_spec(module)
    except ModuleNotFoundError:  # the parent is a module, not a package
        return None


def _package_of(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module.partition(".")[0]


def _load_entry(entry: EntryPoint) -> Workload:
    package = _package_of(entry)
    what = f"The workload {entry.name!r} of the package {package}"
    try:
        workload = entry.load()
    except ModuleNotFoundError as error:
        raise Missing(
            f"{what} cannot be loaded: the module {error.name} is not installed.",
            hint=f"Install {error.name}, or uninstall {package}.",
        ) from error
    except Exception as error:
        text = " ".join(str(error).split())
        raise TargetFailed(
            f"{what} cannot be loaded: importing {entry.value} raised {type(error).__name__}: {text}",
            hint=f"Update or uninstall {package}, or report this to its authors.",
        ) from error
    if not isinstance(workload, Workload):
        raise BadInput(
            f"{what} cannot be used: {entry.value} is a {type(workload).__name__}, not a Workload.",
            hint=f"Update or uninstall {package}, or report this to its authors.",
        )
    if workload.name != entry.name:
        raise BadInput(
            f"{what} cannot be used: its own name is {workload.name!r}.",
            hint=f"Give the entry point of {package} the same name as its workload.",
        )
    return workload
