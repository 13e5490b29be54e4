"""Ours and the peer trained by the same steps and judged on the same grids, with superposed atoms beside them.

Everything but the network is the trainer's own: its settings and schedule, the structures and probes of each step, the loss,
AdamW and the averaged weights. The averaged weights of the last step are judged: none are chosen by looking at test grids.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from painn import PaiNN, parameter_count, width_for

from pinchpoint.core.errors import BadInput, TargetFailed
from pinchpoint.systems.common.precision import matmuls
from pinchpoint.systems.density.data.atomic import load_table, radial_tables, superpose
from pinchpoint.systems.density.data.batches import Item, choose_probes, item_of, step_batch
from pinchpoint.systems.density.data.dataset import Dataset, Split
from pinchpoint.systems.density.model.model import PRIOR_KNOTS, DensityModel
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.train import begin
from pinchpoint.systems.density.training_step import FIRST_OUTPUT, Stepper, new_model, nmae, values_at

CONTENDERS = re.compile(
    r"ours|painn(-[1-9]\d*)?"
)  # painn has as many parameters as ours; painn-128 is that wide
JUDGED: tuple[Split, ...] = ("test", "heldout")
STRETCHES = 20  # losses kept of a training


class Contest:
    """A data set, one setting for all, and the items of its samples, made once."""

    def __init__(
        self,
        data: Dataset,
        choices: dict[str, Any],
        *,
        device: str = "cpu",
        judge: int = 0,
        say: Callable[[str], None] = print,
    ) -> None:
        """choices: fields of `Settings`, as `density train` takes them. judge: probes of each grid, 0 for all of them."""
        run = begin(data.path / "no run", data, resume=False, choices=choices)
        self.data, self.told, self.config = data, run.settings, run.config
        self.device, self.judge, self.say = device, judge, say
        self.names, self.held = run.split_names(data.names("train"))
        self.items: dict[str, Item] = {}

    def about(self) -> dict[str, Any]:
        """What must be equal for two results to stand in one table."""
        told = self.told.to_dict()
        free = ("seed", "lr", "model", "data", *Settings.changeable())
        shape = {f"model {key}": value for key, value in told["model"].items()}
        same = {key: value for key, value in told.items() if key not in free}
        return {"data": self.data.sha256, "device": self.device, "judge": self.judge, **same, **shape}

    def built(self, name: str, *, seed: int) -> DensityModel | PaiNN:
        """A model with weights from the seed that says superposed atoms, where the configuration has them, and little else."""
        if name == "ours":
            return new_model(self.config, seed=seed).to(self.device)
        given = name.partition("-")[2]
        width = int(given) if given else width_for(self.config, parameter_count(DensityModel(self.config)))
        model = PaiNN(self.config, width=width, seed=seed)
        if self.config.prior:
            model.set_prior(
                torch.from_numpy(radial_tables(self.config.species, self.config.cutoff_a, PRIOR_KNOTS))
            )
        with torch.no_grad():
            model.read[-1].weight *= FIRST_OUTPUT
        return model.to(self.device)

    def trained(
        self, name: str, *, seed: int, lr: float, steps: int | None = None
    ) -> tuple[DensityModel | PaiNN, dict[str, Any]]:
        """The trained model and how it went. Every model of a seed sees the same structures and probes in the same order."""
        told = replace(self.told, seed=seed, lr=lr, steps=steps or self.told.steps)
        stepper = Stepper(self.built(name, seed=seed), told, self.device)  # pyright: ignore[reportArgumentType]
        items = {one: self.item(one) for one in self.names}
        stretch = max(1, told.steps // STRETCHES)
        losses: list[float] = []
        waiting: list[torch.Tensor] = []
        before = self._wait()
        start = time.perf_counter()
        with matmuls(told.precision):
            for number in range(1, told.steps + 1):
                batch = step_batch(items, self.names, told, self.config, number=number)
                waiting.append(stepper.step(batch, number=number)[0])
                if number % stretch == 0 or number == told.steps:
                    # Read a stretch at a time: every reading waits for the device.
                    losses.append(float(torch.stack(waiting).mean()))
                    waiting = []
                    if not math.isfinite(losses[-1]):
                        raise TargetFailed(
                            f"the loss is {losses[-1]} at step {number}", hint="take a lower learning rate"
                        )
                    self.say(
                        f"{name}:{seed} lr={lr:g}: step {number:,} of {told.steps:,}, loss {losses[-1]:.4f}"
                    )
        after = self._wait()
        seconds = time.perf_counter() - start
        found = {
            "lr": lr,
            "steps": told.steps,
            "parameters": parameter_count(stepper.model),
            "losses": losses,
            "seconds": seconds,
            "step_s": seconds / told.steps,
            "peak_bytes": None if after is None or before is None else after[1] - before[0],
        }
        return stepper.updates.trained().eval(), found

    def errors(self, model: DensityModel | PaiNN, names: Sequence[str]) -> dict[str, float]:
        """NMAE of each sample."""
        return {
            name: nmae(values_at(model, item, precision=self.told.precision), item)
            for name, item in self._judged(names)
        }  # pyright: ignore[reportArgumentType]

    def superposition(self) -> dict[str, Any]:
        """The same of superposed spherical atoms; nothing where a species has no table."""
        found: dict[str, Any] = {}
        if unknown := sorted(set(self.data.species) - set(load_table().species)):
            self.say(f"no superposed atoms: there is no table of {', '.join(unknown)}")
            return found
        for split in JUDGED:
            rows = {}
            for name, item in self._judged(self.data.names(split)):
                sample = self.data.sample(name)
                values = superpose(
                    sample.species, sample.positions, item.probes.cpu().numpy(), sample.lattice
                )
                rows[name] = nmae(torch.from_numpy(values)[:, None].to(item.values), item)
            found[split] = summed(rows)
        return found

    def run(self, name: str, *, seed: int, lr: float) -> dict[str, Any]:
        """Train one model and judge it on the test grids and on held-out molecules."""
        model, found = self.trained(name, seed=seed, lr=lr)
        for split in JUDGED:
            found[split] = summed(self.errors(model, self.data.names(split)))
            if found[split]["mean"] is not None:
                self.say(f"{name}:{seed}: NMAE {found[split]['mean']:.3%} on {split}")
        return found

    def tune(self, name: str, *, rates: Sequence[float], steps: int) -> dict[str, Any]:
        """Errors on the geometries held back for each learning rate, and the best of these."""
        if not self.held:
            raise BadInput(
                "no geometries are held back to choose a learning rate by",
                hint="--validation 1, or make more geometries",
            )
        tried: dict[str, float | None] = {}
        for rate in rates:
            try:
                model, _ = self.trained(name, seed=0, lr=rate, steps=steps)
            except TargetFailed as error:
                self.say(f"{name} lr={rate:g}: {error.what}")
                tried[f"{rate:g}"] = None
                continue
            errors = self.errors(model, self.held)
            tried[f"{rate:g}"] = sum(errors.values()) / len(errors)
            self.say(
                f"{name} lr={rate:g}: NMAE {tried[f'{rate:g}']:.3%} on {len(errors)} geometries held back"
            )
        good = {rate: error for rate, error in tried.items() if error is not None}
        if not good:
            raise TargetFailed(f"{name} diverges at every rate", hint="give lower --rates")
        return {"steps": steps, "tried": tried, "lr": float(min(good, key=lambda rate: good[rate]))}

    def item(self, name: str) -> Item:
        if name not in self.items:
            self.items[name] = item_of(self.data.sample(name), self.config, device=self.device)
        return self.items[name]

    def _judged(self, names: Sequence[str]) -> list[tuple[str, Item]]:
        return [(name, self._some(self.item(name))) for name in names]

    def _some(self, item: Item) -> Item:
        """Those probes of an item that are judged: all, or some drawn from its name alone."""
        if not self.judge:
            return item
        at = choose_probes(item, self.judge, seed=0, step=0)
        return replace(item, probes=item.probes[at], values=item.values[at], weights=item.weights[at])

    def _wait(self) -> tuple[int, int] | None:
        """Wait for the device: bytes allocated there, and their peak since the last call; None on a CPU."""
        if self.device != "cuda":
            return None
        torch.cuda.synchronize()
        found = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return found


def summed(errors: dict[str, float]) -> dict[str, Any]:
    """The mean over the samples, each molecule's own mean, and every sample."""
    molecules: dict[str, list[float]] = {}
    for name, error in errors.items():
        molecules.setdefault(name.rpartition("-")[0], []).append(error)
    return {
        "mean": sum(errors.values()) / len(errors) if errors else None,
        "molecules": {name: sum(own) / len(own) for name, own in molecules.items()},
        "samples": errors,
    }
