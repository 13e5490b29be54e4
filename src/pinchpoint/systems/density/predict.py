"""Prediction of the electron density of a structure on a grid, written as CHGCAR, cube or npz.

The features of the atoms are computed once; then every grid point is computed from the atoms around it, brick
by brick (`sweep`). The electron count predicted by the model is always reported; a requested count is reached
by scaling all points by one factor. A structure unlike the training data is predicted all the same, with a
note for everything unusual (`domain`, `electron_counts`).
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
from pinchpoint.systems.density.data.domain import charge_notes, unfamiliar_notes, valence_electrons
from pinchpoint.systems.density.files.formats import check_volume_output, warnings_of, write_volume
from pinchpoint.systems.density.files.structures import as_structure
from pinchpoint.systems.density.files.volume import Volume, check_volume
from pinchpoint.systems.density.grid.bricks import Bricks, bricks_of, radius_a, surroundings_of
from pinchpoint.systems.density.grid.electron_counts import count_notes, negative_notes
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.grids import choose_grid, skew_notes
from pinchpoint.systems.density.grid.periodic_images import atom_graph
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.grid.sweep import SweepResult, sweep
from pinchpoint.systems.density.grid.symmetry import Symmetry, check_on_grid, grid_for, orbits, symmetry_of
from pinchpoint.systems.density.model.error_estimate import Estimate, scalars_of
from pinchpoint.systems.density.training.weights import for_inference, without_correction

if TYPE_CHECKING:
    from pinchpoint.systems.density.model.atom_network import AtomGraph
    from pinchpoint.systems.density.model.model import DensityModel

FORMS = ("scalar", "full", "original")
PADDING_A = 4.0
FACTORS = 0.01, 100.0  # allowed range of the factor set by --electrons: anything beyond is a mistake
KNOTS = 4096  # of the radial tables, which are within 2e-6 of the networks and ten times faster
_FULL = 32  # how many times more bytes a pair takes in the full form than in the scalar one
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Prediction:
    """A predicted density and how it was computed.

    Seconds are given for the atoms (edges and the atom network), the probes and the file; `seconds` is the
    total, including the time to read the input and the weights.
    """

    volume: Volume
    path: Path | None
    electrons_raw: float  # integral of the density before scaling
    electrons_neutral: int | None  # of the neutral atoms; None if the valence count of the model is unknown
    scale: float  # factor applied to the total
    probes: int  # number of grid points
    computed: int  # probes computed, including the padding of bricks
    pairs: int  # pairs of a probe and a neighbour slot
    chunk: int  # probes per chunk
    tile: int  # probes per tile
    calls: int
    halvings: int
    peak_bytes: int | None  # on CUDA, peak allocated since the last reset; on a CPU, known only with a budget
    device: str
    form: str
    symmetry: str | None
    irreducible: int | None  # grid points that are distinct by symmetry
    atoms_s: float
    probes_s: float
    file_s: float
    seconds: float
    notes: tuple[str, ...] = ()
    corrected: bool = False  # by a local network
    estimate: Estimate | None = None  # of the error; None if the weights have none


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
    correction: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Prediction:
    """Predict the density of a structure: a path, a Structure, ASE's Atoms, pymatgen's Structure or Molecule.

    output: file to write, never the one the structure is read from. weights: a run, an exported file, a
    model, or the name of packaged weights; by default the packaged ones that cover the species. grid: points
    along each lattice vector (one number for all three). spacing_a: instead of a grid, the largest distance
    between two points (0.1 by default). padding_a: space around a molecule without a cell (4.0 by default).
    budget: bytes or a card; everything on the device counts. form: "scalar", "full" (all paths, with unused
    weights from `seed`) or "original" (the same, with the atoms recomputed for every chunk). symmetry:
    compute only points that are distinct by the space group. electrons: scale the total to this count. chunk:
    probes processed together. knots: size of the tables that replace the radial networks of the scalar form;
    None evaluates the networks. correction: apply the local network of a model that has one. progress(stage,
    done, total): called as the work proceeds.
    """
    start, tell = time.perf_counter(), progress or (lambda stage, done, total: None)
    _check(structure, output, padding_a, form, electrons, chunk, budget)
    check_seed(seed)
    place = resolve_device(device, backend("torch"))
    tell("reading", 0, 0)
    target = as_structure(structure, padding_a=PADDING_A if padding_a is None else padding_a)
    if electrons is not None:
        _check_electrons(electrons, target)
    model = for_inference(weights, place, species=target.species)
    corrects = correction and model.local is not None
    if not correction:
        model = without_correction(model)
    model.config.index_of(target.species)
    group = symmetry_of(target) if symmetry else None
    points = _grid(target, group, grid, spacing_a)
    bricks = bricks_of(points, target.lattice, model.config.cutoff_a)
    radius = radius_a(bricks, target.lattice)
    tell("atoms", 0, 0)
    at = time.perf_counter()
    stage, atoms_bytes = _describe_atoms(
        lambda: _stage(model, target, form, knots, radius, seed, place), place, budget
    )
    atoms_s, at = time.perf_counter() - at, time.perf_counter()
    total, spin, result, distinct = _densities(stage, target, bricks, group, budget, chunk, tell)
    probes_s = time.perf_counter() - at
    volume = check_volume(
        Volume(target, total, spin, comment=f"{target.formula}: density predicted by pinchpoint")
    )
    raw, neutral, scale = volume.electrons, _neutral(model, target), 1.0
    estimate = _estimate(model, target, stage, form)
    notes = [
        *(() if estimate is None else estimate.notes()),
        *_input_notes(target, points, grid, padding_a),
        *charge_notes(target, electrons=electrons),
        *(() if model.domain is None else unfamiliar_notes(target, model.domain, electrons=electrons)),
        *negative_notes(volume),
    ]
    if electrons is not None:
        scale = _scale(raw, electrons)
    notes += count_notes(volume, raw, neutral=neutral, requested=electrons)
    if scale != 1:
        volume = replace(volume, total=total * scale)
    at = time.perf_counter()
    path = None
    if output is not None:
        tell("writing", 0, 0)
        # With a budget, everything on the device counts, and the budget may leave no room for text.
        path = write_volume(output, volume, device=place if budget is None else "cpu")
        notes += warnings_of(volume, path)
    end = time.perf_counter()
    return Prediction(
        volume,
        path,
        raw,
        neutral,
        scale,
        math.prod(points),
        len(result.values) * bricks.probes,
        result.pairs,
        result.chunk,
        result.tile * bricks.probes,
        result.calls,
        result.halvings,
        _peak(place, result, atoms_bytes),
        place,
        form,
        None if group is None else group.group,
        distinct,
        atoms_s,
        probes_s,
        end - at,
        end - start,
        tuple(notes),
        corrects,
        estimate,
    )


@dataclass(frozen=True, eq=False)
class Stage:
    """A form of the model whose atom features are computed, ready for probes.

    fields: called once per chunk.
    """

    forward: Callable[..., Tensor]
    fields: Callable[[], Tensor]
    atoms: AtomGraph
    dtype: torch.dtype
    outputs: int
    cutoff_a: float
    heavy: float  # this and the next as in `sweep`
    probe_bytes: int


def _stage(
    model: DensityModel,
    structure: Structure,
    form: str,
    knots: int | None,
    radius: float,
    seed: int,
    device: str,
) -> Stage:
    config, dtype = model.config, next(model.parameters()).dtype
    atoms = atom_graph(structure, config, device=device, dtype=dtype)
    network: Any = model if knots is None else model.tabulate(knots, radius_a=radius)
    if form != "scalar":
        from pinchpoint.systems.density.model.full_form import FullForm

        network = FullForm(model, seed=seed).to(device).eval()
    with torch.no_grad():
        once = network.fields(atoms)
    if device == "cuda":
        torch.cuda.synchronize()
    fields = (lambda: network.fields(atoms)) if form == "original" else (lambda: once)
    heavy = _FULL if form != "scalar" else 1.0 if knots is None else network.heavy(once)
    probe_bytes = network.probe_bytes if form == "scalar" and knots is not None else 0
    return Stage(network, fields, atoms, dtype, config.outputs, config.cutoff_a, heavy, probe_bytes)


def _estimate(model: DensityModel, structure: Structure, stage: Stage, form: str) -> Estimate | None:
    """Return the estimated error; None if the weights have no estimate.

    The other forms have features of their own, so this runs the atom network once more for them.
    """
    if model.estimate is None:
        return None
    with torch.no_grad():
        fields = stage.fields() if form == "scalar" else model.fields(stage.atoms)
    return model.estimate.of(structure, scalars_of(model.config, fields))


def _describe_atoms(make: Callable[[], Stage], device: str, budget: Any) -> tuple[Stage, int]:
    """Return the stage and its peak bytes, which on a CPU are tracked only with a budget.

    Atoms are not processed in chunks.
    """
    stages: list[Stage] = []
    if device == "cuda":
        if budget is not None:
            torch.cuda.reset_peak_memory_stats()
        stages.append(make())
        peak = torch.cuda.max_memory_allocated()
    elif budget is not None:
        peak = backend("torch").account(lambda: stages.append(make())) or 0
    else:
        stages.append(make())
        peak = 0
    limit_bytes = None if budget is None else budget_bytes(budget)
    if limit_bytes is not None and peak > limit_bytes:
        count = len(stages[0].atoms.species)
        raise DoesNotFit(
            f"The features of {count:,} atom{'s' if count != 1 else ''} and the radial functions take "
            f"{show_bytes(peak)}, but the budget is {show_bytes(limit_bytes)}.",
            hint=f"Set --budget to at least {math.ceil(peak / 2**20)}MiB"
            + ("." if device == "cpu" else ", or use --device cpu."),
            need_bytes=peak,
        )
    return stages[0], peak


def _densities(
    stage: Stage,
    structure: Structure,
    bricks: Bricks,
    group: Symmetry | None,
    budget: Any,
    chunk: int | None,
    tell: Progress,
) -> tuple[np.ndarray, np.ndarray | None, SweepResult, int | None]:
    """Return the densities on the grid, the sweep, and the number of points distinct by symmetry.

    Total and spin: (nx, ny, nz) float64.
    """
    device = str(stage.atoms.species.device)
    tell("neighbours", 0, 0)
    near = surroundings_of(structure, bricks, stage.cutoff_a, device=device, dtype=stage.dtype)
    equal = None if group is None else orbits(group, bricks, device=device)
    result = sweep(
        stage.forward,
        stage.fields,
        stage.atoms.species,
        near,
        outputs=stage.outputs,
        budget=budget,
        chunk=chunk,
        heavy=stage.heavy,
        probe_bytes=stage.probe_bytes,
        numbers=None if equal is None else equal.bricks,
        progress=lambda done, total: tell("probes", done, total),
    )
    if equal is None:
        whole = bricks.on_grid(result.values)
    else:
        whole = result.values.reshape(-1, stage.outputs)[equal.source].reshape(*bricks.grid, stage.outputs)
    parts = [np.ascontiguousarray(whole[..., part], dtype=np.float64) for part in range(stage.outputs)]
    return parts[0], parts[1] if stage.outputs > 1 else None, result, None if equal is None else equal.points


def _check(
    structure: Any,
    output: Any,
    padding_a: float | None,
    form: str,
    electrons: float | None,
    chunk: int | None,
    budget: Any,
) -> None:
    """Raise BadInput for invalid arguments, before any work is done."""
    if output is not None:
        check_volume_output(output)
        source = Path(structure) if isinstance(structure, str | Path) else None
        if source is not None and source.exists() and Path(output).exists() and Path(output).samefile(source):
            raise BadInput(
                f"{output} is the file the structure is read from, which would be overwritten.",
                hint="Choose another -o.",
            )
    if form not in FORMS:
        raise BadInput(f"There is no form {form!r}.", hint=f"Set --form to one of {', '.join(FORMS)}.")
    if padding_a is not None and not (math.isfinite(padding_a) and padding_a > 0):
        raise BadInput(
            f"A padding of {padding_a:g} angstrom leaves no room around the molecule.",
            hint="Use a padding above 0, such as --padding 4.",
        )
    if electrons is not None and not (math.isfinite(electrons) and electrons > 0):
        raise BadInput(
            f"The density cannot be scaled to {electrons:g} electrons.",
            hint="Set --electrons to a number above 0, or leave it out.",
        )
    if chunk is not None and not (isinstance(chunk, int) and chunk >= 1):
        raise BadInput(
            f"A chunk cannot have {chunk} probes.",
            hint="Set --chunk to a whole number of at least 1, or leave it out.",
        )
    if chunk is not None and budget is not None:
        raise BadInput("A chunk and a budget were both given.", hint="Leave one of them out.")


def _grid(
    structure: Structure, group: Symmetry | None, grid: Any, spacing_a: float | None
) -> tuple[int, int, int]:
    points = choose_grid(structure.lattice, grid=grid, spacing_a=spacing_a)
    if group is None:
        return points
    if grid is None:  # with a spacing, the grid may be adapted to the space group
        points = grid_for(group, points) or points
    check_on_grid(group, points)
    return points


def _input_notes(
    structure: Structure, points: tuple[int, int, int], grid: Any, padding_a: float | None
) -> tuple[str, ...]:
    """Return notes on the input."""
    idle = padding_a is not None and not structure.boxed
    padding_notes = (
        (f"--padding {padding_a:g} has no effect: the structure has its own cell",) if idle else ()
    )
    return (*padding_notes, *(skew_notes(structure.lattice, points) if grid is None else ()))


def _neutral(model: DensityModel, structure: Structure) -> int | None:
    """Return the valence electrons of the neutral atoms, if the model counts electrons that way.

    That is the case for a model with a prior, which is made of such atoms, or with neutral training data;
    otherwise None.
    """
    known = model.config.prior if model.domain is None else model.domain.neutral
    return valence_electrons(structure.species) if known else None


def _check_electrons(electrons: float, structure: Structure) -> None:
    """Raise BadInput for a count that no model could come near, before any work is done."""
    every = sum(SYMBOLS.index(symbol) + 1 for symbol in structure.species)
    if not FACTORS[0] * 0.1 * len(structure.species) <= electrons <= FACTORS[1] * every:
        raise BadInput(
            f"--electrons {electrons:g} is out of range for {len(structure.species):,} atoms with {every:,} "
            "electrons in total.",
            hint="Give a count near the number of valence electrons of the structure, or leave --electrons "
            "out.",
        )


def _scale(raw: float, electrons: float) -> float:
    if not raw > 0:
        raise BadInput(
            f"The model predicts {raw:.4g} electrons, which no factor can scale to {electrons:g}.",
            hint="Leave --electrons out, or train the model further.",
        )
    least, most = FACTORS
    if not least <= electrons / raw <= most:
        raise BadInput(
            f"--electrons {electrons:g} is {electrons / raw:.2g} times the {raw:.4g} electrons that the "
            "model predicts.",
            hint=f"Give a count from {least * raw:.2g} to {most * raw:.2g}, near that of the structure, or "
            "leave --electrons out.",
        )
    return electrons / raw


def _peak(device: str, result: SweepResult, atoms_bytes: int) -> int | None:
    if device == "cuda":
        return max(torch.cuda.max_memory_allocated(), result.peak_bytes or 0, atoms_bytes)
    return None if result.peak_bytes is None else max(result.peak_bytes, atoms_bytes)
