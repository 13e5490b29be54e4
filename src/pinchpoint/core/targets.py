"""Targets: from what the user typed to something that can be built.

A target is a shipped workload's name, `file.py:NAME` or `package.module:NAME` of a user's own,
or a script. Shipped workloads are found by walking `pinchpoint.workloads` and `pinchpoint.systems`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pinchpoint.core.errors import BadInput, Missing, TargetFailed
from pinchpoint.core.workload import Workload

Factory = Callable[..., Any]


@dataclass(frozen=True)
class Target:
    """A target that was found but not yet imported. `text` is what the user typed."""

    text: str
    kind: Literal["workload", "object", "script"]
    where: str  # workload name, file path or module name
    name: str = ""  # the object inside `where`


def shipped() -> dict[str, Workload]:
    """Every workload that ships with pinchpoint, by name. Imports no framework."""
    workloads: dict[str, Workload] = {}
    for folder in ("pinchpoint.workloads", "pinchpoint.systems"):
        package = importlib.import_module(folder)
        for info in pkgutil.iter_modules(package.__path__):
            workload = getattr(importlib.import_module(f"{folder}.{info.name}"), "WORKLOAD", None)
            if isinstance(workload, Workload):
                workloads[workload.name] = workload
    return workloads


def find(text: str | Workload | Factory) -> Target:
    """Say what kind of target this is, without importing it; a live object becomes its address."""
    if not isinstance(text, str):
        return _address_of(text)
    where, colon, name = text.rpartition(":")
    if colon and name.isidentifier():
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise BadInput(f"no file {where}", hint="give file.py:NAME of a file that exists")
            return Target(text, "object", str(Path(where).resolve()), name)
        return Target(text, "object", where, name)
    if text.endswith(".py"):
        if not Path(text).is_file():
            raise BadInput(f"no file {text}", hint="give the path of a script that exists")
        return Target(text, "script", str(Path(text).resolve()))
    known = shipped()
    if text in known:
        return Target(text, "workload", text)
    raise BadInput(
        f"unknown target {text!r}",
        hint=f"use a shipped workload ({', '.join(known)}), file.py:NAME, or a script.py",
    )


def load(target: Target) -> Workload | Factory:
    """Import a workload or factory. The user's own import errors come back as `TargetFailed`."""
    if target.kind == "workload":
        return shipped()[target.where]
    if target.kind == "script":
        raise BadInput(
            f"{target.text} is a script",
            hint="give file.py:NAME of a factory, or use predict, which takes scripts",
        )
    try:
        module = (
            _module_from_file(target.where)
            if target.where.endswith(".py")
            else importlib.import_module(target.where)
        )
    except ModuleNotFoundError as error:
        if error.name and target.where.split(".")[0] == error.name:
            raise BadInput(
                f"no module {target.where}", hint="give package.module:NAME that imports from here"
            ) from error
        raise Missing(
            f"{target.text} needs the package {error.name}", hint=f"pip install {error.name}"
        ) from error
    except Exception as error:
        raise failed(target.text, error, "importing") from error
    try:
        found = getattr(module, target.name)
    except AttributeError as error:
        own = {
            name: value
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        }
        names = [name for name, value in own.items() if callable(value) and not name.startswith("_")]
        raise BadInput(
            f"{target.where} has no {target.name!r}",
            hint=f"it defines: {', '.join(names) or 'nothing callable'}",
        ) from error
    if not isinstance(found, Workload) and not callable(found):
        raise BadInput(
            f"{target.text} is a {type(found).__name__}",
            hint="name a Workload, or a function step_of(size, device) that returns a step",
        )
    return found


def framework_of(loaded: Any) -> str:
    """The framework of a workload, or the one a factory's own module has imported."""
    if isinstance(loaded, Workload):
        return loaded.framework
    return _framework(
        {
            (
                value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
            ).partition(".")[0]
            for value in getattr(loaded, "__globals__", {}).values()
        }
    )


def likely_framework(target: Target) -> str:
    """The same before anything is imported: a shipped workload's word, else what the target's source imports."""
    if target.kind == "workload":
        return shipped()[target.where].framework
    source = target.where if target.where.endswith(".py") else _source_of_module(target.where)
    if source is None:
        return "torch"
    text = Path(source).read_text(encoding="utf-8", errors="replace")
    return _framework(set(re.findall(r"^\s*(?:import|from)\s+(\w+)", text, re.MULTILINE)))


def _framework(names: set[str]) -> str:
    return (
        "jax" if names & {"jax", "jaxlib", "flax", "equinox", "haiku"} and "torch" not in names else "torch"
    )


def _source_of_module(name: str) -> str | None:
    """Where a module's source lies, without importing its packages as `find_spec` of importlib.util would."""
    path: Any = None
    spec = None
    for at in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:at]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def failed(text: str, error: BaseException, doing: str) -> TargetFailed:
    """The user's code raised: say what, and at which of their lines."""
    where = user_line(error)
    at = f" at {where}" if where else ""
    return TargetFailed(
        f"{doing} {text} raised {type(error).__name__}{at}: {_one_line(error)}",
        hint="fix the target; --debug shows the whole traceback",
    )


def user_line(error: BaseException) -> str:
    """`file:line` of the innermost frame outside pinchpoint and installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).resolve().parents[1])
    mine = [
        f
        for f in frames
        if not f.filename.startswith((ours, "<"))
        and "site-packages" not in f.filename
        and "/lib/python3" not in f.filename
    ]
    return f"{mine[-1].filename}:{mine[-1].lineno}" if mine else ""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 300 else text[:297] + "..."


def _module_from_file(path: str) -> Any:
    """Import a file under its stem, with its folder on the path, as `python file.py` would."""
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = Path(path).stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != path:
        # A user's file may share its stem with an installed module; it must not replace it.
        name = f"_pinchpoint_target_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _address_of(thing: Any) -> Target:
    """Where a live workload or function can be imported from again, in a fresh process."""
    if isinstance(thing, Workload):
        if shipped().get(thing.name) is thing:
            return Target(thing.name, "workload", thing.name)
        for module in list(sys.modules.values()):
            for name, value in list(vars(module).items()) if inspect.ismodule(module) else ():
                if value is thing and (file := getattr(module, "__file__", None)):
                    return Target(f"{Path(file).name}:{name}", "object", str(Path(file).resolve()), name)
    elif callable(thing) and "<" not in getattr(thing, "__qualname__", "<") and "." not in thing.__qualname__:
        file = inspect.getsourcefile(thing)
        if file is not None and Path(file).is_file():
            return Target(
                f"{Path(file).name}:{thing.__name__}", "object", str(Path(file).resolve()), thing.__name__
            )
    raise BadInput(
        f"{thing!r} cannot be imported by a fresh process",
        hint="put it at the top level of a file (in a notebook: %%writefile mine.py) and pass 'mine.py:NAME'",
    )
