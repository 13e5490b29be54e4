"""The verb `study`: how the time and memory of a workload grow with its size, predicted or measured.

    study("field", sizes="5k:1M", modes=("train", "infer"), variants="all", on="fake", output="out")

Every size is a separate point: running out of memory, a crash or the time limit is recorded, and the
study continues. After Ctrl-C the finished points are kept, and `resume=True` continues from them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.core.records import Point, Study, load
from pinchpoint.core.settings import Overrides
from pinchpoint.forecasting.forecaster import Forecasts
from pinchpoint.studies import assembly, study_folder
from pinchpoint.studies.config import StudyConfig, check_config
from pinchpoint.studies.engines.engine import EngineConfig, check_engine, open_pool
from pinchpoint.studies.point_runs import OpenPointRuns, PointRuns, Runner, open_forecaster
from pinchpoint.studies.study_runs import Progress, Session, reusable_points
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
    overwrite: bool = False,
    seed: int = 0,
    timeout_s: float = 300.0,
    cards: str | Sequence[str] | None = None,
    settings: Overrides | None = None,
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
    forecaster: Forecasts | None = None,
    runner: Runner | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Study:
    """Study a target over a ladder of sizes.

    sizes: `5k:1M[:12]`, `1k,2k,4k` or numbers.
    modes, variants: names; None is every mode of the baseline, and "all" is every variant.
    on: fake, cpu, cuda or card:24GiB.
    output: a folder for the record, table, figures and verdict.
    resume: continue the study in that folder. overwrite: replace it; otherwise an earlier study is an error.
    timeout_s: the time limit of each run.
    cards: the cards of the card table, or "all".
    settings: values of the settings that the workload declares. A setting with several values is a
    second axis: every variant is studied with each value, under names such as `flat[mlp=64,64]`.
    engine: the cluster that runs the points; None runs them one after another on this machine.
    forecaster, runner, clock: replacements for the fake runs, the fresh interpreters and the clock.

    The result's `passed` and `gate` say whether memory grew along the axis as declared.
    """
    config = check_config(
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
        card_names=cards,
        settings=settings,
    )
    if config.output is not None and not (resume or overwrite):
        study_folder.refuse_earlier(config.output)
    if engine is not None:
        check_engine(engine)
    start = clock()
    earlier_points, earlier_s = _earlier(config) if resume else ((), 0.0)
    with ExitStack() as stack:
        session = Session(config, None, earlier_points=earlier_points)
        if engine is not None:
            session.pool = stack.enter_context(open_pool(_engine_for(engine, config), OpenPointRuns(config)))
        else:
            forecasts = forecaster or stack.enter_context(open_forecaster(target, config))
            session.runs = PointRuns(
                config, forecasts, runner or stack.enter_context(Workers(config.framework))
            )
        if progress is not None:
            session.progress = progress
        if config.output is not None:
            session.save = lambda: _save(config, session, earlier_s + clock() - start)
        session.check_device()
        session.run_all()
    if not any(p.status in ("ok", "oom") for p in session.points):
        raise session.first_error or _nothing_ran_error(config.target.text, session.points)
    result = assembly.finished_study(
        config,
        session.points,
        boundary=session.boundary,
        notes=tuple(dict.fromkeys(session.notes)),
        machine=session.machine,
        took_s=earlier_s + clock() - start,
    )
    if config.output is not None:
        study_folder.write(result, config.output)
    return result


def sbatch_script(
    target: Any,
    *,
    engine: EngineConfig,
    sizes: str | Sequence[int | str],
    modes: str | Sequence[str] | None = None,
    variants: str | Sequence[str] | None = None,
    on: str = "fake",
    output: str | Path | None = None,
    timeout_s: float = 300.0,
    settings: Overrides | None = None,
) -> str:
    """Return the script that `study` would submit to SLURM for its points. Nothing is written or run."""
    config = check_config(
        target,
        sizes=sizes,
        modes=modes,
        variants=variants,
        on=on,
        output=output,
        repeats=1,
        warmup=0,
        seed=0,
        timeout_s=timeout_s,
        card_names=None,
        settings=settings,
    )
    check_engine(engine)
    if engine.name != "slurm":
        raise BadInput(
            f"--dry-run prints a SLURM script, but the engine is {engine.name}.", hint="Use --engine slurm."
        )
    from pinchpoint.studies.engines.slurm_pool import script

    return script(_engine_for(engine, config), jobs=len(config.jobs()), limit_s=config.point_limit_s)


def _engine_for(engine: EngineConfig, config: StudyConfig) -> EngineConfig:
    """Return the engine with what the points of this study need."""
    return replace(
        engine,
        jobs=len(config.jobs()),
        gpus=1 if config.device == "cuda" else 0,
        alone=config.device == "cpu",
        folder=engine.folder or config.output,
    )


def _nothing_ran_error(text: str, points: list[Point]) -> TargetFailed:
    """Return the error for a study in which every point failed, with the reason of the first."""
    first = points[0]
    return TargetFailed(
        f"No size of {text} ran. Size {first.size} failed: {first.reason.rstrip('.')}.",
        hint="Fix the target; --debug shows the whole traceback.",
    )


def _save(config: StudyConfig, session: Session, took_s: float) -> None:
    """Save the finished points, so that neither Ctrl-C nor a lost machine costs more than one point."""
    assert config.output is not None
    if not any(p.status in ("ok", "oom") for p in session.points):
        return  # a target that never runs leaves no half-written folder behind
    config.output.mkdir(parents=True, exist_ok=True)
    # Points of an earlier study that this one has not reached yet must survive if it is stopped.
    ahead = [p for p in session.earlier_points if p not in session.points]
    so_far = assembly.unfinished_study(
        config, [*session.points, *ahead], notes=session.notes, machine=session.machine, took_s=took_s
    )
    so_far.save(config.output / study_folder.RECORD)


def _earlier(config: StudyConfig) -> tuple[tuple[Point, ...], float]:
    """Return the points of an earlier study in the same folder, and the time they took."""
    if config.output is None:
        raise BadInput(
            "There is nothing to resume, because no folder is given.",
            hint="Name the folder of the earlier study with -o.",
        )
    path = config.output / study_folder.RECORD
    if not path.exists():
        return (), 0.0
    record = load(path)
    if not isinstance(record, Study):
        raise BadInput(f"{path} is a {record.kind}, not a study.", hint="Give -o the folder of a study.")
    for name, earlier, current in (
        ("target", record.target, config.target.text),
        ("on", record.on, config.on),
        ("seed", record.seed, config.seed),
        ("settings", record.settings, dict(config.settings)),
    ):
        if earlier != current:
            raise BadInput(
                f"{path} is a study with {name} {earlier!r}, not {current!r}.",
                hint="Choose another folder for -o, or leave out --resume.",
            )
    return reusable_points(record.points), record.took_s
