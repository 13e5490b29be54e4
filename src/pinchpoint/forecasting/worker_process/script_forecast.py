"""A Forecast of an unmodified script, which runs in the sandbox on the simulated device for a few steps."""

from __future__ import annotations

import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from pinchpoint.backends.sandbox.run_script import Stopper, run_script
from pinchpoint.backends.sandbox.sandbox import Sandbox
from pinchpoint.backends.sandbox.script_errors import script_error
from pinchpoint.core.errors import BadInput, CannotFake
from pinchpoint.core.files import shown_operation, shown_path
from pinchpoint.core.ranks import Rank
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.worker_process import (
    branches,
    calibration,
    conditions,
    late_numbers,
    other_ranks,
    script_end,
)
from pinchpoint.forecasting.worker_process.compared_ranks import compared_ranks
from pinchpoint.forecasting.worker_process.real_run import limit_real_run
from pinchpoint.forecasting.worker_process.target_loading import NEEDED, Fork, LoadedTarget, with_stand_ins

_LATE_S = 60.0  # limit on the seconds after the training steps, or as many as before, if that is more
_FEW = 10_000  # elements of a mask, of which the count may not matter: that is tried before a real run
_SHARE_OF_TIME = 0.5  # of the time left, after which a run is followed no further; there may be several runs


def predict(loaded_target: LoadedTarget, request: dict[str, Any], fork: Fork) -> Forecast:
    """Run the script on fake tensors; where counts depend on its data, run it once with real values first."""

    request = {**request, "end_s": time.monotonic() + request["timeout_s"]}
    packages: list[str] = list(request["packages"])  # stand-ins that the script needs
    others = other_ranks.OtherRanks()
    real_runs: list[dict[str, Any]] = []
    asked: list[dict[str, Any]] = []  # conditions of the first run
    # Options and answer of the first run that guessed a number, and of the first that guessed floats.
    guessed: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}

    def run(dynamic_options: dict[str, Any]) -> dict[str, Any]:
        if dynamic_options.get("calibrating") and real_runs:
            return real_runs[0]
        options = dict(dynamic_options)
        answer = others.run(
            lambda changes: with_stand_ins(
                lambda names: _in_scratch(
                    loaded_target, {**request, **changes}, fork, dict(dynamic_options), names
                ),
                packages,
            )
        )
        if conditions.ASKED in answer and not asked:
            asked.append(answer[conditions.ASKED])
        for kind in (late_numbers.READ, late_numbers.FLOATS, late_numbers.RECEIVED):
            if answer.get(kind):
                guessed.setdefault(kind, (options, answer))
        if dynamic_options.get("calibrating"):  # real values decide branches: one run serves every forecast
            real_runs.append(answer)
        return answer

    start_s = time.monotonic()
    forecast = branches.explore(_predict, run, limit_s=request.get("timeout_s", math.inf))
    forecast = replace(forecast, notes=(*forecast.notes, *others.notes()))
    if late_numbers.READ in guessed:
        forecast = late_numbers.try_others(forecast, run, *guessed[late_numbers.READ])
    if late_numbers.FLOATS in guessed:
        forecast = late_numbers.try_other_floats(forecast, run, *guessed[late_numbers.FLOATS])
    if late_numbers.RECEIVED in guessed:
        forecast = late_numbers.try_larger_received(forecast, run, *guessed[late_numbers.RECEIVED])
    left_s = request["end_s"] - time.monotonic()
    return conditions.try_others(
        forecast, asked[0] if asked else {}, _predict, run, is_time_left=left_s > time.monotonic() - start_s
    )


