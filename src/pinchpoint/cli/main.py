"""The command line: one module of this package per verb, errors as two lines, documented exit codes.

A verb is a module with a `command` function, or with an `app` of several; it is found by walking this
package, and a verb that is not built does not exist. Verb modules import what they need when called, so `--help` costs
milliseconds. Exit codes: 0 fine; 1 a finding, a failed verdict or gate, does not fit; 2 bad usage
or input; 3 framework or device missing; 70 a fault of pinchpoint itself; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import inspect
import pkgutil
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import FrameType, ModuleType

import typer

import pinchpoint
import pinchpoint.cli
import pinchpoint.systems
from pinchpoint.console import interrupts
from pinchpoint.core.errors import PinchpointError

STOPPED = 130
OUR_FAULT = 70  # EX_SOFTWARE: never to be taken for "does not fit" or for bad input

# Typer carries its own copy of click or uses the installed one, depending on its version; the
# class all usage errors share is the one thing both agree on.
_Usage: type[Exception] = typer.BadParameter.__mro__[2]


def build() -> typer.Typer:
    """The application with every verb that exists."""
    app = typer.Typer(
        name="pinchpoint",
        help="Know the peak memory of a training step before you own the card; find, shrink and prove what many points cost.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich takes longer to import than all the rest of --help
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    for name, module in verbs().items():
        if hasattr(module, "app"):
            about = inspect.getdoc(module) or ""
            app.add_typer(module.app, name=name, help=about, short_help=about.partition("\n")[0])
            continue
        text = inspect.getdoc(module.command) or inspect.getdoc(module) or ""
        app.command(name, help=text, short_help=text.partition("\n")[0])(module.command)
    return app


def verbs() -> dict[str, ModuleType]:
    """Every module of this package with a `command` or an `app`, and every system's command group, by name."""
    modules = {
        info.name: import_module(f"{pinchpoint.cli.__name__}.{info.name}")
        for info in _modules(pinchpoint.cli)
    }
    for info in _modules(pinchpoint.systems):
        group = f"{pinchpoint.systems.__name__}.{info.name}.cli"
        if find_spec(group) is not None:
            modules[info.name] = import_module(group)
    return {
        name: module
        for name, module in modules.items()
        if hasattr(module, "command") or hasattr(module, "app")
    }


def _modules(package: ModuleType) -> Iterator[pkgutil.ModuleInfo]:
    return pkgutil.iter_modules(package.__path__)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pinchpoint {pinchpoint.__version__}")
        raise typer.Exit()


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an error; may stand anywhere before `--`."
    ),
) -> None:
    # `run` has taken --debug out before the arguments get here; it is declared for --help.
    del version, debug


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Prints errors; raises nothing."""
    args, debug = _take_debug(args)
    try:
        result = build()(args=args or ["--help"], prog_name="pinchpoint", standalone_mode=False)
        if (
            result == STOPPED
        ):  # what Ctrl-C becomes in some versions of typer; a verb that has said so itself exits
            typer.echo("stopped", err=True)
        return result if isinstance(result, int) else 0
    except PinchpointError as error:
        return _fail(error, error.what, error.hint, error.exit_code, debug)
    except _Usage as error:
        what = error.format_message()  # pyright: ignore[reportAttributeAccessIssue]
        return _fail(error, what.replace("\n", " "), _usage_hint(error, args), 2, debug)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("stopped", err=True)
        return STOPPED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except Exception as error:  # not hidden: said to be our fault, with its own exit code
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(
            error,
            f"a fault of pinchpoint itself: {what}",
            "run again with --debug and report what it prints" if not debug else "report the traceback above",
            OUR_FAULT,
            debug,
        )


def _take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """Split off `--debug` wherever it stands, but not what follows `--`: that belongs to a script."""
    end = list(args).index("--") if "--" in args else len(args)
    ours = [arg for arg in args[:end] if arg != "--debug"]
    return [*ours, *args[end:]], len(ours) < end


def _usage_hint(error: Exception, args: Sequence[str]) -> str:
    script = next((arg for arg in args if arg.endswith(".py")), None)
    option = getattr(error, "option_name", None)
    if script is not None and option is not None and "--" not in args:
        return f"a script's own arguments come after --: {_path_of(error)} {script} -- {option} ..."
    return f"see {_path_of(error)} --help"


def _path_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "pinchpoint"


def _fail(error: Exception, what: str, hint: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"error: {what}\n  hint: {hint}", err=True)
    return code


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind as Ctrl-C does, so that workers are ended and their folders removed. A second signal ends this at once."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


def main() -> None:
    interrupts.install({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _stop})
    sys.exit(run(sys.argv[1:]))
