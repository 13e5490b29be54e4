"""`--set KEY=VALUE`: typed values for the model and the training, and an error for every mistake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.overrides import parse_overrides
from pinchpoint.systems.common.settings import TrainSettings, option


@dataclass(frozen=True)
class Settings(TrainSettings):
    cell: float | None = option(None, "Edge of a cell.", main=True, above=0)
    points: int = option(100, "Points.")
    shuffle: bool = option(True, "Shuffle.")
    labels: list[int] = option([], "Labels.")
    table: Path | None = option(None, "A file.")
    ranks: int = 1


@dataclass(frozen=True)
class Model:
    inputs: int
    cell: float = option(0.1, "Edge of a voxel.")
    widths: tuple[int, ...] = option((8, 16), "Widths.")
    lattice: tuple[int, int, int] = option((4, 4, 4), "Tokens.")


def parse(*texts: str) -> Any:
    return parse_overrides(texts, training=[Settings], model=Model)


def test_values_have_the_types_of_their_fields() -> None:
    overrides = parse(
        "points=20k", "shuffle=false", "labels=0,255", "table=a.npz", "ema=1e-3", "validation=none"
    )
    assert overrides.training == {
        "points": 20_000,
        "shuffle": False,
        "labels": [0, 255],
        "table": Path("a.npz"),
        "ema": 1e-3,
        "validation": None,
    }
    assert parse("widths=4,8", "lattice=1, 2, 3").model == {"widths": (4, 8), "lattice": (1, 2, 3)}
    assert parse("widths=none").model == {"widths": ()}


def test_a_key_that_is_also_a_train_option_sets_the_model() -> None:
    assert parse("cell=0.5").choices() == {"model": {"cell": 0.5}}
    assert parse("points=5").choices() == {"points": 5}


def test_a_command_without_train_options_can_set_every_field() -> None:
    overrides = parse_overrides(["steps=7", "cell=2"], training=[Settings], main=True)
    assert overrides.training == {"steps": 7, "cell": 2.0}


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("point=3", "--set point=3 is not a known setting.", "Did you mean points? Use one of: warmup, "),
        ("steps=3", "steps has an option of its own", "Write --steps 3."),
        ("inputs=3", "inputs follows from the data", "Leave out --set inputs."),
        ("ranks=3", "ranks follows from the data", "Leave out --set ranks."),
        ("points=many", "--set points=many is not valid: 'many' is not a whole number.", "such as 8 or 20k"),
        (f"points=1{'0' * 400}", "000' is not a whole number of 64 bits", "such as 8 or 20k"),
        ("points=1.5", "'1.5' is not a whole number", "such as 8 or 20k"),
        ("ema=nan", "'nan' is not a finite number", "such as 0.25"),
        ("ema=fast", "'fast' is not a finite number", "such as 0.25"),
        ("shuffle=yes", "'yes' is neither true nor false", "Write true or false."),
        ("widths=4,x", "'x' is not a whole number", "such as 8"),
        ("lattice=1,2", "'1,2' is not a list of 3 values", "Give 3 values"),
        ("points", "'points' does not have the form KEY=VALUE", ""),
        ("points=", "'points=' does not have the form KEY=VALUE", ""),
    ],
)
def test_every_mistake_has_an_error_and_a_hint(text: str, what: str, hint: str) -> None:
    with pytest.raises(BadInput) as excinfo:
        parse(text)
    assert what in excinfo.value.what and hint in excinfo.value.hint


def test_a_repeated_key_is_refused() -> None:
    with pytest.raises(BadInput, match=r"--set points is given 2 times: 3, 4\."):
        parse("points=3", "points=4")