def _predict(run: calibration.Run) -> Forecast:
    limits: list[int | None] = []  # of the count that needs a calibration, in each run
    missed: dict[str, None] = {}  # lines that get unknown numbers of other ranks, in order

    def watched_run(dynamic_options: dict[str, Any]) -> dict[str, Any]:
        answer = run(dynamic_options)
        limits.append(answer.get("limit"))
        missed.update(dict.fromkeys(answer.get(late_numbers.MISSED, ())))
        return answer

    site = calibration.forecast_or_site(watched_run)
    if isinstance(site, Forecast):
        return site
    where = shown_operation(site)
    if limits[-1] is not None and limits[-1] <= _FEW:
        forecast = calibration.whatever_the_counts(run, where)
        if forecast is not None:
            return forecast
    counts = run({"calibrating": True})
    if "seen" not in counts:
        note = f"counts at {where} depend on unknown values: the interval covers everything from none to all"
        dynamic_options: dict[str, Any] = {"assume": True}
    else:
        from pinchpoint.backends.torch.data_dependent import count_laws

        dynamic_options = count_laws.dynamic_options([counts])
        note = (
            f"counts at {where} depend on the data: they are those of the script's first steps, "
            "which were run on the CPU"
        )
    return late_numbers.without_others(calibration.in_range(watched_run, dynamic_options, note), list(missed))


