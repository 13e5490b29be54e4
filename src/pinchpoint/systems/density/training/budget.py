"""The chunk of probes that fits a memory budget.

`chunk_for` predicts how many probes fit at one time. It runs the trainer's own step on fake tensors with the
largest structure; two sizes give the fixed bytes and the bytes per probe. On a CPU the bytes that this
process already holds are added, on CUDA the data and the context, and on both a margin for the allocator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.systems.common.budgets import BudgetChoice, budget_of, cpu_bytes, cuda_bytes, does_not_fit
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.density.data.batches import Batch, Item, batch_of, choose_probes
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.training.training_step import RADIAL_PARTS, Stepper

LEAST = 16  # probes per chunk: below this a step is mostly overhead
BENT = 1.02  # allowance for the error of a straight line through two sizes


def chunk_for(
    config: DensityConfig,
    settings: Settings,
    items: Sequence[Item],
    *,
    budget: str | int,
    device: str,
    padded: Batch | None = None,
    held_back: Sequence[Item] = (),
) -> BudgetChoice:
    """Return the largest chunk that fits for any step with these structures, all of them on the device.

    padded: a batch of a run whose steps are all padded to one shape, and recorded on a GPU. held_back: the
    structures that such a run evaluates, with the probes it evaluates; the shape need not have room for them.
    Raises DoesNotFit where even the smallest chunk does not fit.
    """
    if device == "cpu":  # where nothing is recorded
        settings = replace(settings, record_steps=False)
    within = budget_of(budget)
    budget_bytes = within.memory_bytes
    data_bytes = sum(tensor.nbytes for item in items for tensor in _tensors(item))
    joint_bytes = copied_bytes = 0
    # A structure may occur twice in a step, at the end of one pass and the start of the next: no batch is
    # larger.
    if padded is None:
        largest = max(items, key=_size)
        probes = choose_probes(largest, settings.probes, seed=0, step=1)
        batch = batch_of([largest] * settings.molecules, config, probe_indices=[probes] * settings.molecules)
    else:
        batch = padded
        joint_bytes = data_bytes  # of tensors that are built beside the structures
        copied_bytes = sum(tensor.nbytes for tensor in batch.tensors())  # a recording has its own batch
    most = batch.probes
    lines = [_line(lambda chunk: _step_bytes(config, settings, batch, chunk), most)]
    if padded is not None and held_back:
        item = max(held_back, key=_size)
        at_once = min(most, len(item.probes))
        lines.append(_line(lambda chunk: _evaluation_bytes(config, settings, item, chunk), at_once))
    resident = resident_bytes() if device == "cpu" else 0

    def live(chunk: int) -> float:
        return BENT * max(line(chunk) for line in lines)

    def need(chunk: int) -> int:
        """Return the bytes of a whole step, including the data; a CPU's resident bytes hold the data
        already.
        """
        if device == "cpu":
            return cpu_bytes(live(chunk), resident) + joint_bytes
        return cuda_bytes(live(chunk) + data_bytes + joint_bytes + copied_bytes, within)

    chunk = bisect_right(range(most + 1), budget_bytes, key=need) - 1  # `need` never falls
    least = min(most, max(LEAST, settings.molecules))  # a chunk has some probes of every structure
    if chunk < least:
        raise does_not_fit(
            need(least),
            budget_bytes,
            how=f" with {least} probes per chunk",
            otherwise="give fewer --molecules or --probes",
        )
    return BudgetChoice(chunk, need(chunk), budget_bytes, live_bytes=round(live(chunk)))


def _line(count: Callable[[int], int], most: int) -> Callable[[int], float]:
    """Return the straight line through the bytes of two chunks; above `most`, the bytes stay the same."""
    low = -(-most // 2)
    first, last = count(low), count(most)
    each = (last - first) / max(1, most - low)
    return lambda chunk: first + each * (min(chunk, most) - low)


def _step_bytes(config: DensityConfig, settings: Settings, batch: Batch, chunk: int) -> int:
    """Return the peak tensor bytes of a step after the first one, or of an evaluation of the validation
    data.
    """
    weights = sum(weight.nbytes for weight in DensityModel(config).parameters())

    def step() -> None:
        with compat.fake_mode(), matmuls(settings.precision):
            stepper = Stepper(DensityModel(config), replace(settings, chunk=chunk, ema=0.0), "cpu")
            if settings.record_steps:
                stepper.model.probes.radial.parts = RADIAL_PARTS
            atoms = _blank_atoms(batch.atoms)
            parts = (_blank(part) for part in (batch.neighbours, batch.vectors, batch.values, batch.weights))
            fake = Batch(atoms, *parts)
            stepper.step(fake, number=1)
            # Validation runs without tables and gradients, which may take more or less.
            model, part = stepper.model.eval(), next(fake.chunks(chunk))
            with torch.no_grad():
                model(model.fields(atoms), atoms.species, part.neighbours, part.vectors)

    # After the first step the optimizer holds two numbers per weight; averaged weights are one more.
    return (measurement.account(step) or 0) + weights * (3 if settings.ema else 2)


def _evaluation_bytes(config: DensityConfig, settings: Settings, item: Item, chunk: int) -> int:
    """Return the peak tensor bytes of an evaluation of a structure between two steps."""
    weights = sum(weight.nbytes for weight in DensityModel(config).parameters())
    part = batch_of([item], config, probe_indices=[torch.arange(chunk)])

    def evaluate() -> None:
        with compat.fake_mode(), matmuls(settings.precision), torch.no_grad():
            model = DensityModel(config).eval()
            atoms = _blank_atoms(part.atoms)
            model(model.fields(atoms), atoms.species, _blank(part.neighbours), _blank(part.vectors))

    # There are also the gradients of the last step, the optimizer's two numbers per weight, and an average.
    return (measurement.account(evaluate) or 0) + weights * (4 if settings.ema else 3)


def _size(item: Item) -> tuple[int, int]:
    """What the memory of a structure grows with."""
    return len(item.images), len(item.atoms.source)


def _tensors(item: Item) -> list[torch.Tensor]:
    atoms = item.atoms
    parts = [item.images, item.atom, item.probes, item.values, item.weights]
    return [*parts, atoms.species, atoms.source, atoms.destination, atoms.vectors]


def _blank_atoms(atoms: AtomGraph) -> AtomGraph:
    return AtomGraph(
        *(_blank(getattr(atoms, name)) for name in ("species", "source", "destination", "vectors"))
    )


def _blank(tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)
