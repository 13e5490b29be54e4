"""The electron density of a structure on a grid, by a trained model, written as CHGCAR, cube or npz.

The atoms are described once; then every grid point is computed from the atoms around it, brick by brick (`sweep`). The count
of electrons is told as the model gives it; one factor for all points brings it to a number that is asked for. What the model
never saw the like of is predicted all the same, with a note for everything that is strange (`domain`, `counts`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting.cards import Card
from pinchpoint.streaming.stream import budget_bytes
from pinchpoint.systems.density.data.data_settings import check_seed
from pinchpoint.systems.density.data.domain import charge_notes, strangeness, valence_electrons
from pinchpoint.systems.density.files.formats import check_volume_output, warnings_of, write_volume
from pinchpoint.systems.density.files.structures import as_structure
from pinchpoint.systems.density.files.volume import Volume, check_volume
from pinchpoint.systems.density.grid.bricks import Bricks, bricks_of, surroundings_of
from pinchpoint.systems.density.grid.electron_counts import count_notes, negative_notes
from pinchpoint.systems.density.grid.grids import choose_grid, skew_notes
from pinchpoint.systems.density.grid.periodic_images import atom_graph
from pinchpoint.systems.density.grid.structure import SYMBOLS, Structure
from pinchpoint.systems.density.grid.sweep import Swept, sweep
from pinchpoint.systems.density.grid.symmetry import Symmetry, check_on_grid, grid_for, orbits, symmetry_of
from pinchpoint.systems.density.weights import for_inference

if TYPE_CHECKING:
    from pinchpoint.systems.density.model.model import DensityModel

FORMS = ("scalar", "full", "original")
PADDING_A = 4.0
FACTORS = 0.01, 100.0  # of --electrons: what is beyond is a slip
KNOTS = 4096  # of the radial tables: within 2e-6 of the networks, and ten times as fast
_FULL = 32  # times more bytes a pair takes in the full form than in the scalar one
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Predicted:
    """The density and how it came about. Seconds: atoms (edges and their network), probes, file; all with reading and weights."""

    volume: Volume
    path: Path | None
    electrons_raw: float  # the integral before any scaling
    electrons_neutral: (
        int | None
    )  # of the atoms; None where their valence, as the model counts it, is not known
    scale: float  # what the total was multiplied by
    probes: int  # of the grid
    computed: int  # of them, padding of bricks too
    pairs: int  # of a probe and a slot for a neighbour
    chunk: int  # probes at one time
    tile: int  # probes of a tile
    calls: int
    halvings: int
    peak_bytes: (
        int | None
    )  # on CUDA most allocated since the counters were reset; on a CPU known with a budget
    device: str
    form: str
    symmetry: str | None
    irreducible: int | None  # grid points that no operation makes equal
    atoms_s: float
    probes_s: float
    file_s: float
    seconds: float
    notes: tuple[str, ...] = ()


def predict(
    structure: Any,
    *,
    output: str | Path | None = None,
    weights: str | Path | DensityModel | None = None,
    grid: int | tuple[int, int, int] | None = None,
    spacing_a: float | None = None,
    padding_a: float | None = None,
    budget: str | int | Card | None = None,
    device: str = "auto",
    form: str = "scalar",
    symmetry: bool = False,
    electrons: float | None = None,
    chunk: int | None = None,
    knots: int | None = KNOTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Predicted:
    """The density of a structure: a path, a Structure, ASE's Atoms, pymatgen's Structure or Molecule.

    weights: a run, an exported file or a model; the packaged model without. grid: points along each lattice vector (one number
    for all three), or spacing_a: the most between two of them (0.1 without either). padding_a: room round a molecule without
    a cell (4.0). output: a file, never the one the structure is read from.
    budget: bytes or a card; all that lies on the device counts. chunk: probes at one time. form: "scalar", "full" (all paths,
    with dead weights from `seed`) or "original" (the same, atoms described again for every chunk). symmetry: compute only
    points that the space group does not make equal. electrons: scale the total to so many. knots: of the tables that stand
    for the scalar form's radial networks; None runs the networks. progress(stage, done, total).
    """
    start, tell = time.perf_counter(), progress or (lambda stage, done, total: None)
    _check(structure, output, padding_a, form, electrons, chunk, budget)
    check_seed(seed)
    place = resolve_device(device, backend("torch"))
    tell("reading", 0, 0)
    held = as_structure(structure, padding_a=PADDING_A if padding_a is None else padding_a)
    if electrons is not None:
        _check_electrons(electrons, held)
    model = for_inference(weights, place)
    model.config.index_of(held.species)
    group = symmetry_of(held) if symmetry else None
    points = _grid(held, group, grid, spacing_a)
    tell("atoms", 0, 0)
    at = time.perf_counter()
    stage, atoms_bytes = _described(lambda: _stage(model, held, form, knots, seed, place), place, budget)
    atoms_s, at = time.perf_counter() - at, time.perf_counter()
    bricks = bricks_of(points, held.lattice, model.config.cutoff_a)
    total, spin, swept, distinct = _densities(stage, held, bricks, group, budget, chunk, tell)
    probes_s = time.perf_counter() - at
    volume = check_volume(
        Volume(held, total, spin, comment=f"{held.formula}: density predicted by pinchpoint")
    )
    raw, neutral, scale = volume.electrons, _neutral(model, held), 1.0
    notes = [
        *_input_notes(held, points, grid, padding_a),
        *charge_notes(held, electrons=electrons),
        *(() if model.seen is None else strangeness(held, model.seen, electrons=electrons)),
        *negative_notes(volume),
    ]
    if electrons is not None:
        scale = _scale(raw, electrons)
    notes += count_notes(volume, raw, neutral=neutral, asked=electrons)
    if scale != 1:
        volume = replace(volume, total=total * scale)
    at = time.perf_counter()
    path = None
    if output is not None:
        tell("writing", 0, 0)
        path = write_volume(output, volume)
        notes += warnings_of(volume, path)
    end = time.perf_counter()
    return Predicted(
        volume,
        path,
        raw,
        neutral,
        scale,
        math.prod(points),
        len(swept.values) * bricks.probes,
        swept.pairs,
        swept.chunk,
        swept.tile * bricks.probes,
        swept.calls,
        swept.halvings,
        _peak(place, swept, atoms_bytes),
        place,
        form,
        None if group is None else group.group,
        distinct,
        atoms_s,
        probes_s,
        end - at,
        end - start,
        tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class Stage:
    """A form of the model with its atoms described, ready for probes. fields: called once a chunk."""

    forward: Callable[..., Tensor]
    fields: Callable[[], Tensor]
    species: Tensor  # (A,)
    dtype: torch.dtype
    outputs: int
    cutoff_a: float
    heavy: float  # as `sweep` takes it


def _stage(
    model: DensityModel, structure: Structure, form: str, knots: int | None, seed: int, device: str
) -> Stage:
    config, dtype = model.config, next(model.parameters()).dtype
    atoms = atom_graph(structure, config, device=device, dtype=dtype)
    used: Any = model if knots is None else model.tabulate(knots)
    if form != "scalar":
        from pinchpoint.systems.density.model.full_form import FullForm

        used = FullForm(model, seed=seed).to(device).eval()
    with torch.no_grad():
        once = used.fields(atoms)
    if device == "cuda":
        torch.cuda.synchronize()
    fields = (lambda: used.fields(atoms)) if form == "original" else (lambda: once)
    heavy = _FULL if form != "scalar" else 1.0 if knots is None else used.heavy(once)
    return Stage(used, fields, atoms.species, dtype, config.outputs, config.cutoff_a, heavy)


def _described(make: Callable[[], Stage], device: str, budget: Any) -> tuple[Stage, int]:
    """The stage and the most bytes it took; on a CPU these are watched where there is a budget. Atoms are not taken in chunks."""
    made: list[Stage] = []
    if device == "cuda":
        if budget is not None:
            torch.cuda.reset_peak_memory_stats()
        made.append(make())
        peak = torch.cuda.max_memory_allocated()
    elif budget is not None:
        peak = backend("torch").account(lambda: made.append(make())) or 0
    else:
        made.append(make())
        peak = 0
    bound = None if budget is None else budget_bytes(budget)
    if bound is not None and peak > bound:
        count = len(made[0].species)
        raise DoesNotFit(
            f"describing {count:,} atom{'s' if count != 1 else ''} takes {show_bytes(peak)}, more than {show_bytes(bound)}",
            hint=f"give --budget at least {math.ceil(peak / 2**20)}MiB"
            + ("" if device == "cpu" else ", or use --device cpu"),
            need_bytes=peak,
        )
    return made[0], peak


def _densities(
    stage: Stage,
    structure: Structure,
    bricks: Bricks,
    group: Symmetry | None,
    budget: Any,
    chunk: int | None,
    tell: Progress,
) -> tuple[np.ndarray, np.ndarray | None, Swept, int | None]:
    """Total and spin (nx, ny, nz) float64, how the probes went through, and how many are distinct by symmetry."""
    device = str(stage.species.device)
    tell("neighbours", 0, 0)
    near = surroundings_of(structure, bricks, stage.cutoff_a, device=device, dtype=stage.dtype)
    equal = None if group is None else orbits(group, bricks, device=device)
    swept = sweep(
        stage.forward,
        stage.fields,
        stage.species,
        near,
        outputs=stage.outputs,
        budget=budget,
        chunk=chunk,
        heavy=stage.heavy,
        numbers=None if equal is None else equal.bricks,
        progress=lambda done, total: tell("probes", done, total),
    )
    if equal is None:
        whole = bricks.on_grid(swept.values)
    else:
        whole = swept.values.reshape(-1, stage.outputs)[equal.source].reshape(*bricks.grid, stage.outputs)
    parts = [np.ascontiguousarray(whole[..., part], dtype=np.float64) for part in range(stage.outputs)]
    return parts[0], parts[1] if stage.outputs > 1 else None, swept, None if equal is None else equal.points


def _check(
    structure: Any,
    output: Any,
    padding_a: float | None,
    form: str,
    electrons: float | None,
    chunk: int | None,
    budget: Any,
) -> None:
    """Refuse what cannot work, before the work."""
    if output is not None:
        check_volume_output(output)
        read = Path(structure) if isinstance(structure, str | Path) else None
        if read is not None and read.exists() and Path(output).exists() and Path(output).samefile(read):
            raise BadInput(
                f"{output} is the file the structure is read from: it would be lost", hint="choose another -o"
            )
    if form not in FORMS:
        raise BadInput(f"there is no form {form!r}", hint=f"use one of: {', '.join(FORMS)}")
    if padding_a is not None and not (math.isfinite(padding_a) and padding_a > 0):
        raise BadInput(
            f"a padding of {padding_a:g} angstrom", hint="give room round a molecule, such as --padding 4"
        )
    if electrons is not None and not (math.isfinite(electrons) and electrons > 0):
        raise BadInput(f"{electrons:g} electrons", hint="give --electrons a number above 0, or leave it out")
    if chunk is not None and not (isinstance(chunk, int) and chunk >= 1):
        raise BadInput(
            f"a chunk of {chunk} probes", hint="give a whole number of at least 1, or leave it out"
        )
    if chunk is not None and budget is not None:
        raise BadInput("both a chunk and a budget were given", hint="leave one of them out")


def _grid(
    structure: Structure, group: Symmetry | None, grid: Any, spacing_a: float | None
) -> tuple[int, int, int]:
    points = choose_grid(structure.lattice, grid=grid, spacing_a=spacing_a)
    if group is None:
        return points
    if grid is None:  # a spacing leaves room for the group's wishes
        points = grid_for(group, points) or points
    check_on_grid(group, points)
    return points


def _input_notes(
    held: Structure, points: tuple[int, int, int], grid: Any, padding_a: float | None
) -> tuple[str, ...]:
    """Sentences on what was given."""
    idle = padding_a is not None and not held.boxed
    unused = (
        (f"--padding {padding_a:g} changes nothing: the structure has a cell of its own",) if idle else ()
    )
    return (*unused, *(skew_notes(held.lattice, points) if grid is None else ()))


def _neutral(model: DensityModel, structure: Structure) -> int | None:
    """Electrons of the neutral atoms as the model's data count them; a prior is made of such atoms."""
    known = model.config.prior if model.seen is None else model.seen.neutral
    return valence_electrons(structure.species) if known else None


