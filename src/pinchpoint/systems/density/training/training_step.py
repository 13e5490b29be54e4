"""One training step of a density model, and the model's values at a sample's probes.

The loss is the weighted sum of |error| over the probes, per electron: an estimate of the normalised mean
absolute error. A step in chunks has the same gradient: what the probes need of the atoms is computed once,
and its gradient is summed over all chunks before it is propagated back through the atoms. Where a local
network learns to correct a trained one (`Settings.first`), only its own weights have gradients.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pinchpoint.systems.common.training.optimizer import Updates
from pinchpoint.systems.common.training.precision import autocast
from pinchpoint.systems.common.training.recorder import Note, Recorder
from pinchpoint.systems.common.training.recording import Result
from pinchpoint.systems.density.data.atomic import radial_tables
from pinchpoint.systems.density.data.batches import Batch, Item, batch_of
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import PRIOR_KNOTS, DensityModel
from pinchpoint.systems.density.settings import Settings

# Scale of the initial read-out: a random one gives about one electron per cubic angstrom, which is far too
# much.
FIRST_OUTPUT = 0.01
EAGER_STEPS = 3  # before a step is recorded
RADIAL_PARTS = 64  # of the products in the radial networks of recorded steps
_NAME = "step"  # of the recording
AT_ONCE = 4096  # probes per chunk in evaluation, unless a chunk is given


class Stepper:
    """A model being trained on a device, and the updates of its weights.

    recorded_step: records one step on a GPU, which all others replay; every batch must then have the same
    shape.
    """

    def __init__(
        self,
        model: DensityModel,
        settings: Settings,
        device: str,
        *,
        recorded_step: RecordedStep | None = None,
    ) -> None:
        self.settings, self.device, self.recorded_step = settings, device, recorded_step
        # Fake weights are on the CPU already and cannot be moved.
        self.model = model if device == "cpu" else model.to(device)
        # The first network of a pair stays as it is.
        self.corrects = bool(settings.first)
        if self.corrects:
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name.startswith("local."))
        self.updates = Updates(self.model, settings, recordable=settings.record_steps)
        if recorded_step is not None:
            self.model.probes.radial.parts = RADIAL_PARTS

    def step(self, batch: Batch, *, number: int) -> Tensor:
        """Take step 1, 2, ... and return (2,): the loss and the norm of its gradient."""
        self.updates.set_step(number)
        if self.recorded_step is None:
            return self._step(batch, number)
        return self.recorded_step.run(lambda own: self._step(own, number), batch, clear=self.updates.clear)

    def _step(self, batch: Batch, number: int) -> Tensor:
        self.updates.clear()
        with autocast(self.settings.precision, self.device):
            fields = self.model.fields(batch.atoms)
        # Gradients of chunks are summed in fp32: with the 8 bits of bf16 a sum of many loses the small ones.
        leaf = fields.detach().to(torch.promote_types(fields.dtype, torch.float32))
        leaf.requires_grad_(not self.corrects)
        total = torch.zeros((), device=self.device)
        for part in batch.chunks(self.settings.chunk):
            with autocast(self.settings.precision, self.device):
                output = self.model(leaf, batch.atoms.species, part.neighbours, part.vectors)
            loss = (part.weights * (output.float() - part.values).abs().sum(-1)).sum()
            loss.backward()
            total += loss.detach()
        if not self.corrects:
            assert leaf.grad is not None
            fields.backward(leaf.grad.to(fields.dtype))
        return torch.stack([total, self.updates.finish(number)])


class RecordedStep:
    """A function of batches of one shape, recorded as a CUDA graph and replayed with other batches.

    The first calls are eager, and so are all others if a `Recorder` has no room or fails. most_bytes, note:
    as in `Recorder`.
    """

    def __init__(self, *, most_bytes: int | None = None, note: Note | None = None) -> None:
        self.calls = 0
        self.batch: Batch | None = None
        self._recorder = Recorder(kind=("step", "steps"), most_bytes=most_bytes, note=note)

    def run(self, function: Callable[[Batch], Tensor], batch: Batch, *, clear: Callable[[], None]) -> Tensor:
        """Return function(batch). clear: frees what an eager call left and a recorded one must allocate."""
        self.calls += 1
        if self.batch is None:
            self.batch = batch.clone()
        else:
            for own, new in zip(self.batch.tensors(), batch.tensors(), strict=True):
                own.copy_(new)
        own = self.batch
        result = self._recorder.replay(_NAME)
        if result is None and self.calls > EAGER_STEPS:
            result = self._recorder.record(_NAME, lambda: function(own), clear=clear)
        return self.run_eagerly(lambda: function(own)) if result is None else result

    def run_eagerly(self, function: Callable[[], Result]) -> Result:
        """Return function(), run on the stream of the eager steps: another one would have its own memory."""
        return self._recorder.run_eagerly(function)


def new_model(config: DensityConfig, *, seed: int) -> DensityModel:
    """Return an untrained model: it predicts superposed atoms, where it has a prior, and almost nothing
    else.
    """
    model = DensityModel(config, seed=seed)
    if config.prior:
        model.set_prior(torch.from_numpy(radial_tables(config.species, config.cutoff_a, PRIOR_KNOTS)))
    with torch.no_grad():
        last = [] if model.local is None else [model.local.outer]
        for weights in (model.probes.readout, model.probes.head_out, *last):
            weights *= FIRST_OUTPUT
    return model


def correct_model(first: DensityModel, config: DensityConfig, *, seed: int) -> DensityModel:
    """Return a trained model with an untrained local network, which hardly changes the density.

    config: that of the first model, with the width of the local network.
    """
    model = new_model(config, seed=seed)
    own = {name: value for name, value in model.state_dict().items() if name.startswith("local.")}
    weights = {name: value for name, value in first.state_dict().items() if not name.startswith("local.")}
    model.load_state_dict({**own, **weights})
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
