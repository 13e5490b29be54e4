"""Training of a density model: AdamW, warm-up and cosine schedule, averaged weights, bit-exact resume on a
CPU.

A step takes some structures and a random part of the stored probes of each; both follow from the seed and the
step number. A few geometries of the training split are held back as validation data to find the best
checkpoint. With `first`, a trained network is kept as it is, and a local network learns to correct it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.files import check_folder, make_folder, write_text
from pinchpoint.core.units import show_count
from pinchpoint.systems.common.budgets import (
    BudgetChoice,
    begin_budget,
    budget_of,
    refuse_both,
)
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.optimizer import count_parameters
from pinchpoint.systems.common.training.precision import check_precision
from pinchpoint.systems.common.training.recorder import can_record, room_for_recordings, with_recordings
from pinchpoint.systems.common.training.recording import release_memory
from pinchpoint.systems.common.training.records import TrainingRecord, shared_fields
from pinchpoint.systems.common.training.runs import at_data, data_folder
from pinchpoint.systems.common.training.torch_loop import peak_reserved_bytes, take_steps
from pinchpoint.systems.common.training.training_loop import (
    NOTE,
    Outcome,
    Progress,
    Report,
    keep_run_on_stop,
)
from pinchpoint.systems.density.data.batches import (
    Batch,
    Item,
    choose_structures,
    common_shape,
    item_of,
    step_batch,
)
from pinchpoint.systems.density.data.dataset import open_dataset, unfinished_notes
from pinchpoint.systems.density.data.domain import TrainingDomain, merge_domains, sample_domain
from pinchpoint.systems.density.data.stacked_items import StackedItems
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.training.budget import chunk_for
from pinchpoint.systems.density.training.runs import DOMAIN_FILE, Run, begin, read_domain
from pinchpoint.systems.density.training.training_step import (
    RecordedStep,
    Stepper,
    correct_model,
    new_model,
    nmae,
    values_at,
)
from pinchpoint.systems.density.training.weights import load_weights

VALIDATION_PROBES = 4096  # of each validation geometry
AVERAGED_LOSSES = 10  # at the start and at the end of a run, to detect divergence
RISE = 2  # a loss that rises by more than this factor has diverged


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """The record of a run. loss: error per electron; validation: mean NMAE of the validation geometries."""

    kind: ClassVar[str] = "density-training"
    structures: int  # in the training data
    probes: int  # stored for all of them
    notes: tuple[str, ...] = ()  # warnings for the user of the run

    def summary(self) -> list[tuple[str, str]]:
        trained_on = "structures", f"{self.structures:,} with {self.probes:,} probes"
        return self.rows(
            trained_on, loss="per electron (mean of the last tenth)", error="NMAE", points="probes"
        )


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
    budget: bytes, "8GiB" or the name of a card. The largest chunk of probes that is predicted to stay within
    it is used; the gradient of a step stays the same. Ctrl-C and SIGTERM write a checkpoint after the current
    step and are then raised.
    """
    tell = progress or (lambda report: None)
    if budget is not None:
        budget_of(budget)  # before the data are read
        refuse_both(budget, choices.get("chunk"))
    where = data_folder(data, Path(output), Settings, resume=resume, system="density")
    dataset = open_dataset(where, accept_unfinished=True)
    if choices.get("first") and Path(choices["first"]).exists():
        choices["first"] = str(Path(choices["first"]).resolve())
    first = load_weights(choices["first"]) if choices.get("first") and not resume else None
    begun = begin(
        Path(output),
        dataset,
        resume=resume,
        choices=choices,
        first=None if first is None else first.config,
    )
    run = at_data(begun, where, data)
    if resume and run.settings.first and run.checkpoints.last() is None:
        first = load_weights(run.settings.first)
    device = resolve_device(run.settings.device, backend("torch"))
    begin_budget(budget, device, resume=resume)
    check_precision(run.settings.precision, device)
    check_folder(run.folder)
    names, validation_names = run.split_names(dataset.names("train"))
    choice: BudgetChoice | None = None
    domain: TrainingDomain | None = None
    with keep_run_on_stop(run, tell):
        items: dict[str, Item] = {}
        for name in [*names, *validation_names]:
            sample = dataset.sample(name)
            items[name] = item_of(sample, run.config, device=device)
            if len(items) <= len(names):
                domain = merge_domains(domain, sample_domain(sample, reach_a=run.config.cutoff_a))
            tell(Report("data", len(items), len(names) + len(validation_names)))
        if budget is not None:
            tell(Report("budget", 0, 0, note="largest structures"))
            choice = chunk_for(
                run.config,
                run.settings,
                list(items.values()),
                budget=budget,
                device=device,
                padded=_padded_batch(run, items, names) if run.settings.record_steps else None,
                held_back=_held_back(items, validation_names),
            )
            run = replace(run, settings=replace(run.settings, chunk=choice.chunk))
    recorded_step: RecordedStep | None = None
    if run.settings.record_steps and can_record(
        device, asked=True, note=(note := lambda text: tell(Report(NOTE, 0, 0, note=text)))
    ):
        recorded_step = RecordedStep(most_bytes=room_for_recordings(choice), note=note)
        choice = None if choice is None else with_recordings(choice, 0, 1)
    learner = _Learner(
        run, items, names, validation_names, first=first, device=device, recorded_step=recorded_step
    )
    probes = sum(len(items[name].probes) for name in names)
    del items  # a learner whose batches are gathered from joint tensors does not need them
    if recorded_step is not None:
        release_memory()  # steps run on a stream that could not use what the items leave

    def record(outcome: Outcome[logs.Row]) -> Training:
        return Training(
            **shared_fields(
                run, outcome, data=where, device=device, chunk=run.settings.chunk, prediction=choice
            ),
            parameters=count_parameters(learner.stepper.model),
            structures=len(names),
            probes=probes,
            peak_reserved_bytes=peak_reserved_bytes(device),
            notes=(
                *unfinished_notes(dataset, "train", use="the run uses the others"),
                *loss_notes([row.loss for row in outcome.rows], run.settings, best_step=outcome.best_step),
            ),
        )

    if domain is not None:
        if run.settings.first:
            domain = _joined(domain, read_domain(run.folder) if first is None else first.domain)
        write_text(make_folder(run.folder) / DOMAIN_FILE, domain.to_json() + "\n")
    return take_steps(run, learner, device=device, record=record, tell=tell, clock=clock)


