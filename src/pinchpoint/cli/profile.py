"""Run a script for real and show where its time and memory go, by phase, step and source line."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import options, printing

if TYPE_CHECKING:
    from pinchpoint.core.records import Problem, Trace

_PROBLEMS = 10
_LINES = 5
_WIDTH = 79


def command(
    target: str = typer.Argument(..., metavar="TARGET", help="A script.py or notebook.ipynb."),
    args: list[str] = options.SCRIPT_ARGS,
    as_module: bool = options.AS_MODULE,
    steps: int = typer.Option(
        None,
        "--steps",
        help="Stop after so many optimizer steps or, in JAX, jitted calls. Default: run to the end.",
    ),
    light: bool = typer.Option(
        False, "--light", help="Record only phases, steps and waits, with hardly any overhead."
    ),
    time_limit: float = typer.Option(
        None, "--time-limit", help="Stop the script after so many seconds. Default: no limit."
    ),
    predict: bool = typer.Option(
        False, "--predict", help="Also predict the peak memory on a GPU, and show both peaks."
    ),
    chrome_trace: Path = typer.Option(
        None,
        "--chrome-trace",
        metavar="FILE.json",
        help="Also write phases and events for chrome://tracing or Perfetto.",
    ),
    output: Path = options.RECORD,
    as_json: bool = typer.Option(
        False, "--json", help="Print the record instead of the summary; the script prints to stderr."
    ),
) -> int:
    """Run a script for real and show where its time and memory go.

    `profile train.py -- --epochs 1` runs the unmodified script on the GPU, or on the CPU if there is none.
    With --steps, it is stopped cleanly after so many optimizer steps. The exit code is 2 if the script fails;
    what was recorded until then is shown and written.
    """
    from pinchpoint.core.errors import TargetFailed
    from pinchpoint.core.files import check_output
    from pinchpoint.profiling.profile import profile

    for path in (output, chrome_trace):
        if path is not None:
            check_output(path)
    trace = profile(
        options.script_target(target, as_module=as_module),
        args=args or (),
        steps=steps,
        light=light,
        time_limit_s=time_limit,
        predict=predict,
        chrome_trace=chrome_trace,
        output_to_stderr=as_json,
    )
    if output is not None:
        trace.save(output)
    if as_json:
        printing.show_json(trace.to_json())
    else:
        _show(trace)
    if trace.ended == "interrupted":
        return 130
    if trace.error or trace.exit_code:
        failure = (
            f"{target} raised {trace.error}." if trace.error else f"{target} exited with {trace.exit_code}."
        )
        raise TargetFailed(failure, hint=_hint(trace))
    return 0


def _hint(trace: Trace) -> str:
    if trace.exit_code == 2 and not trace.error:
        return "Pass the script's arguments after --."
    return "Its own message is above; what was recorded until then is kept."


def _show(trace: Trace) -> None:
    from pinchpoint.core.units import show_seconds
    from pinchpoint.reporting.answers import answer

    printing.stdout().print()
    answered = answer(trace)
    printing.show_answer(answered.text, tone=answered.tone)
    if trace.problems:
        codes = {(event.file, event.line): event.code for event in trace.events}
        for number, problem in enumerate(trace.problems[:_PROBLEMS], 1):
            _show_problem(number, problem, codes.get((problem.file, problem.line), ""))
        more = len(trace.problems) - _PROBLEMS
        if more > 0:
            printing.say(f"and {more} more; use -o FILE.json to store them all")
    printing.stdout().print()
    printing.show_summary(trace)
    if trace.phases:
        printing.stdout().print()
        counted = trace.steps - 1
        has_device = any(phase.device_s is not None for phase in trace.phases)
        rows = [
            (
                phase.name,
                show_seconds(phase.host_s / counted),
                f"{phase.share:.0%}",
                *([show_seconds(phase.device_s / counted if phase.device_s else None)] if has_device else []),
            )
            for phase in trace.phases
        ]
        columns = ("phase", "per step", "share", *(["on the device"] if has_device else []))
        printing.show_table(columns, rows, right=columns[1:])
    if trace.memory and trace.memory.get("lines"):
        printing.stdout().print()
        _show_lines(trace.memory)
    if trace.memory and "predicted_allocated_bytes" in trace.memory:
        printing.stdout().print()
        _show_peaks(trace.memory)
    for note in trace.notes:
        printing.say(f"note: {note}")


def _show_lines(memory: dict[str, Any]) -> None:
    from pinchpoint.core.units import show_bytes

    rows = [
        (
            _fit(f"{_short(line['file'])}:{line['line']}", 30) if line["file"] else "outside the script",
            show_bytes(line["bytes"]),
            line["phase"],
            line["code"][:22],
        )
        for line in memory["lines"][:_LINES]
    ]
    printing.show_table(("at the peak", "bytes", "phase", ""), rows, right=("bytes",))


def _fit(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]


def _show_peaks(memory: dict[str, Any]) -> None:
    from pinchpoint.core.units import show_bytes

    rows = []
    for name in ("allocated", "reserved"):
        predicted, measured = memory[f"predicted_{name}_bytes"], memory.get(f"{name}_bytes")
        error = f"{predicted / measured - 1:+.2%}" if predicted and measured else "-"
        rows.append((name, show_bytes(predicted), show_bytes(measured), error))
    columns = ("peak", "predicted", "measured", "error")
    printing.show_table(columns, rows, right=columns[1:])


def _show_problem(number: int, problem: Problem, code: str) -> None:
    from pinchpoint.core.units import show_bytes, show_seconds

    costs = []
    if problem.cost_s is not None:
        costs.append(show_seconds(problem.cost_s))
    if problem.share is not None:
        costs.append(f"{problem.share:.1%} of the steps")
    if problem.bytes is not None:
        costs.append(show_bytes(problem.bytes))
    cost = f" [{', '.join(costs)}]" if costs else ""
    printing.show(f"{number:2}. {problem.what}{cost}")
    if problem.file:
        code = code or linecache.getline(problem.file, problem.line).strip()
        where = f"    {_short(problem.file)}:{problem.line}  {code}"
        printing.show(where if len(where) <= _WIDTH else where[: _WIDTH - 3] + "...")
    printing.show(f"    hint: {problem.hint}")


def _short(file: str) -> str:
    """The path from the current folder, if the file is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