def _in_scratch(
    loaded_target: LoadedTarget,
    request: dict[str, Any],
    fork: Fork,
    dynamic_options: dict[str, Any],
    packages: list[str],
) -> dict[str, Any]:
    """One run of the script in a fork, with a scratch folder that is removed afterwards."""
    scratch = Path(tempfile.mkdtemp(prefix="pinchpoint-script-"))
    try:
        answer = fork(lambda: _run(loaded_target, request, scratch, dynamic_options, packages))
        return script_end.with_last_output(answer, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(
    loaded_target: LoadedTarget,
    request: dict[str, Any],
    scratch: Path,
    dynamic_options: dict[str, Any],
    packages: list[str],
) -> dict[str, Any]:
    from pinchpoint.backends.torch.data_dependent import unknown_values
    from pinchpoint.backends.torch.data_dependent.float_calls import mark_floats
    from pinchpoint.backends.torch.fake import runner
    from pinchpoint.backends.torch.fake.out_of_memory import FullCard
    from pinchpoint.backends.torch.loops.marking.condition_source import mark_script
    from pinchpoint.backends.torch.loops.marking.draw_source import mark_draws
    from pinchpoint.backends.torch.loops.marking.lookups import mark_lookups
    from pinchpoint.backends.torch.ranks.objects import SentObjects
    from pinchpoint.backends.torch.ranks.spawning import rank_starter

    observer = loaded_target.observer
    observer.stand_ins.serve(packages)
    tried: list[str] = dynamic_options.pop(conditions.TRIED, [])
    observer.progress.loops.conditions.start(tried)
    for name, value in dynamic_options.items():
        setattr(observer.dynamic, name, value)
    if request.get("recompute") is not None:
        observer.recomputation = _recomputation(loaded_target, request["recompute"])
    if observer.objects is not None:
        observer.objects = SentObjects(request["objects"])
    stopper = Stopper(request["steps"])
    if dynamic_options.get("calibrating"):
        limit_real_run(stopper)
    progress = observer.progress
    progress.half = request.get("half", False)
    progress.files = True
    now_s = time.monotonic()
    progress.deadline_s = now_s + _SHARE_OF_TIME * (request.get("end_s", math.inf) - now_s)

    status = _Status(loaded_target.status, request["steps"])

    def stop() -> None:
        stopper.steps = stopper.limit
        observer.ledger.close()
        stopper.raise_if_done()

    def check(now: runner.Progress) -> None:
        was_late = now.is_late
        is_followed = now.is_enough if observer.dynamic.calibrating else now.is_followed
        status(now)
        if stopper.is_done or is_followed(stopper.limit):
            stop()
        if now.is_late and now.trains and not was_late:
            _limit_late(now, stop, seconds=max(_LATE_S, time.monotonic() - now_s))
        stopper.steps = min(max(now.steps.values(), default=now.calls), stopper.limit - 1)

    progress.check, progress.stop = check, stop
    full_card = FullCard(observer.ledger, loaded_target.card.usable_bytes)
    path = loaded_target.target.where
    os.environ |= request.get("environment", {})
    if request.get("rank"):
        os.environ |= Rank(**request["rank"]).environment()
    _seed(request.get("seed", 0))
    with Sandbox(
        scratch,
        locked=True,
        allow_network=request.get("allow_network", False),
        start_process=rank_starter(observer),
    ) as guards:
        end = run_script(
            path,
            request["args"],
            scratch=scratch,
            stopper=stopper,
            module=loaded_target.target.name,
            transform=lambda tree: mark_draws(mark_floats(mark_lookups(mark_script(full_card.watch(tree))))),
        )
        signal.setitimer(signal.ITIMER_REAL, 0)
    for note in (*([end.note] if end.note is not None else []), *guards.notes()):
        observer.note(note)
    if dynamic_options.get("calibrating"):
        signal.setitimer(signal.ITIMER_PROF, 0)
    if dynamic_options.get("calibrating") and end.kind == "stopped":
        return observer.dynamic.calibration_results()  # maybe of less than a step, if time ran out
    is_late_error = end.kind == "raised" and progress.is_late  # as may happen where values are not real
    is_cut_short = not progress.trains and (end.kind == "stopped" or is_late_error)
    needs = unknown_values.calibration_site(end.error, observer.dynamic.unknown_site)
    if needs is not None and not is_late_error:
        return {"needs": needs, "limit": observer.dynamic.unknown_limit}
    if (from_others := other_ranks.needs_of(end.error, request.get("rank"))) is not None:
        return from_others
    if end.kind == "raised" and (needed := observer.stand_ins.wanted(end.error)):
        return {NEEDED: needed}
    if not (progress.is_late or progress.is_enough(1)) or (end.kind == "raised" and not is_late_error):
        if progress.thread_line:
            raise CannotFake(
                f"{Path(path).name!r} uses the GPU in a thread, at {shown_path(progress.thread_line)}, which "
                "pinchpoint does not support yet.",
                hint="Call the function of the thread directly for the prediction.",
            )
        error = script_error(
            end,
            script=loaded_target.target.text,
            steps=stopper.steps,
            not_started=guards.processes.refused_commands,
        )
        if error is not None:
            if observer.dynamic.decisions.flipped and (
                end.kind != "raised" or branches.ends_on_purpose(end.error)
            ):
                return {branches.ENDED: True}
            raise error from end.error
    if dynamic_options.get("calibrating"):
        return observer.dynamic.calibration_results()
    observer.stand_ins.note_optional()
    observation = observer.ledger.observation
    observation.steps = max(progress.steps.values(), default=progress.calls)
    if progress.is_late and progress.trains:
        observation.steps = min(observation.steps, request["steps"])  # larger batches may have added some
    observation.seen = progress.seen(trained=observation.trained)
    if stages := observer.collectives.stages():
        observation.seen["stages"] = stages
    if request.get("rank"):
        observation.seen["compared_ranks"] = compared_ranks(path, Rank(**request["rank"]))
    if observer.recomputation is not None:
        observation.seen["recomputation"] = observer.recomputation.results()
    mode = "train" if observation.trained else "infer"
    if request.get("mode") not in (None, mode):
        raise BadInput(
            f"The mode of {loaded_target.target.text} is {mode}, not {request['mode']}.",
            hint=f"Leave --mode out, or use --mode {mode}.",
        )
    if not observation.blocks:
        raise BadInput(
            f"{loaded_target.target.text} allocates nothing on the GPU.",
            hint="Pass the arguments that make it use CUDA, such as -- --device cuda.",
        )
    if progress.thread_line:
        observation.reasons.append(
            f"a thread uses the GPU at {shown_path(progress.thread_line)}, and threads are not followed"
        )
    if is_cut_short:
        script_end.explain_cut(observation, progress, end)
    elif progress.trains:
        is_likely = not (tried or observer.dynamic.decisions.flipped)
        script_end.explain_following(observation, progress, end, is_likely=is_likely)
    late_sites = [*observer.dynamic.late_sites, *observer.dynamic.decisions.unexplored]
    if late_sites:
        lines = ", ".join(shown_path(site) for site in dict.fromkeys(late_sites[:4]))
        observation.notes.append(
            f"values that are read at {lines} after the training steps are not known: masks are assumed to "
            "select everything, and in packages, numbers to be 1 and branches to go the likely way"
        )
    if observation.steps < request["steps"]:
        observation.notes.append(f"the script ended after {observation.steps} of {request['steps']} steps")
    forecast = assembly.of_observation(
        observation,
        card=loaded_target.card,
        only_card=loaded_target.only_card,
        find_least=loaded_target.find_least,
        target=loaded_target.target.text,
        mode=mode,
        size=None,
        variant=None,
    )
    if "bound" not in dynamic_options:
        forecast = assembly.with_count_interval(
            forecast, observer.dynamic, loaded_target.card, progress.loops.spread
        )
    beyond = max(progress.loaders.beyond, progress.loops.beyond)
    if beyond:
        forecast = assembly.with_larger_batches(forecast, beyond, loaded_target.card)
    if full_card.line:
        forecast = assembly.of_one_card(forecast, loaded_target.card, shown_path(full_card.line))
    if progress.scaled_steps is not None:
        forecast = assembly.with_skipped_steps(forecast, progress.scaled_steps)
    job = observer.collectives.started  # of a script that starts processes itself, its own
    if job is None and request.get("rank"):
        job = request["rank"]["rank"], request["rank"]["world_size"]
    if job is not None:
        nccl = observer.collectives.nccl_bytes()
        forecast = assembly.with_rank(forecast, job[0], job[1], nccl, loaded_target.card)
    return calibration.with_blocks(forecast.to_dict(), observation) | {
        "decisions": observer.dynamic.decisions.results(partial(runner.peaks_between, observation)),
        branches.RAISED: is_late_error,
        conditions.ASKED: progress.loops.conditions.results(),
        late_numbers.READ: list(observer.dynamic.late_numbers),
        late_numbers.RECEIVED: observer.dynamic.received,
        late_numbers.MISSED: list(observer.dynamic.missed),
        other_ranks.OBJECTS: observer.objects.sent if observer.objects is not None else [],
        late_numbers.FLOATS: [
            line for line, is_late in observer.dynamic.float_arrays.items() if is_late or not progress.trains
        ],
    }


def _recomputation(loaded_target: LoadedTarget, chosen: dict[str, bool]) -> Any:
    from pinchpoint.backends.torch.recomputation.module_calls import Recomputation
    from pinchpoint.backends.torch.recomputation.operation_times import Speed

    card = loaded_target.card
    speed = Speed(card.half_flops, card.single_flops, card.bandwidth * 1e9)
    return Recomputation(loaded_target.observer.ledger, speed, chosen)


class _Status:
    """Writes what a long run is doing to a file, at most once a second."""

    def __init__(self, file: int | None, steps: int) -> None:
        self._file, self._steps, self._next_s = file, steps, time.monotonic() + 1

    def __call__(self, progress: Any) -> None:
        if self._file is None or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + 1
        text = progress.describe(self._steps)
        os.pwrite(self._file, f"{text:<200}\n".encode(), 0)


def _limit_late(progress: Any, stop: Callable[[], None], *, seconds: float) -> None:
    """Stop the script after so many seconds: what it does after its training steps may not end by itself."""

    def end(_: int, frame: FrameType | None) -> None:
        progress.cut(frame)
        stop()

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, progress.limit_late(seconds), 5)


def _seed(seed: int) -> None:
    """Give every run of the script the same random numbers, so that runs differ only by what they assume.

    Python seeds `random` anew in each fork, and torch in each process.
    """
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
