"""Samples of oxides: draw a cell, compute its density, keep some points. As a program, it is a worker."""

from __future__ import annotations

from typing import Any

from pinchpoint.systems.common.data.workers import serve_pipes
from pinchpoint.systems.density.data.crystals.gth import read_potentials
from pinchpoint.systems.density.data.crystals.oxides import OxideOrder
from pinchpoint.systems.density.data.crystals.plane_waves import CONVERGED, solve_crystal
from pinchpoint.systems.density.data.crystals.polymorphs import draw_cell
from pinchpoint.systems.density.data.file_samples import (
    FileOrder,
    StoredFileSample,
    pack_file_sample,
    volume_sample,
)


def make_oxide(order: OxideOrder) -> StoredFileSample:
    """Draw the cell and compute its density. A cell that does not converge, or is a metal, gets a fault."""
    cell = draw_cell(order.polymorph, seed=order.seed, number=order.number)
    solution = solve_crystal(
        cell,
        read_potentials(order.potentials, set(cell.species)),
        cutoff_hartree=order.cutoff_hartree,
        device=order.device,
    )
    faults = []
    if not solution.converged:
        faults.append(
            f"the density changes by {solution.residual:.1e} of the electrons, above {CONVERGED:.1e}"
        )
    if not solution.gap_hartree > 0:
        faults.append(f"the highest occupied band is {-solution.gap_hartree:.4f} hartree above an empty one")
    quality = {
        "energy_hartree": solution.energy,
        "gap_hartree": solution.gap_hartree,
        "residual": solution.residual,
        "iterations": float(solution.iterations),
        "cutoff_hartree": order.cutoff_hartree,
    }
    file_order = FileOrder(
        order.name,
        "",
        order.content,
        order.kind,
        order.seed,
        order.probes,
        order.grid_points,
        order.generator,
    )
    return volume_sample(file_order, solution.volume, quality=quality, faults=tuple(faults))


def make(order: dict[str, Any]) -> bytes:
    """Return the bytes of a sample's file."""
    return pack_file_sample(make_oxide(OxideOrder(**order)))


if __name__ == "__main__":
    serve_pipes(make)
