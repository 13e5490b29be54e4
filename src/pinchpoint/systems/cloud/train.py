"""Training of a point-cloud network at many densities: AdamW, warm-up and cosine; resumes bit for bit on a
CPU.

Processes started by torchrun train together, each with its own scenes and views.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.files import check_folder
from pinchpoint.systems.cloud.data import eval_subsampling
from pinchpoint.systems.cloud.data.batches import Supply, step_scenes
from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.data.sources import Own, open_source
from pinchpoint.systems.cloud.metrics import confusion, scores_of
from pinchpoint.systems.cloud.model.model import predict_labels
from pinchpoint.systems.cloud.model.target_head import target_cosines
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw
from pinchpoint.systems.cloud.model.voxels import check_extent, grid_keys, groups_of
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.breakdown import Log, Parts, mean_seconds
from pinchpoint.systems.cloud.training.budget import ViewsModeChoice, possible_views_modes, views_mode_for
from pinchpoint.systems.cloud.training.recorded_steps import may_record, refuse_unrecordable
from pinchpoint.systems.cloud.training.records import COSINE, MIOU, Training
from pinchpoint.systems.cloud.training.runs import Run, begin, read_settings
from pinchpoint.systems.cloud.training.training_step import Stepper
from pinchpoint.systems.common.budgets import begin_budget, budget_of
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.distributed import NEXT, Ranks, follow, join_ranks, lead
from pinchpoint.systems.common.training.optimizer import count_parameters
from pinchpoint.systems.common.training.precision import autocast, check_precision
from pinchpoint.systems.common.training.recorder import beyond_budget
from pinchpoint.systems.common.training.records import shared_fields
from pinchpoint.systems.common.training.runs import CONFIG, at_data, data_folder
from pinchpoint.systems.common.training.torch_loop import peak_reserved_bytes, take_steps
from pinchpoint.systems.common.training.training_loop import (
    NOTE,
    Outcome,
    Progress,
    Report,
    keep_run_on_stop,
)

VALIDATION_DENSITIES = (1.0, 0.1)  # shares of the points of a validation scene


def train(
    data: str | Path | None,
    output: str | Path,
    *,
    resume: bool = False,
    budget: str | int | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **choices: Any,
) -> Training:
    """Train on the scenes in `data` and write the run to `output`. choices: fields of `Settings`.

    data: None for a run that is resumed, which remembers its folder.
    budget: bytes, "8GiB" or the name of a GPU; views are processed together if the predicted peak fits, else
    one after another, which does not change the gradient. Ctrl-C and SIGTERM write a checkpoint after the
    current step and are then raised. With several processes, all return the record that the first one wrote.
    """
    if budget is not None:
        budget_of(budget)  # before the scenes are read
    folder = data_folder(data, Path(output), Settings, resume=resume, system="cloud")
    stored = read_settings(Path(output)) if resume and (Path(output) / CONFIG).exists() else Settings()
    device = resolve_device(choices.get("device", stored.device), backend("torch"))
    begin_budget(budget, device, resume=resume)
    ignore, target = choices.get("ignore", stored.ignore), choices.get("target", stored.target)
    with join_ranks(device) as ranks:
        tell: Progress = progress if progress is not None and ranks.leads else lambda report: None
        source = open_source(
            folder,
            ignore=ignore,
            target=target,
            progress=lambda done, total: tell(Report("files", done, total)),
        )
        if isinstance(source, Own) and source.unused:
            more = "; --target lang_feat trains it to predict that" if "lang_feat" in source.unused else ""
            note = f"The network does not read {' and '.join(source.unused)}{more}."
            tell(Report(NOTE, 0, 0, note=note))
        supply, choice = Supply(source), None
        read = _ReadReporter(supply, len(source.names("train")), tell)
        run = begin(Path(output), source, resume=resume, choices=choices, ranks=ranks.world, read=read)
        run = at_data(run, folder, data)
        refuse_unrecordable(run.config, run.settings, processes=ranks.world)
        check_precision(run.settings.precision, device)
        ranks.check_first(lambda: check_folder(run.folder))
        names, validation_names = run.split_names(source.names("train"))
        with keep_run_on_stop(run, tell):
            most = max(read(name).points for name in (*names, *validation_names))
            score = _validation_score(run, [read(name) for name in validation_names])
            if score == COSINE:
                tell(Report("score", 0, 0, note=score))
            _check_cells(run, step_scenes(supply, names, run.settings, step=1, rank=ranks.rank))
            asked = run.settings.record_steps
            if not may_record(
                run.config,
                run.settings,
                device=device,
                processes=ranks.world,
                note=lambda text: tell(Report(NOTE, 0, 0, note=text)),
            ):
                asked = False
            run, choice = _choose_views_mode(
                run, supply, names, ranks, budget=budget, device=device, record_steps=asked, tell=tell
            )
            records = _decide_recorded_steps(asked, choice, tell)
        parts = Parts(device, clock=clock)
        learner = _Learner(
            run,
            supply,
            names,
            validation_names,
            score=score,
            device=device,
            parts=parts,
            ranks=ranks,
            records=records,
            recordings_bytes=None if choice is None else choice.recordings_bytes,
            note=lambda text: tell(Report(NOTE, 0, 0, note=text)),
        )
        with learner.prefetcher:
            if not ranks.leads:
                return Training.from_json(follow(run, ranks, restore=learner.restore, take=learner.follow))

            def record(outcome: Outcome[logs.Row]) -> Training:
                return Training(
                    **shared_fields(run, outcome, data=folder, device=device, chunk=None, prediction=choice),
                    parameters=count_parameters(learner.stepper.model),
                    scenes=len(names),
                    points=most,
                    points_seen=learner.stepper.points_seen * ranks.world,
                    views_mode=run.settings.views_mode,
                    score=score,
                    breakdown=mean_seconds(outcome.rows),
                    peak_reserved_bytes=peak_reserved_bytes(device),
                    recorded_sizes=learner.stepper.recorded_sizes,
                    recorded_bytes=learner.stepper.recorded_bytes,
                )

            how: dict[str, Any] = {
                "device": device,
                "record": record,
                "tell": tell,
                "clock": clock,
                "log": Log,
            }
            return lead(ranks, lambda: take_steps(run, learner, complete_row=parts.complete_row, **how))


class _ReadReporter:
    """Reads scenes of a supply by name and reports progress at the first read of each."""

    def __init__(self, supply: Supply, total: int, tell: Progress) -> None:
        self._supply, self._total, self._tell = supply, total, tell
        self._read: set[str] = set()

    def __call__(self, name: str) -> Scene:
        scene = self._supply.scene(name)
        if name not in self._read:
            self._read.add(name)
            self._tell(Report("data", len(self._read), self._total))
        return scene


def _check_cells(run: Run, scenes: list[Scene]) -> None:
    """Refuse cells or voxels that cannot be numbered, before the run is created."""
    batch = Batch.from_scenes(scenes)
    group = groups_of(batch.offsets, len(batch.xyz))
    for cell in (run.config.cell, run.settings.cell or run.config.cell):
        check_extent(float(grid_keys(batch.xyz, group, batch.scenes, cell=cell)[2]), cell)


def _validation_score(run: Run, scenes: list[Scene]) -> str:
    """Return the score of validation scenes: the cosine of a target if not all densities have labels.

    Empty without scenes.
    """
    if not scenes:
        return ""
    if run.settings.classes and (not run.settings.target or _have_labels(scenes)):
        return MIOU
    return COSINE


def _have_labels(scenes: list[Scene]) -> bool:
    """Whether points with a label are left at every density of a validation."""
    if all(scene.labels is None for scene in scenes):
        return False
    for fraction in VALIDATION_DENSITIES:
        parts = [_thinned(scene, fraction, number) for number, scene in enumerate(scenes)]
        if not any(part.labels is not None and (part.labels >= 0).any() for part in parts):
            return False
    return True


def _thinned(scene: Scene, fraction: float, number: int) -> Scene:
    """Return a share of the points of a validation scene, always the same ones."""
    return scene if fraction == 1 else scene.take(eval_subsampling.uniform(scene, fraction, seed=number))


def _choose_views_mode(
    run: Run,
    supply: Supply,
    names: list[str],
    ranks: Ranks,
    *,
    budget: str | int | None,
    device: str,
    record_steps: bool | None,
    tell: Progress,
) -> tuple[Run, ViewsModeChoice | None]:
    """Return the run with its views mode, which the first process chooses for all, as their memory use
    differs. record_steps: as in the settings; False if steps cannot be recorded.
    """
    modes, choice = possible_views_modes(run.config, run.settings), None
    if budget is not None and ranks.leads:
        choice = views_mode_for(
            run.config,
            replace(run.settings, record_steps=record_steps),
            [supply.scene(name) for name in names],
            budget=budget,
            device=device,
            progress=lambda text: tell(Report("budget", 0, 0, note=text)),
        )
    mode = modes[ranks.agree(0 if choice is None else modes.index(choice.views_mode))]
    settings = replace(run.settings, views_mode=mode)
    if mode == "accumulate" and settings.record_steps:
        # The run is stored with its views mode, and resuming it would refuse both together.
        settings = replace(settings, record_steps=None)
    return replace(run, settings=settings), choice


def _decide_recorded_steps(asked: bool | None, choice: ViewsModeChoice | None, tell: Progress) -> bool:
    """Return whether steps are recorded. asked: as in the settings; False if they cannot be.

    If the settings leave that open, steps are recorded with a budget only if the recordings of all sizes are
    predicted to fit into it. The settings of the run stay open: a resumed run decides again.
    """
    if choice is None or asked is False:
        return asked is not False
    if choice.recordings_bytes:
        return True
    if choice.recorded_need_bytes:
        reason = beyond_budget(choice.recorded_need_bytes, choice.budget_bytes)
    else:
        reason = "to fit into the budget, the views are processed one after another"
    tell(Report(NOTE, 0, 0, note=f"No step is recorded: {reason}."))
    return False


class _Learner:
    """A stepper with the scenes of each step and the validation scenes."""

    def __init__(
        self,
        run: Run,
        supply: Supply,
        names: list[str],
        validation_names: list[str],
        *,
        score: str,
        device: str,
        parts: Parts,
        ranks: Ranks,
        records: bool,
        recordings_bytes: int | None,
        note: Callable[[str], None],
    ) -> None:
        self.settings, self.supply, self.validation_names, self.parts, self.ranks = (
            run.settings,
            supply,
            validation_names,
            parts,
            ranks,
        )
        self.score, self.device = score, device
        self.validates = bool(validation_names)
        self.stepper = Stepper(
            run.config,
            replace(run.settings, record_steps=records),
            device,
            parts=parts,
            ranks=ranks,
            recordings_bytes=recordings_bytes,
            note=note,
        )
        self.names = names
        self.side_stream = SideStream() if device == "cuda" else None
        self.prefetcher: Prefetcher[list[Scene] | PreparedStep] = Prefetcher(
            self._prepare, last=run.settings.steps, side_stream=self.side_stream
        )

    def step(self, number: int) -> Tensor:
        self.ranks.agree(NEXT)
        return self.take(number)

    def take(self, number: int) -> Tensor:
        """Take this process's part of step 1, 2, ..."""
        recorded_steps = self.stepper.recorded_steps
        if recorded_steps is None:  # a replay has no parts, so no step of such a run is timed
            self.parts.begin(number)
        with self.parts.part("data"):
            if recorded_steps is None:
                points = self.prefetcher.get(number)
            else:
                points = recorded_steps.with_room(lambda: self.prefetcher.get(number))
        if not isinstance(points, PreparedStep):
            return self.stepper.step(points, number=number)
        with self.parts.part("sampling"):
            batch, draw = receive(points)
        return self.stepper.step_on(batch, draw, number=number)

    def follow(self, number: int) -> None:
        """Take a step in a process other than the first, and drop its times, which only the first
        process logs.
        """
        self.take(number)
        self.parts.pop_step(number)

    def _prepare(self, number: int) -> list[Scene] | PreparedStep:
        """Prepare step 1, 2, ... as far as possible.

        On a CPU views are not drawn ahead: that would slow down the step.
        """
        scenes = step_scenes(self.supply, self.names, self.settings, step=number, rank=self.ranks.rank)
        if self.side_stream is None:
            return scenes

        def draw_batch() -> tuple[Batch, ViewDraw]:
            batch = Batch.from_scenes(scenes, device=self.device)
            return batch, self.stepper.draw(batch, number=number)

        return self.side_stream.prepare(draw_batch)

    def validate(self) -> float:
        """Return 1 - the score of the validation scenes, averaged over densities: the mIoU, or the mean
        cosine of predicted and true targets.
        """
        recorded_steps = self.stepper.recorded_steps
        return self._validate() if recorded_steps is None else recorded_steps.run_eagerly(self._validate)

    def _validate(self) -> float:
        model = self.stepper.updates.trained()
        scores = []
        for fraction in VALIDATION_DENSITIES:
            counts = np.zeros((len(self.settings.classes),) * 2, dtype=np.int64)
            cosines = [np.zeros(0)]
            for number, name in enumerate(self.validation_names):
                part = _thinned(self.supply.scene(name), fraction, number)
                with autocast(self.settings.precision, self.device):
                    if self.score == COSINE:
                        cosines.append(target_cosines(model, part, device=self.device))
                    elif part.labels is not None:
                        predictions = predict_labels(model, part, device=self.device)
                        counts += confusion(part.labels, predictions, len(self.settings.classes))
            every = np.concatenate(cosines)
            if self.score == COSINE:
                # Scenes held back without any target say nothing: a cosine of 0.
                scores.append(float(every.mean()) if every.size else 0.0)
            else:
                scores.append(scores_of(counts).miou)
        return 1 - sum(scores) / len(scores)

    def state(self) -> dict[str, Any]:
        return {**self.stepper.updates.state(), "seen": self.stepper.points_seen}

    def restore(self, state: dict[str, Any]) -> None:
        self.stepper.updates.restore(state)
        self.stepper.points_seen = state["seen"]
