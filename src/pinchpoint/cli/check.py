"""Scan, predict and profile a script, and say what to change, ranked by what it costs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.core.records import Advice, Check, Gain

_SHOWN = {"cost": 6, "correctness": 3, "source": 3}  # of each group, with all that is known
_LISTED = 40  # in all; the others in one line each
_PATH_WIDTH = 46
_HEADINGS = {
    "cost": "Costs, as measured:",
    "correctness": "Correctness, whatever it costs:",
    "source": "Without a measured cost:",
}
_WITHOUT_COST = {
    "counted": "seen in the run, cost unknown",
    "ran": "the line ran",
    "not seen": "not seen in the run",
    "did not run": "the line did not run",
}


def command(
    target: str = typer.Argument(..., metavar="TARGET", help="A script.py or notebook.ipynb."),
    args: list[str] = options.SCRIPT_ARGS,
    as_module: bool = options.AS_MODULE,
    steps: int = typer.Option(
        20, "--steps", help="Stop after so many optimizer steps or, in JAX, jitted calls."
    ),
    time_limit: float = typer.Option(300.0, "--time-limit", help="Stop the script after so many seconds."),
    predict: bool = typer.Option(
        True, "--predict/--no-predict", help="Whether to predict the peak memory on a GPU."
    ),
    allow_network: bool = options.ALLOW_NETWORK,
    apply: bool = typer.Option(
        False, "--apply", help="Make the fixes that keep all results, and compare the times before and after."
    ),
    against: str = typer.Option(
        None, "--against", metavar="TARGET", help="Compare the times with those of this other script."
    ),
    pairs: int = typer.Option(
        None,
        "--pairs",
        help="With --apply or --against: how often both versions are measured. Default: 10 blocks of steps, "
        "or 6 runs of a script that cannot take turns. Fewer than 6 prove nothing.",
    ),
    output: Path = options.RECORD,
    as_json: bool = typer.Option(
        False, "--json", help="Print the record instead of the summary; the script prints to stderr."
    ),
) -> int:
    """Say what to change in a script, ranked by what it costs: scan, predict, and profile in one.

    `check train.py -- --epochs 1` scans the script and the modules beside it, predicts its peak, and runs it
    for a few steps. The exit code is 1 if there is anything to change, and 2 if the script fails; what was
    learned until then is shown and written.
    """
    from pinchpoint.checking.check import check
    from pinchpoint.core.errors import TargetFailed
    from pinchpoint.core.files import check_output

    def store(result: Check) -> None:
        if output is not None:
            result.save(output)

    if output is not None:
        check_output(output)
    saved = "nothing was saved" if output is None else f"the answer, if there is one, is in {output}"
    if apply:
        saved += "; the safe fixes may be in the files already"
    with printing.explain_interrupt(saved):
        result = check(
            options.script_target(target, as_module=as_module),
            args=args or (),
            steps=steps,
            time_limit_s=time_limit,
            predict=predict,
            allow_network=allow_network,
            apply=apply,
            against=None if against is None else options.script_target(against, as_module=as_module),
            pairs=pairs,
            output_to_stderr=as_json,
            on_status=lambda stage: printing.say(f"{target}: {stage}"),
            on_checked=store,
        )
    store(result)
    if as_json:
        printing.show_json(result.to_json())
    else:
        _show(result)
    if result.trace is not None and result.trace.ended == "interrupted":
        return 130
    if result.error or result.exit_code:
        raise TargetFailed(_failure(target, result), hint=_hint(result))
    return 1 if result.advice else 0


def _failure(target: str, result: Check) -> str:
    if result.trace is None:
        return result.error
    return f"{target} raised {result.error}." if result.error else f"{target} exited with {result.exit_code}."


def _hint(result: Check) -> str:
    if result.exit_code == 2 and not result.error:
        return "Pass the script's arguments after --."
    return "Its own message is above; what was learned until then is kept."


def _show(result: Check) -> None:
    printing.stdout().print()
    printing.show_narrow(result.conclusion(), style="bold")
    counts: Counter[str] = Counter()
    for number, advice in enumerate(result.advice[:_LISTED], 1):
        counts[advice.group] += 1
        if counts[advice.group] == 1:
            printing.stdout().print()
            printing.show(_HEADINGS[advice.group], style="bold")
        if counts[advice.group] <= _SHOWN[advice.group]:
            _show_advice(number, advice)
        else:
            printing.show_narrow(f"{number:2}. {_name(advice)} at {_place(advice)}: {_cost(advice)}")
    more = len(result.advice) - _LISTED
    if more > 0:
        printing.show_narrow(f"and {more} more; use -o FILE.json to store them all")
    if result.gain is not None:
        printing.stdout().print()
        _show_gain(result.gain)
    elif any(advice.is_safe for advice in result.advice) and not result.error:
        printing.say("Use --apply to make the safe fixes and to compare the times before and after.")
    printing.stdout().print()
    printing.show_summary(result)
    for note in result.notes:
        printing.say(f"note: {note}")


def _name(advice: Advice) -> str:
    return f"{advice.rule} {advice.name}".strip()


def _place(advice: Advice) -> str:
    from pinchpoint.core.files import shown_path

    return (
        f"{printing.shorten_path(shown_path(advice.file), _PATH_WIDTH - 6)}:{advice.line}"
        if advice.file
        else "no line"
    )


def _show_advice(number: int, advice: Advice) -> None:
    printing.show_narrow(f"{number:2}. {_name(advice)}: {_cost(advice)}", style="bold")
    printing.show_narrow(f"    {advice.what}")
    if advice.file:
        where = _place(advice)
        # After a long path there is no room for the code.
        _show_cut(f"    {where}" if len(where) > _PATH_WIDTH else f"    {where}  {advice.code}")
        if len(where) > _PATH_WIDTH and advice.code:
            _show_cut(f"      {advice.code}")
    for sentence in advice.evidence[:2]:
        printing.show_narrow(f"    profile: {sentence}")
    if not advice.diff:
        printing.show_narrow(f"    hint: {advice.hint}")
        return
    changes = [line for line in advice.diff.splitlines()[2:] if line[:1] in ("+", "-")]
    indent = min((len(line[1:]) - len(line[1:].lstrip()) for line in changes if line[1:].strip()), default=0)
    printing.show(f"    fix{' (safe)' if advice.is_safe else ' (may change results, not made by --apply)'}:")
    for line in changes:
        _show_cut(f"      {line[:1]} {line[1 + indent :]}", style="green" if line[:1] == "+" else "red")


def _show_cut(text: str, *, style: str = "") -> None:
    """Print code in one line, cut to the width."""
    width, text = printing.narrow_width(), text.rstrip()
    printing.show(text if len(text) <= width else f"{text[: width - 3]}...", style=style)


def _cost(advice: Advice) -> str:
    from pinchpoint.core.units import show_bytes, show_seconds

    parts = []
    if advice.cost_s is not None:
        per = " per step" if advice.share is not None else ""
        parts.append(f"{show_seconds(advice.cost_s)}{per}")
    if advice.share is not None:
        parts.append(f"{advice.share:.1%}" if advice.share >= 0.001 else "below 0.1%")
    if advice.bytes is not None:
        parts.append(show_bytes(advice.bytes))
    if parts:
        return ", ".join(parts)
    return (
        "seen in the run"
        if advice.seen == "counted" and advice.group == "correctness"
        else _WITHOUT_COST[advice.seen]
    )


def _show_gain(gain: Gain) -> None:
    for advice in gain.fixes:
        printing.show_narrow(f"fixed: {advice.rule} {advice.name} at {_place(advice)}")
    printing.show_narrow(f"{gain.verdict}: {gain.reason}", style="bold")
    if gain.note:
        printing.say(f"note: {gain.note}")
