"""Targets: from what the user typed to something that can be built.

A target is the name of a workload, `file.py:NAME` or `package.module:NAME` of a user's own, or a script:
`train.py`, the notebook `train.ipynb`, or `-m package.train` for what `python -m package.train` runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pinchpoint.core import discovery
from pinchpoint.core.errors import BadInput, Missing, PinchpointError, TargetFailed
from pinchpoint.core.files import json_fault, parse_json
from pinchpoint.core.workload import Workload

Factory = Callable[..., Any]
PINCHPOINT = str(Path(__file__).parents[1])
_LAUNCHERS = ("torchrun", "accelerate", "accelerate-launch", "deepspeed")
SHIPPED_TARGETS = (f"{PINCHPOINT}/workloads/", f"{PINCHPOINT}/systems/")


@dataclass(frozen=True)
class Target:
    """A target that exists but is not imported yet.

    text: what the user typed. where: the name of a workload, the path of a file, or the name of a module.
    name: the object inside `where`; for a script that is run as a module, the name of the module.
    """

    text: str
    kind: Literal["workload", "object", "script"]
    where: str
    name: str = ""


def find(text: str | Workload | Factory) -> Target:
    """Determine the kind of a target without importing it; a live object is replaced by its address."""
    if not isinstance(text, str):
        return _address_of(text)
    if text.startswith("-m "):
        return _module_target(text)
    where, colon, name = text.rpartition(":")
    if colon and name.isidentifier():
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise BadInput(
                    f"The file {where} does not exist.", hint="Give file.py:NAME of a file that exists."
                )
            return Target(text, "object", str(Path(where).resolve()), name)
        return Target(text, "object", where, name)
    if text.endswith((".py", ".ipynb")):
        if not Path(text).is_file():
            raise BadInput(f"The file {text} does not exist.", hint="Give the path of a script that exists.")
        return Target(text, "script", str(Path(text).resolve()))
    if discovery.is_workload(text):
        return Target(text, "workload", text)
    if text.partition(" ")[0] in _LAUNCHERS:
        raise BadInput(
            f"{text!r} is the command of a launcher, which only predict and plan take.",
            hint="Give the script that it starts.",
        )
    names = ", ".join((*discovery.builtin_names(), *discovery.added_names()))
    raise BadInput(
        f"There is no target {text!r}.",
        hint=f"Use a workload ({names}), file.py:NAME, a script.py, a notebook.ipynb, or -m and a module.",
    )


def _module_target(text: str) -> Target:
    name = text.removeprefix("-m ").strip()
    path = [os.getcwd(), *sys.path]
    source = _source_of_module(name, path)
    if source is not None and Path(source).name == "__init__.py":
        name, source = f"{name}.__main__", _source_of_module(f"{name}.__main__", path)
    if source is None:
        raise BadInput(
            f"There is no module {name} that python -m could run.",
            hint="Give the name of a module that can be imported from this folder, such as package.train.",
        )
    return Target(text, "script", str(Path(source).resolve()), name)


def notebook_cells(path: str) -> list[str]:
    """The sources of a notebook's code cells."""
    try:
        notebook = parse_json(Path(path).read_text(encoding="utf-8"))
        cells = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f"{path} is not a notebook: {json_fault(error)}.", hint="Give the path of a Jupyter notebook."
        ) from error
    if language != "python":
        raise BadInput(f"The language of {path} is {language}.", hint="Give a notebook in Python.")
    return [source if isinstance(source, str) else "".join(source) for source in cells]


def load(target: Target) -> Workload | Factory:
    """Import a workload or factory. Exceptions raised by the user's own module become `TargetFailed`."""
    if target.kind == "workload":
        return discovery.load_workload(target.where)
    if target.kind == "script":
        raise BadInput(
            f"{target.text} is a script, but this command does not accept scripts.",
            hint="Give file.py:NAME of a factory, or use predict, which takes scripts.",
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
                f"There is no module {target.where}.",
                hint="Give package.module:NAME of a module that can be imported from this folder.",
            ) from error
        raise Missing(
            f"{target.text} needs the package {error.name}, which is not installed.",
            hint=f"Run pip install {error.name}.",
        ) from error
    except Exception as error:
        raise explain_failure(target.text, error, "importing") from error
    try:
        thing = getattr(module, target.name)
    except AttributeError as error:
        own = {
            name: value
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        }
        names = [name for name, value in own.items() if callable(value) and not name.startswith("_")]
        raise BadInput(
            f"{target.where} has no {target.name!r}.",
            hint=f"Use one of the names it defines: {', '.join(names)}."
            if names
            else "Define a function step_of(size, device) in it.",
        ) from error
    if not isinstance(thing, Workload) and not callable(thing):
        raise BadInput(
            f"{target.text} is a {type(thing).__name__}, which is neither a Workload nor a function.",
            hint="Name a Workload, or a function step_of(size, device) that returns a step.",
        )
    return thing


