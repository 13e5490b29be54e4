"""Predict the peak memory of a training step on any card, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.cli.completion import complete_card
from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.checking.baseline import Judgement
    from pinchpoint.core.records import Forecast, Line

_LINES = 8  # source lines shown ...
_INSIDE = 6  # ... the modules shown under one of them ...
_INSIDE_SHARE = 0.15  # ... if it holds this share of the peak ...
_MODULES = 6  # ... and those of the whole peak


def command(
    target: str = typer.Argument(
        None,
        metavar="TARGET",
        help="A workload, file.py:NAME, a script.py or notebook.ipynb, or, after --, a launcher's command.",
        autocompletion=options.complete_target,
    ),
    args: list[str] = options.SCRIPT_ARGS,
    as_module: bool = options.AS_MODULE,
    size: str = typer.Option(
        None, "--size", help="Number of points, such as 512k. Scripts take their own arguments instead."
    ),
    mode: str = options.MODE,
    variant: str = typer.Option(None, "--variant", help="The variant to predict. Default: the baseline."),
    chunk: str = typer.Option(
        None, "--chunk", help="Points processed at one time, for a variant that supports chunks."
    ),
    card: str = typer.Option(
        None,
        "--card",
        help="The name of a card or its bytes, such as rtx4090 or 24GiB.",
        autocompletion=complete_card,
    ),
    steps: int = typer.Option(2, "--steps", help="Steps to run; 2 include the optimizer state."),
    world_size: int = typer.Option(
        None,
        "--world-size",
        help="Predict a script as one of this many processes, as torchrun starts it; in JAX: devices.",
    ),
    rank: str = options.RANK,
    local_world_size: int = options.LOCAL_WORLD_SIZE,
    packages: list[str] = typer.Option(
        None,
        "--with-package",
        help="A package that needs CUDA, such as flash_attn, to assume as installed. May be repeated.",
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
    measure: bool = typer.Option(False, "--measure", help="Also run it on this machine's GPU and compare."),
    settings: list[str] = options.SET,
    seed: int = options.SEED,
    timeout: float = typer.Option(300.0, "--timeout", help="Time limit of the prediction, in seconds."),
    against: str = typer.Option(
        None,
        "--against",
        metavar="REVISION|FILE.json",
        help="Compare with the same script at a git revision such as origin/main, or with a record.",
    ),
    max_growth: str = typer.Option(
        None,
        "--max-growth",
        metavar="PERCENT",
        help="With --against: exit with 1 if the peak grows by more than this, such as 5%.",
    ),
    markdown: Path = typer.Option(
        None, "--markdown", metavar="FILE.md", help="Write a summary for a pull request here."
    ),
    output: Path = options.RECORD,
    as_json: bool = options.AS_JSON,
) -> None:
    """Predict the peak memory of a step by source line, without a GPU.

    `predict TARGET --size 512k` runs a workload or factory on fake tensors. `predict train.py -- --batch 64`
    runs an unmodified script on fake tensors for two steps, in a sandbox. With --card, the exit code is 1 if
    the step does not fit. `predict -- torchrun --nproc-per-node 8 train.py` (or accelerate launch) runs it as
    one of the processes that the launcher starts. `predict --model config.json --task lora --batch 8` needs
    no script: it predicts the step that the usual tools run, and prints the script it stands for.
    `predict train.py --against origin/main --max-growth 5%` exits with 1 if the peak has grown.
    """
    from pinchpoint.checking.baseline import check_baseline, find_baseline, judge
    from pinchpoint.core.errors import BadInput
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.core.ranks import parse_rank
    from pinchpoint.core.settings import parse_pairs
    from pinchpoint.core.units import parse_size
    from pinchpoint.forecasting.predict import predict
    from pinchpoint.forecasting.recipes.model_forecast import read_model
    from pinchpoint.forecasting.recipes.script import script_text

    if output is not None:
        check_output(output)
    model_options = {
        "task": task,
        "batch": batch,
        "sequence": sequence,
        "new_tokens": new_tokens,
        "optimizer": optimizer,
        "precision": precision,
        "sharding": sharding,
        "script": script,
    }
    recipe = read_model(model, target=target, world_size=world_size, **model_options)
    target = options.script_target(target, as_module=as_module)
    limit = None if max_growth is None else options.parse_growth(max_growth)
    if against is None and limit is not None:
        raise BadInput(
            "--max-growth needs --against.", hint="Name a git revision or a record to compare with."
        )
    if against is not None:
        check_baseline(target, against)
    if markdown is not None:
        check_output(markdown)
    with printing.progress("predict") as progress:

        def run() -> Forecast:
            return predict(
                target,
                size=size,
                mode=mode,
                variant=variant,
                chunk=None if chunk is None else parse_size(chunk),
                card=card,
                args=args or (),
                steps=steps,
                seed=seed,
                timeout_s=timeout,
                measure=measure,
                settings=parse_pairs(settings or ()),
                world_size=world_size,
                rank=parse_rank(rank),
                local_world_size=local_world_size,
                packages=packages or (),
                allow_network=allow_network,
                model=model,
                **model_options,
                on_status=progress if printing.stderr().is_terminal else None,
            )

        progress(model or target)
        forecast = run()
        if against is not None:
            progress(f"{against}: {model or target}")
        baseline = None if against is None else find_baseline(against, run)
    judgement = judge(forecast, baseline, max_growth=limit, card=None if card is None else forecast.card)
    if markdown is not None:
        write_text(markdown, judgement.to_markdown())
    if output is not None:
        forecast.save(output)
    if as_json:
        printing.show_json(forecast.to_json())
    else:
        _show(forecast, card_name=card)
        if recipe is not None:
            _show_script(script_text(recipe), script)
        _show_judgement(judgement)
    if judgement.failures:
        raise typer.Exit(1)


def _show_judgement(judgement: Judgement) -> None:
    """What changed since the baseline."""
    if judgement.comparison is not None:
        printing.stdout().print()
        for sentence in judgement.comparison.conclusion:
            printing.show_narrow(sentence)
        for note in judgement.comparison.notes:
            printing.say(f"note: {note}")
        for sentence in judgement.failures:
            printing.show_narrow(sentence, style="bold red")
    for note in judgement.notes:
        printing.say(f"note: {note}")


def _show(forecast: Forecast, *, card_name: str | None) -> None:
    from pinchpoint.core.units import show_bytes

    _show_fit(forecast, card_name)
    printing.stdout().print()
    printing.show_summary(forecast)
    printing.stdout().print()
    total = forecast.peak_allocated_bytes
    parts = [
        (name, show_bytes(size), f"{size / total:.0%}") for name, size in forecast.breakdown.items() if size
    ]
    printing.show_narrow_table(("at the peak", "bytes", "share"), parts, right=("bytes", "share"))
    if forecast.lines:
        printing.stdout().print()
        rows = [row for line in forecast.lines[:_LINES] for row in _line_rows(line, total)]
        used = sum(max(len(row[column]) for row in rows) + 2 for column in range(3))
        room = max(printing.narrow_width() - used, 12)
        rows = [(*row[:3], _shorten(row[3], room)) for row in rows]
        printing.show_narrow_table(("line", "bytes", "phase", ""), rows, right=("bytes",))
    if len(forecast.modules) > 1:
        _show_modules(forecast)
    if forecast.measured:
        printing.stdout().print()
        _show_measured(forecast)
    for reason in forecast.reasons:
        printing.say(f"the peak may be higher: {reason}")
    for note in forecast.notes:
        printing.say(f"note: {note}")


def _show_script(text: str, path: Path | None) -> None:
    """The script that was predicted, or where it is."""
    printing.stdout().print()
    if path is not None:
        printing.say(f"the script is in {path}")
        return
    printing.stdout().print("the script that this stands for (--script FILE.py writes it):\n")
    printing.stdout().print(text, end="", markup=False, highlight=False, soft_wrap=True)


def _show_fit(forecast: Forecast, card_name: str | None) -> None:
    from pinchpoint.core.units import show_bytes

    margin = show_bytes(forecast.margin_bytes)
    if card_name is not None:
        from pinchpoint.forecasting.cards import card

        has = card(card_name).memory_bytes
        needed = (forecast.needs_bytes or 0) + card(card_name).context_high_bytes
        needed += forecast.nccl_high_bytes or 0
        if forecast.fits[forecast.card] and needed > has:
            printing.show_narrow(
                f"fits {forecast.card} if the allocator frees cached blocks, as PyTorch does when memory "
                f"runs out; otherwise it needs {show_bytes(needed)} of {show_bytes(has)}, margin included",
                style="green",
            )
        elif forecast.fits[forecast.card]:
            most = show_bytes(max(needed, forecast.total_bytes + forecast.margin_bytes))
            printing.show_narrow(
                f"fits {forecast.card}: it needs at most {most} of {show_bytes(has)}, margin included",
                style="green",
            )
        elif forecast.fits[forecast.card] is None:
            printing.show_narrow(
                f"unknown whether it fits {forecast.card}, which has {show_bytes(has)}", style="yellow"
            )
        else:
            why = f": it may need {show_bytes(needed)}, margin included" if needed > has else ""
            printing.show_narrow(
                f"does not fit {forecast.card}, which has {show_bytes(has)}{why}", style="red"
            )
        if forecast.levers:
            over = needed - has
            rows = [
                (
                    lever.name,
                    show_bytes(lever.saves_bytes),
                    "yes" if lever.saves_bytes >= over else "no",
                    lever.how,
                )
                for lever in forecast.levers
            ]
            printing.show_narrow_table(("lever", "saves", "enough", "how"), rows, right=("saves",))
        return
    fitting = [name for name, fits in forecast.fits.items() if fits]
    unknown = [name for name, fits in forecast.fits.items() if fits is None]
    if unknown:
        larger = f" or any of the {len(unknown) - 1} larger cards" if len(unknown) > 1 else ""
        printing.show_narrow(f"unknown whether it fits {unknown[0]}{larger}", style="yellow")
    elif not fitting:
        printing.show_narrow(
            f"fits none of the {len(forecast.fits)} known cards, with a margin of {margin}", style="red"
        )
        return
    if fitting:
        printing.show_narrow(f"smallest card that fits, with a margin of {margin}: {fitting[0]}")
    too_small = [name for name, fits in forecast.fits.items() if fits is False]
    if too_small:
        printing.show_narrow(f"does not fit: {', '.join(too_small)}")


def _show_measured(forecast: Forecast) -> None:
    from pinchpoint.core.units import show_bytes

    assert forecast.measured is not None
    predictions = {
        "allocated_bytes": forecast.peak_allocated_bytes,
        "reserved_bytes": forecast.peak_reserved_bytes,
        "total_bytes": forecast.total_bytes,
    }
    rows = []
    for name, value in predictions.items():
        measurement = forecast.measured.get(name)
        error = f"{value / measurement - 1:+.2%}" if value and measurement else "-"
        rows.append((name.removesuffix("_bytes"), show_bytes(value), show_bytes(measurement), error))
    printing.show_narrow_table(
        ("peak", "predicted", "measured", "error"), rows, right=("predicted", "measured", "error")
    )


def _line_rows(line: Line, whole: int) -> list[tuple[str, str, str, str]]:
    """The row of a source line, and under it what holds most of it: module, bytes, repeats, library line."""
    from pinchpoint.core.units import common_root, show_bytes

    wide = printing.narrow_width() >= 120
    name_width = 60 if wide else 30
    where = printing.shorten_path(f"{line.file}:{line.line}", name_width)
    rows = [(where, show_bytes(line.bytes), line.phase, line.code)]
    if line.bytes < _INSIDE_SHARE * whole:
        return rows
    parts = [part for part in line.inside[:_INSIDE] if part.bytes >= 0.01 * line.bytes]
    root = common_root([part.module for part in parts])
    for part in parts:
        name = part.module.removeprefix(root) or "outside modules"
        place = part.file.rpartition("/")[2] + ("" if part.line is None else f":{part.line}")
        code = f"{place}  {part.code}" if wide else place
        each = _repeats(part.count, part.bytes, equal=part.equal)
        rows.append((f"  {_end_of(name, name_width - 2)}", show_bytes(part.bytes), each, code))
    rest = line.bytes - sum(part.bytes for part in parts)
    if parts and rest >= 0.01 * line.bytes:
        rows.append(("  other", show_bytes(rest), "", ""))
    return rows


def _repeats(count: int, total: int, *, equal: bool) -> str:
    """`12 x 96 MiB`, or `12 x ~96 MiB` if the modules differ."""
    from pinchpoint.core.units import show_bytes

    if count == 1:
        return ""
    value, unit = show_bytes(total // count).split()
    number = float(value.replace(",", ""))
    return f"{count} x {'' if equal else '~'}{number:.3g} {unit}"


def _show_modules(forecast: Forecast) -> None:
    from pinchpoint.core.units import show_bytes
    from pinchpoint.reporting.modules import merged_modules

    rows = [
        (
            _end_of(module.name, 40),
            show_bytes(module.bytes),
            f"{module.bytes / forecast.peak_allocated_bytes:.0%}",
            _repeats(module.count, module.bytes, equal=module.equal),
        )
        for module in merged_modules(forecast.modules)[:_MODULES]
        if module.bytes >= 0.005 * forecast.peak_allocated_bytes
    ]
    if rows:
        printing.stdout().print()
        printing.show_narrow_table(("module", "bytes", "share", ""), rows, right=("bytes", "share"))


def _end_of(text: str, length: int) -> str:
    """The end of a long name, from one of its parts on if that is possible: `...layer.*.attention`."""
    if len(text) <= length:
        return text
    end = text[len(text) - length + 3 :]
    part = end.find(".")
    return f"...{end[part + 1 :] if 0 <= part < len(end) // 2 else end}"


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
