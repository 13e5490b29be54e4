"""Train a density model: AdamW, warm-up and cosine, averaged weights, resumable to the bit on a CPU.

A step takes some structures and a random part of the probes stored of each; both follow from the seed and the step. A few
geometries of the training split are held back to find the best checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder, make_folder, write_text
from pinchpoint.systems.common import logs, runs
from pinchpoint.systems.common.budgets import Chosen, budget_of
from pinchpoint.systems.common.folders import check_run_folder
from pinchpoint.systems.common.precision import check_precision
from pinchpoint.systems.common.records import TrainingRecord
from pinchpoint.systems.common.runs import at_data, data_folder, held_back, plain, taken_up
from pinchpoint.systems.common.seeding import at_turn
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.common.torch_loop import take_steps
from pinchpoint.systems.common.training_loop import Ended, Progress, Report, preparing
from pinchpoint.systems.density.data.atomic import load_table
from pinchpoint.systems.density.data.batches import Item, item_of, step_batch
from pinchpoint.systems.density.data.dataset import Dataset, open_dataset
from pinchpoint.systems.density.data.domain import Seen, joined, look_at
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.training_step import Stepper, chunk_for, new_model, nmae, values_at

LOOKED_AT = 4096  # probes of each geometry that is held back
LOOKED_INTO = 32  # geometries whose neighbours are counted before a run
LOOKED_BACK = 10  # losses that are averaged at the beginning and at the end
RISEN = 2  # times: a loss that rises by more has not merely wavered
LOG = "log.csv"
MADE_BY = "density train"
SEEN = "seen.json"  # of a run: what its training structures are like


@dataclass(frozen=True, kw_only=True)
class Training(TrainingRecord):
    """loss: error per electron; validation: mean NMAE of the geometries held back; chunk: probes."""

    kind: ClassVar[str] = "density-training"
    structures: int  # trained on
    probes: int  # stored of them
    notes: tuple[str, ...] = ()  # what the user of the run must know

    def summary(self) -> list[tuple[str, str]]:
        trained_on = "structures", f"{self.structures:,} with {self.probes:,} probes"
        return self.rows(
            trained_on, loss="per electron (mean of the last tenth)", error="NMAE", points="probes"
        )


@dataclass(frozen=True)
class Run(runs.Run[Settings]):
    """A folder and what the run in it is told."""

    @property
    def config(self) -> DensityConfig:
        return DensityConfig.from_json(json.dumps(self.settings.model))


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
    """Train on the data set in `data`; the run lies in `output`. choices: fields of `Settings`.

    data: None for a run that is resumed, which remembers its folder.
    budget: bytes, "8GiB" or a card's name; as many probes pass at one time as are predicted to stay within it, which
    leaves the gradient of a step as it is. Ctrl-C and SIGTERM write a checkpoint after the step at hand and are then raised.
    """
    tell = progress or (lambda report: None)
    if budget is not None:
        budget_of(budget)  # before the data are read
    where = data_folder(data, Path(output), Settings, resume=resume, system="density")
    dataset = open_dataset(where)
    run = at_data(begin(Path(output), dataset, resume=resume, choices=choices), where)
    device = resolve_device(run.settings.device, backend("torch"))
    check_precision(run.settings.precision, device)
    check_folder(run.folder)
    names, held = run.parted(dataset.names("train"))
    chosen: Chosen | None = None
    seen: Seen | None = None
    with preparing(run, tell):
        items: dict[str, Item] = {}
        for name in [*names, *held]:
            sample = dataset.sample(name)
            items[name] = item_of(sample, run.config, device=device)
            if len(items) <= len(names):
                seen = joined(seen, look_at(sample, reach_a=run.config.cutoff_a))
            tell(Report("data", len(items), len(names) + len(held)))
        if budget is not None:
            tell(Report("budget", 0, 0, note="the largest structures"))
            chosen = chunk_for(run.config, run.settings, list(items.values()), budget=budget, device=device)
            run = replace(run, settings=replace(run.settings, chunk=chosen.chunk))
    learner = _Learner(run, items, names, held, device=device)

    def record(ended: Ended) -> Training:
        return Training(
            target=str(run.folder),
            data=str(where),
            settings=run.settings.to_dict(),
            step=ended.step,
            loss=ended.loss,
            validation=ended.validation,
            best_step=ended.best_step,
            parameters=sum(p.numel() for p in learner.stepper.model.parameters()),
            structures=len(names),
            probes=sum(len(items[name].probes) for name in names),
            device=device,
            chunk=run.settings.chunk,
            peak_bytes=ended.peak_bytes,
            seconds=ended.seconds,
            complete=ended.complete,
            predicted_bytes=chosen.predicted_bytes if chosen else None,
            budget_bytes=chosen.budget_bytes if chosen else None,
            notes=loss_notes(
                [row.loss for row in logs.read(run.folder / LOG)], run.settings, best_step=ended.best_step
            ),
        )

    if seen is not None:
        write_text(make_folder(run.folder) / SEEN, seen.to_json() + "\n")
    return take_steps(run, learner, device=device, record=record, tell=tell, clock=clock)


def begin(folder: Path, data: Dataset, *, resume: bool, choices: Mapping[str, Any]) -> Run:
    """A new run, or with `resume` the one that is there; nothing is written. `choices`: only what was asked for."""
    check_run_folder(folder, resume=resume)
    asked = plain(choices)
    if resume:
        stored = runs.read_settings(folder, Settings, made_by=MADE_BY)
        return Run(folder, taken_up(folder, stored, asked, data=fingerprint(data)))
    told = apply_choices(Settings(), {**asked, "model": {}, "data": fingerprint(data)})
    count = len(data.names("train"))
    held = held_back(told.validation, count, what="geometries", hint="make some with density data")
    run = Run(folder, replace(told, validation=held))
    config = _configured(data, run, choices.get("model", {}))
    return replace(run, settings=replace(run.settings, model=json.loads(config.to_json())))


def loss_notes(losses: Sequence[float], told: Settings, *, best_step: int | None = None) -> tuple[str, ...]:
    """A sentence where the last steps have a loss far above that of the first. losses: of every step."""
    few = min(LOOKED_BACK, len(losses) // 2)
    if few == 0:
        return ()
    before, after = sum(losses[:few]) / few, sum(losses[-few:]) / few
    if not after > RISEN * before:
        return ()
    best = "" if best_step is None else f", the best ones, which predict takes, are of step {best_step:,}"
    return (
        f"training diverged: the loss rose from {before:.3g} to {after:.3g}, its last weights are worse than its first"
        f"{best}; train again with --lr {told.lr / 4:.2g}, or a longer --set warmup (it was {told.warmup_steps():,} steps), "
        "and another -o",
    )


def fingerprint(data: Dataset) -> str:
    """What a data set is, wherever it lies: the files of its training samples."""
    files = [(name, data.samples[name]["sha256"]) for name in data.names("train")]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


class _Learner:
    """A stepper with the structures and probes of each step, and those held back."""

    def __init__(
        self, run: Run, items: Mapping[str, Item], names: list[str], held: list[str], *, device: str
    ) -> None:
        self.told, self.config, self.items, self.names = run.settings, run.config, items, names
        self.held = [_first(items[name], LOOKED_AT) for name in held]
        self.holds_back = bool(held)
        self.stepper = Stepper(new_model(run.config, seed=run.settings.seed), run.settings, device)

    def step(self, number: int) -> Tensor:
        return self.stepper.step(
            step_batch(self.items, self.names, self.told, self.config, number=number), number=number
        )

    def validate(self) -> float:
        """Mean error of the geometries held back, of the averaged weights where there are some."""
        model = self.stepper.updates.trained().eval()
        found = [
            nmae(values_at(model, item, precision=self.told.precision, chunk=self.told.chunk), item)
            for item in self.held
        ]
        return sum(found) / len(found)

    def state(self) -> dict[str, Any]:
        return self.stepper.updates.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.stepper.updates.restore(state)


def _first(item: Item, count: int) -> Item:
    """The first probes of an item. They were drawn without order, so that any of them stand for all."""
    return replace(item, probes=item.probes[:count], values=item.values[:count], weights=item.weights[:count])


def _configured(data: Dataset, run: Run, overrides: Mapping[str, Any]) -> DensityConfig:
    """The whole configuration of the model, with what the training geometries tell."""
    if "species" in overrides:
        raise BadInput("--set species", hint="they follow from the data set: leave them out")
    names, _ = run.parted(data.names("train"))
    # A few say what all of them do: reading draws all probes again, which takes its time. Taken at random, for molecules
    # come in turn, and every n-th geometry may be of one molecule.
    some = [data.sample(at_turn(names, seed=0, turn=turn)) for turn in range(min(len(names), LOOKED_INTO))]
    species = data.species
    # Where the atoms are known, what is left to learn is what bonds change.
    prior = set(species) <= set(load_table().species)
    known: dict[str, Any] = {"spin": data.spin, "prior": prior, **overrides}
    config = DensityConfig.preset(run.settings.preset, species, **known)
    if "mean_neighbours" in overrides:
        return config
    return replace(config, mean_neighbours=round(_neighbours(some, config), 2))


def _neighbours(samples: list[Sample], config: DensityConfig) -> float:
    """Mean number of atoms within the cutoff of an atom."""
    graphs = [item_of(sample, config).atoms for sample in samples]
    edges, atoms = (sum(len(getattr(graph, name)) for graph in graphs) for name in ("source", "species"))
    return max(1.0, edges / atoms)


def seen_by(folder: Path) -> Seen | None:
    """What the run in a folder was trained on; None for a run that did not keep it."""
    path = folder / SEEN
    if not path.is_file():
        return None
    try:
        return Seen.from_json(path.read_text(encoding="utf-8"))
    except (BadInput, ValueError, OSError) as error:
        why = error.what if isinstance(error, BadInput) else str(error)
        raise BadInput(
            f"{path} is damaged: {why}",
            hint="restore it, or remove it: structures are then not held against what was trained on",
        ) from error


def trained_state(
    folder: Path, *, which: runs.Which = "best"
) -> tuple[Run, dict[str, Tensor], int, float | None]:
    """A run with the weights of its best or last checkpoint, averaged where it kept such, their step and their error."""
    run = Run(folder, runs.read_settings(folder, Settings, made_by=MADE_BY))
    if which == "best" and run.checkpoints.best() is None:
        which = "last"
    entry = run.found(which)
    state = run.checkpoints.load(entry)
    weights = state["ema"] or state["model"]
    return run, {name: value.to(torch.float32) for name, value in weights.items()}, entry.step, entry.score
