"""From the options of `predict --model` to a `Recipe`, its script, and its Forecast."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_text
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.forecaster import Forecasts
from pinchpoint.forecasting.recipes.model_types import check_model_type
from pinchpoint.forecasting.recipes.recipe import Recipe, find_config, positions_notes, read_config
from pinchpoint.forecasting.recipes.script import script_text
from pinchpoint.forecasting.recipes.tool_files import is_tool_file, read_recipe


def read_model(
    model: str | Path | None, *, target: object, world_size: object, script: str | Path | None, **options: Any
) -> Recipe | None:
    """The Recipe of a config.json, or of a YAML file whose settings the options override.

    options: fields of the Recipe; None: not given. With a world size, sharding is ddp if it is not given.
    Returns None for a target, which takes no such options.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if model is None:
        if target is None:
            raise BadInput(
                "Neither a target nor a model was named.",
                hint="Give a TARGET, such as a script, or a model: --model config.json.",
            )
        if given or script is not None:
            names = ", ".join(
                f"--{name.replace('_', '-')}" for name in (*given, *(["script"] if script else []))
            )
            raise BadInput(
                f"The options {names} can only be used with --model.",
                hint="A script takes its own arguments after --; leave the options out.",
            )
        return None
    if target is not None:
        raise BadInput(
            f"Both the target {target} and the model {model} were given.", hint="Leave out one of them."
        )
    if options.get("sharding") is not None and world_size is None:
        raise BadInput("Sharding needs several processes.", hint="Add --world-size, such as --world-size 8.")
    if world_size is not None:
        given.setdefault("sharding", "ddp")
    model = str(model)
    if is_tool_file(model):
        path = Path(model)
        fields = read_recipe(path)
    else:
        fields = {"config": find_config(model)}
    recipe = Recipe(**{**fields, **given})
    check_model_type(read_config(recipe.config), recipe.config)
    return recipe


@contextmanager
def script_of(recipe: Recipe | None, path: str | Path | None) -> Iterator[str | None]:
    """The path of a Recipe's script while this context is active; one that the user named stays."""
    if recipe is None:
        yield None
        return
    text = script_text(recipe)
    if path is not None:
        write_text(Path(path), text)
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / f"{recipe.task}.py"
        temporary.write_text(text, encoding="utf-8")
        yield str(temporary)


def of_recipe(forecast: Forecast, recipe: Recipe) -> Forecast:
    """The forecast of a script as that of a Recipe: with its name, and with the reasons of the Recipe."""
    fits = {name: None if answer and recipe.reasons else answer for name, answer in forecast.fits.items()}
    return replace(
        forecast,
        target=recipe.name,
        fits=fits,
        reasons=(*forecast.reasons, *recipe.reasons),
        notes=(
            *forecast.notes,
            "every sequence is assumed to have the full length",
            *positions_notes(recipe),
        ),
    )


@dataclass(frozen=True)
class RecipeForecasts:
    """Forecasts of a Recipe's script, as those of the Recipe."""

    forecasts: Forecasts
    recipe: Recipe

    def predict(self, **options: Any) -> Forecast:
        return of_recipe(self.forecasts.predict(**options), self.recipe)
