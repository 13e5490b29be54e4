"""Predict the electron density of a structure, compare densities, train a model of your own.

`predict` writes a CHGCAR, cube or npz file for a POSCAR, cif or xyz; `eval` compares two such files.
`data` makes densities to learn from, `train` learns them, `score` measures a model on them, `bench` times its forms.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.console.list_options import command_with_lists
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.progress import show as show_step
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, OUTPUT, RESUME, settings_command
from pinchpoint.systems.density.settings import Settings

if TYPE_CHECKING:
    from pinchpoint.systems.common.training_loop import Report
    from pinchpoint.systems.density.predict import Prediction

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")


@app.command("predict")
def predict(
    structure: Path = typer.Argument(
        ..., metavar="STRUCTURE", help="POSCAR, cif, xyz, or a density file for its structure."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="CHGCAR, or a name in .vasp, .cube or .npz; .gz too."
    ),
    weights: Path = typer.Option(
        None, "--weights", metavar="RUN|FILE", help="Of `density train`; the packaged ones without."
    ),
    grid: str = typer.Option(None, "--grid", metavar="NX,NY,NZ", help="Points along each lattice vector."),
    spacing: float = typer.Option(None, "--spacing", help="Or the most between two points, angstrom.  [0.1]"),
    padding: float = typer.Option(
        None, "--padding", help="Room round a molecule without a cell, angstrom.  [4]"
    ),
    electrons: float = typer.Option(
        None, "--electrons", help="Scale the density to so many; the raw count is told anyway."
    ),
    symmetry: bool = typer.Option(
        False, "--symmetry", help="Compute only points that the space group does not make equal."
    ),
    budget: str = typer.Option(None, "--budget", help="Bytes it may take on the device: 6GiB, or a card."),
    chunk: str = typer.Option(None, "--chunk", help="Probes at one time, such as 64k."),
    form: str = typer.Option("scalar", "--form", help="scalar; full or original: the slow references."),
    seed: int = typer.Option(0, "--seed", help="Of the weights that only the slow references have."),
    device: str = DEVICE,
) -> None:
    """Predict the electron density of a structure on a grid.

    A structure without a lattice is put into a box. Grids from --spacing are such that Fourier
    transforms like them. A species that the model never saw is refused. The packaged weights know
    neutral closed-shell molecules of H, C, N and O near rest; what is unlike that is noted.
    """
    from pinchpoint.core.units import parse_size
    from pinchpoint.systems.density.grid.grids import parse_grid

    points = None if grid is None else parse_grid(grid)
    probes = None if chunk is None else parse_size(chunk)
    from pinchpoint.backends.base import backend

    backend("torch")  # says how to install it, where it is missing
    import time

    from pinchpoint.systems.density.predict import predict as answer

    started: dict[str, float] = {}
    with printing.explain_interrupt("nothing was written"), progress_bar.bar("predict") as tell:

        def progress(stage: str, done: int, total: int) -> None:
            spent = time.perf_counter() - started.setdefault(stage, time.perf_counter())
            tell(stage, done, total, eta_s=spent / done * (total - done) if done else None)

        made = answer(
            structure,
            output=output,
            weights=weights,
            grid=points,
            spacing_a=spacing,
            padding_a=padding,
            budget=budget,
            device=device,
            form=form,
            symmetry=symmetry,
            electrons=electrons,
            chunk=probes,
            seed=seed,
            progress=progress,
        )
    _show(made)


def _show(made: Prediction) -> None:
    from pinchpoint.core.units import show_bytes, show_seconds

    volume = made.volume
    neutral = "" if made.electrons_neutral is None else f", {made.electrons_neutral:,} in the neutral atoms"
    scaled = "" if made.scale == 1 else f"; scaled by {made.scale:.6f} to {volume.electrons:.6g}"
    atoms = f"{len(volume.species):,} atom{'s' if len(volume.species) != 1 else ''}"
    rows = [
        ("written", str(made.path)),
        ("structure", f"{volume.structure.formula}, {atoms} in {volume.structure.volume:.4g} angstrom^3"),
        ("grid", f"{' x '.join(map(str, volume.grid))}, {made.probes:,} probes in chunks of {made.chunk:,}"),
        ("electrons", f"{made.electrons_raw:.6g} by the model{neutral}{scaled}"),
    ]
    if volume.spin is not None:
        rows.append(("moment", f"{volume.moment:.6g}"))
    if made.symmetry is not None:
        rows.append(
            ("symmetry", f"{made.symmetry}: {made.irreducible:,} distinct points, {made.computed:,} computed")
        )
    if made.peak_bytes is not None:
        rows.append(("peak", f"{show_bytes(made.peak_bytes)} on {made.device}"))
    parts = ", ".join(
        f"{name} {show_seconds(spent)}"
        for name, spent in (("atoms", made.atoms_s), ("probes", made.probes_s), ("file", made.file_s))
    )
    rows.append(("time", f"{show_seconds(made.seconds)} on {made.device}: {parts}"))
    printing.show_pairs(rows)
    for note in made.notes:
        printing.say(f"note: {note}")


@app.command("eval")
def evaluate(
    predicted: Path = typer.Argument(..., metavar="DENSITY", help="CHGCAR, cube or npz."),
    reference: Path = typer.Argument(
        ..., metavar="REFERENCE", help="The density it is held against, on the same grid."
    ),
    output: Path = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Folder for slices.png and evaluation.json."
    ),
    at: str = typer.Option(
        None, "--at", metavar="X,Y,Z", help="Where the slices cross, fractional.  [centre of charge]"
    ),
) -> None:
    """Compare two densities: NMAE, integrals, worst point, slices.

    NMAE = sum |a - b| / sum |b| over the grid points, b being the reference. Other grids and other
    cells are refused: nothing is interpolated.
    """
    from pinchpoint.systems.density.evaluate import evaluate as compare
    from pinchpoint.systems.density.evaluate import parse_place

    made = compare(predicted, reference, output, at=None if at is None else parse_place(at))
    printing.show_summary(made)
    if made.files:
        printing.show_pairs([("written", f"{output}: evaluation.json, {', '.join(made.files)}")])
    for note in made.notes:
        printing.say(f"note: {note}")


@app.command("data", cls=command_with_lists("--from", "--test-files"))
def data(
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder of the data set; gone on with if it is one."
    ),
    files: list[Path] = typer.Option(
        None, "--from", metavar="FILE|DIR...", help="Your densities: CHGCAR, .vasp, .cube, .npz."
    ),
    test: float = typer.Option(None, "--test", help="Of --from: fraction of the files to test with.  [0.1]"),
    test_files: list[Path] = typer.Option(
        None, "--test-files", metavar="FILE|DIR...", help="Of --from: those to test with."
    ),
    grid_points: int = typer.Option(
        None, "--grid-points", help="Of --from: the most of a file to test with.  [1000000]"
    ),
    preset: str = typer.Option(
        None, "--preset", help="default: 16 molecules and 3 held out; tiny: 2 and 1.  [default]"
    ),
    molecules: str = typer.Option(None, "--molecules", metavar="A,B", help="Names to train and test with."),
    heldout: str = typer.Option(None, "--heldout", metavar="A,B", help="Names that are only tested."),
    geometries: int = typer.Option(None, "--geometries", help="Of each molecule, to train.  [30]"),
    tests: int = typer.Option(None, "--tests", help="Of each molecule, to test: full grids.  [2]"),
    probes: int = typer.Option(None, "--probes", help="Of each geometry or file to train with.  [20000]"),
    spacing: float = typer.Option(None, "--spacing", help="Of full grids, angstrom.  [0.25]"),
    seed: int = typer.Option(0, "--seed", help="Seed of the geometries, the probes and the split."),
    jobs: int = typer.Option(None, "--jobs", help="Processes at one time; every core without it."),
) -> None:
    """Make densities to learn from, of your files or of molecules.

    --from takes files and folders, which are searched; each file is a sample with points of its own
    grid. Without it valence densities of molecules are computed: PBE with GTH pseudopotentials,
    rattled geometries. Samples that are there and whole are not made again, so a run that was stopped
    is gone on with by the same command.
    """
    import time

    from pinchpoint.core.units import show_bytes, show_seconds
    from pinchpoint.systems.density.data.collect import import_data
    from pinchpoint.systems.density.data.dataset import make_data

    of_files = {"--test": test, "--test-files": test_files or None, "--grid-points": grid_points}
    of_molecules = {
        "--preset": preset,
        "--molecules": molecules,
        "--heldout": heldout,
        "--geometries": geometries,
        "--tests": tests,
        "--spacing": spacing,
    }
    if files:
        _refuse_given(
            of_molecules,
            "is for molecules that are made here",
            "leave it out: --from takes files as they are",
        )
    else:
        _refuse_given(of_files, "is for files of your own", "name them with --from, or leave it out")
    start = time.perf_counter()
    kept = "samples that are whole are kept: the same command goes on"
    with printing.explain_interrupt(kept), progress_bar.bar("data") as tell:
        progress = progress_bar.AddedProgress(tell, "samples")
        if files:
            made = import_data(
                output,
                files,
                test=test,
                test_files=test_files or (),
                probes=probes,
                grid_points=grid_points,
                seed=seed,
                jobs=jobs,
                reading=lambda read, total: tell("files", read, total),
                progress=progress,
                refusing=lambda text: printing.say(f"refused: {text}"),
            )
        else:
            made = make_data(
                output,
                preset=preset or "default",
                molecules=_names(molecules),
                heldout=_names(heldout),
                geometries=geometries,
                tests=tests,
                probes=probes,
                spacing_a=spacing,
                seed=seed,
                jobs=jobs,
                progress=progress,
            )
    counted = ", ".join(f"{len(made.names(split)):,} {split}" for split in ("train", "test", "heldout"))
    left_out = made.faulty_samples()
    # A data set's spacing stays what it is: another needs a folder of its own.
    coarse = not files and any(
        fault.startswith("the integral") for faults in left_out.values() for fault in faults
    )
    finer = "; where an integral is off give a finer --spacing and another -o" if coarse else ""
    printing.show_pairs(
        [
            ("data", str(output)),
            ("samples", f"{counted}; {progress.there:,} were there already"),
            ("not sound", f"{len(left_out):,}, left out of the splits{finer}" if left_out else "none"),
            ("species", ", ".join(made.species) + (", with spin" if made.spin else "")),
            ("size", show_bytes(sum(file.stat().st_size for file in output.glob("*") if file.is_file()))),
            ("time", show_seconds(time.perf_counter() - start)),
        ]
    )
    for note in (
        *(f"{name} is left out: {'; '.join(faults)}" for name, faults in left_out.items()),
        *made.notes,
    ):
        printing.say(f"note: {note}")


def _refuse_given(options: dict[str, Any], why: str, hint: str) -> None:
    """Refuse an option that would be passed over in silence."""
    from pinchpoint.core.errors import BadInput

    for name, value in options.items():
        if value is not None:
            raise BadInput(f"{name} {why}", hint=hint)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


@settings_command(
    app,
    "train",
    training=Settings,
    model="pinchpoint.systems.density.model.config:DensityConfig",
    preset=Settings.preset,
)
def train(
    data: Path = typer.Argument(
        None, metavar="DATA", help="Folder that `density data` made. --resume needs none."
    ),
    output: Path = OUTPUT,
    resume: bool = RESUME,
    budget: str = BUDGET,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Train a density model on a data set, or resume a run.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then continues as if the run had never
    stopped, bit for bit on a CPU. --resume --steps N trains a finished run longer: from there on the
    learning rate follows the cosine of N steps. RUN holds config.json, log.csv, checkpoints (the last
    two and the best) and record.json, and can be given to `predict` as --weights.
    """
    from pinchpoint.backends.base import backend

    backend("torch")
    from pinchpoint.systems.density.train import train as run_training

    errors: list[float] = []
    stages: set[str] = set()
    with progress_bar.bar("train") as tell:

        def progress(report: Report) -> None:
            stages.add(report.stage)
            show_step(tell, report, errors, form=".2%")

        try:
            record = run_training(
                data, output, resume=resume, budget=budget, progress=progress, **overrides.choices()
            )
        except SystemExit:  # SIGTERM; Ctrl-C is reported further up
            if not stages & {"stopped", "train"}:
                printing.say("Stopped before the first step; nothing was written.")
            raise
    printing.show_summary(record)
    for note in record.notes:
        printing.say(f"note: {note}")


