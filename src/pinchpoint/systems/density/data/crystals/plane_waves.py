"""Valence electron densities of crystals by plane waves: PBE, GTH pseudopotentials, closed shell, in torch.

    (|k + g|^2 / 2 + V_local + V_Hartree[n] + v_xc[n] + sum_ij |p_i> h_ij <p_j|) psi = E psi
    n(r) = 2 sum over k and occupied bands of  w_k |psi(r)|^2

The occupations are fixed, so the crystal must be an insulator. Bands are found by a block Davidson method
with the preconditioner of Teter, Payne and Allan, a few steps for each new density; densities are mixed by
Anderson's method. Everything is in double precision, on a CPU or a GPU. Inside, hartree atomic units;
`Solution` has angstrom.

Letters: G plane waves of a k-point, B bands, P projectors, N = (nx, ny, nz) the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.data.atomic import AtomTable, load_table
from pinchpoint.systems.density.data.crystals.gth import Potential, local_form, projector_forms
from pinchpoint.systems.density.data.crystals.pbe import exchange_correlation
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.grids import choose_grid
from pinchpoint.systems.density.grid.structure import Structure

CUTOFF_HARTREE = 45.0
GRID_FACTOR = 1.75  # largest wave vector of the grid over that of the plane waves; 2 is exact
KPOINT_LENGTH_A = 8.0  # cells are repeated to at least this length by k-points
CONVERGED = 2e-5  # sum |n_out - n_in| / electrons
MOST_ITERATIONS = 40
_FIRST_STEPS, _STEPS = 8, 2  # Davidson steps for the first density and for every other one
_WIDEST = 2  # times the number of bands: a wider space is restarted from its best bands
_HISTORY, _MIXING = 8, 0.6
_EXTRA = 4  # empty bands, which make the highest occupied ones converge
_GRID_BYTES = 1 << 30  # bands on the grid at one time


@dataclass(frozen=True, eq=False)
class Solution:
    """The self-consistent density of a crystal and how it was reached."""

    volume: Volume
    energy: float  # hartree, without the interaction of the ions
    bands: list[np.ndarray]  # of each k-point, hartree, including the empty ones
    occupied: int
    residual: float  # sum |n_out - n_in| / electrons
    iterations: int

    @property
    def converged(self) -> bool:
        return self.residual <= CONVERGED

    @property
    def gap_hartree(self) -> float:
        """The lowest empty band minus the highest occupied one; above 0 for an insulator."""
        return min(float(b[self.occupied]) for b in self.bands) - max(
            float(b[self.occupied - 1]) for b in self.bands
        )


def solve_crystal(
    structure: Structure,
    potentials: Mapping[str, Potential],
    *,
    cutoff_hartree: float = CUTOFF_HARTREE,
    grid_factor: float = GRID_FACTOR,
    mesh: tuple[int, int, int] | None = None,
    device: str = "cpu",
    table: AtomTable | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Solution:
    """Compute the density of a crystal. mesh: k-points along each vector, by default from the cell's size.

    progress(iteration, residual) is called after each iteration. Check `converged` before using the result.
    """
    electrons = sum(potentials[symbol].valence for symbol in structure.species)
    if electrons % 2:
        raise BadInput(
            f"{structure.formula} has {electrons} valence electrons, so it has an open shell.",
            hint="Give a crystal with an even number of electrons.",
        )
    cell = _Cell(structure, cutoff_hartree, grid_factor, device)
    occupied = electrons // 2
    points = [
        _KPoint(cell, structure, potentials, k, weight, occupied + _EXTRA)
        for k, weight in kpoints(mesh or mesh_of(structure.lattice))
    ]
    ions = _ion_potential(cell, structure, potentials)
    density = _first_density(cell, structure, electrons, table or load_table())
    mixer, residual, energy, iteration = _Mixer(), math.inf, 0.0, 0
    for iteration in range(1, MOST_ITERATIONS + 1):
        potential, field_energy = _potential(cell, density, ions)
        new, band_energy = torch.zeros_like(density), 0.0
        for point in points:
            point.improve(potential, _FIRST_STEPS if iteration == 1 else _STEPS)
            new += point.weight * 2 * point.density(occupied) / cell.volume
            band_energy += point.weight * 2 * float(point.energies[:occupied].sum())
        energy = band_energy - cell.integral(potential * new) + cell.integral(ions * new) + field_energy(new)
        residual = cell.integral((new - density).abs()) / electrons
        if progress is not None:
            progress(iteration, residual)
        if residual <= CONVERGED:
            density = new
            break
        density = mixer.next(density, new)
    total = density.cpu().numpy() / BOHR_A**3
    return Solution(
        Volume(structure, total),
        energy,
        [point.energies.cpu().numpy() for point in points],
        occupied,
        residual,
        iteration,
    )


def mesh_of(lattice: np.ndarray) -> tuple[int, int, int]:
    """Return the k-points along each vector that repeat the cell to `KPOINT_LENGTH_A`."""
    x, y, z = (max(1, math.ceil(KPOINT_LENGTH_A / float(np.linalg.norm(vector)))) for vector in lattice)
    return x, y, z


def kpoints(mesh: tuple[int, int, int]) -> list[tuple[np.ndarray, float]]:
    """Return the mesh of Monkhorst and Pack in fractions, with weights; of k and -k one is kept."""
    axes = [[(2 * i - n + 1) / (2 * n) for i in range(n)] for n in mesh]
    weights: dict[tuple[float, ...], float] = {}
    for k in itertools.product(*axes):
        mirror = tuple(-x + 0.0 for x in k)
        weights[mirror if mirror in weights else k] = weights.get(mirror, 0.0) + 1 / math.prod(mesh)
    return [(np.array(k), weight) for k, weight in weights.items()]


class _Cell:
    """The lattice, its grid and the wave vectors of the grid."""

    def __init__(self, structure: Structure, cutoff: float, factor: float, device: str) -> None:
        self.lattice, self.cutoff, self.device = structure.lattice / BOHR_A, cutoff, device
        self.volume = structure.volume / BOHR_A**3
        self.reciprocal = 2 * math.pi * np.linalg.inv(self.lattice).T
        reach = math.sqrt(2 * cutoff)
        self.grid = choose_grid(structure.lattice, grid=None, spacing_a=math.pi / (factor * reach) * BOHR_A)
        self.points = math.prod(self.grid)
        numbers = np.stack(
            np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in self.grid), indexing="ij"), axis=-1
        )
        self.numbers = torch.from_numpy(numbers.reshape(-1, 3)).to(device)  # (N, 3)
        self.vectors = self.numbers @ torch.from_numpy(self.reciprocal).to(device)
        self.square = self.vectors.square().sum(1)

    def integral(self, values: Tensor) -> float:
        return float(values.sum()) * self.volume / self.points

    def phases(self, numbers: Tensor, positions: np.ndarray) -> Tensor:
        """Return exp(-i g r) for numbers (G, 3) and fractional positions (A, 3), as (A, G)."""
        angle = -2 * math.pi * (torch.from_numpy(positions).to(self.device) @ numbers.T)
        return torch.polar(torch.ones_like(angle), angle)

    def to_grid(self, waves: Tensor) -> Tensor:
        """Return the real field (N) of coefficients at the wave vectors of the grid."""
        return torch.fft.ifftn(waves.reshape(self.grid), norm="forward").real


class _KPoint:
    """The plane waves and bands of one k-point."""

    def __init__(
        self,
        cell: _Cell,
        structure: Structure,
        potentials: Mapping[str, Potential],
        k: np.ndarray,
        weight: float,
        bands: int,
    ) -> None:
        self.cell, self.weight = cell, weight
        shift = torch.from_numpy(k).to(cell.device)
        vectors = cell.vectors + shift @ torch.from_numpy(cell.reciprocal).to(cell.device)
        kinetic = vectors.square().sum(1) / 2
        self.index = torch.nonzero(kinetic < cell.cutoff)[:, 0]
        self.kinetic, vectors = kinetic[self.index], vectors[self.index]
        phases = cell.phases(cell.numbers[self.index] + shift, structure.positions)
        rows, blocks = [], []
        for atom, symbol in enumerate(structure.species):
            for channel in potentials[symbol].channels:
                form = projector_forms(channel, vectors) / math.sqrt(cell.volume)
                rows.append((form * phases[atom]).flatten(0, 1))
                blocks += [torch.from_numpy(channel.strengths)] * len(form)
        self.projectors = torch.cat(rows)  # (P, G)
        self.strengths = torch.block_diag(*blocks).to(cell.device, torch.complex128)
        shuffle = torch.Generator().manual_seed(len(self.index))
        start = torch.randn(bands, len(self.index), 2, generator=shuffle, dtype=torch.float64)
        self.bands = torch.view_as_complex(start).to(cell.device) / (1 + self.kinetic) ** 2
        self.bands /= self.bands.norm(dim=1, keepdim=True)
        self.energies = torch.zeros(bands, dtype=torch.float64, device=cell.device)

    def _chunks(self, count: int) -> list[slice]:
        step = max(1, _GRID_BYTES // (16 * self.cell.points))
        return [slice(start, start + step) for start in range(0, count, step)]

    def _on_grid(self, bands: Tensor) -> Tensor:
        grid = bands.new_zeros(len(bands), self.cell.points)
        grid[:, self.index] = bands
        return torch.fft.ifftn(grid.reshape(-1, *self.cell.grid), dim=(1, 2, 3), norm="forward")

    def density(self, occupied: int) -> Tensor:
        """Return the sum of |psi|^2 of the occupied bands on the grid, where each has a mean of 1."""
        total = torch.zeros(self.cell.grid, dtype=torch.float64, device=self.cell.device)
        for part in self._chunks(occupied):
            fields = self._on_grid(self.bands[:occupied][part])
            total += torch.view_as_real(fields).square().sum((0, 4))
        return total

    def apply(self, bands: Tensor, potential: Tensor) -> Tensor:
        """Return the Hamiltonian times bands (B, G)."""
        result = self.kinetic * bands
        for part in self._chunks(len(bands)):
            fields = self._on_grid(bands[part]).mul_(potential)
            waves = torch.fft.fftn(fields, dim=(1, 2, 3), norm="forward")
            result[part] += waves.reshape(len(fields), -1)[:, self.index]
        return result + (bands @ self.projectors.mH) @ self.strengths @ self.projectors

    def improve(self, potential: Tensor, steps: int) -> None:
        """Take Davidson steps: widen the space by preconditioned residuals and keep its best bands."""
        count = len(self.bands)
        space = bands = _orthonormal(self.bands)
        applied = self.apply(space, potential)
        for step in range(steps + 1):
            energies, turn = torch.linalg.eigh((space.conj() @ applied.T).cpu())
            turn = turn[:, :count].to(space.device).T
            bands, applied_bands = turn @ space, turn @ applied
            self.energies = energies[:count].to(space.device)
            if step == steps:
                break
            if len(space) > _WIDEST * count:
                space, applied = bands, applied_bands
            residuals = applied_bands - self.energies[:, None] * bands
            residuals *= _preconditioner(self.kinetic, bands)
            # Twice: the first projection leaves rounding errors that the normalisation makes large.
            for _ in range(2):
                residuals = residuals - (residuals @ space.mH) @ space
                residuals /= residuals.norm(dim=1, keepdim=True).clamp_min(1e-30)
            residuals = _orthonormal(residuals)
            residuals = _orthonormal(residuals - (residuals @ space.mH) @ space)
            space = torch.cat([space, residuals])
            applied = torch.cat([applied, self.apply(residuals, potential)])
        self.bands = bands


def _orthonormal(rows: Tensor) -> Tensor:
    """Return an orthonormal basis of the rows (B, G)."""
    overlap = rows.conj() @ rows.T
    factor, failed = torch.linalg.cholesky_ex(overlap)
    if not int(failed):
        return torch.linalg.solve_triangular(factor.conj(), rows, upper=False)
    # Rows that are almost dependent: the smallest directions are kept, but not blown up to a length of one.
    values, turn = torch.linalg.eigh(overlap.cpu())
    scale = values.clamp_min(1e-14 * float(values[-1])).rsqrt()
    return (turn * scale).T.to(rows.device) @ rows


def _preconditioner(kinetic: Tensor, bands: Tensor) -> Tensor:
    """Return the factors (B, G) of Teter, Payne and Allan, which damp waves of high kinetic energy."""
    own = (torch.view_as_real(bands).square().sum(2) @ kinetic)[:, None]
    x = kinetic / (1.5 * own)
    top = 27 + x * (18 + x * (12 + 8 * x))
    return top / (top + 16 * x**4)


def _ion_potential(cell: _Cell, structure: Structure, potentials: Mapping[str, Potential]) -> Tensor:
    """Return the local potential of all ions on the grid."""
    waves = torch.zeros(cell.points, dtype=torch.complex128, device=cell.device)
    symbols = np.array(structure.species)
    for symbol in sorted(set(structure.species)):
        form = local_form(potentials[symbol], cell.square) / cell.volume
        for position in structure.positions[symbols == symbol]:
            waves += form * cell.phases(cell.numbers, position[None])[0]
    return cell.to_grid(waves)


def _first_density(cell: _Cell, structure: Structure, electrons: int, table: AtomTable) -> Tensor:
    """Return the density of superposed atoms, scaled to the number of electrons."""
    wave_numbers = torch.linspace(0, float(cell.square.max().sqrt()), 600, dtype=torch.float64)
    radii = torch.from_numpy(table.radii / BOHR_A)
    sines = torch.sinc(wave_numbers[:, None] * radii / math.pi)  # sin(g r) / (g r)
    waves = torch.zeros(cell.points, dtype=torch.complex128, device=cell.device)
    symbols = np.array(structure.species)
    for symbol in sorted(set(structure.species)):
        shell = torch.from_numpy(table.row(symbol)) * BOHR_A**3 * 4 * math.pi * radii**2
        form = torch.trapezoid(sines * shell, radii, dim=1).numpy()
        own = np.interp(cell.square.sqrt().cpu().numpy(), wave_numbers.numpy(), form)
        for position in structure.positions[symbols == symbol]:
            waves += torch.from_numpy(own).to(cell.device) * cell.phases(cell.numbers, position[None])[0]
    density = cell.to_grid(waves / cell.volume).clamp_min(0)
    return density * (electrons / cell.integral(density))


def _potential(cell: _Cell, density: Tensor, ions: Tensor) -> tuple[Tensor, Callable[[Tensor], float]]:
    """Return the potential of a density, and a function for the Hartree and PBE energy of another one."""
    vectors = cell.vectors.T.reshape(3, *cell.grid)

    def hartree(values: Tensor) -> Tensor:
        waves = torch.fft.fftn(values, norm="forward").reshape(-1)
        kernel = torch.where(cell.square < 1e-12, 0.0, 4 * math.pi / cell.square.clamp_min(1e-12))
        return cell.to_grid(waves * kernel)

    def energy(values: Tensor) -> float:
        f, _ = exchange_correlation(values, vectors)
        return cell.integral(hartree(values) * values) / 2 + cell.integral(f)

    return ions + hartree(density) + exchange_correlation(density, vectors)[1], energy


class _Mixer:
    """Anderson's mixing: the next density is the one whose extrapolated residual is smallest."""

    def __init__(self) -> None:
        self.densities: list[Tensor] = []
        self.residuals: list[Tensor] = []

    def next(self, density: Tensor, new: Tensor) -> Tensor:
        self.densities = [*self.densities, density][-_HISTORY:]
        self.residuals = [*self.residuals, new - density][-_HISTORY:]
        flat = torch.stack([residual.flatten() for residual in self.residuals])
        last, rest = flat[-1], flat[:-1]
        if not len(rest):
            return density + _MIXING * self.residuals[-1]
        steps = last - rest
        shares = (
            torch.linalg.lstsq((steps @ steps.T).cpu(), (steps @ last).cpu()[:, None], driver="gelsd")
            .solution[:, 0]
            .to(flat.device)
        )
        mixed = density + _MIXING * self.residuals[-1]
        for share, old, residual in zip(shares, self.densities[:-1], self.residuals[:-1], strict=True):
            mixed = mixed - share * (density - old + _MIXING * (self.residuals[-1] - residual))
        return mixed
