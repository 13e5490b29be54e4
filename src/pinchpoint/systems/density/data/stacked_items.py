"""StackedItems: all structures of a run in joint tensors, from which a padded batch is gathered at once.

`batches.batch_of` takes about twenty small operations for every structure of a step, which takes the host
longer than a GPU needs to replay a recorded step. This takes about twenty in all. The batch is the same.
Letters as in `batches`; S structures, M of them in a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from pinchpoint.systems.density.data.batches import Batch, BatchShape, Item
from pinchpoint.systems.density.model.atom_network import AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig

_PARTS = ("atoms", "edges", "images", "probes")


@dataclass(frozen=True, eq=False)
class StackedItems:
    """Structures whose probes share all images: `BatchShape.shared`.

    rows: the index of each structure. starts, counts: (S,) for atoms, edges, images and probes. The tensors
    hold all structures one after the other, and atoms, edges and images a last row that pads them.
    """

    config: DensityConfig
    rows: dict[str, int]
    starts: dict[str, np.ndarray]
    counts: dict[str, np.ndarray]
    species: Tensor
    source: Tensor
    destination: Tensor
    edge_vectors: Tensor
    images: Tensor
    atom: Tensor
    probes: Tensor
    values: Tensor
    weights: Tensor

    @classmethod
    def of(cls, items: Mapping[str, Item], names: Sequence[str], config: DensityConfig) -> Self:
        """Stack the named structures on their device."""
        own = [items[name] for name in names]
        sizes = np.array(
            [[len(x.atoms.species), len(x.atoms.source), len(x.atom), len(x.probes)] for x in own]
        ).T
        counts: dict[str, np.ndarray] = dict(zip(_PARTS, sizes, strict=True))

        def stack(parts: list[Tensor], padding: float | None = None) -> Tensor:
            last = [] if padding is None else [parts[0].new_full((1, *parts[0].shape[1:]), padding)]
            return torch.cat([*parts, *last])

        return cls(
            config,
            {name: row for row, name in enumerate(names)},
            {part: np.cumsum(count) - count for part, count in counts.items()},
            counts,
            stack([item.atoms.species for item in own], 0),
            stack([item.atoms.source for item in own], 0),
            stack([item.atoms.destination for item in own], 0),
            stack([item.atoms.vectors for item in own], 2 * config.cutoff_a),
            stack([item.images for item in own], 0),
            stack([item.atom for item in own], 0),
            stack([item.probes for item in own]),
            stack([item.values for item in own]),
            stack([item.weights for item in own]),
        )

    def batch(self, names: Sequence[str], probe_indices: Sequence[Tensor], shape: BatchShape) -> Batch:
        """Return the batch of these structures with as many probes of each, padded to the shape.

        probe_indices: (p,) int64 for each structure, on the CPU.
        """
        rows = np.array([self.rows[name] for name in names])
        count, probes = len(rows), len(probe_indices[0])
        shifts = np.cumsum(self.counts["atoms"][rows]) - self.counts["atoms"][rows]
        atoms = self._places("atoms", rows, shape.atoms)
        edges = self._places("edges", rows, shape.edges)
        # A padded edge connects the first atom of the batch with itself.
        edge_shifts = np.zeros(shape.edges, np.int64)
        edge_shifts[: self.counts["edges"][rows].sum()] = np.repeat(shifts, self.counts["edges"][rows])
        slot = np.arange(shape.slots)
        is_image = slot < self.counts["images"][rows][:, None]
        slots = np.where(is_image, self.starts["images"][rows][:, None] + slot, len(self.images) - 1)
        points = torch.stack(list(probe_indices)).numpy() + self.starts["probes"][rows][:, None]
        indices = [atoms, edges, edge_shifts, slots, is_image, shifts, points]
        at_atoms, at_edges, at_shifts, at_slots, real, shift, at_points = self._to_device(indices)
        slot_index, point_index = at_slots.view(count, -1), at_points.view(count, -1)
        apart = self.probes[point_index][:, :, None] - self.images[slot_index][:, None]
        padded = (real == 0).view(count, 1, -1, 1)
        share = torch.from_numpy(self.counts["probes"][rows] / (probes * count)).to(self.weights.dtype)
        if self.weights.is_cuda:
            share = share.pin_memory()
        share = share.to(self.weights.device, non_blocking=True)
        return Batch(
            AtomGraph(
                self.species[at_atoms],
                self.source[at_edges] + at_shifts,
                self.destination[at_edges] + at_shifts,
                self.edge_vectors[at_edges],
            ),
            self.atom[slot_index] + shift[:, None],
            apart.to(self.weights.dtype).masked_fill_(padded, 2 * self.config.cutoff_a),
            self.values[point_index],
            self.weights[point_index] * share[:, None],
        )

    def _places(self, part: str, rows: np.ndarray, size: int) -> np.ndarray:
        """Return the indices (size,) of atoms or edges of the structures, then that of the padding."""
        counts, starts = self.counts[part][rows], self.starts[part][rows]
        total = int(counts.sum())
        places = np.full(size, self.counts[part].sum())
        places[:total] = np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)
        return places

    def _to_device(self, arrays: Sequence[np.ndarray]) -> list[Tensor]:
        """Copy index arrays to the device, flat, in one transfer that nothing waits for."""
        together = torch.from_numpy(np.concatenate([array.reshape(-1).astype(np.int64) for array in arrays]))
        if self.weights.is_cuda:
            together = together.pin_memory()
        flat = together.to(self.weights.device, non_blocking=True)
        return list(flat.split([array.size for array in arrays]))
