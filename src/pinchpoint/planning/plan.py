"""`plan` predicts the largest size, or the chunk for a given size, and the variant that fit a budget.

Every size in the answer was itself predicted to fit, with at most 8 fake runs per variant. A table of cards
takes at most 8 more runs and marks the sizes that are interpolated. Nothing runs for real and no GPU is
needed. The margin covers what a step uses beyond its forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.ranks import parse_world_sizes
from pinchpoint.core.records import Plan
from pinchpoint.core.settings import Overrides
from pinchpoint.core.units import check_seconds, parse_size, show_bytes
from pinchpoint.core.workload import Workload, settings_of
from pinchpoint.forecasting.cards import Card, budget_card, card, select_cards
from pinchpoint.forecasting.forecaster import Forecasts, open_forecasts
from pinchpoint.forecasting.launch_command import read_planned_launch
from pinchpoint.forecasting.recipes.model_forecast import RecipeForecasts, read_model, script_of
from pinchpoint.forecasting.recipes.recipe import Recipe
from pinchpoint.planning.card_table import CardTable
from pinchpoint.planning.fake_runs import Progress, Script, Trials, check_vary
from pinchpoint.planning.search import UP_TO
from pinchpoint.planning.variant_limits import (
    Choice,
    best_of,
    best_possible,
    notes_of,
    nothing_fits,
    row_of,
)
from pinchpoint.planning.variant_search import Subject, choices_of
from pinchpoint.planning.world_sizes import Job, plan_world_sizes

_MODEL_VARY = "--batch {}"


def plan(
    target: str | Workload | Callable[..., Any] | None = None,
    *,
    budget: str | int | None = None,
    mode: str | None = None,
    size: int | str | None = None,
    variant: str | None = None,
    cards: str | Sequence[str] | None = None,
    vary: str | None = None,
    args: Sequence[str] = (),
    world_size: int | str | Sequence[int] | None = None,
    rank: int | Literal["all"] = 0,
    local_world_size: int | None = None,
    multiple: int | str = 1,
    up_to: int | str = UP_TO,
    seed: int = 0,
    timeout_s: float = 300.0,
    settings: Overrides | None = None,
    allow_network: bool = False,
    model: str | Path | None = None,
    task: str | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    new_tokens: int | None = None,
    optimizer: str | None = None,
    precision: str | None = None,
    sharding: str | None = None,
    script: str | Path | None = None,
    forecaster: Forecasts | None = None,
    progress: Progress | None = None,
    on_result: Callable[[Plan], None] | None = None,
) -> Plan:
    """Find what fits `budget` (bytes, "24GiB" or a card's name) or, with `cards`, each card ("all" or names).

    size: plan for this size only, and find its chunk if the workload supports chunks. vary: the argument of a
    script that is its size, such as "--batch-size {}"; the target may also be the command of a launcher, such
    as "torchrun --nproc-per-node 8 train.py". world_size: plan a script for each of these numbers of
    processes, such as "8,16,32"; `size` is then the largest of all, and `world_size` the smallest with which
    it fits. rank, local_world_size: as in `predict`. multiple: consider only multiples of this. up_to: the
    largest size to consider. settings: settings of a workload that declares some. allow_network: as in
    `predict`. model: instead of a target, the model whose step is planned; it and the options from task to
    script are those of `predict`, and vary is "--batch {}" (default), "--sequence {}", or to generate
    "--new-tokens {}". on_result: called with every preliminary answer, which has `complete` false. Raises
    `DoesNotFit` if nothing fits. If a forecast cannot say whether its size fits, that size does not count:
    `size` is the largest known to fit, or None.
    """
    recipe = read_model(
        model,
        target=target,
        world_size=world_size,
        script=script,
        task=task,
        batch=batch,
        sequence=sequence,
        new_tokens=new_tokens,
        optimizer=optimizer,
        precision=precision,
        sharding=sharding,
    )
    launch = read_planned_launch(target, args, world_size, local_world_size, timeout_s)
    if launch is not None:
        target, args, world_size = launch.target, launch.args, launch.world_size
        local_world_size = launch.local_world_size
    with script_of(recipe, script) as path:
        result = _plan(
            path or target,
            recipe,
            budget=budget,
            mode=mode,
            size=size,
            variant=variant,
            cards=cards,
            vary=vary or (_MODEL_VARY if recipe is not None else None),
            args=args,
            world_size=world_size,
            rank=rank,
            local_world_size=local_world_size,
            multiple=multiple,
            up_to=up_to,
            seed=seed,
            timeout_s=timeout_s,
            settings=settings,
            allow_network=allow_network,
            forecaster=forecaster,
            progress=progress,
            on_result=on_result,
            environment={} if launch is None else launch.environment,
        )
    return result if launch is None else replace(result, notes=(*result.notes, *launch.notes))


def _plan(
    target: Any,
    recipe: Recipe | None,
    *,
    budget: str | int | None,
    mode: str | None,
    size: int | str | None,
    variant: str | None,
    cards: str | Sequence[str] | None,
    vary: str | None,
    args: Sequence[str],
    world_size: int | str | Sequence[int] | None,
    rank: int | Literal["all"],
    local_world_size: int | None,
    multiple: int | str,
    up_to: int | str,
    seed: int,
    timeout_s: float,
    settings: Overrides | None,
    allow_network: bool,
    forecaster: Forecasts | None,
    progress: Progress | None,
    on_result: Callable[[Plan], None] | None,
    environment: dict[str, str],
) -> Plan:
    table_cards = [] if cards is None else select_cards(cards)
    budget_bytes, model_card = _budget(budget, table_cards)
    job = _job(world_size, rank, local_world_size, has_cards=bool(table_cards))
    size = None if size is None else parse_size(size)
    multiple, up_to = parse_size(multiple), parse_size(up_to)
    check_seconds("timeout", timeout_s)
    if multiple > up_to:
        raise BadInput(
            f"No multiple of {multiple:,} is at most {up_to:,}.", hint="Raise --up-to, or lower --multiple."
        )
    if progress is not None and isinstance(target, str):
        progress(f"reading {target if recipe is None else recipe.name}")
    subject = _subject(target, vary, tuple(args))
    if recipe is not None:
        subject = replace(subject, text=recipe.name)
    variants = _variants(subject, variant)
    setting_values = _settings(subject, settings)
    if job is not None and subject.script is None:
        raise BadInput(
            f"--world-size cannot be used for {subject.text}, which is not a script.",
            hint="Give a script that torchrun could start.",
        )
    if subject.workload is not None:
        mode = mode or ("train" if "train" in subject.workload.modes else subject.workload.modes[0])
        subject.workload.check_mode(mode)
    if budget_bytes <= (context := card(model_card).context_bytes):
        raise DoesNotFit(
            f"The budget of {show_bytes(budget_bytes)} is below the CUDA context of {show_bytes(context)}.",
            hint="Give the whole memory of the card as --budget.",
        )
    options = {
        "card": model_card,
        "seed": seed,
        "timeout_s": timeout_s,
        "settings": setting_values,
        "only_card": not table_cards,
        "find_least": True,
        "allow_network": allow_network,
        "environment": environment,
    }
    if progress is not None:
        progress(f"loading {subject.text}")
    with open_forecasts(forecaster, target, **options) as forecasts:
        if recipe is not None:
            forecasts = RecipeForecasts(forecasts, recipe)
        if job is not None:
            return plan_world_sizes(
                subject,
                forecasts,
                job,
                mode=mode,
                budget_bytes=budget_bytes,
                size=size,
                multiple=multiple,
                up_to=up_to,
                progress=progress,
                on_result=on_result,
            )
        trials = Trials(forecasts, mode, budget_bytes, subject.script, progress)

        def result(choices: Sequence[Choice], table: CardTable | None, *, complete: bool) -> Plan:
            best = best_of(choices, size)
            possible = best_possible(choices, size)
            trial = best.trial if best is not None else None
            shown = trial or (possible.possible if possible is not None else None)
            if shown is None:
                raise nothing_fits(
                    subject.text, choices, budget_bytes, arguments=subject.script and subject.script.arguments
                )
            return Plan(
                target=subject.text,
                mode=shown.mode,
                budget_bytes=budget_bytes,
                size=None if trial is None else trial.size,
                chunk=None if trial is None else trial.chunk,
                variant=shown.variant,
                margin_bytes=shown.margin_bytes,
                peak_bytes=shown.total_bytes,
                tried=trials.rows(),
                choices=tuple(row_of(choice) for choice in choices),
                cards=() if table is None else table.rows(),
                notes=(
                    *notes_of(choices, multiple=multiple, up_to=up_to, axis=subject.axis),
                    *(() if table is None else table.notes()),
                ),
                settings=setting_values,
                axis=subject.axis,
                possible_size=None
                if possible is None or possible.possible is None
                else possible.possible.size,
                reasons=trials.reasons(),
                complete=complete,
            )

        def report(choices: Sequence[Choice], table: CardTable | None = None) -> None:
            if on_result is not None and any(c.trial or c.possible for c in choices):
                on_result(result(choices, table, complete=False))

        choices = choices_of(subject, variants, trials, report, size=size, multiple=multiple, up_to=up_to)
        chosen = best_of(choices, size) or best_possible(choices, size)
        table = None
        if table_cards and chosen is not None and (run := chosen.trial or chosen.possible) is not None:
            along = chosen.along
            table = CardTable(
                table_cards,
                trials,
                run,
                multiple=multiple,
                up_to=up_to if along == "size" else subject.chunk(chosen.variant) or run.size,
                along=along,
                axis=subject.axis,
                fixed=chosen.search is None,
            )
            report(choices, table)
            table.refine(lambda: report(choices, table))
        return result(choices, table, complete=True)


def _job(
    world_size: int | str | Sequence[int] | None,
    rank: int | Literal["all"],
    local_world_size: int | None,
    *,
    has_cards: bool,
) -> Job | None:
    if world_size is None:
        if rank != 0 or local_world_size is not None:
            raise BadInput(
                "--rank and --local-world-size cannot be used without --world-size.",
                hint="Add --world-size with the numbers of processes.",
            )
        return None
    if has_cards:
        raise BadInput(
            "--cards cannot be used with --world-size.", hint="Use --budget with the bytes or name of a card."
        )
    return Job(parse_world_sizes(world_size), rank, local_world_size)


def _budget(budget: str | int | None, cards: Sequence[Card]) -> tuple[int, str]:
    """The bytes of the budget, and the card whose context and workspace are modelled."""
    if budget is None:
        if not cards:
            raise BadInput(
                "A plan needs a budget or cards.",
                hint="Give --budget 24GiB (or the name of a card), or --cards all.",
            )
        largest = max(cards, key=lambda c: c.memory_bytes)
        return largest.memory_bytes, largest.name
    chosen = budget_card(budget)
    return chosen.memory_bytes, chosen.name


def _subject(target: str | Workload | Callable[..., Any], vary: str | None, args: tuple[str, ...]) -> Subject:
    if isinstance(target, str):
        resolved_target = targets.find(target)
        if resolved_target.kind == "script":
            return Subject(resolved_target.text, script=Script(check_vary(vary), args))
        thing = targets.load(resolved_target)
        text = resolved_target.text
    else:
        thing = target
        text = target.name if isinstance(target, Workload) else getattr(target, "__name__", repr(target))
    if vary is not None or args:
        raise BadInput(
            f"{text} is not a script, so it takes neither --vary nor arguments after --.",
            hint="Leave them out; plan varies its size by itself.",
        )
    return Subject(text, thing if isinstance(thing, Workload) else None)


def _variants(subject: Subject, variant: str | None) -> tuple[str | None, ...]:
    if variant is None:
        return subject.variants
    if subject.workload is None:
        kind = "a script" if subject.script else "a plain factory"
        raise BadInput(
            f"{subject.text} is {kind} and has no variants.",
            hint="Leave --variant out, or turn it into a Workload.",
        )
    return (subject.workload.variant(variant).name,)


def _settings(subject: Subject, overrides: Overrides | None) -> dict[str, str]:
    if subject.script is not None and overrides:
        raise BadInput(
            f"{subject.text} is a script and has no settings.", hint="Pass its own arguments after --."
        )
    return settings_of(subject.workload, overrides, text=subject.text)
