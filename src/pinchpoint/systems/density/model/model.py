"""DensityModel: the electron density at any probes, in the form that computes only what affects the output.

Letters: A atoms, T tiles of probes that share their neighbours, B probes per tile, K neighbour slots per
tile, W floats per atom. Call `fields` once per structure; calling the model then returns densities in e /
angstrom^3. `tabulate` returns a model for inference with the same methods, whose radial networks are replaced
by tables. Gradients reach every parameter. In training mode, if the configuration sets `train_knots`, the
radial networks are also evaluated only at that many distances and interpolated: there are many more pairs
than distances worth distinguishing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.model.atom_network import AtomGraph, AtomNetwork
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.fused_readout import FusedReadout
from pinchpoint.systems.density.model.fused_sum import (
    channel_plan,
    field_columns,
    fused_sums,
    is_fused,
    is_sampled,
    pair_floats,
    probe_floats,
)
from pinchpoint.systems.density.model.harmonics import Harmonics, in_full, polar_factors
from pinchpoint.systems.density.model.local_network import LocalNetwork
from pinchpoint.systems.density.model.probe_network import Probes, sums_over_neighbours
from pinchpoint.systems.density.model.radial import (
    RadialPieces,
    RadialPolynomials,
    RadialSpline,
    RadialTable,
    soft_distance,
)
from pinchpoint.systems.density.model.sampled_sum import sums_by_sampling

if TYPE_CHECKING:
    from pinchpoint.systems.density.data.domain import TrainingDomain
    from pinchpoint.systems.density.model.error_estimate import ErrorEstimate

PRIOR_KNOTS = 401

Sums = Callable[[Tensor, Tensor, Tensor], Tensor]  # fields, neighbours, vectors -> (P, L, C)


class DensityModel(nn.Module):
    """The scalar form, with random initial weights from the seed. Every parameter has a gradient."""

    prior: Tensor

    def __init__(self, config: DensityConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.domain: TrainingDomain | None = None  # of the training data, where known
        self.estimate: ErrorEstimate | None = None  # of the error of a density, where known
        generator = torch.Generator().manual_seed(seed)
        self.atoms = AtomNetwork(config, generator)
        self.probes = Probes(config, generator)
        self.harmonics = Harmonics(config.lmax)
        self.local = LocalNetwork(config, generator) if config.local else None
        if config.prior:
            self.register_buffer("prior", torch.zeros(len(config.species), PRIOR_KNOTS))

    def set_prior(self, tables: Tensor) -> None:
        """Set the densities of the spherical atoms.

        tables: (species, knots) on linspace(0, cutoff, knots), zero at the cutoff.
        """
        if not self.config.prior:
            raise BadInput("This model has no prior.", hint="Create it with prior=True in its configuration.")
        if (
            tables.shape != self.prior.shape
            or not torch.isfinite(tables).all()
            or bool((tables[:, -1] != 0).any())
        ):
            raise BadInput(
                f"The prior with shape {tuple(tables.shape)} has the wrong shape, is not finite, or is not "
                "zero at the cutoff.",
                hint=f"Give finite tables of shape {tuple(self.prior.shape)} that end in zero.",
            )
        self.prior.copy_(tables)

    def fields(self, atoms: AtomGraph) -> Tensor:
        """Return (A, W), everything the probes need to know about each atom. Call it once per structure."""
        return self.probes.fields(self.atoms(atoms))

    def forward(self, fields: Tensor, species: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        """Return the densities (T, B, outputs).

        fields: (A, W); species: (A,); neighbours: (T, K) int; vectors: (T, B, K, 3), from the atom (or its
        periodic image) to the probe. An unused slot has a vector at least as long as the cutoff and any atom;
        it contributes exactly zero. K may be 0. Where no atom is within the cutoff, the density is exactly
        zero.
        """
        return density(self, fields, species, neighbours, vectors, sums=self._sums)

    def outputs_of(self, states: list[Tensor], prior: Tensor | None) -> Tensor:
        """Return the outputs (P, outputs) for the states (P, C_0) of all interactions.

        prior: (P,), the density of superposed atoms, added to the first output; then the local network, where
        the model has one, corrects the sum.
        """
        out = self.probes.read(states)
        if prior is not None:
            out = torch.cat([out[:, :1] + prior[:, None], out[:, 1:]], dim=1)
        return out if self.local is None else out + self.local(states, out)

    def tabulate(
        self, knots: int = 4096, *, own_kernel: bool = True, radius_a: float | None = None
    ) -> TabulatedModel:
        """Return this model for inference, with its radial networks tabulated from the current weights.

        own_kernel: sum over neighbours with the Triton kernel where possible, instead of with plain torch.
        Call it after moving the model to its device. radius_a: the probes of every tile are within this
        distance of one point; the kernel is faster if it is known, and returns NaN for larger tiles.
        """
        return TabulatedModel(self, knots, own_kernel=own_kernel, radius_a=radius_a)

    def _sums(self, fields: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        networks, widths = self.probes.radial, self.probes.widths
        squared, soft, harmonics = self.geometry(vectors)
        if self.training and self.config.train_knots:
            radial = RadialTable.of(networks, widths, self.config.train_knots).read(soft)
        else:
            radial = list(networks(squared, soft).transpose(0, 1).split(widths, dim=2))
        with in_full(soft):
            return sums_over_neighbours(self.config, fields, neighbours, harmonics, radial, vectors.shape[1])

    def geometry(self, vectors: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return squared and soft distances, each (N,), and the harmonics (d, N) of degrees 1 and up.

        vectors: (T, B, K, 3).
        """
        flat = vectors.permute(3, 0, 2, 1).reshape(3, -1)
        squared, soft = soft_distance(flat, self.config)
        return squared, soft, self.harmonics(flat / soft)