@app.command("score")
def score(
    weights: Path = typer.Argument(..., metavar="RUN|FILE", help="Of `density train`, or `packaged`."),
    data: Path = typer.Argument(..., metavar="DATA", help="Folder that `density data` made."),
    split: str = typer.Option("test", "--split", help="test, heldout or train."),
    output: Path = typer.Option(None, "-o", "--output", metavar="FILE.json", help="Keep the record."),
    chunk: int = typer.Option(None, "--chunk", help="Probes at one time."),
    device: str = DEVICE,
) -> None:
    """Measure a model on a data set, superposed atoms beside it.

    NMAE = sum w |predicted - true| / sum w |true|, w being the volume a probe stands for; the mean is
    over the samples.
    """
    from pinchpoint.backends.base import backend

    backend("torch")
    from pinchpoint.core.files import check_output
    from pinchpoint.systems.density.scores import evaluate_set

    if output is not None:
        check_output(output)
    with printing.explain_interrupt("nothing was written"), progress_bar.bar("score") as tell:
        made = evaluate_set(
            weights,
            data,
            split,
            device=device,
            chunk=chunk,  # pyright: ignore[reportArgumentType]
            progress=lambda done, total: tell("samples", done, total),
        )
    printing.show_summary(made)
    if output is not None:
        printing.show_pairs([("written", str(made.save(output)))])
