"""Training of both models with the same steps, and evaluation on the same grids, also of superposed atoms.

Everything but the network is pinchpoint's trainer: its settings and schedule, the structures and probes of
each step, the loss, AdamW and the averaged weights. The averaged weights of the last step are evaluated: none
are chosen by looking at test grids.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.density.data.atomic import load_table, radial_tables, superpose
from pinchpoint.systems.density.data.batches import Item, choose_probes, item_of, step_batch
from pinchpoint.systems.density.data.dataset import Dataset, Split
from pinchpoint.systems.density.model.model import PRIOR_KNOTS, DensityModel
from pinchpoint.systems.density.model.painn import PaiNN, parameter_count, width_for
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.training.runs import begin
from pinchpoint.systems.density.training.training_step import (
    FIRST_OUTPUT,
    Stepper,
    new_model,
    nmae,
    values_at,
)

# painn has as many parameters as ours; painn-128 has the width 128.
CONTENDERS = re.compile(r"ours|painn(-[1-9]\d*)?")
JUDGED: tuple[Split, ...] = ("test", "heldout")
STRETCHES = 20  # losses recorded per training


class Contest:
    """A dataset, the settings of all runs, and the items of its samples, built once."""

    def __init__(
        self,
        data: Dataset,
        choices: dict[str, Any],
        *,
        device: str = "cpu",
        judge: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        """Open a contest.

        choices: fields of `Settings`, as for `density train`; judge: probes of each grid to evaluate, 0 for
        all.
        """
        run = begin(data.path / "no run", data, resume=False, choices=choices)
        self.data, self.settings, self.config = data, run.settings, run.config
        self.device, self.judge, self.say = device, judge, say
        self.names, self.validation_names = run.split_names(data.names("train"))
        self.items: dict[str, Item] = {}

    def about(self) -> dict[str, Any]:
        """Return the settings that must be equal for two results to be in one table."""
        settings = self.settings.to_dict()
        free = ("seed", "lr", "model", "data", *Settings.changeable())
        shape = {f"model {key}": value for key, value in settings["model"].items()}
        same = {key: value for key, value in settings.items() if key not in free}
        return {"data": self.data.sha256, "device": self.device, "judge": self.judge, **same, **shape}

    def build(self, name: str, *, seed: int) -> DensityModel | PaiNN:
        """Return an untrained model, which starts close to superposed atoms if the configuration has them."""
        if name == "ours":
            return new_model(self.config, seed=seed).to(self.device)
        width_text = name.partition("-")[2]
        width = (
            int(width_text)
            if width_text
            else width_for(self.config, parameter_count(DensityModel(self.config)))
        )
        model = PaiNN(self.config, width=width, seed=seed)
        if self.config.prior:
            model.set_prior(
                torch.from_numpy(radial_tables(self.config.species, self.config.cutoff_a, PRIOR_KNOTS))
            )
        with torch.no_grad():
            model.read[-1].weight *= FIRST_OUTPUT
        return model.to(self.device)

    def train(
        self, name: str, *, seed: int, lr: float, steps: int | None = None
    ) -> tuple[DensityModel | PaiNN, dict[str, Any]]:
        """Train a model and return it with its losses and times.

        Every model of a seed sees the same structures and probes in the same order.
        """
        settings = replace(self.settings, seed=seed, lr=lr, steps=steps or self.settings.steps)
        stepper = Stepper(self.build(name, seed=seed), settings, self.device)  # pyright: ignore[reportArgumentType]
        items = {one: self.item(one) for one in self.names}
        stretch = max(1, settings.steps // STRETCHES)
        losses: list[float] = []
        waiting: list[torch.Tensor] = []
        before = self._wait()
        start = time.perf_counter()
        with matmuls(settings.precision):
            for number in range(1, settings.steps + 1):
                batch = step_batch(items, self.names, settings, self.config, number=number)
                waiting.append(stepper.step(batch, number=number)[0])
                if number % stretch == 0 or number == settings.steps:
                    # Read one stretch at a time: every reading synchronises with the device.
                    losses.append(float(torch.stack(waiting).mean()))
                    waiting = []
                    if not math.isfinite(losses[-1]):
                        raise TargetFailed(
                            f"The loss is {losses[-1]} at step {number}.", hint="Use a lower learning rate."
                        )
                    self.say(
                        f"{name}:{seed} lr={lr:g}: step {number:,} of {settings.steps:,}, loss "
                        f"{losses[-1]:.4f}"
                    )
        after = self._wait()
        seconds = time.perf_counter() - start
        result = {
            "lr": lr,
            "steps": settings.steps,
            "parameters": parameter_count(stepper.model),
            "losses": losses,
            "seconds": seconds,
            "step_s": seconds / settings.steps,
            "peak_bytes": None if after is None or before is None else after[1] - before[0],
        }
        return stepper.updates.trained().eval(), result

    def errors(self, model: DensityModel | PaiNN, names: Sequence[str]) -> dict[str, float]:
        """Return the NMAE of each sample."""
        return {
            name: nmae(values_at(model, item, precision=self.settings.precision), item)
            for name, item in self._judged(names)
        }  # pyright: ignore[reportArgumentType]

    def superposition(self) -> dict[str, Any]:
        """Return the errors of superposed spherical atoms; empty if a species has no table."""
        result: dict[str, Any] = {}
        if unknown := sorted(set(self.data.species) - set(load_table().species)):
            self.say(f"superposed atoms are skipped: there is no table of {', '.join(unknown)}")
            return result
        for split in JUDGED:
            rows = {}
            for name, item in self._judged(self.data.names(split)):
                sample = self.data.sample(name)
                values = superpose(
                    sample.species, sample.positions, item.probes.cpu().numpy(), sample.lattice
                )
                rows[name] = nmae(torch.from_numpy(values)[:, None].to(item.values), item)
            result[split] = summarise(rows)
        return result

    def run(self, name: str, *, seed: int, lr: float) -> dict[str, Any]:
        """Train one model and evaluate it on the test grids and on held-out molecules."""
        model, result = self.train(name, seed=seed, lr=lr)
        for split in JUDGED:
            result[split] = summarise(self.errors(model, self.data.names(split)))
            if result[split]["mean"] is not None:
                self.say(f"{name}:{seed}: NMAE {result[split]['mean']:.3%} on {split}")
        return result

    def tune(self, name: str, *, rates: Sequence[float], steps: int) -> dict[str, Any]:
        """Return the validation error of each learning rate, and the best rate."""
        if not self.validation_names:
            raise BadInput(
                "No geometries are held back to choose a learning rate.",
                hint="Give --validation 1, or make more geometries.",
            )
        errors_by_rate: dict[str, float | None] = {}
        for rate in rates:
            try:
                model, _ = self.train(name, seed=0, lr=rate, steps=steps)
            except TargetFailed as error:
                self.say(f"{name} lr={rate:g}: {error.what}")
                errors_by_rate[f"{rate:g}"] = None
                continue
            errors = self.errors(model, self.validation_names)
            errors_by_rate[f"{rate:g}"] = sum(errors.values()) / len(errors)
            self.say(
                f"{name} lr={rate:g}: NMAE {errors_by_rate[f'{rate:g}']:.3%} on {len(errors)} validation "
                "geometries"
            )
        good = {rate: error for rate, error in errors_by_rate.items() if error is not None}
        if not good:
            raise TargetFailed(f"{name} diverges at every learning rate.", hint="Give lower --rates.")
        return {"steps": steps, "tried": errors_by_rate, "lr": float(min(good, key=lambda rate: good[rate]))}

    def item(self, name: str) -> Item:
        if name not in self.items:
            self.items[name] = item_of(self.data.sample(name), self.config, device=self.device)
        return self.items[name]

    def _judged(self, names: Sequence[str]) -> list[tuple[str, Item]]:
        return [(name, self._some(self.item(name))) for name in names]

    def _some(self, item: Item) -> Item:
        """Return an item with the probes to evaluate: all, or a subset determined by its name."""
        if not self.judge:
            return item
        at = choose_probes(item, self.judge, seed=0, step=0)
        return replace(item, probes=item.probes[at], values=item.values[at], weights=item.weights[at])

    def _wait(self) -> tuple[int, int] | None:
        """Synchronise and return the allocated bytes and their peak since the last call; None on a CPU."""
        if self.device != "cuda":
            return None
        torch.cuda.synchronize()
        result = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return result


def summarise(errors: dict[str, float]) -> dict[str, Any]:
    """Return the mean over the samples, the mean of each molecule, and every sample."""
    molecules: dict[str, list[float]] = {}
    for name, error in errors.items():
        molecules.setdefault(name.rpartition("-")[0], []).append(error)
    return {
        "mean": sum(errors.values()) / len(errors) if errors else None,
        "molecules": {name: sum(own) / len(own) for name, own in molecules.items()},
        "samples": errors,
    }
