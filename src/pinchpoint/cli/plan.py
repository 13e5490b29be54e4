"""Find what fits a budget: the largest size, the chunk for a size, and the best variant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.cli.completion import complete_card, one_of
from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinchpoint.core.records import Checkpointing, Plan


# Parameters that another way to plan takes; with others, it would silently answer another question.
_OF_SCRIPT = {"target", "args", "as_module", "seed", "timeout", "allow_network", "output"}
_OF_REQUEST = _OF_SCRIPT | {
    "request",
    "card",
    "size",
    "mode",
    "world_size",
    "rank",
    "local_world_size",
    "settings",
}
_OF_CHECKPOINTING = _OF_SCRIPT | {"checkpointing", "budget", "as_json"}


def command(
    context: typer.Context,
    target: str = typer.Argument(
        None,
        metavar="TARGET",
        help="The name of a workload, file.py:NAME, a script.py or notebook.ipynb with --vary.",
        autocompletion=options.complete_target,
    ),
    args: list[str] = options.SCRIPT_ARGS,
    as_module: bool = options.AS_MODULE,
    budget: str = typer.Option(
        None,
        "--budget",
        help="Memory budget: bytes such as 24GiB, or the name of a card.",
        autocompletion=complete_card,
    ),
    mode: str = options.MODE,
    size: str = typer.Option(
        None, "--size", help="Plan for this size: find its chunk, its variant, or its smallest world size."
    ),
    variant: str = typer.Option(None, "--variant", help="Consider only this variant. Default: all."),
    cards: str = typer.Option(
        None, "--cards", help="Plan for several cards: all, or names separated by commas."
    ),
    vary: str = typer.Option(
        None, "--vary", help="The argument of the script to vary, with {} for the number: '--batch-size {}'."
    ),
    world_size: str = typer.Option(
        None, "--world-size", help="Plan a script for several numbers of processes, such as 8,16,32."
    ),
    rank: str = options.RANK,
    local_world_size: int = options.LOCAL_WORLD_SIZE,
    multiple: str = typer.Option("1", "--multiple", help="Consider only multiples of this number."),
    up_to: str = typer.Option("1000M", "--up-to", help="The largest size to consider."),
    checkpointing: str = typer.Option(
        None,
        "--checkpointing",
        help="auto: find the modules of a training script to recompute so that it fits the budget at the "
        "least extra time.",
    ),
    allow_network: bool = options.ALLOW_NETWORK,
    request: str = typer.Option(
        None,
        "--request",
        help="slurm or kubernetes: print the GPU request for the script as it is.",
        autocompletion=one_of("slurm", "kubernetes"),
    ),
    card: str = typer.Option(
        None,
        "--card",
        help="With --request: the card to ask for, such as h100.",
        autocompletion=complete_card,
    ),
    model: str = options.MODEL,
    task: str = options.TASK,
    batch: int = options.BATCH,
    sequence: int = options.SEQUENCE,
    new_tokens: int = options.NEW_TOKENS,
    optimizer: str = options.OPTIMIZER,
    precision: str = options.PRECISION,
    sharding: str = options.SHARDING,
    script: Path = options.SCRIPT,
    settings: list[str] = options.SET,
    seed: int = options.SEED,
    timeout: float = typer.Option(300.0, "--timeout", help="Time limit of one fake run, in seconds."),
    output: Path = options.RECORD,
    as_json: bool = options.AS_JSON,
) -> None:
    """Find the largest size, the chunk and the variant that fit a budget, without a GPU.

    `plan TARGET --budget 24GiB` tries sizes on fake tensors, at most 8 per variant, and names the
    largest one predicted to fit, within 1 %. With --size it finds the largest chunk for that size.
    --cards adds at most 8 fake runs and marks the sizes that are interpolated between two of them.
    The exit code is 1 if nothing fits, and if it is unknown what fits; the reasons are printed.
    For a script, name the argument that is its size: `plan train.py --budget 24GiB --vary '--batch-size {}'`.
    `plan train.py --budget 24GiB --checkpointing auto` keeps its size, and finds what to recompute instead.
    `plan --model config.json --task lora --budget 24GiB` needs no script and finds the largest batch, or with
    --vary '--sequence {}' the longest sequence.
    With --world-size 8,16,32 there is a row for each number of processes, and --size finds the smallest one.
    `plan train.py --request slurm --card h100 --world-size 16` prints the lines for sbatch.
    """
    from pinchpoint.core.files import check_output
    from pinchpoint.core.ranks import parse_rank
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.planning.plan import plan

    if output is not None:
        check_output(output)
    target = options.script_target(target, as_module=as_module)
    if card is not None and request is None:
        from pinchpoint.core.errors import BadInput

        raise BadInput("--card is for --request.", hint="Use --budget with the name of the card.")
    if request is not None:
        _refuse_others(context, "--request", _OF_REQUEST)
        _request(
            target,
            request,
            card=card,
            size=size,
            mode=mode,
            args=args or (),
            world_size=world_size,
            rank=rank,
            local_world_size=local_world_size,
            settings=settings or (),
            seed=seed,
            timeout_s=timeout,
            allow_network=allow_network,
            output=output,
        )
        return
    if checkpointing is not None:
        _refuse_others(context, "--checkpointing", _OF_CHECKPOINTING)
        _plan_checkpointing(
            target,
            checkpointing,
            budget=budget,
            args=args or (),
            seed=seed,
            timeout_s=timeout,
            allow_network=allow_network,
            output=output,
            as_json=as_json,
        )
        return
    saved = "nothing was saved, because -o FILE.json was not given"
    if output is not None:
        saved = f"the answers so far, if there are any, are in {output}"
    with printing.explain_interrupt(saved), printing.progress("plan") as progress:
        result = plan(
            target,
            budget=budget,
            mode=mode,
            size=size,
            variant=variant,
            cards=cards,
            vary=vary,
            args=args or (),
            world_size=world_size,
            rank=parse_rank(rank),
            local_world_size=local_world_size,
            multiple=multiple,
            up_to=up_to,
            seed=seed,
            timeout_s=timeout,
            settings=parse_pairs(settings or ()),
            allow_network=allow_network,
            model=model,
            task=task,
            batch=batch,
            sequence=sequence,
            new_tokens=new_tokens,
            optimizer=optimizer,
            precision=precision,
            sharding=sharding,
            script=script,
            progress=progress,
            on_result=None if output is None else lambda preliminary: preliminary.save(output) and None,
        )
    if output is not None:
        result.save(output)
    if as_json:
        printing.show_json(result.to_json())
    else:
        _show(result)
    if result.size is None:
        raise typer.Exit(1)


def _refuse_others(context: typer.Context, option: str, allowed: set[str]) -> None:
    """Refuse options of the command line that this way to plan does not take."""
    from pinchpoint.core.errors import BadInput

    def is_on_command_line(name: str) -> bool:
        source = context.get_parameter_source(name)
        return source is not None and source.name == "COMMANDLINE"

    names = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name not in allowed and is_on_command_line(str(parameter.name))
    ]
    if names:
        raise BadInput(
            f"{option} cannot be used together with {', '.join(names)}.",
            hint="Leave the other option out: the size of the script is not changed.",
        )


def _request(
    target: str | None,
    kind: str,
    *,
    card: str | None,
    size: str | None,
    mode: str | None,
    args: Sequence[str],
    world_size: str | None,
    rank: str,
    local_world_size: int | None,
    settings: Sequence[str],
    seed: int,
    timeout_s: float,
    allow_network: bool,
    output: Path | None,
) -> None:
    """Print the GPU request for a script, and exit with 1 unless it is known to suffice."""
    from pinchpoint.core.errors import BadInput, DoesNotFit
    from pinchpoint.core.ranks import parse_rank, parse_world_sizes
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.core.units import show_bytes
    from pinchpoint.forecasting.predict import predict
    from pinchpoint.planning import gpu_request

    gpu_request.check_kind(kind)
    if target is None:
        raise BadInput("No script was named.", hint="Give the script, such as train.py.")
    sizes = (None,) if world_size is None else parse_world_sizes(world_size)
    if len(sizes) != 1:
        raise BadInput(
            f"A request has one world size, but --world-size is {world_size}.",
            hint="Find the best one without --request first.",
        )
    with printing.progress("plan") as progress:
        progress(target)
        forecast = predict(
            target,
            size=size,
            mode=mode,
            card=card,
            args=args,
            world_size=sizes[0],
            # All processes get the same GPUs, so that the one that needs most decides.
            rank="all" if sizes[0] is not None and rank == "0" else parse_rank(rank),
            local_world_size=local_world_size,
            settings=parse_pairs(settings),
            seed=seed,
            timeout_s=timeout_s,
            allow_network=allow_network,
        )
    if output is not None:
        forecast.save(output)
    request = gpu_request.gpu_request(
        forecast,
        card_name=card,
        command=gpu_request.launch_words(target, args),
        local_world_size=local_world_size,
    )
    if request.card is not None and request.fits is False:
        fitting = [name for name, fits in forecast.fits.items() if fits]
        raise DoesNotFit(
            f"{target} does not fit {request.card.name}: it may need {show_bytes(request.need_bytes)} of"
            f" {show_bytes(request.card.memory_bytes)}, margin included.",
            hint=f"Ask for --card {fitting[0]}." if fitting else "No known card is large enough.",
            need_bytes=request.need_bytes,
        )
    typer.echo(gpu_request.request_text(request, kind))
    if not request.fits:
        raise typer.Exit(1)


def _plan_checkpointing(
    target: str | None,
    checkpointing: str,
    *,
    budget: str | None,
    args: Sequence[str],
    seed: int,
    timeout_s: float,
    allow_network: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    from pinchpoint.core.errors import BadInput
    from pinchpoint.planning.checkpointing.plan_checkpointing import plan_checkpointing

    if checkpointing != "auto":
        raise BadInput(f"--checkpointing {checkpointing!r} is not known.", hint="Use --checkpointing auto.")
    if target is None:
        raise BadInput("No script was named.", hint="Give the training script, such as train.py.")
    if budget is None:
        raise BadInput("--checkpointing needs a budget.", hint="Give --budget 24GiB, or the name of a card.")
    with (
        printing.explain_interrupt("nothing was saved, because the search has not ended"),
        printing.progress("plan") as progress,
    ):
        result = plan_checkpointing(
            target,
            budget=budget,
            args=args,
            seed=seed,
            timeout_s=timeout_s,
            allow_network=allow_network,
            progress=progress,
        )
    if output is not None:
        result.save(output)
    if as_json:
        printing.show_json(result.to_json())
    else:
        _show_checkpointing(result)
    if not result.fits:
        raise typer.Exit(1)


def _show_checkpointing(result: Checkpointing) -> None:
    from pinchpoint.core.units import show_bytes, show_seconds
    from pinchpoint.reporting.answers import answer

    answered = answer(result)
    printing.show_answer(answered.text, tone=answered.tone)
    printing.stdout().print()
    printing.show_summary(result)
    if result.groups:
        printing.stdout().print()
        rows = [
            (
                group["modules"],
                group["class"],
                *([group["keeps"]] if result.keeping_products else []),
                str(group["count"]),
                show_bytes(group["freed_bytes"]),
                show_seconds(group["recompute_s"]),
            )
            for group in result.groups
        ]
        keeps = ["keeps"] if result.keeping_products else []
        columns = ("recompute", "class", *keeps, "modules", "frees", "estimated time")
        printing.show_narrow_table(columns, rows, right=columns[-3:])
    for way in result.how:
        printing.stdout().print()
        printing.show(f"{way['title']}:")
        for line in way["code"].splitlines():
            printing.stdout().print(f"    {line}".rstrip(), markup=False, highlight=False, soft_wrap=True)
    if result.how:
        printing.stdout().print()
    for reason in result.reasons:
        printing.say(f"the peak may be higher: {reason}")
    for note in result.notes:
        printing.say(f"note: {note}")


def _show(plan: Plan) -> None:
    from pinchpoint.core.units import show_bytes, show_size
    from pinchpoint.reporting.answers import answer

    def size(value: int | None) -> str:
        return "-" if value is None else show_size(value)

    answered = answer(plan)
    printing.show_answer(answered.text, tone=answered.tone)
    printing.stdout().print()
    printing.show_summary(plan)
    if len(plan.choices) > 1:
        printing.stdout().print()
        rows = [
            (c["variant"], size(c["size"]), size(c["chunk"]), show_bytes(c["peak_bytes"]), c["why"])
            for c in plan.choices
        ]
        columns = ("variant", plan.axis, "chunk", "predicted peak", "")
        printing.show_narrow_table(columns, rows, right=(plan.axis, "chunk", "predicted peak"))
    if plan.world_sizes:
        printing.stdout().print()
        rows = [
            (str(row["world_size"]), size(row["size"]), show_bytes(row["peak_bytes"]), _fit_of(row))
            for row in plan.world_sizes
        ]
        columns = ("world size", plan.axis, "predicted peak", "")
        printing.show_narrow_table(columns, rows, right=columns[:-1])
    if plan.cards:
        printing.stdout().print()
        chunked = any(c["chunk"] is not None for c in plan.cards)
        rows = [
            (
                c["card"],
                show_bytes(c["budget_bytes"]),
                size(c["size"]),
                *((size(c["chunk"]),) if chunked else ()),
                _how(c),
            )
            for c in plan.cards
        ]
        columns = ("card", "memory", plan.axis, *(("chunk",) if chunked else ()), "")
        printing.show_narrow_table(columns, rows, right=columns[1:-1])
    for reason in plan.reasons:
        printing.say(f"the peak may be higher: {reason}")
    for note in plan.notes:
        printing.say(f"note: {note}")


def _fit_of(row: dict[str, Any]) -> str:
    """What the table says about one world size; notes give the details."""
    from pinchpoint.core.units import show_size

    if row["peak_bytes"] is None:
        return "failed"
    if (possible := row["possible_size"]) is not None:
        return f"unknown up to {show_size(possible)}"
    rank = "" if not row["rank"] else f", rank {row['rank']} needs most"
    return ("fits" if row["size"] is not None else row["why"]) + rank


def _how(row: dict[str, Any]) -> str:
    """How the answer for one card was found."""
    from pinchpoint.core.units import show_size

    if (possible := row.get("possible_size")) is not None and possible != row["size"]:
        return f"unknown up to {show_size(possible)}"
    if row["size"] is not None:
        return row["how"]
    return {"predicted": "does not fit", "unknown": "not found"}[row["how"]]
