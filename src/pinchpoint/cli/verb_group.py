"""The verbs: found without importing them, and imported when one is used.

`pinchpoint --help` and the start of every command would otherwise import and convert the options of all verbs
and systems, which takes longer than everything else together.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperGroup

import pinchpoint.cli
import pinchpoint.systems

# The first line of the docstring of `command`, and of the module.
_COMMAND = re.compile(r'^def command\(.*?^    """(.*?)(?:"""|$)', re.MULTILINE | re.DOTALL)
_MODULE = re.compile(r'"""(.*?)(?:"""|$)', re.MULTILINE)


@dataclass(frozen=True)
class Verb:
    """A verb of the command line, or the commands of a system. load: imports its module."""

    load: Callable[[], ModuleType]
    short_help: str


def find_verbs() -> dict[str, Verb]:
    """Return the modules of `cli` with a `command` or an `app`, and the `cli` of every system, by name."""
    (folder,), (systems,) = pinchpoint.cli.__path__, pinchpoint.systems.__path__
    paths = {
        info.name: (f"{pinchpoint.cli.__name__}.{info.name}", Path(folder, f"{info.name}.py"))
        for info in pkgutil.iter_modules([folder])
    }
    for info in pkgutil.iter_modules([systems]):
        path = Path(systems, info.name, "cli.py")
        if path.is_file():
            paths[info.name] = (f"{pinchpoint.systems.__name__}.{info.name}.cli", path)
    verbs = {}
    for name, (module, path) in paths.items():
        text = path.read_text(encoding="utf-8")
        line = _COMMAND.search(text) or (_MODULE.match(text) if re.search(r"^app = ", text, re.M) else None)
        if line is not None:
            verbs[name] = Verb(lambda module=module: import_module(module), line[1])
    return verbs


class VerbGroup(TyperGroup):
    """A group whose commands are made when they are looked up. Subclasses set `verbs`."""

    verbs: Mapping[str, Verb] = {}

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.commands: Any = _Commands(self.verbs)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.short_help) for name, verb in self.verbs.items()])


class _Commands(Mapping[str, Any]):
    """The commands by name, each made once."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._commands: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._commands:
            self._commands[name] = _command_of(name, self._verbs[name])
        return self._commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)


def _command_of(name: str, verb: Verb) -> Any:
    module = verb.load()
    shell = typer.Typer(rich_markup_mode=None, add_completion=False)
    if hasattr(module, "app"):
        about = inspect.getdoc(module) or ""
        shell.add_typer(module.app, name=name, help=about, short_help=verb.short_help)
        return typer.main.get_group(shell).commands[name]
    text = inspect.getdoc(module.command) or inspect.getdoc(module) or ""
    shell.command(name, help=text, short_help=verb.short_help)(module.command)
    return typer.main.get_command(shell)
