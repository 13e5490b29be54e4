"""Commands whose options come from settings dataclasses: names, help texts and defaults are the fields' own.

`settings_command` adds a command to a group. Fields declared with `main=True` become options; all others are
set with `--set KEY=VALUE` and listed by `--help-all`. Imports no framework.
"""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.common.overrides import Overrides, parse_field, parse_overrides, settable
from pinchpoint.systems.common.settings import Option, options_of

NO_OVERRIDES = Overrides()  # the default of the parameter that `settings_command` replaces
OUTPUT: Any = typer.Option(..., "-o", "--output", metavar="RUN", help="Folder of the run.")
RESUME: Any = typer.Option(False, "--resume", help="Continue the run in RUN with its own settings.")
BUDGET: Any = typer.Option(
    None, "--budget", metavar="BYTES|CARD", help="Memory a step may use: 8GiB, or the name of a card."
)
_WIDTH = 100  # columns of --help-all on a wide terminal
_METAVARS = {int: "INTEGER", float: "NUMBER", bool: "true|false", str: "TEXT"}


def settings_command(
    app: typer.Typer,
    command: str,
    *,
    training: type | Sequence[type],
    model: str,
    preset: str,
    omit: Sequence[str] = (),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command whose parameter `overrides: Overrides` stands for all options of the settings.

    training: dataclasses with `option` fields; model: `module:NAME` of another, imported only when it is
    needed, whose module has `PRESETS`; preset: the default one; omit: fields of the training that this
    command does not take.
    """
    configs = (training,) if isinstance(training, type) else tuple(training)

    def add(function: Callable[..., None]) -> Callable[..., None]:
        main = {
            f"option_{name}": (config, name, declared)
            for config in configs
            for name, declared in options_of(config).items()
            if declared.main and name not in omit
        }

        def show_all(ctx: typer.Context, requested: bool) -> None:
            if requested:
                typer.echo(ctx.get_help().rstrip("\n") + "\n")
                typer.echo(_help_all(configs, _load(model), _presets(model)[preset], omit))
                raise typer.Exit()

        def run(**values: Any) -> None:
            texts = {name: values.pop(name) for name in main}
            overrides = parse_overrides(values.pop("set_texts"), training=configs, model=_load(model))
            _refuse_omitted(overrides, omit, command)
            del values["help_all"]
            for parameter, (config, name, _) in main.items():
                if texts[parameter] is not None:
                    overrides.training[name] = parse_field(config, name, texts[parameter])
            function(**values, overrides=overrides)

        run.__doc__, run.__name__ = function.__doc__, function.__name__
        signature = _signature(function, main, show_all)
        run.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
        run.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        app.command(command, cls=_command_class(configs, model))(run)
        return function

    return add


def help_text(declared: Option, default: Any) -> str:
    """`Precision of the matrix products: fp32, tf32 or bf16.  [default: fp32]`."""
    text = declared.help
    if declared.choices:
        text = f"{text.removesuffix('.')}: {show_choices(declared.choices)}."
    shown = declared.default_text or _show(default)
    return f"{text}  [default: {shown}]" if shown else text


def _signature(
    function: Callable[..., None], main: Mapping[str, tuple[type, str, Option]], show_all: Callable[..., None]
) -> inspect.Signature:
    hints = get_type_hints(function)
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name != "overrides":
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))
            continue
        for own, (config, field_name, declared) in main.items():
            shown = typer.Option(
                None,
                f"--{(declared.name or field_name).replace('_', '-')}",
                metavar=declared.metavar or _metavar(get_type_hints(config)[field_name]),
                help=help_text(declared, _default(config, field_name, {})),
            )
            parameters.append(_keyword(own, str | None, shown))
        parameters.append(_keyword("set_texts", list[str] | None, _SET))
        everything = typer.Option(
            False,
            "--help-all",
            is_eager=True,
            callback=show_all,
            help="Show this message and every setting of --set, and exit.",
        )
        parameters.append(_keyword("help_all", bool, everything))
    return inspect.Signature(parameters)


_SET: Any = typer.Option(
    None, "--set", metavar="KEY=VALUE", help="Another setting, listed by --help-all; may be repeated."
)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _load(model: str) -> type:
    module, _, name = model.partition(":")
    return getattr(import_module(module), name)


def _presets(model: str) -> Mapping[str, Mapping[str, Any]]:
    return import_module(model.partition(":")[0]).PRESETS


def _command_class(configs: Sequence[type], model: str) -> type[TyperCommand]:
    """A command that answers an unknown option such as --lr with how to set it, where it is a setting."""

    class SettingsCommand(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            try:
                return super().parse_args(ctx, args)
            except Exception as error:
                keys = {key for config in (*configs, _load(model)) for key in settable(config)}
                name = str(getattr(error, "option_name", "")).removeprefix("--").replace("-", "_")
                key = name if name in keys else name.removeprefix("no_")
                if type(error).__name__ != "NoSuchOption" or key not in keys:
                    raise
                value = "false" if key != name else "VALUE"
                raise BadInput(
                    f"There is no option {error.option_name}.",  # pyright: ignore[reportAttributeAccessIssue]
                    hint=f"Write --set {key}={value}; --help-all lists every setting.",
                ) from None

    return SettingsCommand


def _refuse_omitted(overrides: Overrides, omit: Sequence[str], command: str) -> None:
    for name in omit:
        if name in overrides.training:
            raise BadInput(f"`{command}` does not take the setting {name}.", hint=f"Leave out --set {name}.")


def _help_all(
    configs: Sequence[type], model: type, model_defaults: Mapping[str, Any], omit: Sequence[str]
) -> str:
    """Every key of --set with its type, help and default."""
    width = min(_WIDTH, shutil.get_terminal_size((80, 24)).columns)
    training = _section("Training settings (--set KEY=VALUE):", _entries(configs, {}, omit), width)
    return (
        training
        + "\n\n"
        + _section("Model settings (--set KEY=VALUE):", _entries([model], model_defaults, ()), width)
    )


def _entries(
    configs: Sequence[type], defaults: Mapping[str, Any], omit: Sequence[str]
) -> list[tuple[str, str]]:
    return [
        (
            f"{key}={declared.metavar or _metavar(get_type_hints(config)[name])}",
            help_text(declared, _default(config, name, defaults)),
        )
        for config in configs
        for key, name in settable(config).items()
        if name not in omit
        for declared in [options_of(config)[name]]
    ]


def _section(title: str, entries: Sequence[tuple[str, str]], width: int) -> str:
    left = min(max((len(key) for key, _ in entries), default=0), 32) + 4
    lines = [title]
    for key, text in entries:
        wrapped = textwrap.wrap(text, max(20, width - left)) or [""]
        first = f"  {key}".ljust(left)
        if len(first) > left:
            lines.append(first)
            first = " " * left
        lines.append(f"{first}{wrapped[0]}".rstrip())
        lines += [" " * left + line for line in wrapped[1:]]
    return "\n".join(lines)


def _metavar(kind: Any) -> str:
    if get_origin(kind) in (UnionType, Union):
        return _metavar(next(part for part in get_args(kind) if part is not NoneType))
    if get_origin(kind) in (tuple, list):
        return f"{_metavar(get_args(kind)[0])},..."
    return _METAVARS.get(kind, "FILE" if getattr(kind, "__name__", "") == "Path" else "TEXT")


def _default(config: type, name: str, defaults: Mapping[str, Any]) -> Any:
    declared = next(f for f in fields(config) if f.name == name)
    if name in defaults:
        return defaults[name]
    if declared.default is not MISSING:
        return declared.default
    return declared.default_factory() if declared.default_factory is not MISSING else None


def _show(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(_show, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
