"""Time a system on this machine: baseline and tuned variants in turn.

Without a system, the systems that can be timed are listed.
"""

# A system can be timed if it has a module `bench` with a function `command`, whose parameters are the
# options. Such modules import a framework, so one is imported only when its system is named.

from __future__ import annotations

import ast
import pkgutil
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

import pinchpoint.systems

_HELP = {"help_option_names": ["-h", "--help"]}


def benches() -> dict[str, str]:
    """Return the systems that can be timed, each with the first line of its bench module's docstring.

    Imports the package of each system, but no bench module.
    """
    lines = {}
    for info in pkgutil.iter_modules(pinchpoint.systems.__path__):
        spec = find_spec(f"{pinchpoint.systems.__name__}.{info.name}.bench") if info.ispkg else None
        if spec is not None and spec.origin is not None:
            text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
            lines[info.name] = text.partition("\n")[0]
    return lines


class BenchGroup(TyperGroup):
    """A group with one command per system; a system's module is imported only when the command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(benches())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in benches():
            return None
        try:
            module = import_module(f"{pinchpoint.systems.__name__}.{cmd_name}.bench")
        except ModuleNotFoundError as error:
            from pinchpoint.backends.base import backend

            if error.name in ("torch", "jax"):
                backend(error.name)  # says how to install it
            raise
        app = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=_HELP)
        app.command(cmd_name)(module.command)
        return typer.main.get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(benches().items()))


app = typer.Typer(cls=BenchGroup, rich_markup_mode=None, context_settings=_HELP)


@app.callback(invoke_without_command=True)
def list_benches(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        from pinchpoint.console import printing

        printing.show_table(("system", "what is timed"), sorted(benches().items()))
        printing.say(
            "\nTime one with pinchpoint bench SYSTEM; pinchpoint bench SYSTEM --help lists its options."
        )