def framework_of(thing: Any) -> str:
    """The framework of a workload, or the one that the module of a factory imports."""
    if isinstance(thing, Workload):
        return thing.framework
    return _framework(
        {
            (
                value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
            ).partition(".")[0]
            for value in getattr(thing, "__globals__", {}).values()
        }
    )


def likely_framework(target: Target) -> str:
    """Guess the framework of a target without importing it, from its declaration or its source.

    A built-in workload declares its framework. A workload of another package is not imported for this,
    because its package may import a framework.
    """
    module = target.where
    if target.kind == "workload":
        entry = discovery.entry_module(target.where)
        if entry is None:
            return discovery.load_workload(target.where).framework
        module = entry
    source = module if module.endswith((".py", ".ipynb")) else _source_of_module(module)
    if source is None:
        return "torch"
    if source.endswith(".ipynb"):
        text = "\n".join(notebook_cells(source))
    else:
        text = Path(source).read_text(encoding="utf-8", errors="replace")
    names = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", text, re.MULTILINE))
    if target.kind == "script" and not re.search(
        r"torch\.(?:nn|optim|cuda)|from torch import nn|\.backward\(", text
    ):
        names.discard("torch")  # a JAX script may load its data with torch
        return _framework(names or {"torch"})
    return _framework(names)


def _framework(names: set[str]) -> str:
    return (
        "jax" if names & {"jax", "jaxlib", "flax", "equinox", "haiku"} and "torch" not in names else "torch"
    )


def _source_of_module(name: str, path: Any = None) -> str | None:
    """The path of a module's source, without importing its packages as `importlib.util.find_spec` would.

    path: the folders to search, by default those of Python
    """
    spec = None
    for at in range(1, name.count(".") + 2):
        spec = PathFinder.find_spec(".".join(name.split(".")[:at]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec.origin if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def explain_failure(text: str, error: BaseException, doing: str) -> TargetFailed:
    """The error for an exception in the user's code: what it raised, and at which of their lines."""
    where = user_line(error)
    at = f" at {where}" if where else ""
    what = f"{doing} {text} raised {type(error).__name__}{at}: {_one_line(error)}"
    return TargetFailed(
        what[:1].upper() + what[1:],
        hint="Fix the target; run with --debug to see the whole traceback.",
    )


def user_line(error: BaseException) -> str:
    """`file:line` of the innermost frame outside pinchpoint and installed packages, or ""."""
    frame = user_frame(error)
    return "" if frame is None else f"{frame[0]}:{frame[1]}"


def user_frame(error: BaseException) -> tuple[str, int] | None:
    """File and line of the innermost frame outside pinchpoint and installed packages.

    The workloads and systems that come with pinchpoint count as the user's code.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        is_ours = file.startswith(PINCHPOINT) and not file.startswith(SHIPPED_TARGETS)
        if not is_ours and not file.startswith("<") and not _is_library(file):
            return file, frame.lineno or 0
    return None


def _is_library(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file or "/lib/python3" in file


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) < 300 else text[:297] + "..."


def _module_from_file(path: str) -> Any:
    """Import a file by its stem, with its folder on the path, as `python file.py` does."""
    folder = str(Path(path).parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = Path(path).stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != path:
        # A user's file may have the name of an installed module, which it must not replace.
        name = f"_pinchpoint_target_{name}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _address_of(thing: Any) -> Target:
    """The address from which a fresh process can import a live workload or function."""
    if isinstance(thing, Workload):
        if _is_named(thing):
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
        f"{thing!r} cannot be imported by a fresh process.",
        hint="Put it at the top level of a file (%%writefile mine.py in a notebook) and pass 'mine.py:NAME'.",
    )


def _is_named(workload: Workload) -> bool:
    """Whether the name of a workload leads to this very object."""
    try:
        return discovery.is_workload(workload.name) and discovery.load_workload(workload.name) is workload
    except PinchpointError:  # a broken workload of another package has this name
        return False
