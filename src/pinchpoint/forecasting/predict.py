"""`predict` forecasts the peak of a training step on any card, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.ranks import Rank, differing_ranks, make_rank
from pinchpoint.core.records import Forecast
from pinchpoint.core.settings import Overrides
from pinchpoint.core.targets import Factory, Target, find
from pinchpoint.core.units import check_seconds, parse_size, show_bytes
from pinchpoint.core.workload import MODES, Workload
from pinchpoint.forecasting import assembly, cards, gpu_measurement, levers
from pinchpoint.forecasting.forecaster import Forecaster, Forecasts
from pinchpoint.forecasting.launch_command import is_launch, read_launch
from pinchpoint.forecasting.recipes.model_forecast import of_recipe, read_model, script_of


def predict(
    target: str | Workload | Factory | None = None,
    *,
    size: int | str | None = None,
    mode: str | None = None,
    variant: str | None = None,
    chunk: int | None = None,
    card: str | None = None,
    args: Sequence[str] = (),
    steps: int = 2,
    seed: int = 0,
    timeout_s: float = 300.0,
    measure: bool = False,
    settings: Overrides | None = None,
    world_size: int | None = None,
    rank: int | Literal["all"] = 0,
    local_world_size: int | None = None,
    packages: Sequence[str] = (),
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
    on_status: Callable[[str], None] | None = None,
) -> Forecast:
    """Predict the peak of a target at a size, or of an unmodified script with its arguments.

    The command of a launcher is a target too: `predict("torchrun --nproc-per-node 8 train.py --lr 0.1")`.

    card: the GPU to model, by default h200; `fits` has the answer for every known card. If the step does not
    fit a card that is named here, the Forecast has levers.
    measure: also run the target on this machine's GPU and store the measured peaks.
    settings: settings of a workload that declares some.
    world_size: predict a script as one of so many processes, with RANK and WORLD_SIZE set as by torchrun; a
    script that uses JAX sees so many devices.
    rank: the process to predict, or "all" for the one that needs most of those that may differ.
    local_world_size: processes per machine; by default up to 8.
    packages: packages that need CUDA and are assumed to be installed, though a script could do without them.
    allow_network: let a script send data; by default it may only download.
    model: instead of a target, a config.json of transformers, or a YAML file of axolotl or LLaMA-Factory.
    task, batch, sequence, new_tokens, optimizer, precision, sharding: what to do with the model, as the
    options of `pinchpoint predict --model`, with the same defaults. script: write the model's script here.
    on_status: called about once a second with what a script is doing.
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
    with script_of(recipe, script) as path:
        forecast = _predict(
            path or target,
            size=size,
            mode=mode,
            variant=variant,
            chunk=chunk,
            card=card,
            args=args,
            steps=steps,
            seed=seed,
            timeout_s=timeout_s,
            measure=measure,
            settings=settings,
            world_size=world_size,
            rank=rank,
            local_world_size=local_world_size,
            packages=packages,
            allow_network=allow_network,
            on_status=on_status,
        )
    return forecast if recipe is None else of_recipe(forecast, recipe)


