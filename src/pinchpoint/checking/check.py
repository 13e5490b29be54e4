"""`check`: scan, predict and profile a script, and return one ranked answer; optionally fix what is safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinchpoint.checking.applying import apply_fixes
from pinchpoint.checking.comparing import Failure, Times, compare, judge
from pinchpoint.checking.merging import merge
from pinchpoint.checking.script_files import script_files
from pinchpoint.core.errors import BadInput, Bug, PinchpointError, TargetFailed
from pinchpoint.core.records import Advice, Check, Forecast, Gain, Trace
from pinchpoint.core.targets import find
from pinchpoint.core.units import check_seconds, show_count
from pinchpoint.forecasting.predict import predict as predict_peak
from pinchpoint.profiling.paused_script import PausedScript
from pinchpoint.profiling.profile import check_script, profile
from pinchpoint.rules.engine.reading import decode
from pinchpoint.rules.suggestions import Suggestion, show_diff, suggest

STEPS = 20
TIME_LIMIT_S = 300.0


def check(
    target: str,
    *,
    args: Sequence[str] = (),
    steps: int = STEPS,
    time_limit_s: float = TIME_LIMIT_S,
    predict: bool = True,
    allow_network: bool = False,
    apply: bool = False,
    against: str | None = None,
    pairs: int | None = None,
    output_to_stderr: bool = False,
    on_status: Callable[[str], None] = lambda stage: None,
    on_checked: Callable[[Check], None] = lambda result: None,
) -> Check:
    """Say what to change in a script or `-m package.module`, ranked by what it costs.

    steps, time_limit_s: how long the script runs. predict: also predict its peak on a GPU. allow_network: let
    the script send data in that prediction; its real run is not restricted. apply: make the fixes that keep
    all results, and compare the times before and after. against: compare the times with those of this script
    instead. pairs: how often both are measured. output_to_stderr: where the output of the script goes.
    on_status: called with the name of each stage. on_checked: called with the answer before fixes are made
    and times are compared.

    A script that fails has a Check too: see its `error` and `exit_code`.
    """
    if steps < 2:
        raise BadInput(
            f"--steps is {steps}, but the first step is not like the others.", hint="Use at least 2 steps."
        )
    check_seconds("time-limit", time_limit_s)
    if apply and against is not None:
        raise BadInput(
            "--apply and --against were given together.",
            hint="Use --apply to compare with the safe fixes, or --against FILE to compare with your own.",
        )
    if pairs is not None and pairs < 1:
        raise BadInput(f"--pairs is {pairs}, but it must be at least 1.", hint="Give --pairs 6 or more.")
    script = find(target)
    check_script(script)
    if against is not None:
        check_script(find(against))
    on_status("scanning")
    files, uses_framework = script_files(script)
    suggestions, unreadable = suggest(files)
    notes = [f"{fault.file} was not scanned: {fault.reason}." for fault in unreadable]

    forecast = None
    if predict and uses_framework:
        on_status("predicting the peak")
        forecast, note = _forecast(target, args, time_limit_s, allow_network=allow_network)
        notes += [note] if note else []

    def run(run_target: str, *, light: bool, **more: object) -> Trace:
        return profile(
            run_target,
            args=args,
            steps=steps,
            light=light,
            time_limit_s=time_limit_s,
            output_to_stderr=output_to_stderr,
            **more,  # pyright: ignore[reportArgumentType]
        )

    def compare_versions(*versions: tuple[str, dict[str, str] | None]) -> Times | Failure:
        def start(side: int) -> PausedScript:
            version, sources = versions[side]
            return PausedScript(version, args=args, sources=sources, output_to_stderr=output_to_stderr)

        return compare(
            lambda side: run(versions[side][0], light=True, sources=versions[side][1]),
            start,
            pairs=pairs,
            trace=trace,
            time_limit_s=time_limit_s,
            on_status=on_status,
        )

    on_status("running the script")
    trace, error, exit_code = None, "", 0
    try:
        trace = run(target, light=False, watched=_lines(suggestions))
        error, exit_code = trace.error, trace.exit_code
        notes += [*trace.notes, *_early_end(trace)]
    except TargetFailed as failure:
        error, exit_code = failure.what, 1
    advice, note = _without_unused(merge(suggestions, trace, forecast), script.where)
    notes += [note] if note else []
    result = Check(
        target=target,
        advice=advice,
        files=files,
        trace=trace,
        forecast=forecast,
        error=error,
        exit_code=exit_code,
        notes=tuple(dict.fromkeys(notes)),
    )
    on_checked(result)
    if not apply and against is None:
        return result
    if error or exit_code or (trace is not None and trace.ended == "interrupted"):
        note = f"Nothing was {'fixed' if apply else 'compared'}, because the script failed."
        return replace(result, notes=(*result.notes, note))
    if against is not None:
        return replace(
            result, gain=_gain_against(target, against, compare_versions((target, None), (against, None)))
        )
    gain = apply_fixes(files, lambda texts: compare_versions((target, texts), (target, None)))
    if gain.verdict == "undone" or not gain.fixed:
        return replace(result, gain=gain)
    # The scan no longer finds what was fixed. The costs are those of the run before.
    rest = _unfixed(result.advice, suggest(files)[0])
    fixes = tuple(each for each in result.advice if each not in rest)
    return replace(result, gain=replace(gain, fixes=fixes), advice=rest)


def _gain_against(target: str, against: str, times: Times | Failure) -> Gain:
    """The result of --against. Raises if one of the scripts failed, because there is nothing to undo."""
    if isinstance(times, Failure) and times.side is not None:
        raise TargetFailed(
            f"{(target, against)[times.side]} failed when it was compared: {times.reason}",
            hint="Run it with the same arguments, without pinchpoint, to see why.",
        )
    before, after = find(target).where, find(against).where
    is_notebook = before.endswith(".ipynb") or after.endswith(".ipynb")
    texts = (decode(Path(file).read_bytes()) for file in (before, after))
    diff = "" if is_notebook else show_diff(after, *texts)
    verdict: dict[str, Any]
    if isinstance(times, Failure):
        verdict = {"verdict": "not compared", "reason": times.reason}
    else:
        verdict = judge(times)
    return Gain(fixed=0, files=(after,), diff=diff, against=against, **verdict)


def _forecast(
    target: str, args: Sequence[str], time_limit_s: float, *, allow_network: bool
) -> tuple[Forecast | None, str]:
    """The forecast, or why there is none."""
    try:
        forecast = predict_peak(target, args=tuple(args), timeout_s=time_limit_s, allow_network=allow_network)
        return forecast, ""
    except Bug:
        raise
    except PinchpointError as error:
        return None, f"The peak could not be predicted: {' '.join(error.what.split())}"


def _lines(suggestions: Sequence[Suggestion]) -> dict[str, set[int]]:
    """All lines of the statements of findings; a statement ran if any of its lines did."""
    lines: dict[str, set[int]] = {}
    for each in suggestions:
        lines.setdefault(each.finding.file, set()).update(range(each.first_line, each.last_line + 1))
    return lines


def _without_unused(advice: tuple[Advice, ...], script: str) -> tuple[tuple[Advice, ...], str]:
    """The advice without that for lines of imported modules that did not run, and a note about it."""
    unused = [each for each in advice if each.seen == "did not run" and each.file != script]
    if not unused:
        return advice, ""
    findings = show_count(len(unused), "finding")
    note = f"{findings} in imported modules left out, because the lines did not run; `scan` shows them."
    return tuple(each for each in advice if each not in unused), note


def _early_end(trace: Trace) -> list[str]:
    if trace.ended == "timed out":
        return ["The script reached the time limit and was stopped."]
    if trace.ended == "exited" and not trace.steps:
        return [f"The script ended with exit code {trace.exit_code} before its first step."]
    return []


def _unfixed(advice: Sequence[Advice], remaining: Sequence[Suggestion]) -> tuple[Advice, ...]:
    """The advice that the profile gave, and that whose finding is still there.

    Findings are compared by file and rule, because fixes may move lines.
    """
    left = Counter((each.finding.file, each.finding.name) for each in remaining)
    kept: set[Advice] = set()
    for each in sorted(advice, key=lambda one: one.is_safe):  # those without a safe fix are still there
        key = (each.file, each.name)
        if not each.rule or left[key] > 0:
            left[key] -= bool(each.rule)
            kept.add(each)
    return tuple(each for each in advice if each in kept)
