"""Predict the electron density of a structure, and compare densities.

`predict` writes a CHGCAR, cube or npz file for a POSCAR, cif or xyz; `eval` compares two such files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.cli import bars, console

if TYPE_CHECKING:
    from pinchpoint.workloads.density.predict import Predicted

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")


@app.command("predict")
def predict(
    structure: Path = typer.Argument(..., metavar="STRUCTURE", help="POSCAR, cif, xyz, or a density file for its structure."),
    output: Path = typer.Option(..., "-o", "--output", metavar="OUT", help="CHGCAR, or a name in .vasp, .cube or .npz; .gz too."),
    weights: Path = typer.Option(None, "--weights", metavar="RUN|FILE", help="Of `density train`; the packaged ones without."),
    grid: str = typer.Option(None, "--grid", metavar="NX,NY,NZ", help="Points along each lattice vector."),
    spacing: float = typer.Option(None, "--spacing", help="Or the most between two points, angstrom.  [0.1]"),
    padding: float = typer.Option(4.0, "--padding", help="Room round a molecule without a cell, angstrom."),
    electrons: float = typer.Option(None, "--electrons", help="Scale the density to so many; the raw count is told anyway."),
    symmetry: bool = typer.Option(False, "--symmetry", help="Compute only points that the space group does not make equal."),
    budget: str = typer.Option(None, "--budget", help="Bytes it may take on the device: 6GiB, or a card."),
    chunk: str = typer.Option(None, "--chunk", help="Probes at one time, such as 64k."),
    form: str = typer.Option("scalar", "--form", help="scalar; full or original: the slow references."),
    seed: int = typer.Option(0, "--seed", help="Of the weights that only the slow references have."),
    device: str = DEVICE,
) -> None:
    """Predict the electron density of a structure on a grid.

    A structure without a lattice is put into a box. Grids from --spacing are such that Fourier
    transforms like them. A species that the model never saw is refused.
    """
    from pinchpoint.backends.base import backend

    backend("torch")  # says how to install it, where it is missing
    import time

    from pinchpoint.core.units import parse_size
    from pinchpoint.workloads.density.grids import parse_grid
    from pinchpoint.workloads.density.predict import predict as answer

    started: dict[str, float] = {}
    with bars.bar("predict") as tell:

        def progress(stage: str, done: int, total: int) -> None:
            spent = time.perf_counter() - started.setdefault(stage, time.perf_counter())
            tell(stage, done, total, eta_s=spent / done * (total - done) if done else None)

        made = answer(
            structure, output=output, weights=weights, grid=None if grid is None else parse_grid(grid), spacing_a=spacing,
            padding_a=padding, budget=budget, device=device, form=form, symmetry=symmetry, electrons=electrons,
            chunk=None if chunk is None else parse_size(chunk), seed=seed, progress=progress,
        )  # fmt: skip
    _show(made)


def _show(made: Predicted) -> None:
    from pinchpoint.core.units import show_bytes, show_seconds

    volume = made.volume
    scaled = "" if made.scale == 1 else f"; scaled by {made.scale:.6f} to {volume.electrons:.6g}"
    rows = [
        ("written", str(made.path)),
        ("structure", f"{volume.structure.formula}, {len(volume.species):,} atoms in {volume.structure.volume:.4g} angstrom^3"),
        ("grid", f"{' x '.join(map(str, volume.grid))}, {made.probes:,} probes in chunks of {made.chunk:,}"),
        ("electrons", f"{made.electrons_raw:.6g} by the model{scaled}"),
    ]
    if volume.spin is not None:
        rows.append(("moment", f"{volume.moment:.6g}"))
    if made.symmetry is not None:
        rows.append(("symmetry", f"{made.symmetry}: {made.irreducible:,} distinct points, {made.computed:,} computed"))
    if made.peak_bytes is not None:
        rows.append(("peak", f"{show_bytes(made.peak_bytes)} on {made.device}"))
    parts = ", ".join(
        f"{name} {show_seconds(spent)}"
        for name, spent in (("atoms", made.atoms_s), ("probes", made.probes_s), ("file", made.file_s))
    )
    rows.append(("time", f"{show_seconds(made.seconds)} on {made.device}: {parts}"))
    console.show_pairs(rows)
    for note in made.notes:
        console.say(f"note: {note}")


@app.command("eval")
def evaluate(
    predicted: Path = typer.Argument(..., metavar="DENSITY", help="CHGCAR, cube or npz."),
    reference: Path = typer.Argument(..., metavar="REFERENCE", help="The density it is held against, on the same grid."),
    output: Path = typer.Option(None, "-o", "--output", metavar="DIR", help="Folder for slices.png and evaluation.json."),
    at: str = typer.Option(None, "--at", metavar="X,Y,Z", help="Where the slices cross, fractional.  [centre of charge]"),
) -> None:
    """Compare two densities: NMAE, integrals, worst point, slices.

    NMAE = sum |a - b| / sum |b| over the grid points, b being the reference. Other grids and other
    cells are refused: nothing is interpolated.
    """
    from pinchpoint.workloads.density.evaluate import evaluate as compare
    from pinchpoint.workloads.density.evaluate import parse_place

    made = compare(predicted, reference, output, at=None if at is None else parse_place(at))
    console.show_summary(made)
    if made.files:
        console.show_pairs([("written", f"{output}: evaluation.json, {', '.join(made.files)}")])
    for note in made.notes:
        console.say(f"note: {note}")