def _predict(
    target: Any,
    *,
    size: int | str | None,
    mode: str | None,
    variant: str | None,
    chunk: int | None,
    card: str | None,
    args: Sequence[str],
    steps: int,
    seed: int,
    timeout_s: float,
    measure: bool,
    settings: Overrides | None,
    world_size: int | None,
    rank: int | Literal["all"],
    local_world_size: int | None,
    packages: Sequence[str],
    allow_network: bool,
    on_status: Callable[[str], None] | None,
) -> Forecast:
    environment: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    if isinstance(target, str) and is_launch(target):
        launch = read_launch(
            target, args, world_size=world_size, local_world_size=local_world_size, timeout_s=timeout_s
        )
        target, args, environment = launch.target, launch.args, launch.environment
        world_size, local_world_size, notes = launch.world_size, launch.local_world_size, launch.notes
    resolved_target = find(target)
    if packages and resolved_target.kind != "script":
        raise BadInput(
            f"--with-package cannot be used for {resolved_target.text}, because it is not a script.",
            hint="Leave it out: a package that the target imports and that is absent has a stand-in anyway.",
        )
    if resolved_target.kind == "script":
        if size is not None or variant is not None or chunk is not None or settings:
            raise BadInput(
                f"{resolved_target.text} is a script, which has no size, variant, chunk or settings.",
                hint="Pass the script's own arguments after --.",
            )
    elif size is None:
        raise BadInput(f"{resolved_target.text} needs a size.", hint="Add --size, such as --size 100k.")
    if args and resolved_target.kind != "script":
        raise BadInput(
            f"{resolved_target.text} takes no arguments after --, because it is not a script.",
            hint="Leave them out.",
        )
    if mode is not None and mode not in MODES:
        raise BadInput(f"There is no mode {mode!r}.", hint=f"Use one of: {', '.join(MODES)}.")
    if steps < 2:
        raise BadInput(
            f"The first step creates the optimizer state, so --steps {steps} does not show the peak.",
            hint="Use at least 2 steps.",
        )
    if measure:
        gpu_measurement.check_measurable(resolved_target)
    job = _first_rank(resolved_target, world_size, rank, local_world_size)
    check_seconds("timeout", timeout_s)
    points = None if size is None else parse_size(size)
    named_card = cards.card(card) if card is not None else None
    with Forecaster(
        target,
        card=card or "h200",
        seed=seed,
        timeout_s=timeout_s,
        settings=settings,
        packages=packages,
        allow_network=allow_network,
        environment=environment,
        on_status=on_status,
    ) as forecaster:
        forecast = forecaster.predict(
            size=points,
            mode=mode,
            variant=variant,
            chunk=chunk,
            steps=steps,
            args=tuple(args),
            rank=job,
            chunk_must_apply=True,
        )
        if job is not None and rank == "all":
            forecast = worst_rank(forecaster, forecast, job, steps=steps, args=tuple(args))
        if named_card is not None and forecast.fits[named_card.name] is False:
            ways = levers.find(forecaster, forecast, chunk=chunk, args=tuple(args), rank=job)
            forecast = replace(forecast, levers=ways)
    if named_card is not None and (assumed := cards.assumption(named_card)) is not None:
        notes = (*notes, assumed)
    forecast = replace(forecast, notes=(*forecast.notes, *notes))
    if measure:
        forecast = replace(
            forecast,
            measured=gpu_measurement.measure(
                resolved_target, forecast, chunk=chunk, steps=steps, seed=seed, timeout_s=timeout_s
            ),
        )
    return forecast


def _first_rank(
    target: Target, world_size: int | None, rank: int | str, local_world_size: int | None
) -> Rank | None:
    """The rank to run, or the first one of all; None for a target that is not a parallel job."""
    if world_size is None:
        if rank != 0 or local_world_size is not None:
            raise BadInput(
                "--rank and --local-world-size cannot be used without --world-size.",
                hint="Add --world-size with the number of processes.",
            )
        return None
    if target.kind != "script":
        raise BadInput(
            f"--world-size {world_size} cannot be used for {target.text}, which is not a script.",
            hint="Give a script that torchrun could start, or one that uses JAX on several devices.",
        )
    return make_rank(0 if rank == "all" else int(rank), world_size, local_world_size)


def worst_rank(
    forecaster: Forecasts, first: Forecast, job: Rank, *, args: tuple[str, ...], **options: Any
) -> Forecast:
    """The forecast of the rank that needs most, of those that may differ; what is unknown of one counts.

    first: the forecast of the first of these ranks. options: of the other predictions.
    """
    if first.framework == "jax":  # one process has several devices, of which the fullest was predicted
        return first
    ranks = differing_ranks(job, (*first.seen.get("stages", ()), *first.seen.get("compared_ranks", ())))
    forecasts = [first] + [
        forecaster.predict(args=args, rank=replace(job, rank=rank), **options) for rank in ranks[1:]
    ]
    worst = max(forecasts, key=lambda forecast: (forecast.needs_bytes or 0) + (forecast.nccl_bytes or 0))
    others = ", ".join(
        f"{forecast.rank}: {show_bytes(forecast.peak_allocated_bytes)}"
        for forecast in forecasts
        if forecast is not worst
    )
    note = f"rank {worst.rank} needs most of the ranks that were run" + (f" ({others})" if others else "")
    reasons = [reason for forecast in forecasts for reason in forecast.reasons]
    worst = replace(worst, fits=assembly.fits_of_all(forecasts))
    if len(ranks) < job.world_size:
        note += "; the others are assumed to be like one of them"
    return assembly.with_reasons(replace(worst, notes=(note, *worst.notes)), reasons)
