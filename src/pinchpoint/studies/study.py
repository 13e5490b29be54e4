"""study: how time and memory of a workload grow with its size, by fake runs or measured ones.

    study("field", sizes="5k:1M", modes=("train", "infer"), variants="all", on="fake", output="out")

Every size is a point of its own; running out of memory, a crash or the time limit is recorded and
the study goes on. After Ctrl-C the points done are kept and `resume=True` goes on from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.records import Point, Study, load
from pinchpoint.core.settings import Overrides
from pinchpoint.studies import assembly, study_folder
from pinchpoint.studies.forecast_process import Forecasts, Reopening
from pinchpoint.studies.measured_points import Runner, nothing_ran
from pinchpoint.studies.request import Ask, check
from pinchpoint.studies.study_runs import Progress, Session, reusable
from pinchpoint.studies.worker_pool import Workers


def study(
    target: Any,
    *,
    sizes: str | Sequence[int | str],
    modes: str | Sequence[str] | None = None,
    variants: str | Sequence[str] | None = None,
    on: str = "fake",
    output: str | Path | None = None,
    repeats: int = 10,
    warmup: int = 3,
    resume: bool = False,
    seed: int = 0,
    timeout_s: float = 300.0,
    cards: str | Sequence[str] | None = None,
    settings: Overrides | None = None,
    progress: Progress | None = None,
    forecaster: Forecasts | None = None,
    runner: Runner | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Study:
    """Study a target over a ladder of sizes.

    sizes: `5k:1M[:12]`, `1k,2k,4k` or numbers. modes, variants: names; None is every mode of the
    baseline; "all" is every variant. on: fake, cpu, cuda or card:24GiB. output: a folder for the
    record, table, figures and verdict. timeout_s: of each run. cards: of the card table, or "all".
    settings: of a workload that declares some; one with several values is a second axis: every variant is
    studied with each, under names such as `flat[mlp=64,64]`.
    forecaster, runner, clock: stand-ins for the fake runs, the fresh interpreters and the time.
    The result's `passed` and `gate` say whether memory grew along the axis as claimed.
    """
    ask = check(
        target,
        sizes=sizes,
        modes=modes,
        variants=variants,
        on=on,
        output=output,
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        timeout_s=timeout_s,
        cards_wanted=cards,
        settings=settings,
    )
    start = clock()
    earlier, spent = _earlier(ask) if resume else ((), 0.0)
    with (
        nullcontext(forecaster) if forecaster is not None else _forecaster(target, ask) as forecasts,
        nullcontext(runner) if runner is not None else Workers(ask.framework) as run,
    ):
        session = Session(ask, forecasts, run, before=earlier)
        if progress is not None:
            session.progress = progress
        if ask.output is not None:
            session.keep = lambda: _keep(ask, session, spent + clock() - start)
        session.check()
        session.go()
    if not any(p.status in ("ok", "oom") for p in session.points):
        raise session.first_error or nothing_ran(ask.target.text, session.points)
    made = assembly.whole(
        ask,
        session.points,
        boundary=session.boundary,
        notes=tuple(dict.fromkeys(session.notes)),
        machine=session.machine,
        took_s=spent + clock() - start,
    )
    if ask.output is not None:
        study_folder.write(made, ask.output)
    return made


def _forecaster(target: Any, ask: Ask) -> Reopening:
    from pinchpoint.forecasting.forecaster import Forecaster

    return Reopening(lambda: Forecaster(target, card=ask.card.name, seed=ask.seed, timeout_s=ask.timeout_s))


def _keep(ask: Ask, session: Session, took_s: float) -> None:
    """Save what is done, so that neither Ctrl-C nor a lost machine costs more than one point."""
    assert ask.output is not None
    if not any(p.status in ("ok", "oom") for p in session.points):
        return  # a target that never runs leaves no half-written folder behind
    ask.output.mkdir(parents=True, exist_ok=True)
    # Points of an earlier study that this one has not come to yet are not lost if it is stopped.
    ahead = [p for p in session.before if p not in session.points]
    so_far = assembly.partial(
        ask, [*session.points, *ahead], notes=session.notes, machine=session.machine, took_s=took_s
    )
    so_far.save(ask.output / study_folder.RECORD)


def _earlier(ask: Ask) -> tuple[tuple[Point, ...], float]:
    """The points of an earlier study in the same folder, and the time they took."""
    if ask.output is None:
        raise BadInput("nothing to resume from", hint="name the folder of the earlier study with -o")
    path = ask.output / study_folder.RECORD
    if not path.exists():
        return (), 0.0
    found = load(path)
    if not isinstance(found, Study):
        raise BadInput(f"{path} is a {found.kind}, not a study", hint="resume in the folder of a study")
    for name, got, wanted in (
        ("target", found.target, ask.target.text),
        ("on", found.on, ask.on),
        ("seed", found.seed, ask.seed),
        ("settings", found.settings, dict(ask.settings)),
    ):
        if got != wanted:
            raise BadInput(
                f"{path} is a study with {name} {got!r}, not {wanted!r}",
                hint="choose another -o, or leave --resume out",
            )
    return reusable(found.points), found.took_s
