"""One step of training a density model, and its values at the probes of a sample: the code every run takes.

The loss is the weighted sum of |error| over the probes, per electron: an estimate of the normalised mean absolute error.
Taken in parts it has the same gradient: what the probes need of the atoms is computed once, and its gradient is gathered from
all parts before it goes back through the atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pinchpoint.systems.common.optimizer import Updates
from pinchpoint.systems.common.precision import autocast
from pinchpoint.systems.density.data.atomic import radial_tables
from pinchpoint.systems.density.data.batches import Batch, Item, batch_of
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
