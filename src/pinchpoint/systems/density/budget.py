"""How many probes may pass at one time so that a training step stays within a budget: predicted before it runs.

The step is the trainer's own, run on fake tensors with the largest structure; two sizes tell what is fixed and what a
probe costs. On a CPU what this process holds already is added; on CUDA the data, the context, and a margin for the allocator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import torch

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.common.budgets import Chosen, budget_of
from pinchpoint.systems.common.precision import matmuls, resident_bytes
from pinchpoint.systems.density.data.batches import Batch, Item, batch_of, drawn
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.training_step import Stepper

LEAST = 16  # probes at one time: below this a step is mostly overhead
ROUNDED = 1.1  # what the allocator keeps beyond the tensors
BENT = 1.02  # what a straight line through two sizes may lack in between


def chunk_for(
    config: DensityConfig, told: Settings, items: Sequence[Item], *, budget: str | int, device: str
) -> Chosen:
    """The largest chunk for any step with structures of these, all of which lie on the device; or `DoesNotFit`."""
    within = budget_of(budget)
    budget_bytes = within.memory_bytes
    stored = sum(tensor.nbytes for item in items for tensor in _tensors(item))
    # A structure may come twice in a step, at the end of one pass and the beginning of the next: no batch is larger than this.
    largest = max(items, key=lambda item: (len(item.images), len(item.atoms.source)))
    picked = drawn(largest, told.probes, seed=0, step=1)
    batch = batch_of([largest] * told.molecules, config, chosen=[picked] * told.molecules)
    most = batch.probes
    low = -(-most // 2)
    first, last = (_counted(config, told, batch, chunk) for chunk in (low, most))
    each = (last - first) / max(1, most - low)
    fixed = first - each * low

    resident = resident_bytes() if device == "cpu" else 0

    def need(chunk: int) -> int:
        """What a step takes in all, the data with it: a CPU's resident bytes hold them already."""
        live = BENT * (fixed + each * chunk)
        if device == "cpu":
            return resident + round(live)
        return round((live + stored) * ROUNDED) + within.cublas_workspace_bytes + within.context_bytes

    chunk = bisect_right(range(most + 1), budget_bytes, key=need) - 1  # `need` grows in a straight line
    least = min(most, max(LEAST, told.molecules))  # a part has some probes of every structure
    if chunk < least:
        raise DoesNotFit(
            f"a step needs {show_bytes(need(least))} with {least} probes at one time; the budget is {show_bytes(budget_bytes)}",
            hint=f"raise --budget by at least {show_bytes(need(least) - budget_bytes)}, or take fewer --molecules or --probes",
        )
    return Chosen(chunk, need(chunk), budget_bytes)


def _counted(config: DensityConfig, told: Settings, batch: Batch, chunk: int) -> int:
    """Most bytes of tensors alive in a step, of those after the first, or in a look at what is held back."""
    weights = sum(weight.nbytes for weight in DensityModel(config).parameters())

    def step() -> None:
        with compat.fake_mode(), matmuls(told.precision):
            stepper = Stepper(DensityModel(config), replace(told, chunk=chunk, ema=0.0), "cpu")
            atoms = AtomGraph(
                *(
                    _blank(getattr(batch.atoms, name))
                    for name in ("species", "source", "destination", "vectors")
                )
            )
            parts = (_blank(part) for part in (batch.neighbours, batch.vectors, batch.values, batch.weights))
            fake = Batch(atoms, *parts)
            stepper.step(fake, number=1)
            # What is held back passes without tables and gradients, which may be more or less.
            model, part = stepper.model.eval(), next(fake.parts(chunk))
            with torch.no_grad():
                model(model.fields(atoms), atoms.species, part.neighbours, part.vectors)

    # From the first step on the optimizer holds two numbers for each weight; averaged weights are one more.
    return (measurement.account(step) or 0) + weights * (3 if told.ema else 2)


def _tensors(item: Item) -> list[torch.Tensor]:
    atoms = item.atoms
    parts = [item.images, item.atom, item.probes, item.values, item.weights]
    return [*parts, atoms.species, atoms.source, atoms.destination, atoms.vectors]


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)
