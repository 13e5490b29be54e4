"""One step of training a density model, and its values at the probes of a sample: the code every run takes.

The loss is the weighted sum of |error| over the probes, per electron: an estimate of the normalised mean absolute error.
Taken in parts it has the same gradient: what the probes need of the atoms is computed once, and its gradient is gathered from
all parts before it goes back through the atoms.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.common.budgets import Chosen, budget_of
from pinchpoint.systems.common.optimizer import Updates
from pinchpoint.systems.common.precision import autocast, matmuls, resident_bytes
from pinchpoint.systems.density.data.atomic import radial_tables
from pinchpoint.systems.density.data.batches import Batch, Item, batch_of, drawn
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import PRIOR_KNOTS, DensityModel
from pinchpoint.systems.density.settings import Settings

FIRST_OUTPUT = (
    0.01  # of what a random read-out says: of the order of an electron in a cubic angstrom, far too much
)
AT_ONCE = 4096  # probes at one time where nothing is learnt and nobody says otherwise


class Stepper:
    """A model to be trained on a device, and the updates of its weights."""

    def __init__(self, model: DensityModel, told: Settings, device: str) -> None:
        self.told, self.device = told, device
        self.model = (
            model if device == "cpu" else model.to(device)
        )  # fake weights are there already, and cannot be moved
        self.updates = Updates(self.model, told)

    def step(self, batch: Batch, *, number: int) -> Tensor:
        """Step 1, 2, ...: (2,), the loss and the norm of its gradient."""
        self.updates.begin(number)
        with autocast(self.told.precision, self.device):
            fields = self.model.fields(batch.atoms)
        # Gradients of parts are gathered in fp32: in the 8 bits of bf16 a sum of many loses the small ones.
        held = fields.detach().to(torch.promote_types(fields.dtype, torch.float32)).requires_grad_()
        total = torch.zeros((), device=self.device)
        for part in batch.parts(self.told.chunk):
            with autocast(self.told.precision, self.device):
                output = self.model(held, batch.atoms.species, part.neighbours, part.vectors)
            loss = (part.weights * (output.float() - part.values).abs().sum(-1)).sum()
            loss.backward()
            total += loss.detach()
        assert held.grad is not None
        fields.backward(held.grad.to(fields.dtype))
        return torch.stack([total, self.updates.finish(number)])


def new_model(config: DensityConfig, *, seed: int) -> DensityModel:
    """A model to be trained: it says superposed atoms, where it has them, and next to nothing else."""
    model = DensityModel(config, seed=seed)
    if config.prior:
        model.set_prior(torch.from_numpy(radial_tables(config.species, config.cutoff_a, PRIOR_KNOTS)))
    with torch.no_grad():
        for weights in (model.probes.readout, model.probes.head_out):
            weights *= FIRST_OUTPUT
    return model


@torch.no_grad()
def values_at(
    model: DensityModel, item: Item, *, precision: str = "fp32", chunk: int | None = None
) -> Tensor:
    """(P, O) at all probes of an item, in parts."""
    device = item.probes.device.type
    with autocast(precision, device):
        fields = model.fields(item.atoms)
        found = []
        for start in range(0, len(item.probes), chunk or AT_ONCE):
            part = torch.arange(
                start, min(start + (chunk or AT_ONCE), len(item.probes)), device=item.probes.device
            )
            batch = batch_of([item], model.config, chosen=[part])
            found.append(
                model(fields, item.atoms.species, batch.neighbours, batch.vectors).float().flatten(0, 1)
            )
    return torch.cat(found)


def nmae(values: Tensor, item: Item) -> float:
    """Weighted sum of |error| over that of |density|, of the first output at the first probes."""
    count = len(values)
    weights, true = item.weights[:count].double(), item.values[:count, 0].double()
    return float((weights * (values[:, 0].double() - true).abs()).sum() / (weights * true.abs()).sum())


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
