"""Options of the `train` commands: names, help and defaults come from the settings dataclasses."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.overrides import settable
from pinchpoint.systems.common.settings import TrainSettings, flag, options_of
from pinchpoint.systems.common.train_options import help_text

CONFIGS = {
    "cloud": ("CloudConfig", ["Settings"]),
    "density": ("DensityConfig", ["Settings"]),
    "operator": ("OperatorConfig", ["Settings"]),
    "radiance": ("FieldConfig", ["Settings"]),
    "vmc": ("NetConfig", ["RunOptions", "Settings"]),
}
MOST = 20  # options on one help page, including --help and --help-all


def configs(system: str) -> list[type]:
    package = f"pinchpoint.systems.{system}"
    model, training = CONFIGS[system]
    settings = import_module(f"{package}.settings")
    return [
        *(getattr(settings, name) for name in training),
        getattr(import_module(f"{package}.model.config"), model),
    ]


@pytest.mark.parametrize("system", CONFIGS)
def test_every_field_is_an_option_with_its_default_or_a_key_for_set(
    system: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([system, "train", "--help-all"]) == 0
    page = capsys.readouterr().out
    letters = "".join(page.split())  # lines can be wrapped anywhere
    options = [line.split()[0].rstrip(",") for line in page.splitlines() if line.startswith("  -")]
    assert len(options) <= MOST
    for config in configs(system):
        assert [key for key in settable(config) if f"\n  {key}=" not in page] == []
        for f in fields(config):
            declaration = f.metadata.get("option")
            if declaration is not None and declaration.main:
                default = f.default_factory() if f.default_factory is not MISSING else f.default
                assert flag(config, f.name).split()[0] in options
                assert "".join(help_text(declaration, default).split()) in letters


@pytest.mark.parametrize("system", CONFIGS)
def test_every_option_has_a_help_text_that_is_a_sentence_and_a_default_in_words(system: str) -> None:
    faults = [
        f"{config.__name__}.{f.name}"
        for config in configs(system)
        for f in fields(config)
        for declaration in [options_of(config).get(f.name)]
        if declaration is not None
        and not (
            declaration.help[:1].isupper() and help_text(declaration, None).partition("  [")[0].endswith(".")
        )
    ]
    assert not faults


def test_a_setting_used_as_an_option_says_how_to_set_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words, hint in (
        (["--warmup", "3"], "Write --set warmup=VALUE; --help-all lists every setting."),
        (["--no-augment"], "Write --set augment=false; --help-all lists every setting."),
    ):
        assert run(["cloud", "train", "data", "-o", "run", *words]) == 2
        assert capsys.readouterr().err == f"error: There is no option {words[0]}.\n  hint: {hint}\n"
    assert run(["cloud", "train", "data", "-o", "run", "--colour", "3"]) == 2
    assert "There is no option --colour." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--steps", "many"], "--steps many is not valid: 'many' is not a whole number."),
        (["--lr", "nan"], "--lr nan is not valid: 'nan' is not a finite number."),
        (["--set", "ema=x"], "--set ema=x is not valid: 'x' is not a finite number."),
    ],
)
def test_an_invalid_value_gives_one_line_and_a_hint(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["density", "train", "data", "-o", "run", *words]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {what}" and hint.startswith("  hint: Give a ")


@pytest.mark.parametrize(
    ("choice", "what"),
    [
        ({"steps": 0}, "--steps 0 is out of range; the value must be at least 1."),
        ({"ema": 1.0}, "--set ema=1 is out of range; the value must be at least 0 and below 1."),
        ({"weight_decay": math.inf}, "--set weight_decay=inf is out of range"),
        ({"clip": math.nan}, "--set clip=nan is out of range; the value must be above 0."),
        ({"precision": "fp8"}, "The precision 'fp8' is unknown."),
    ],
)
def test_a_value_outside_its_limits_is_refused(choice: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput) as excinfo:
        TrainSettings(**choice).check()
    assert excinfo.value.what.startswith(what)
