"""`apply_fixes`: make the safe fixes, and compare the times of the script before and after them.

The old text and the new one run in turn, in processes of their own. A run counts as one measurement, because
the steps of one run share their luck. The interval is that of the median ratio of the pairs, without any
assumption about how times are distributed; at least 6 pairs are needed for 95 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.files import write_bytes
from pinchpoint.core.records import Gain, Trace
from pinchpoint.rules.engine.reading import decode
from pinchpoint.rules.scan import scan
from pinchpoint.rules.suggestions import show_diff
from pinchpoint.studies.timing import timing_of

MIN_PAIRS = 6  # with fewer, even the whole range of the ratios covers the median with less than 95 %

# Runs the script and returns its Trace. sources: texts by file to run in place of those on the disk.
Run = Callable[[dict[str, str] | None], Trace]


@dataclass(frozen=True)
class _File:
    path: str
    data: bytes
    mode: int

    def put_back(self) -> None:
        write_bytes(Path(self.path), self.data)
        Path(self.path).chmod(self.mode)


def apply_fixes(
    files: Sequence[str], run: Run, *, pairs: int, on_status: Callable[[str], None] = lambda stage: None
) -> Gain:
    """Fix what is safe in the files, then run both texts in turn.

    If the script fails with the fixes, but not without them, the fixes are undone.
    """
    if pairs < 1:
        raise BadInput(f"--pairs is {pairs}, but it must be at least 1.", hint="Give --pairs 6 or more.")
    before = [_File(file, Path(file).read_bytes(), Path(file).stat().st_mode & 0o7777) for file in files]
    fixed = scan(*files, fix=True, workers=1).fixed
    changed = [file for file in before if Path(file.path).read_bytes() != file.data]
    diff = "".join(
        show_diff(file.path, decode(file.data), decode(Path(file.path).read_bytes()))
        for file in changed
        if not file.path.endswith(".ipynb")
    )
    paths = tuple(file.path for file in changed)

    def gain(verdict: str, reason: str, **times: object) -> Gain:
        return Gain(fixed, paths, diff, verdict, reason, **times)  # pyright: ignore[reportArgumentType]

    if not changed:
        return gain("not compared", "There is nothing that can be fixed safely.")
    if any(file.path.endswith(".ipynb") for file in changed):
        return gain("not compared", "The times of a notebook before and after cannot be compared yet.")
    old = {file.path: decode(file.data) for file in changed}
    times: tuple[list[float], list[float]] = ([], [])
    timed = ""
    for pair in range(pairs):
        # The order alternates, so that what changes over time affects both alike.
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            on_status(f"pair {pair + 1} of {pairs}, {('before', 'after')[side]}")
            failure, trace = _try(run, old if side == 0 else None)
            if failure and side == 0:
                return gain("not compared", f"The script cannot be run again without the fixes: {failure}")
            if failure:
                for file in changed:
                    file.put_back()
                return gain(
                    "undone", f"With the fixes the script failed, so the files are as before: {failure}"
                )
            assert trace is not None
            seconds = trace.step_times.get("median_s")
            kind = "run" if seconds is None else "step"
            if timed and kind != timed:
                return gain("not compared", "Some runs had steps and others had none.")
            timed = kind
            times[side].append(trace.took_s if seconds is None else seconds)
    return judge(gain, *times, timed=timed)


def judge(gain: Callable[..., Gain], before: list[float], after: list[float], *, timed: str) -> Gain:
    """The verdict on the times of pairs of runs."""
    if min(*before, *after) <= 0:
        return gain("not compared", f"A {timed} is shorter than the clock can resolve.")
    ratio = timing_of([a / b for a, b in zip(before, after, strict=True)])
    values = {
        "timed": timed,
        "before_s": tuple(before),
        "after_s": tuple(after),
        "speedup": ratio.median_s,
        "speedup_low": ratio.low_s,
        "speedup_high": ratio.high_s,
    }
    if len(before) < MIN_PAIRS:
        reason = f"{len(before)} pairs of runs prove nothing; at least {MIN_PAIRS} are needed."
        return gain("too few pairs", reason, **values)
    if ratio.low_s > 1.0:
        return gain("faster", "The 95 % interval of the speed-up is above 1.", **values)
    if ratio.high_s < 1.0:
        return gain("slower", "The 95 % interval of the speed-up is below 1.", **values)
    return gain("no measurable change", "The 95 % interval of the speed-up includes 1.", **values)


def _try(run: Run, sources: dict[str, str] | None) -> tuple[str, Trace | None]:
    """What went wrong, or an empty text and the Trace."""
    try:
        trace = run(sources)
    except TargetFailed as error:
        return error.what, None
    if trace.ended == "interrupted":
        raise KeyboardInterrupt
    if trace.error:
        return trace.error, None
    if trace.exit_code:
        return f"it exited with {trace.exit_code}", None
    if trace.ended == "timed out" and not trace.step_times:
        return "it reached the time limit before its second step", None
    return "", trace
