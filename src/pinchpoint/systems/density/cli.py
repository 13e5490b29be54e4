"""Predict the electron density of a structure, compare densities, and train your own model.

`predict` writes a CHGCAR, cube or npz file for a POSCAR, cif or xyz file; `eval` compares two such files.
`data` makes densities to learn from, `train` learns them, and `score` evaluates a model on them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.console.list_options import command_with_lists
from pinchpoint.systems.common import commands
from pinchpoint.systems.common.training.progress import show as show_step
from pinchpoint.systems.density.settings import Settings

if TYPE_CHECKING:
    from pinchpoint.systems.density.predict import Prediction

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


@app.command("predict")
def predict(
    structure: Path = typer.Argument(
        ..., metavar="STRUCTURE", help="POSCAR, cif, xyz, JSON, or a density file for its structure."
    ),
    output: Path = typer.Option(
        ...,
        "-o",
        "--output",
        metavar="OUT",
        help="CHGCAR, or a file name that ends in .vasp, .cube or .npz; .gz, .bz2 or .xz compress.",
    ),
    weights: Path = typer.Option(
        None,
        "--weights",
        metavar="RUN|FILE",
        help="Weights of `density train`, or the name of packaged ones.  [default: the packaged ones for the "
        "species]",
    ),
    grid: str = typer.Option(None, "--grid", metavar="NX,NY,NZ", help="Points along each lattice vector."),
    spacing: float = typer.Option(
        None,
        "--spacing",
        help="Instead of --grid: largest distance of two points in angstrom.  [default: 0.1]",
    ),
    padding: float = typer.Option(
        None, "--padding", help="Space around a molecule without a cell, in angstrom.  [default: 4]"
    ),
    electrons: float = typer.Option(
        None,
        "--electrons",
        help="Scale the density to this number of electrons; the unscaled count is always printed.",
    ),
    symmetry: bool = typer.Option(
        False, "--symmetry", help="Compute only the points that the space group does not make equal."
    ),
    budget: str = typer.Option(
        None, "--budget", help="Memory to use on the device: 6GiB, or the name of a card."
    ),
    chunk: str = typer.Option(None, "--chunk", help="Probes processed together, such as 64k."),
    form: str = typer.Option(
        "scalar", "--form", help="Form of the model: scalar, or the slow references full and original."
    ),
    correction: bool = typer.Option(
        True,
        "--correction/--no-correction",
        help="Apply the local network of weights that have one (`density train --first`).",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the weights that only the slow references have."),
    device: str = commands.DEVICE,
) -> None:
    """Predict the electron density of a structure on a grid.

    A structure without a lattice is put into a box. Grids from --spacing have sizes that suit Fourier
    transforms. The packaged weights are chosen by the species, and species that none of them covers are
    refused. `molecules` is for neutral closed-shell molecules of H, C, N and O near equilibrium, `oxides` for
    insulating oxides of Mg, Al, Si, Ca, Ti, Zn, Zr and Hf; a note says where a structure differs.
    """
    from pinchpoint.core.units import parse_size
    from pinchpoint.systems.density.grid.grids import parse_grid

    points = None if grid is None else parse_grid(grid)
    probes = None if chunk is None else parse_size(chunk)
    import time

    with commands.loading_torch():
        from pinchpoint.systems.density.predict import predict as predict_density

    start_times: dict[str, float] = {}
    with printing.explain_interrupt("nothing was written"), progress_bar.bar("predict") as tell:

        def progress(stage: str, done: int, total: int) -> None:
            seconds = time.perf_counter() - start_times.setdefault(stage, time.perf_counter())
            tell(stage, done, total, eta_s=seconds / done * (total - done) if done else None)

        prediction = predict_density(
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
            correction=correction,
            seed=seed,
            progress=progress,
        )
    _show(prediction)


def _show(prediction: Prediction) -> None:
    from pinchpoint.core.units import show_bytes, show_seconds

    volume = prediction.volume
    neutral = ""
    if prediction.electrons_neutral is not None:
        from pinchpoint.systems.density.data.molecules import VALENCE

        each = ", ".join(f"{symbol} {VALENCE[symbol]}" for symbol in dict.fromkeys(volume.species))
        neutral = f", {prediction.electrons_neutral:,} in the neutral atoms ({each})"
    scaled = "" if prediction.scale == 1 else f"; scaled by {prediction.scale:.6f} to {volume.electrons:.6g}"
    atoms = f"{len(volume.species):,} atom{'s' if len(volume.species) != 1 else ''}"
    rows = [
        ("written", str(prediction.path)),
        ("structure", f"{volume.structure.formula}, {atoms} in {volume.structure.volume:.4g} angstrom^3"),
        (
            "grid",
            f"{' x '.join(map(str, volume.grid))}, {prediction.probes:,} probes "
            f"in chunks of {prediction.chunk:,}",
        ),
        ("electrons", f"{prediction.electrons_raw:.6g} by the model{neutral}{scaled}"),
    ]
    if prediction.estimate is not None:
        estimated, usual = prediction.estimate.nmae, prediction.estimate.usual
        about = "as usual for these weights" if estimated <= usual else f"estimated; usually {usual:.1%}"
        rows.append(("error", f"about {estimated:.1%}, {about}"))
    if prediction.corrected:
        rows.append(("networks", "two: the density of the first is corrected by a local one"))
    if volume.spin is not None:
        rows.append(("moment", f"{volume.moment:.6g}"))
    if prediction.symmetry is not None:
        rows.append(
            (
                "symmetry",
                f"{prediction.symmetry}: {prediction.irreducible:,} distinct points, "
                f"{prediction.computed:,} computed",
            )
        )
    if prediction.peak_bytes is not None:
        rows.append(("peak", f"{show_bytes(prediction.peak_bytes)} on {prediction.device}"))
    parts = ", ".join(
        f"{name} {show_seconds(seconds)}"
        for name, seconds in (
            ("atoms", prediction.atoms_s),
            ("probes", prediction.probes_s),
            ("file", prediction.file_s),
        )
    )
    rows.append(("time", f"{show_seconds(prediction.seconds)} on {prediction.device}: {parts}"))
    printing.show_pairs(rows)
    for note in prediction.notes:
        printing.say(f"note: {note}")


@app.command("eval")
def evaluate(
    predicted: Path = typer.Argument(..., metavar="DENSITY", help="CHGCAR, cube, npz or JSON."),
    reference: Path = typer.Argument(
        ..., metavar="REFERENCE", help="The density to compare it with, on the same grid."
    ),
    output: Path = typer.Option(
        None, "-o", "--output", metavar="DIR", help="Folder for slices.png and evaluation.json."
    ),
    at: str = typer.Option(
        None,
        "--at",
        metavar="X,Y,Z",
        help="Fractional point where the slices cross.  [default: centre of charge]",
    ),
) -> None:
    """Compare two densities: NMAE, integrals, worst point, slices.

    NMAE = sum |a - b| / sum |b| over the grid points, where b is the reference. Different grids or cells are
    refused: nothing is interpolated.
    """
    from pinchpoint.systems.density.evaluate import evaluate as compare
    from pinchpoint.systems.density.evaluate import parse_place

    evaluation = compare(predicted, reference, output, at=None if at is None else parse_place(at))
    files = f"{output}: evaluation.json, {', '.join(evaluation.files)}"
    commands.show_record(evaluation, *([("written", files)] if evaluation.files else []))


@app.command("data", cls=command_with_lists("--from", "--test-files"))
def data(
    output: Path = commands.DATA_OUTPUT,
    files: list[Path] = typer.Option(
        None,
        "--from",
        metavar="FILE|DIR...",
        help="Your densities: CHGCAR, .cube, .npz, .h5 or JSON files, or folders.",
    ),
    test: float = typer.Option(
        None, "--test", help="With --from: fraction of the files to test with.  [default: 0.1]"
    ),
    test_files: list[Path] = typer.Option(
        None, "--test-files", metavar="FILE|DIR...", help="With --from: the files to test with."
    ),
    grid_points: int = typer.Option(
        None,
        "--grid-points",
        help="With --from: largest number of points of a test file.  [default: 1000000]",
    ),
    skip_bad: bool = typer.Option(
        False, "--skip-bad", help="With --from: leave out files that cannot be used, with a note for each."
    ),
    preset: str = typer.Option(
        None,
        "--preset",
        help="default: 16 molecules and 3 held out; wide: 224 and 25; wider: 1,926 and 25; tiny: 2 and 1.  "
        "[default: default]",
    ),
    molecules: str = typer.Option(
        None, "--molecules", metavar="A,B", help="Molecules to train and test with."
    ),
    heldout: str = typer.Option(None, "--heldout", metavar="A,B", help="Molecules to test with only."),
    geometries: int = typer.Option(
        None, "--geometries", help="Geometries per molecule to train with.  [default: 30]"
    ),
    tests: int = typer.Option(
        None, "--tests", help="Geometries per molecule to test with, on full grids.  [default: 2]"
    ),
    probes: int = typer.Option(
        None, "--probes", help="Probes per geometry or file to train with.  [default: 20000]"
    ),
    spacing: float = typer.Option(
        None, "--spacing", help="Spacing of full grids in angstrom.  [default: 0.25]"
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the geometries, the probes and the split."),
    oxides: bool = typer.Option(
        False, "--oxides", help="Compute oxides of Mg, Al, Si, Ca, Ti, Zn, Zr and Hf instead of molecules."
    ),
    potentials: Path = typer.Option(
        None,
        "--potentials",
        metavar="FILE",
        help="With --oxides: GTH tables in CP2K's format.  [default: PySCF's]",
    ),
    device: str = typer.Option(None, "--device", help="With --oxides: cpu or cuda.  [default: cpu]"),
    jobs: int = commands.JOBS,
) -> None:
    """Make densities to learn from: your files, molecules or oxides.

    --from takes files and folders, which are searched; each file becomes a sample with points of its own
    grid. Without --from, valence densities of molecules are computed: PBE with GTH pseudopotentials, at
    rattled geometries. --oxides computes crystals with the same functional and pseudopotentials, but with
    plane waves: polymorphs that are strained and rattled, some with a vacancy or a surface. Complete samples
    are not computed again, so the same command resumes a run that was stopped.
    """
    import time

    from pinchpoint.systems.density.data.collect import import_data
    from pinchpoint.systems.density.data.dataset import make_data

    of_files = {
        "--test": test,
        "--test-files": test_files or None,
        "--grid-points": grid_points,
        "--skip-bad": skip_bad or None,
    }
    of_molecules = {
        "--preset": preset,
        "--molecules": molecules,
        "--heldout": heldout,
        "--geometries": geometries,
        "--tests": tests,
        "--spacing": spacing,
    }
    if files:
        _refuse_options(
            of_molecules,
            "is only for molecules that are computed here, not for files of --from.",
            "Leave it out, or leave out --from.",
        )
    else:
        _refuse_options(
            of_files if not oxides else {key: of_files[key] for key in ("--test", "--test-files")},
            "is only for files of your own.",
            "Name them with --from, or leave it out.",
        )
    if files and oxides:
        _refuse_options({"--oxides": True}, "cannot be combined with --from.", "Leave one of them out.")
    of_oxides = {"--potentials": potentials, "--device": device}
    if oxides and not files:
        _refuse_options(
            {key: value for key, value in of_molecules.items() if key != "--preset"},
            "is only for molecules.",
            "Leave it out, or leave out --oxides.",
        )
    else:
        _refuse_options(
            of_oxides,
            "is only for oxides that are computed here.",
            "Leave it out" + (", or leave out --from." if files else ", or add --oxides."),
        )
    start = time.perf_counter()
    with commands.making_data("samples") as (tell, progress):
        if files:
            dataset = import_data(
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
                skip_bad=skip_bad,
            )
        elif oxides:
            from pinchpoint.systems.density.data.crystals.oxides import make_oxides

            dataset = make_oxides(
                output,
                preset=preset or "default",
                probes=probes,
                grid_points=grid_points,
                seed=seed,
                device=device or "cpu",
                potentials=potentials,
                jobs=jobs,
                progress=progress,
            )
        else:
            dataset = make_data(
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
    counts = ", ".join(f"{len(dataset.names(split)):,} {split}" for split in ("train", "test", "heldout"))
    left_out = dataset.faulty_samples()
    # The spacing of a dataset cannot change: another spacing needs a folder of its own.
    coarse = not (files or oxides) and any(
        fault.startswith("the integral") for faults in left_out.values() for fault in faults
    )
    finer = "; if an integral is off, give a finer --spacing and another -o" if coarse else ""
    printing.show_pairs(
        [
            ("data", str(output)),
            ("samples", f"{counts}; {progress.there:,} already existed"),
            ("not sound", f"{len(left_out):,}, left out of the splits{finer}" if left_out else "none"),
            ("species", ", ".join(dataset.species) + (", with spin" if dataset.spin else "")),
            *commands.size_and_time(output, start),
            *commands.train_next("density", output, when=bool(dataset.names("train"))),
        ]
    )
    for note in (
        *(f"{name} is left out: {'; '.join(faults)}" for name, faults in left_out.items()),
        *dataset.notes,
    ):
        printing.say(f"note: {note}")


def _refuse_options(options: dict[str, Any], why: str, hint: str) -> None:
    """Refuse an option that would otherwise be ignored."""
    from pinchpoint.core.errors import BadInput

    for name, value in options.items():
        if value is not None:
            raise BadInput(f"{name} {why}", hint=hint)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


@commands.train_command(
    app,
    training=Settings,
    model="pinchpoint.systems.density.model.config:DensityConfig",
    preset=Settings.preset,
    source_help="Folder that `density data` made. --resume needs none.",
)
def train(request: commands.TrainRequest) -> None:
    """Train a density model on a dataset, or resume a run.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then continues as if the run had never
    stopped, bit for bit on a CPU. --resume --steps N trains a finished run longer: from there on the
    learning rate follows the cosine of N steps. RUN holds config.json, log.csv, checkpoints (the last
    two and the best) and record.json, and can be given to `predict` as --weights. --first RUN keeps that
    run's network as it is and trains a second, local one that corrects its density.
    """
    with commands.loading_torch():
        from pinchpoint.systems.density.train import train as run_training

    record = request.run(run_training, show=partial(show_step, form=".2%"))
    scores = printing.shell_command("density", "score", request.output, record.data)
    commands.show_record(record, ("next", scores))


@app.command("score")
def score(
    weights: Path = typer.Argument(
        ..., metavar="RUN|FILE", help="Weights of `density train`, or `packaged`."
    ),
    data: Path = typer.Argument(..., metavar="DATA", help="Folder that `density data` made."),
    split: str = typer.Option("test", "--split", help="Split to score: test, heldout or train."),
    output: Path = typer.Option(None, "-o", "--output", metavar="FILE.json", help="Write the record here."),
    chunk: int = typer.Option(None, "--chunk", help="Probes processed together."),
    device: str = commands.DEVICE,
) -> None:
    """Score a model on a dataset, beside superposed atoms.

    NMAE = sum w |predicted - true| / sum w |true|, where w is the volume that a probe stands for; the mean is
    over the samples.
    """
    from pinchpoint.core.files import check_output

    with commands.loading_torch():
        from pinchpoint.systems.density.scores import evaluate_set

    if output is not None:
        check_output(output)
    with printing.explain_interrupt("nothing was written"), progress_bar.bar("score") as tell:
        scores = evaluate_set(
            weights,
            data,
            split,  # pyright: ignore[reportArgumentType]
            device=device,
            chunk=chunk,  # pyright: ignore[reportArgumentType]
            progress=lambda done, total: tell("samples", done, total),
        )
    printing.show_summary(scores)
    if output is not None:
        printing.show_pairs([("written", str(scores.save(output)))])
