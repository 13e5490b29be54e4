"""Batches of a training step: some structures, random probes of each, and the atoms around every probe.

Letters: A atoms, E edges, P probes of a structure, I images of its atoms, T tiles of B probes, K slots, O
outputs. The probes of a step depend only on the seed, the step and the name of the structure. A structure
without a lattice has no images besides its atoms. If all images of every structure fit into a few slots, the
probes of a structure form one tile that shares its slots; otherwise each probe is its own tile, with the
images within the cutoff.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.training.sample_order import at_turn, pass_order
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.grid.periodic_images import atom_graph, images_of
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.settings import Settings

_PROBES_AT_ONCE = 4096  # whose neighbours are counted together
SHARED = 32  # up to this many slots, a tile has all images: most are then neighbours of most probes


@dataclass(frozen=True, eq=False)
class Item:
    """A structure on a device. images: (I, 3); atom: (I,); probes: (P, 3); values: (P, O); weights: (P,).

    The sum of weights * |error| over all probes is the error of the structure per electron.
    """

    name: str
    atoms: AtomGraph
    images: Tensor
    atom: Tensor
    probes: Tensor
    values: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Batch:
    """Structures and probes of a step.

    neighbours: (T, K); vectors: (T, B, K, 3), from the image to the probe; values: (T, B, O); weights: (T,
    B).
    """

    atoms: AtomGraph
    neighbours: Tensor
    vectors: Tensor
    values: Tensor
    weights: Tensor

    @property
    def probes(self) -> int:
        return self.weights.numel()

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the batch."""
        graph = [self.atoms.species, self.atoms.source, self.atoms.destination, self.atoms.vectors]
        return [*graph, self.neighbours, self.vectors, self.values, self.weights]

    def clone(self) -> Batch:
        """Return a copy that shares no memory with this batch."""
        parts = [tensor.clone() for tensor in self.tensors()]
        return Batch(AtomGraph(*parts[:4]), *parts[4:])

    def chunks(self, chunk: int | None) -> Iterator[Batch]:
        """Yield the batch in chunks of about `chunk` probes, or whole if that is None; none is empty."""
        if chunk is None or chunk >= self.probes:
            yield self
            return
        tiles, across = self.weights.shape
        along = 0 if across == 1 else 1
        step = chunk if along == 0 else max(1, chunk // tiles)
        for start in range(0, self.weights.shape[along], step):
            at = slice(start, start + step)
            if along == 0:
                yield Batch(
                    self.atoms, self.neighbours[at], self.vectors[at], self.values[at], self.weights[at]
                )
            else:
                yield Batch(
                    self.atoms, self.neighbours, self.vectors[:, at], self.values[:, at], self.weights[:, at]
                )


@dataclass(frozen=True)
class BatchShape:
    """Sizes that every batch of a run can be padded to. shared: the probes of a structure form one tile."""

    atoms: int
    edges: int
    tiles: int
    slots: int
    shared: bool


def item_of(
    sample: Sample, config: DensityConfig, *, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Item:
    """Return a sample with its images and edges as tensors on a device.

    Raises BadInput for unknown species, and for a missing spin density.
    """
    if config.spin and sample.spin is None:
        raise BadInput(
            f"{sample.name} has no spin density.", hint="Train without spin, or on data with a spin density."
        )
    values = [sample.values] if sample.spin is None or not config.spin else [sample.values, sample.spin]
    if sample.lattice is None:
        atoms = _molecule_graph(sample, config, device=device, dtype=dtype)
        positions, atom, probes = sample.positions, np.arange(len(sample.species)), sample.probes
    else:
        inverse = np.linalg.inv(sample.lattice)
        structure = Structure(sample.lattice, sample.species, sample.positions @ inverse)
        atoms = atom_graph(structure, config, device=device, dtype=dtype)
        images = images_of(structure, config.cutoff_a)
        inside = sample.probes @ inverse
        positions, atom, probes = images.positions, images.atom, (inside - np.floor(inside)) @ sample.lattice

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Item(
        sample.name,
        atoms,
        tensor(positions),
        tensor(atom),
        tensor(probes),
        tensor(np.stack(values, axis=1)).to(dtype),
        tensor(sample.weights / sample.electrons).to(dtype),
    )


def common_shape(
    items: Mapping[str, Item], names: Sequence[str], settings: Settings, config: DensityConfig
) -> BatchShape:
    """Return the smallest shape that the batches of all steps of a run fit into."""
    own = [items[name] for name in names]
    shared = all(len(item.atom) <= SHARED and len(item.probes) >= settings.probes for item in own)
    sizes = torch.tensor(
        [[len(item.atoms.species), len(item.atoms.source), 1 if shared else len(item.probes)] for item in own]
    )
    sizes[:, 2].clamp_(max=settings.probes)
    turns = settings.steps * settings.molecules
    passes = range(-(-turns // len(own)))
    order = torch.cat([pass_order(len(own), seed=settings.seed, number=number) for number in passes])[:turns]
    atoms, edges, tiles = sizes[order].view(settings.steps, settings.molecules, 3).sum(1).amax(0).tolist()
    slots = max(
        len(item.atom) if shared else _most_neighbours(item, item.probes, config.cutoff_a) for item in own
    )
    return BatchShape(atoms, edges, tiles, slots, shared)


def step_batch(
    items: Mapping[str, Item],
    names: Sequence[str],
    settings: Settings,
    config: DensityConfig,
    *,
    number: int,
    shape: BatchShape | None = None,
) -> Batch:
    """Return the batch of step 1, 2, ...: the next structures in turn, and some probes of each.

    It does not depend on the weights of the model. shape: from `common_shape`, to pad the batch to.
    """
    chosen, probe_indices = choose_structures(
        lambda name: len(items[name].probes), names, settings, number=number
    )
    return batch_of([items[name] for name in chosen], config, probe_indices=probe_indices, shape=shape)


def choose_structures(
    probe_count: Callable[[str], int], names: Sequence[str], settings: Settings, *, number: int
) -> tuple[list[str], list[Tensor]]:
    """Return the structures of step 1, 2, ... and the probes of each, on the CPU.

    probe_count(name): the number of probes that a structure has.
    """
    turns = range((number - 1) * settings.molecules, number * settings.molecules)
    chosen = [at_turn(names, seed=settings.seed, turn=turn) for turn in turns]
    return chosen, [
        _draw_probes(name, probe_count(name), settings.probes, seed=settings.seed, step=number)
        for name in chosen
    ]


def batch_of(
    items: Sequence[Item],
    config: DensityConfig,
    *,
    probe_indices: Sequence[Tensor] | None = None,
    shape: BatchShape | None = None,
) -> Batch:
    """Return one batch of several structures, weighted for the mean over the structures.

    probe_indices: (p,) int64 for each structure, on any device: the probes to use, by default all. The
    weights of each structure are scaled by P / p. shape: to pad the batch to, with atoms that no probe sees,
    edges longer than the cutoff and probes without weight, which change neither the loss nor its gradient.
    """
    dtype, device = items[0].weights.dtype, items[0].probes.device
    probes = _to_device(
        [torch.arange(len(item.probes)) for item in items] if probe_indices is None else probe_indices, device
    )
    shifts = np.cumsum([0, *(len(item.atoms.species) for item in items)])
    if shape is None:
        shared = max(len(item.atom) for item in items) <= SHARED and len({len(of) for of in probes}) == 1
    else:
        shared = shape.shared
    slots_of = [
        _shared_slots(item, item.probes[of])
        if shared
        else _nearest_slots(
            item, item.probes[of], config.cutoff_a, most=None if shape is None else shape.slots
        )
        for item, of in zip(items, probes, strict=True)
    ]
    slots = max(vectors.shape[-2] for _, vectors in slots_of) if shape is None else shape.slots
    share = [len(item.probes) / (len(of) * len(items)) for item, of in zip(items, probes, strict=True)]
    neighbours = [
        _pad(near, slots, 0, 1) + int(shift) for (near, _), shift in zip(slots_of, shifts[:-1], strict=True)
    ]
    vectors = [_pad(apart.to(dtype), slots, 2 * config.cutoff_a, 2) for _, apart in slots_of]
    values = [item.values[of] for item, of in zip(items, probes, strict=True)]
    weights = [item.weights[of] * part for item, of, part in zip(items, probes, share, strict=True)]
    join = torch.stack if shared else torch.cat
    value, weight = join(values), join(weights)
    batch = Batch(
        _join_graphs([item.atoms for item in items], shifts),
        torch.cat(neighbours),
        torch.cat(vectors),
        value if shared else value[:, None],
        weight if shared else weight[:, None],
    )
    return batch if shape is None else _pad_batch(batch, shape, config)


def _pad_batch(batch: Batch, shape: BatchShape, config: DensityConfig) -> Batch:
    """Return a batch padded to a shape; its slots are padded already."""
    far, graph, tiles = 2 * config.cutoff_a, batch.atoms, shape.tiles
    return Batch(
        AtomGraph(
            _pad(graph.species, shape.atoms, 0, 0),
            _pad(graph.source, shape.edges, 0, 0),
            _pad(graph.destination, shape.edges, 0, 0),
            _pad(graph.vectors, shape.edges, far, 0),
        ),
        _pad(batch.neighbours, tiles, 0, 0),
        _pad(batch.vectors, tiles, far, 0),
        _pad(batch.values, tiles, 0, 0),
        _pad(batch.weights, tiles, 0, 0),
    )


def choose_probes(item: Item, count: int, *, seed: int, step: int) -> Tensor:
    """Return (p,) distinct probes of an item, on the CPU.

    They depend only on the seed, the step and the name of the item.
    """
    return _draw_probes(item.name, len(item.probes), count, seed=seed, step=step)


def _draw_probes(name: str, total: int, count: int, *, seed: int, step: int) -> Tensor:
    digest = hashlib.sha256(f"{seed} {step} {name}".encode()).digest()
    shuffle = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.randperm(total, generator=shuffle)[: min(count, total)]


def _to_device(probe_indices: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy the indices of probes to the device in one transfer, without waiting for it.

    A copy from memory that is not pinned waits until the device has finished its queue, so the device would
    be idle at every step.
    """
    together = torch.cat(list(probe_indices))
    if device.type == "cuda" and together.device.type == "cpu":
        together = together.pin_memory()
    return list(together.to(device, non_blocking=True).split([len(of) for of in probe_indices]))


def _shared_slots(item: Item, probes: Tensor) -> tuple[Tensor, Tensor]:
    """Return every image for every probe: neighbours (1, I), vectors (1, p, I, 3)."""
    return item.atom[None], (probes[:, None] - item.images)[None]


def _most_neighbours(item: Item, probes: Tensor, cutoff_a: float) -> int:
    """Return the largest number of images within the cutoff of a probe."""
    parts = probes.split(_PROBES_AT_ONCE)
    return max((int((torch.cdist(part, item.images) < cutoff_a).sum(1).max()) for part in parts), default=0)


def _nearest_slots(
    item: Item, probes: Tensor, cutoff_a: float, *, most: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the images within the cutoff of each probe: neighbours (p, K), vectors (p, 1, K, 3).

    most: the number of slots, where it is known; on a GPU, counting them would wait for the device.
    """
    apart = probes[:, None] - item.images
    distance = apart.norm(dim=-1)
    if most is not None:
        slots = min(most, len(item.images))
    else:
        slots = int((distance < cutoff_a).sum(1).max()) if len(probes) else 0
    order = distance.argsort(dim=1)[:, :slots]
    return item.atom[order], apart.gather(1, order[..., None].expand(-1, -1, 3))[:, None]


def _pad(values: Tensor, slots: int, value: float, axis: int) -> Tensor:
    """Pad `values` to a size along an axis with `value`; a padded vector is longer than the cutoff."""
    missing = slots - values.shape[axis]
    if not missing:
        return values
    shape = list(values.shape)
    shape[axis] = missing
    return torch.cat([values, values.new_full(shape, value)], axis)


def _join_graphs(graphs: Sequence[AtomGraph], shifts: np.ndarray) -> AtomGraph:
    """Join graphs into one, without edges between them."""
    source, destination = (
        torch.cat(
            [getattr(graph, name) + int(shift) for graph, shift in zip(graphs, shifts[:-1], strict=True)]
        )
        for name in ("source", "destination")
    )
    species, vectors = (
        torch.cat([getattr(graph, name) for graph in graphs]) for name in ("species", "vectors")
    )
    return AtomGraph(species, source, destination, vectors)


def _molecule_graph(sample: Sample, config: DensityConfig, *, device: str, dtype: torch.dtype) -> AtomGraph:
    """Return the graph of all pairs of different atoms closer than the cutoff."""
    apart = sample.positions[None] - sample.positions[:, None]  # [to, from]
    near = np.linalg.norm(apart, axis=-1) < config.cutoff_a
    np.fill_diagonal(near, False)
    to, origin = np.nonzero(near)
    return AtomGraph(
        torch.tensor(config.index_of(sample.species), device=device),
        torch.from_numpy(origin).to(device),
        torch.from_numpy(to).to(device),
        torch.from_numpy(apart[to, origin]).to(device, dtype),
    )
