"""One training step of a density model, the model's values at a sample's probes, and the chunk that fits a
budget.

The loss is the weighted sum of |error| over the probes, per electron: an estimate of the normalised mean
absolute error. A step in chunks has the same gradient: what the probes need of the atoms is computed once,
and its gradient is summed over all chunks before it is propagated back through the atoms.

`chunk_for` predicts how many probes fit at one time. It runs the trainer's own step on fake tensors with the
largest structure; two sizes give the fixed bytes and the bytes per probe. On a CPU the bytes that this
process already holds are added; on CUDA the data, the context and a margin for the allocator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.systems.common.budgets import BudgetChoice, budget_of, cuda_bytes, does_not_fit
from pinchpoint.systems.common.training.optimizer import Updates
from pinchpoint.systems.common.training.precision import autocast, matmuls
from pinchpoint.systems.density.data.atomic import radial_tables
from pinchpoint.systems.density.data.batches import Batch, Item, batch_of, choose_probes
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import PRIOR_KNOTS, DensityModel
from pinchpoint.systems.density.settings import Settings

# Scale of the initial read-out: a random one gives about one electron per cubic angstrom, which is far too
# much.
FIRST_OUTPUT = 0.01
AT_ONCE = 4096  # probes per chunk in evaluation, unless a chunk is given
LEAST = 16  # probes per chunk: below this a step is mostly overhead
BENT = 1.02  # allowance for the error of a straight line through two sizes


class Stepper:
    """A model being trained on a device, and the updates of its weights."""

    def __init__(self, model: DensityModel, settings: Settings, device: str) -> None:
        self.settings, self.device = settings, device
        # Fake weights are on the CPU already and cannot be moved.
        self.model = model if device == "cpu" else model.to(device)
        self.updates = Updates(self.model, settings)

    def step(self, batch: Batch, *, number: int) -> Tensor:
        """Take step 1, 2, ... and return (2,): the loss and the norm of its gradient."""
        self.updates.begin(number)
        with autocast(self.settings.precision, self.device):
            fields = self.model.fields(batch.atoms)
        # Gradients of chunks are summed in fp32: with the 8 bits of bf16 a sum of many loses the small ones.
        leaf = fields.detach().to(torch.promote_types(fields.dtype, torch.float32)).requires_grad_()
        total = torch.zeros((), device=self.device)
        for part in batch.chunks(self.settings.chunk):
            with autocast(self.settings.precision, self.device):
                output = self.model(leaf, batch.atoms.species, part.neighbours, part.vectors)
            loss = (part.weights * (output.float() - part.values).abs().sum(-1)).sum()
            loss.backward()
            total += loss.detach()
        assert leaf.grad is not None
        fields.backward(leaf.grad.to(fields.dtype))
        return torch.stack([total, self.updates.finish(number)])


def new_model(config: DensityConfig, *, seed: int) -> DensityModel:
    """Return an untrained model: it predicts superposed atoms, where it has a prior, and almost nothing
    else.
    """
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
    """Return (P, O), the values at all probes of an item, computed in chunks."""
    device = item.probes.device.type
    with autocast(precision, device):
        fields = model.fields(item.atoms)
        values = []
        for start in range(0, len(item.probes), chunk or AT_ONCE):
            part = torch.arange(
                start, min(start + (chunk or AT_ONCE), len(item.probes)), device=item.probes.device
            )
            batch = batch_of([item], model.config, probe_indices=[part])
            values.append(
                model(fields, item.atoms.species, batch.neighbours, batch.vectors).float().flatten(0, 1)
            )
    return torch.cat(values)


def nmae(values: Tensor, item: Item) -> float:
    """Return sum w |error| / sum w |density| of the first output, over the first len(values) probes."""
    count = len(values)
    weights, true = item.weights[:count].double(), item.values[:count, 0].double()
    return float((weights * (values[:, 0].double() - true).abs()).sum() / (weights * true.abs()).sum())


def chunk_for(
    config: DensityConfig, settings: Settings, items: Sequence[Item], *, budget: str | int, device: str
) -> BudgetChoice:
    """Return the largest chunk that fits for any step with these structures, all of them on the device.

    Raises DoesNotFit where even the smallest chunk does not fit.
    """
    within = budget_of(budget)
    budget_bytes = within.memory_bytes
    data_bytes = sum(tensor.nbytes for item in items for tensor in _tensors(item))
    # A structure may occur twice in a step, at the end of one pass and the start of the next: no batch is
    # larger.
    largest = max(items, key=lambda item: (len(item.images), len(item.atoms.source)))
    probes = choose_probes(largest, settings.probes, seed=0, step=1)
    batch = batch_of([largest] * settings.molecules, config, probe_indices=[probes] * settings.molecules)
    most = batch.probes
    low = -(-most // 2)
    first, last = (_step_bytes(config, settings, batch, chunk) for chunk in (low, most))
    each = (last - first) / max(1, most - low)
    fixed = first - each * low

    resident = resident_bytes() if device == "cpu" else 0

    def need(chunk: int) -> int:
        """Return the bytes of a whole step, including the data; a CPU's resident bytes hold the data
        already.
        """
        live = BENT * (fixed + each * chunk)
        if device == "cpu":
            return resident + round(live)
        return cuda_bytes(live + data_bytes, within)

    chunk = bisect_right(range(most + 1), budget_bytes, key=need) - 1  # `need` is linear in the chunk
    least = min(most, max(LEAST, settings.molecules))  # a chunk has some probes of every structure
    if chunk < least:
        raise does_not_fit(
            need(least),
            budget_bytes,
            how=f" with {least} probes per chunk",
            otherwise="give fewer --molecules or --probes",
        )
    return BudgetChoice(chunk, need(chunk), budget_bytes)


def _step_bytes(config: DensityConfig, settings: Settings, batch: Batch, chunk: int) -> int:
    """Return the peak tensor bytes of a step after the first one, or of an evaluation of the validation
    data.
    """
    weights = sum(weight.nbytes for weight in DensityModel(config).parameters())

    def step() -> None:
        with compat.fake_mode(), matmuls(settings.precision):
            stepper = Stepper(DensityModel(config), replace(settings, chunk=chunk, ema=0.0), "cpu")
            atoms = AtomGraph(
                *(
                    _blank(getattr(batch.atoms, name))
                    for name in ("species", "source", "destination", "vectors")
                )
            )
            parts = (_blank(part) for part in (batch.neighbours, batch.vectors, batch.values, batch.weights))
            fake = Batch(atoms, *parts)
            stepper.step(fake, number=1)
            # Validation runs without tables and gradients, which may take more or less.
            model, part = stepper.model.eval(), next(fake.chunks(chunk))
            with torch.no_grad():
                model(model.fields(atoms), atoms.species, part.neighbours, part.vectors)

    # After the first step the optimizer holds two numbers per weight; averaged weights are one more.
    return (measurement.account(step) or 0) + weights * (3 if settings.ema else 2)


def _tensors(item: Item) -> list[torch.Tensor]:
    atoms = item.atoms
    parts = [item.images, item.atom, item.probes, item.values, item.weights]
    return [*parts, atoms.species, atoms.source, atoms.destination, atoms.vectors]


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)