def _check_electrons(wanted: float, structure: Structure) -> None:
    """Refuse a count that no model could come near to, before the work."""
    every = sum(SYMBOLS.index(symbol) + 1 for symbol in structure.species)
    if not FACTORS[0] * 0.1 * len(structure.species) <= wanted <= FACTORS[1] * every:
        raise BadInput(
            f"--electrons {wanted:g} for {len(structure.species):,} atoms with {every:,} electrons in all",
            hint="give a count near that of the structure's valence electrons, or leave it out",
        )


def _scale(raw: float, wanted: float) -> float:
    if not raw > 0:
        raise BadInput(
            f"the model gives {raw:.4g} electrons, which no factor brings to {wanted:g}",
            hint="leave --electrons out, or train more",
        )
    least, most = FACTORS
    if not least <= wanted / raw <= most:
        raise BadInput(
            f"--electrons {wanted:g} is {wanted / raw:.2g} times the {raw:.4g} electrons that the model gives",
            hint=f"give a count from {least * raw:.2g} to {most * raw:.2g}, near that of the structure, or leave it out",
        )
    return wanted / raw


def _peak(device: str, swept: Swept, atoms_bytes: int) -> int | None:
    if device == "cuda":
        return max(torch.cuda.max_memory_allocated(), swept.peak_bytes or 0, atoms_bytes)
    return None if swept.peak_bytes is None else max(swept.peak_bytes, atoms_bytes)
