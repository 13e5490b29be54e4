"""One run of a script on the simulated device, in a process of its own: from its set-up to what it answers.

The answer is a Forecast as a dict with what `script_forecast` has to try next, or what another run needs:
counts of a real run, objects of another rank, or a package's stand-in.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from pinchpoint.backends.sandbox.run_script import ScriptEnd, Stopper, run_script
from pinchpoint.backends.sandbox.sandbox import Guards, Sandbox
from pinchpoint.backends.sandbox.script_errors import script_error
from pinchpoint.core.errors import BadInput, CannotFake
from pinchpoint.core.events import Observation
from pinchpoint.core.files import shown_path
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
from pinchpoint.forecasting.worker_process.target_loading import NEEDED, LoadedTarget

_LATE_S = 60.0  # limit on the seconds after the training steps, or as many as before, if that is more
_SHARE_OF_TIME = 0.5  # of the time left, after which a run is followed no further; there may be several runs


def run(
    loaded_target: LoadedTarget,
    request: dict[str, Any],
    scratch: Path,
    dynamic_options: dict[str, Any],
    packages: list[str],
) -> dict[str, Any]:
    """Run the script once and return its answer, or raise. packages: stand-ins that it needs."""
    from pinchpoint.backends.torch.fake.out_of_memory import FullCard

    observer = loaded_target.observer
    tried: list[str] = dynamic_options.pop(conditions.TRIED, [])
    _set_up_observer(loaded_target, request, dynamic_options, packages, tried)
    stopper = Stopper(request["steps"])
    if observer.dynamic.calibrating:
        limit_real_run(stopper)
    _follow(loaded_target, request, stopper)
    full_card = FullCard(observer.ledger, loaded_target.card.usable_bytes)
    end, guards = _run_script(loaded_target, request, scratch, stopper, full_card)
    ended = _EndedRun(loaded_target, request, stopper, full_card, end, guards, tried)
    if (answer := _answer_without_forecast(ended)) is not None:
        return answer
    _describe(ended)
    forecast = _forecast(ended, has_bound="bound" in dynamic_options)
    return _answer(ended, forecast)


@dataclass(frozen=True)
class _EndedRun:
    """A run of the script that has ended, and how."""

    loaded_target: LoadedTarget
    request: dict[str, Any]
    stopper: Stopper
    full_card: Any
    end: ScriptEnd
    guards: Guards
    tried: list[str]  # conditions that went the other way

    @property
    def observer(self) -> Any:
        return self.loaded_target.observer

    @property
    def progress(self) -> Any:
        return self.observer.progress

    @property
    def is_late_error(self) -> bool:
        """Whether it raised after its training steps, as may happen where values are not real."""
        return self.end.kind == "raised" and self.progress.is_late

    @property
    def is_cut_short(self) -> bool:
        return not self.progress.trains and (self.end.kind == "stopped" or self.is_late_error)

    @property
    def mode(self) -> str:
        return "train" if self.observer.ledger.observation.trained else "infer"


def _set_up_observer(
    loaded_target: LoadedTarget,
    request: dict[str, Any],
    dynamic_options: dict[str, Any],
    packages: list[str],
    tried: list[str],
) -> None:
    from pinchpoint.backends.torch.ranks.objects import SentObjects

    observer = loaded_target.observer
    observer.stand_ins.serve(packages)
    observer.progress.loops.conditions.start(tried)
    for name, value in dynamic_options.items():
        setattr(observer.dynamic, name, value)
    if request.get("recompute") is not None:
        observer.recomputation = _recomputation(loaded_target, request["recompute"])
    if observer.objects is not None:
        observer.objects = SentObjects(request["objects"])


def _follow(loaded_target: LoadedTarget, request: dict[str, Any], stopper: Stopper) -> None:
    """Stop the script when enough of it has been seen, and write its status while it runs."""
    observer = loaded_target.observer
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

    def check(now: Any) -> None:
        was_late = now.is_late
        is_followed = now.is_enough if observer.dynamic.calibrating else now.is_followed
        status(now)
        if stopper.is_done or is_followed(stopper.limit):
            stop()
        if now.is_late and now.trains and not was_late:
            _limit_late(now, stop, seconds=max(_LATE_S, time.monotonic() - now_s))
        stopper.steps = min(max(now.steps.values(), default=now.calls), stopper.limit - 1)

    progress.check, progress.stop = check, stop


def _run_script(
    loaded_target: LoadedTarget, request: dict[str, Any], scratch: Path, stopper: Stopper, full_card: Any
) -> tuple[ScriptEnd, Guards]:
    from pinchpoint.backends.torch.data_dependent.float_calls import mark_floats
    from pinchpoint.backends.torch.loops.marking.condition_source import mark_script
    from pinchpoint.backends.torch.loops.marking.draw_source import mark_draws
    from pinchpoint.backends.torch.loops.marking.lookups import mark_lookups
    from pinchpoint.backends.torch.ranks.spawning import rank_starter

    observer = loaded_target.observer
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
            loaded_target.target.where,
            request["args"],
            scratch=scratch,
            stopper=stopper,
            module=loaded_target.target.name,
            transform=lambda tree: mark_draws(mark_floats(mark_lookups(mark_script(full_card.watch(tree))))),
        )
        signal.setitimer(signal.ITIMER_REAL, 0)
    if observer.dynamic.calibrating:
        signal.setitimer(signal.ITIMER_PROF, 0)
    for note in (*([end.note] if end.note is not None else []), *guards.notes()):
        observer.note(note)
    return end, guards


def _answer_without_forecast(ended: _EndedRun) -> dict[str, Any] | None:
    """What another run needs, or what a real run counted; None if this run has a forecast, or an error."""
    from pinchpoint.backends.torch.data_dependent import unknown_values

    observer, progress, end = ended.observer, ended.progress, ended.end
    if observer.dynamic.calibrating and end.kind == "stopped":
        return observer.dynamic.calibration_results()  # maybe of less than a step, if time ran out
    needs = unknown_values.calibration_site(end.error, observer.dynamic.unknown_site)
    if needs is not None and not ended.is_late_error:
        return {"needs": needs, "limit": observer.dynamic.unknown_limit}
    if (from_others := other_ranks.needs_of(end.error, ended.request.get("rank"))) is not None:
        return from_others
    if end.kind == "raised" and (needed := observer.stand_ins.wanted(end.error)):
        return {NEEDED: needed}
    is_too_early = not (progress.is_late or progress.is_enough(1))
    if is_too_early or (end.kind == "raised" and not ended.is_late_error):
        error = _script_error(ended)
        if error is not None:
            if observer.dynamic.decisions.flipped and (
                end.kind != "raised" or branches.ends_on_purpose(end.error)
            ):
                return {branches.ENDED: True}
            raise error from end.error
    return observer.dynamic.calibration_results() if observer.dynamic.calibrating else None


def _script_error(ended: _EndedRun) -> Exception | None:
    if line := ended.progress.thread_line:
        raise CannotFake(
            f"{Path(ended.loaded_target.target.where).name!r} uses the GPU in a thread, at "
            f"{shown_path(line)}, which pinchpoint does not support yet.",
            hint="Call the function of the thread directly for the prediction.",
        )
    return script_error(
        ended.end,
        script=ended.loaded_target.target.text,
        steps=ended.stopper.steps,
        not_started=ended.guards.processes.refused_commands,
    )


def _describe(ended: _EndedRun) -> None:
    """Add to the observation what was seen of the script, and the reasons and notes; refuse another mode."""
    observer, progress, request = ended.observer, ended.progress, ended.request
    target = ended.loaded_target.target
    observer.stand_ins.note_optional()
    observation: Observation = observer.ledger.observation
    observation.steps = max(progress.steps.values(), default=progress.calls)
    if progress.is_late and progress.trains:
        observation.steps = min(observation.steps, request["steps"])  # larger batches may have added some
    observation.seen = progress.seen(trained=observation.trained)
    if stages := observer.collectives.stages():
        observation.seen["stages"] = stages
    if request.get("rank"):
        observation.seen["compared_ranks"] = compared_ranks(target.where, Rank(**request["rank"]))
    if observer.recomputation is not None:
        observation.seen["recomputation"] = observer.recomputation.results()
    if request.get("mode") not in (None, ended.mode):
        raise BadInput(
            f"The mode of {target.text} is {ended.mode}, not {request['mode']}.",
            hint=f"Leave --mode out, or use --mode {ended.mode}.",
        )
    if not observation.blocks:
        raise BadInput(
            f"{target.text} allocates nothing on the GPU.",
            hint="Pass the arguments that make it use CUDA, such as -- --device cuda.",
        )
    if progress.thread_line:
        observation.reasons.append(
            f"a thread uses the GPU at {shown_path(progress.thread_line)}, and threads are not followed"
        )
    if ended.is_cut_short:
        script_end.explain_cut(observation, progress, ended.end)
    elif progress.trains:
        is_likely = not (ended.tried or observer.dynamic.decisions.flipped)
        script_end.explain_following(observation, progress, ended.end, is_likely=is_likely)
    late_sites = [*observer.dynamic.late_sites, *observer.dynamic.decisions.unexplored]
    if late_sites:
        lines = ", ".join(shown_path(site) for site in dict.fromkeys(late_sites[:4]))
        observation.notes.append(
            f"values that are read at {lines} after the training steps are not known: masks are assumed to "
            "select everything, and in packages, numbers to be 1 and branches to go the likely way"
        )
    if observation.steps < request["steps"]:
        observation.notes.append(f"the script ended after {observation.steps} of {request['steps']} steps")


def _forecast(ended: _EndedRun, *, has_bound: bool) -> Forecast:
    """has_bound: whether the counts of this run are one end of an interval already."""
    observer, progress, request = ended.observer, ended.progress, ended.request
    loaded_target = ended.loaded_target
    card = loaded_target.card
    forecast = assembly.of_observation(
        observer.ledger.observation,
        card=card,
        only_card=loaded_target.only_card,
        find_least=loaded_target.find_least,
        target=loaded_target.target.text,
        mode=ended.mode,
        size=None,
        variant=None,
    )
    if not has_bound:
        forecast = assembly.with_count_interval(forecast, observer.dynamic, card, progress.loops.spread)
    beyond = max(progress.loaders.beyond, progress.loops.beyond)
    if beyond:
        forecast = assembly.with_larger_batches(forecast, beyond, card)
    if ended.full_card.line:
        forecast = assembly.of_one_card(forecast, card, shown_path(ended.full_card.line))
    if progress.scaled_steps is not None:
        forecast = assembly.with_skipped_steps(forecast, progress.scaled_steps)
    job = observer.collectives.started  # of a script that starts processes itself, its own
    if job is None and request.get("rank"):
        job = request["rank"]["rank"], request["rank"]["world_size"]
    if job is not None:
        forecast = assembly.with_rank(forecast, job[0], job[1], observer.collectives.nccl_bytes(), card)
    return forecast


def _answer(ended: _EndedRun, forecast: Forecast) -> dict[str, Any]:
    """The forecast with what decides about further runs."""
    from pinchpoint.backends.torch.fake import runner

    observer, progress = ended.observer, ended.progress
    observation = observer.ledger.observation
    return calibration.with_blocks(forecast.to_dict(), observation) | {
        "decisions": observer.dynamic.decisions.results(partial(runner.peaks_between, observation)),
        branches.RAISED: ended.is_late_error,
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
