"""Floors of the performance page: the operations of each work, counted from shapes, and the rates of an H200.

Operations are those of the products; activations, launches and waits are not counted, so a floor is a bound
and not a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.model.config import NetConfig

# Operations and bytes per second of an H200, until there is a record of them.
RATES = {"bf16": 790e12, "fp32": 60e12, "bytes": 4.3e12}
EDGES, COORDINATES, CHANNELS = 1_000_000, 6, 16  # of the edge MLPs
NOTES = """- The share is the floor divided by our time: 100 % is the limit of the card. "Before" is the code
  before its last change, timed in turn with ours. `eager` is plain torch, launched operation by operation.
- A record is of the code of its date. If that code has changed since, the page of its system says so.
- The rates are {bf16:.0f} TFLOP/s for products in bf16, {fp32:.0f} TFLOP/s for products in fp32, and
  {bytes:.1f} TB/s for a copy ({source}). The units for bf16 and TF32 can also compute products of
  fp32, in several parts; that can be faster than this floor.
- Edge MLP: 2 (3 S - c w) operations per edge, where S is the sum of the products of adjacent widths, c the
  number of coordinates, and w the first hidden width: the forward pass, and in the backward pass the
  gradients of weights and inputs, except those of the coordinates. The row of other MLPs shows the one that
  gains least, and the range of all.
- Density: 2 operations per pair of a probe and an atom and per entry of the atom's field, and the products of
  the network of each probe, without the radial and angular functions. The floor of a CHGCAR is that of its
  probes: the atoms, and the file that the host writes, are not counted.
- Radiance: the linear layers of the folded field in two forward passes and a backward pass. The floor of an
  iteration is that of the field alone; the discriminators come on top.
- VMC: an evaluation counts the products of both streams, of the orbitals, and of the determinants. A step has
  one evaluation per move, three for the gradient, and for the Laplacian one per coordinate and two more (five
  for pairs). Derivatives of the first layer, many of which are zero, are counted in full. A step of H2 is a
  chain of small kernels that take longer to start than to run.
- Cloud: a draw reads the counts of the cells and writes the indices once. Launching it takes longer. The
  operations of an iteration depend on the voxels of the scene and are not counted.
- Operator: the edge MLPs as above, and 6 operations per patch and weight of the transformer, with its
  attention.
"""


@dataclass(frozen=True)
class Rates:
    """Operations and bytes per second, and where they come from."""

    per_s: dict[str, float]
    source: str

    @classmethod
    def of(cls, record: dict[str, Any] | None) -> Rates:
        """record: that of `kit/rates.py`, or None if there is none."""
        if record is None:
            return cls(RATES, "rounded, without a record")
        link = "[record](../../benchmarks/results/rates_h200.json)"
        return cls({name: rate["per_s"] for name, rate in record["rates"].items()}, link)

    def seconds(self, kind: str, count: float) -> float:
        return count / self.per_s[kind]


def edge_mlp_operations(widths: Sequence[int], edges: float = EDGES, coordinates: int = COORDINATES) -> float:
    """Return the operations of a training step; the coordinates among the inputs need no gradient."""
    products = sum(a * b for a, b in pairwise(widths))
    return 2.0 * edges * (3 * products - coordinates * widths[1])


def probe_operations(config: DensityConfig, probes: int) -> float:
    """Return the operations of the networks of probes, without the sums over their neighbours."""
    layers, scalars = config.interactions, config.channels(0)
    read = scalars * config.outputs + (layers * scalars + config.outputs) * config.head
    mapped = layers * config.aggregates * (scalars + 1) + (layers - 1) * scalars**2
    return 2.0 * probes * (mapped + read)


def vmc_operations(net: NetConfig, system_name: str, *, walkers: int, moves: int) -> float:
    """Return the operations of the products in a step: moves, local energies, and their gradient."""
    system = system_of(system_name)
    n, spins = system.electrons, (system.up > 0) + (system.up < system.electrons)
    paired = n > 1
    streams, pairs, one, two = 0, 0, 4 * system.nuclei, 4
    for _ in range(net.layers):
        if paired:
            pairs += n * (n - 1) * two * net.two
            two = net.two
        mixed = n * (one + spins * two) + spins * one if paired else n * one
        streams += mixed * net.one
        one = net.one
    streams += n * one * n * net.determinants  # orbitals
    factors = net.determinants * n**3 / 3
    evaluation = streams + pairs + factors
    # A value, its derivatives and its Laplacian: those of a pair are with respect to the difference.
    derivatives = 3 * n
    laplacian = (derivatives + 2) * streams + 5 * pairs + derivatives * net.determinants * n**3
    return 2.0 * walkers * (moves * evaluation + laplacian + 3 * evaluation)


def operator_operations(edges: float, config: type[OperatorConfig] | OperatorConfig) -> float:
    """Return the operations of a training step: edge MLPs, and the transformer over patches."""
    widths = (COORDINATES, *config.mlp, config.channels)
    tokens_per_patch = config.patch**3
    patches, width = math.prod(config.lattice) // tokens_per_patch, config.width
    inner = 8 * -(-width // 3)
    weights = config.depth * (4 * width**2 + 3 * inner * width) + config.depth // 2 * 2 * width**2
    weights += 2 * tokens_per_patch * config.channels * width
    attention = config.depth * 2 * patches * width
    return edge_mlp_operations(widths, edges) + 6.0 * patches * (weights + attention)
