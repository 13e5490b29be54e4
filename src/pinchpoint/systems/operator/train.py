"""Training of an operator: AdamW, warm-up and cosine, one body at a time; resumes bit for bit on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.files import check_folder
from pinchpoint.systems.common.budgets import BudgetChoice, begin_budget, budget_of, refuse_both
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.optimizer import count_parameters
from pinchpoint.systems.common.training.precision import check_precision
from pinchpoint.systems.common.training.recorder import with_recordings
from pinchpoint.systems.common.training.records import shared_fields
from pinchpoint.systems.common.training.runs import at_data, data_folder
from pinchpoint.systems.common.training.sample_order import at_turn
from pinchpoint.systems.common.training.torch_loop import peak_reserved_bytes, take_steps
from pinchpoint.systems.common.training.training_loop import (
    NOTE,
    Outcome,
    Progress,
    Report,
    keep_run_on_stop,
)
from pinchpoint.systems.operator.data.dataset import open_dataset
from pinchpoint.systems.operator.data.loading import Supply, tensor_bytes
from pinchpoint.systems.operator.metrics import middle_of, relative_errors
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training.budget import chunk_for
from pinchpoint.systems.operator.training.recorded_steps import (
    RecordedSteps,
    recorded_steps_of,
    refuse_unrecordable,
)
from pinchpoint.systems.operator.training.records import Training
from pinchpoint.systems.operator.training.runs import Run, begin
from pinchpoint.systems.operator.training.training_step import Stepper


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
    """Train on the dataset in `data` and write the run to `output`. choices: fields of `Settings`.

    data: None for a run that is resumed, which remembers its folder.
    budget: bytes, "8GiB" or the name of a card. The largest chunk predicted to stay within it is used.
    Ctrl-C and SIGTERM write a checkpoint after the current step, or before the first step a run that can be
    resumed, and are then raised.
    """
    tell = progress or (lambda report: None)
    if budget is not None:
        budget_of(budget)  # a bad budget is refused before the data are read
        refuse_both(budget, choices.get("chunk"))
    where = data_folder(data, Path(output), Settings, resume=resume, system="operator")
    dataset = open_dataset(where)
    run = at_data(begin(Path(output), dataset, resume=resume, choices=choices), where, data)
    refuse_unrecordable(run.settings)
    device = resolve_device(run.settings.device, backend("torch"))
    begin_budget(budget, device, resume=resume)
    check_precision(run.settings.precision, device)
    names, validation_names = run.split_names(dataset.names("train"))
    check_folder(run.folder)
    bodies = Supply(dataset, run.config, graphs=run.folder / "graphs", pinned=device == "cuda")
    choice: BudgetChoice | None = None
    with keep_run_on_stop(run, tell):
        largest, body_bytes = _build_graphs(bodies, [*names, *validation_names], tell)
        if budget is not None:
            choice = chunk_for(
                run.config,
                run.settings,
                bodies.get(largest)[1],
                budget=budget,
                device=device,
                mode="train",
                progress=lambda text: tell(Report("budget", 0, 0, note=text)),
            )
            run = replace(run, settings=replace(run.settings, chunk=choice.chunk))
    recorded_steps = recorded_steps_of(
        run.settings,
        len(names),
        choice,
        device=device,
        body_bytes=body_bytes,
        note=lambda text: tell(Report(NOTE, 0, 0, note=text)),
    )
    if recorded_steps is not None and choice is not None:
        choice = with_recordings(choice, body_bytes, len(names))
    learner = _Learner(run, bodies, names, validation_names, device=device, recorded_steps=recorded_steps)

    def record(outcome: Outcome[logs.Row]) -> Training:
        sample, graph = bodies.get(largest)
        return Training(
            **shared_fields(
                run, outcome, data=where, device=device, chunk=run.settings.chunk, prediction=choice
            ),
            parameters=count_parameters(learner.stepper.model),
            bodies=len(names),
            points=len(sample.points),
            edges=graph.edges,
            peak_reserved_bytes=peak_reserved_bytes(device),
            recorded_bodies=None if recorded_steps is None else recorded_steps.recorded_bodies,
        )

    return take_steps(run, learner, device=device, record=record, tell=tell, clock=clock)


def _build_graphs(bodies: Supply, names: list[str], tell: Progress) -> tuple[str, int]:
    """Build every graph once. Returns the name of the body with the most edges, and the bytes of all."""
    edges, body_bytes = {}, 0
    for number, name in enumerate(names):
        sample, graph = bodies.get(name)
        edges[name] = graph.edges
        body_bytes += tensor_bytes(sample, graph)
        tell(Report("graphs", number + 1, len(names)))
    return max(edges, key=lambda name: edges[name]), body_bytes


class _Learner:
    """A stepper with the bodies of each step and the validation bodies."""

    def __init__(
        self,
        run: Run,
        bodies: Supply,
        names: list[str],
        validation_names: list[str],
        *,
        device: str,
        recorded_steps: RecordedSteps | None,
    ) -> None:
        self.settings, self.bodies = run.settings, bodies
        self.names, self.validation_names = names, validation_names
        self.validates = bool(validation_names)
        self.stepper = Stepper(run.config, run.settings, device, recorded_steps=recorded_steps)

    def step(self, number: int) -> Tensor:
        turns = range((number - 1) * self.settings.accumulate, number * self.settings.accumulate)
        names = [at_turn(self.names, seed=self.settings.seed, turn=turn) for turn in turns]
        result = self.stepper.replay(names[0], number=number)  # does not need the body
        if result is not None:
            return result
        return self.stepper.step((self.bodies.get(name) for name in names), number=number)

    def validate(self) -> float:
        """Return the median relative L1 of the validation bodies."""
        errors = []
        for name in self.validation_names:
            sample, graph = self.bodies.get(name)
            errors.append(
                relative_errors(
                    self.stepper.predict(sample, graph).cpu(),
                    sample.target,
                    sample.areas,
                    self.bodies.data.fields,
                ).l1
            )
        return middle_of(errors).median

    def state(self) -> dict[str, Any]:
        return self.stepper.updates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stepper.updates.restore(state)