def loss_notes(
    losses: Sequence[float], settings: Settings, *, best_step: int | None = None
) -> tuple[str, ...]:
    """Return a note where the last losses are far above the first ones. losses: of every step."""
    few = min(AVERAGED_LOSSES, len(losses) // 2)
    if few == 0:
        return ()
    before, after = sum(losses[:few]) / few, sum(losses[-few:]) / few
    if not after > RISE * before:
        return ()
    best = "" if best_step is None else f"; predict uses the best ones, of step {best_step:,}"
    return (
        f"training diverged: the loss rose from {before:.3g} to {after:.3g}, so the last weights are worse "
        "than "
        f"the first{best}; train again with --lr {settings.lr / 4:.2g} or a longer --set warmup (it was "
        f"{show_count(settings.warmup_steps(), 'step')}), and another -o",
    )


class _Learner:
    """A stepper with the structures and probes of each step, and the validation data."""

    def __init__(
        self,
        run: Run,
        items: Mapping[str, Item],
        names: list[str],
        validation_names: list[str],
        *,
        first: DensityModel | None,
        device: str,
        recorded_step: RecordedStep | None,
    ) -> None:
        self.settings, self.config, self.names = run.settings, run.config, names
        self.validation_items = _held_back(items, validation_names)
        self.validates = bool(validation_names)
        seed = run.settings.seed
        # A run that is resumed has the weights of both networks in its checkpoint.
        model = (
            new_model(run.config, seed=seed) if first is None else correct_model(first, run.config, seed=seed)
        )
        self.stepper = Stepper(model, run.settings, device, recorded_step=recorded_step)
        pads = run.settings.record_steps
        self.shape = common_shape(items, names, run.settings, run.config) if pads else None
        shared = self.shape is not None and self.shape.shared
        self.stacked = StackedItems.of(items, names, run.config) if shared else None
        # Joint tensors hold the structures already: they are not kept a second time.
        self.items = items if self.stacked is None else {}
        self.probe_counts = {name: len(items[name].probes) for name in names}

    def step(self, number: int) -> Tensor:
        if self.stacked is None or self.shape is None:
            batch = step_batch(
                self.items, self.names, self.settings, self.config, number=number, shape=self.shape
            )
        else:
            chosen = choose_structures(
                self.probe_counts.__getitem__, self.names, self.settings, number=number
            )
            batch = self.stacked.batch(*chosen, self.shape)
        return self.stepper.step(batch, number=number)

    def validate(self) -> float:
        """Return the mean error on the validation geometries, with averaged weights where the run has
        them.
        """
        recorded_step = self.stepper.recorded_step
        return self._validate() if recorded_step is None else recorded_step.run_eagerly(self._validate)

    def _validate(self) -> float:
        model = self.stepper.updates.trained().eval()
        errors = [
            nmae(values_at(model, item, precision=self.settings.precision, chunk=self.settings.chunk), item)
            for item in self.validation_items
        ]
        return sum(errors) / len(errors)

    def state(self) -> dict[str, Any]:
        return self.stepper.updates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stepper.updates.restore(state)


def _padded_batch(run: Run, items: Mapping[str, Item], names: list[str]) -> Batch:
    """Return the batch of the first step, padded to the shape of all steps."""
    shape = common_shape(items, names, run.settings, run.config)
    return step_batch(items, names, run.settings, run.config, number=1, shape=shape)


def _joined(domain: TrainingDomain, of_first: TrainingDomain | None) -> TrainingDomain:
    """Return the domain of a pair of networks; its number of structures is that of the second one's data."""
    both = None if of_first is None else merge_domains(of_first, domain)
    return domain if both is None else replace(both, structures=domain.structures)


def _held_back(items: Mapping[str, Item], names: Sequence[str]) -> list[Item]:
    """Return the items of the validation geometries, with the probes that are evaluated."""
    return [_first(items[name], VALIDATION_PROBES) for name in names]


def _first(item: Item, count: int) -> Item:
    """Return an item with its first probes. They were drawn in random order, so any of them represent all."""
    return replace(item, probes=item.probes[:count], values=item.values[:count], weights=item.weights[:count])
