"""The command line `pinchpoint`: finds the verbs, prints errors as two lines, and returns exit codes.

A verb is a module of this package with a `command` function or an `app` of several commands. A system has
its commands in a module `cli`. Modules import what they need when they are called, so that `--help` takes
milliseconds. Exit codes: 0 success; 1 a finding, a failed verdict or gate, or a step that does not fit; 2 bad
usage or input; 3 a framework or device is missing; 70 a bug in pinchpoint; 130 Ctrl-C; 143 SIGTERM.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Sequence
from types import FrameType

import typer

import pinchpoint
from pinchpoint.cli.verb_group import VerbGroup, find_verbs
from pinchpoint.console import interrupts
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.units import show_choices

STOPPED = 130
OUR_FAULT = 70  # EX_SOFTWARE: must not be mistaken for "does not fit" or for bad input

# Typer bundles its own copy of click or uses the installed one, depending on its version. The class that all
# usage errors share is the one thing they have in common.
_Usage: type[Exception] = typer.BadParameter.__mro__[2]


def build() -> typer.Typer:
    """Build the application; a verb is imported when it is used."""

    class Verbs(VerbGroup):
        verbs = find_verbs()

    app = typer.Typer(
        name="pinchpoint",
        cls=Verbs,
        help="Predict the peak memory of a PyTorch or JAX script without a GPU, find what fits and what is"
        " slow, and verify that a cheaper variant computes the same.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # importing rich takes longer than the rest of --help
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def _show_version(show: bool) -> None:
    if show:
        typer.echo(f"pinchpoint {pinchpoint.__version__}")
        raise typer.Exit()


def _options(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(
        False, "--debug", help="Show the traceback of an error. Allowed anywhere before `--`."
    ),
) -> None:
    # `run` removes --debug before the arguments get here; it is declared for --help only.
    del version, debug


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code. Prints errors; raises nothing."""
    args, debug = _take_debug(args)
    try:
        result = build()(args=args or ["--help"], prog_name="pinchpoint", standalone_mode=False)
        # Some versions of typer return this code after Ctrl-C; a verb that reports Ctrl-C itself exits.
        if result == STOPPED:
            typer.echo("stopped", err=True)
        return result if isinstance(result, int) else 0
    except PinchpointError as error:
        return _fail(error, error.what, error.hint, error.exit_code, debug)
    except _Usage as error:
        return _fail(error, _usage_text(error), _usage_hint(error, args), 2, debug)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("stopped", err=True)
        return STOPPED
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except Exception as error:  # not hidden: reported as our bug, with its own exit code
        what = " ".join(f"{type(error).__name__}: {error}".split())
        return _fail(
            error,
            f"This is a bug in pinchpoint: {what}",
            "Run again with --debug and report what it prints."
            if not debug
            else "Report the traceback above.",
            OUR_FAULT,
            debug,
        )


def _take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """Remove `--debug` wherever it is, except after `--`, where arguments belong to a script."""
    end = list(args).index("--") if "--" in args else len(args)
    ours = [arg for arg in args[:end] if arg != "--debug"]
    return [*ours, *args[end:]], len(ours) < end


def _usage_text(error: Exception) -> str:
    """What is wrong, as a sentence. The errors are known by name, as their classes depend on typer."""
    kind, parameter = type(error).__name__, getattr(error, "param", None)
    if kind == "NoSuchOption":
        return f"There is no option {error.option_name}."  # pyright: ignore[reportAttributeAccessIssue]
    if kind == "MissingParameter" and parameter is not None:
        argument = parameter.param_type_name == "argument"
        name = parameter.metavar or parameter.name.upper() if argument else " / ".join(parameter.opts)
        return f"The {parameter.param_type_name} {name} is missing."
    text = " ".join(error.format_message().split())  # pyright: ignore[reportAttributeAccessIssue]
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _usage_hint(error: Exception, args: Sequence[str]) -> str:
    script = next((arg for arg in args if arg.endswith(".py")), None)
    option = getattr(error, "option_name", None)
    launcher = next((arg for arg in args if arg in ("torchrun", "accelerate")), None)
    if launcher is not None and "--" not in args:
        return f"Put the launcher's command after --: {_path_of(error)} -- {launcher} ..."
    if script is not None and option is not None and "--" not in args:
        return f"Put the script's own arguments after --: {_path_of(error)} {script} -- {option} ..."
    see = f"See {_path_of(error)} --help."
    near = sorted(set(getattr(error, "possibilities", None) or ()) - {"--help", "--help-all"})
    if near:
        return f"Did you mean {show_choices(near)}? {see}"
    metavar = getattr(getattr(error, "param", None), "metavar", None) or ""
    if type(error).__name__ == "MissingParameter" and "|" in metavar and metavar.islower():
        return f"Give {show_choices(metavar.split('|'))}. {see}"
    return see


def _path_of(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return context.command_path if context is not None else "pinchpoint"


def _fail(error: Exception, what: str, hint: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    typer.echo(f"error: {what}\n  hint: {hint}", err=True)
    return code


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind as after Ctrl-C, so that workers end and their folders are removed; a second signal kills."""
    signal.signal(number, signal.SIG_DFL)
    raise SystemExit(128 + number)


def main() -> None:
    interrupts.install({signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _stop})
    sys.exit(run(sys.argv[1:]))