class TabulatedModel(nn.Module):
    """A DensityModel whose radial functions are read from a table. Same methods, no gradients."""

    values: Tensor
    coefficients: Tensor
    columns: Tensor
    plan: Tensor
    factors: Tensor

    def __init__(
        self,
        model: DensityModel,
        knots: int,
        *,
        own_kernel: bool = True,
        radius_a: float | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.pieces: RadialPieces | None = None
        self.readout: FusedReadout | None = None
        with torch.no_grad():
            networks, widths = model.probes.radial, model.probes.widths
            self.table = RadialTable.of(networks, widths, knots)
            # Buffers, so that they move with the model.
            self.register_buffer("values", self.table.values, persistent=False)
            if own_kernel and is_fused(self.values, 1):
                polynomials = None if radius_a is None else RadialPolynomials.of(networks, widths, radius_a)
                self.pieces = polynomials or RadialSpline.of(networks, widths)
                self.readout = None if model.local is not None else FusedReadout(model.probes)
                self.register_buffer("coefficients", self.pieces.coefficients, persistent=False)
                self.register_buffer("columns", field_columns(self.pieces), persistent=False)
                self.register_buffer("plan", channel_plan(self.pieces), persistent=False)
                factors = torch.from_numpy(polar_factors(model.config.lmax)).to(self.values)
                self.register_buffer("factors", factors, persistent=False)

    def fields(self, atoms: AtomGraph) -> Tensor:
        return self.model.fields(atoms)

    @torch.no_grad()
    def heavy(self, fields: Tensor) -> float:
        """Return how many times more bytes a pair takes than the width of the fields suggests."""
        floats = pair_floats(self.config, fields, 1, own_kernel=self.pieces is not None)
        return 1.0 if floats is None else 2 * floats / fields.shape[1]

    @property
    def probe_bytes(self) -> int:
        """The bytes that a probe takes at the peak besides its pairs, where they are known."""
        return 0 if self.pieces is None else probe_floats(self.config) * self.values.itemsize

    @torch.no_grad()
    def forward(self, fields: Tensor, species: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        fields = fields.to(vectors.dtype)
        is_own = self.pieces is not None and is_fused(fields, vectors.shape[1])
        sums, readout = (self._fused_sums, self.readout) if is_own else (self._sums, None)
        return density(self.model, fields, species, neighbours, vectors, sums=sums, readout=readout)

    def _fused_sums(self, fields: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        assert self.pieces is not None, "checked by `forward`"
        pieces = replace(self.pieces, coefficients=self.coefficients)
        return fused_sums(
            self.config, fields, neighbours, vectors, pieces, self.factors, self.columns, self.plan
        )

    def _sums(self, fields: Tensor, neighbours: Tensor, vectors: Tensor) -> Tensor:
        probes = vectors.shape[1]
        _, soft, harmonics = self.model.geometry(vectors)
        table = replace(self.table, values=self.values)
        with in_full(soft):
            if is_sampled(fields):
                return sums_by_sampling(self.config, fields, neighbours, harmonics, table, soft, probes)
            return sums_over_neighbours(self.config, fields, neighbours, harmonics, table.read(soft), probes)


def density(
    model: DensityModel,
    fields: Tensor,
    species: Tensor,
    neighbours: Tensor,
    vectors: Tensor,
    *,
    sums: Sums,
    readout: FusedReadout | None = None,
) -> Tensor:
    """Run one forward pass of the scalar form with the function `sums`. Shapes as in DensityModel.forward.

    readout: what reads the outputs from the sums, if not the model; only for a model without a local network.
    """
    config = model.config
    neighbour_sums = sums(fields.to(vectors.dtype), neighbours, vectors)
    prior = None
    if config.prior:
        squared = vectors.square().sum(3).transpose(1, 2)
        prior = prior_density(model.prior, species, neighbours, squared, config.cutoff_a).reshape(-1)
    if readout is None:
        outputs = model.outputs_of(model.probes.states(neighbour_sums), prior)
    else:
        outputs = readout(neighbour_sums)
        if prior is not None:
            outputs[:, 0] += prior
    return outputs.view(*vectors.shape[:2], config.outputs)


def prior_density(
    tables: Tensor, species: Tensor, neighbours: Tensor, squared: Tensor, cutoff_a: float
) -> Tensor:
    """Return the density (T, B) of superposed atoms. tables: (S, knots); squared: (T, K, B)."""
    knots = tables.shape[1]
    place = (squared.clamp(min=1e-24).sqrt() * ((knots - 1) / cutoff_a)).clamp(max=knots - 1)
    row = place.long().clamp(max=knots - 2)
    right = place - row
    start = (species.index_select(0, neighbours.reshape(-1)) * knots).view(*neighbours.shape, 1) + row
    flat = tables.reshape(-1)
    return ((1 - right) * flat[start] + right * flat[start + 1]).sum(1)
