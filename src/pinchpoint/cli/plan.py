"""Find what fits a budget: the largest size, the chunk for a size, and the best variant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pinchpoint.core.records import Checkpointing, Plan


def command(
    target: str = typer.Argument(
        None,
        metavar="TARGET",
        help="The name of a workload, file.py:NAME, a script.py or notebook.ipynb with --vary.",
    ),
    args: list[str] = options.SCRIPT_ARGS,
    as_module: bool = options.AS_MODULE,
    budget: str = typer.Option(
        None, "--budget", help="Memory budget: bytes such as 24GiB, or the name of a card."
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
    """
    from pinchpoint.core.files import check_output
    from pinchpoint.core.ranks import parse_rank
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.planning.plan import plan

    if output is not None:
        check_output(output)
    target = options.script_target(target, as_module=as_module)
    if checkpointing is not None:
        others = {"--size": size, "--variant": variant, "--cards": cards, "--vary": vary, "--mode": mode}
        others |= {"--world-size": world_size, "--rank": rank != "0", "--local-world-size": local_world_size}
        others |= {"--set": settings, "--multiple": multiple != "1", "--up-to": up_to != "1000M"}
        others |= {"--model": model, "--task": task, "--batch": batch, "--sequence": sequence}
        others |= {"--new-tokens": new_tokens, "--optimizer": optimizer, "--precision": precision}
        others |= {"--sharding": sharding, "--script": script}
        names = [name for name, value in others.items() if value]
        _plan_checkpointing(
            target,
            checkpointing,
            names,
            budget,
            args or (),
            seed,
            timeout,
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


def _plan_checkpointing(
    target: str | None,
    checkpointing: str,
    other_options: list[str],
    budget: str | None,
    args: Sequence[str],
    seed: int,
    timeout_s: float,
    *,
    allow_network: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    from pinchpoint.core.errors import BadInput
    from pinchpoint.planning.checkpointing.plan_checkpointing import plan_checkpointing

    if checkpointing != "auto":
        raise BadInput(f"--checkpointing {checkpointing!r} is not known.", hint="Use --checkpointing auto.")
    if other_options:
        raise BadInput(
            f"--checkpointing cannot be used together with {', '.join(other_options)}.",
            hint="Leave the other option out: the size of the script is not changed.",
        )
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
