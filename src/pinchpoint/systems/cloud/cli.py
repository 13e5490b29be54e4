"""Train a network over point clouds that holds at any density, measure it, and thin clouds fast.

`data` makes labelled rooms, `train` learns to class their points at many densities, `eval` scores a run against density,
`sample` thins a file, keeping some points of every cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.progress import show as show_step
from pinchpoint.systems.common.progress import show_progress
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, OUTPUT, RESUME, settings_command

if TYPE_CHECKING:
    from pinchpoint.systems.cloud.records import Evaluation

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")


@app.command("data")
def data(
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder of the data set; gone on with if it is one."
    ),
    train: int = typer.Option(80, "--train", help="Rooms to train with."),
    test: int = typer.Option(16, "--test", help="Rooms to test with; the same for every --train."),
    points: str = typer.Option("20k", "--points", help="Of a room."),
    gaussians: bool = typer.Option(
        False, "--gaussians", help="With what a Gaussian splat stores: opacity, scales, rotation."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the rooms, which do not depend on --points."),
    jobs: int = typer.Option(None, "--jobs", help="Processes at one time; every core without it."),
) -> None:
    """Make labelled rooms as a scanner sees them.

    Floor, ceiling, walls, tables, chairs, shelves, lamps and clutter, told apart by shape more than
    by colour. Rooms that are there and whole are not made again, so a run that was stopped is gone
    on with by the same command.
    """
    import time

    from pinchpoint.core.units import parse_size, show_bytes, show_seconds

    count = parse_size(points)
    with printing.loading("the generator"):
        from pinchpoint.systems.cloud.data.dataset import make_dataset

    start = time.perf_counter()
    kept = "the rooms made are kept, and the same command makes the others"
    with printing.explain_interrupt(kept), progress_bar.bar("data") as tell:
        progress = progress_bar.AddedProgress(tell, "rooms")
        made = make_dataset(
            output,
            train=train,
            test=test,
            points=count,
            seed=seed,
            gaussians=gaussians,
            jobs=jobs,
            progress=progress,
        )
    size = sum(file.stat().st_size for file in output.glob("*") if file.is_file())
    counts = [len(made.names(split)) for split in ("train", "test")]
    printing.show_pairs(
        [
            ("data", f"{output}, {len(made.classes)} classes: {', '.join(made.classes)}"),
            (
                "rooms",
                f"{counts[0]:,} to train, {counts[1]:,} to test; {progress.there:,} were there already",
            ),
            ("points", f"{count:,} a room, with {', '.join(made.features)}"),
            ("size", show_bytes(size)),
            ("time", show_seconds(time.perf_counter() - start)),
        ]
    )
    if not made.names("train"):
        printing.say("note: there are no rooms to train with; --train 12 makes some")


@settings_command(
    app,
    "train",
    training=Settings,
    model="pinchpoint.systems.cloud.model.config:CloudConfig",
    preset=Settings.preset,
)
def train(
    data: Path = typer.Argument(
        None,
        metavar="DATA",
        help="Folder that `cloud data` made, or one of your own with train/ and test/. --resume needs none.",
    ),
    output: Path = OUTPUT,
    resume: bool = RESUME,
    budget: str = BUDGET,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Train at many densities, or resume a run.

    Each step samples views of some scenes: dense (all points), uniform:LO:HI (a share of every cell),
    log-uniform:LO:HI (one share for the whole scene), one-per-cell. Ctrl-C and SIGTERM write a
    checkpoint and stop; --resume then continues as if the run had never stopped, bit for bit on a CPU,
    and with --steps N trains a finished run longer. Processes started by torchrun train together. RUN
    holds config.json, log.csv (with the seconds of each part of a step), checkpoints (the last two
    and the best) and record.json.
    """
    import os

    from pinchpoint.backends.base import backend

    with printing.loading("torch"):
        backend("torch")  # says how to install torch if it is missing
        from pinchpoint.systems.cloud.train import train as run_training
        from pinchpoint.systems.common.budgets import budget_of

    if budget is not None:
        budget_of(budget)
    with show_progress(by=_show_step) as watch:
        record = run_training(
            data, output, resume=resume, budget=budget, progress=watch, **overrides.choices()
        )
    if os.environ.get("RANK", "0") == "0":
        printing.show_pairs(
            [
                *record.summary(),
                (
                    "next",
                    printing.shell_command("cloud", "eval", output, record.data, "-o", f"{output}-scores"),
                ),
            ]
        )


def _show_step(tell: progress_bar.Bar, report: Any, seen: list[float]) -> None:
    show_step(tell, report, seen, held=lambda error: f"mIoU {1 - error:.1%}")


@app.command("eval")
def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run."),
    data: Path = typer.Argument(
        ..., metavar="DATA", help="Folder of a data set with the same features and classes."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder for the scores and their plot."
    ),
    split: str = typer.Option("test", "--split", help="test or train."),
    checkpoint: str = typer.Option("last", "--checkpoint", help="last, or best where scenes were held back."),
    densities: str = typer.Option(
        "1,0.5,0.25,0.1,0.05", "--densities", help="Shares of the points that are left."
    ),
    cell: float = typer.Option(None, "--cell", help="Edge of the cells of one-per-cell.  [as in training]"),
    budget: str = typer.Option(None, "--budget", help="Bytes it may take while points stream: 8GiB."),
    seed: int = typer.Option(0, "--seed", help="Of the points that are left."),
    device: str = DEVICE,
    plot: bool = typer.Option(True, help="Draw scores.png."),
) -> None:
    """Score a run against density.

    The scenes of the split are thinned uniformly, to one point a cell, and by distance (fewer points
    far from a corner), and classed. mIoU is the mean over classes of right / (of the class or said
    to be); in brackets is what the most frequent class of training would score if said everywhere.
    DIR gets scores.csv, scores.png and evaluation.json; those of an earlier evaluation are replaced.
    """
    from pinchpoint.backends.base import backend
    from pinchpoint.core.errors import BadInput

    try:
        shares = [float(text) for text in densities.split(",")]
    except ValueError:
        raise BadInput(
            f"--densities {densities}", hint="give shares with commas between: 1,0.5,0.1"
        ) from None
    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.systems.cloud.evaluate import evaluate as measure

    with printing.explain_interrupt("there is no evaluation"), progress_bar.bar("eval") as tell:
        made = measure(
            run,
            data,
            output,
            split=split,
            which=checkpoint,
            device=device,
            densities=shares,
            cell=cell,
            seed=seed,  # pyright: ignore[reportArgumentType]
            budget=budget,
            pictures=plot,
            progress=lambda done, total: tell("thinned scenes", done, total),
        )
    _show_scores(made)
    printing.show_pairs(
        [*made.summary()[:2], ("written", f"{output}: evaluation.json, {', '.join(made.files)}")]
    )


def _show_scores(made: Evaluation) -> None:
    from pinchpoint.systems.cloud.records import name_of

    columns = ("thinned", "points left", "mIoU", "accuracy", f"{made.majority} everywhere")
    rows = [
        (
            name_of(row),
            f"{row['kept']:.1%}",
            f"{row['miou']:.1%}",
            f"{row['accuracy']:.1%}",
            f"{row['majority_miou']:.1%} {row['majority_accuracy']:>6.1%}",
        )
        for row in made.rows
    ]
    printing.show_table(columns, rows, right=columns[1:])


@app.command("sample")
def sample(
    file: Path = typer.Argument(
        ..., metavar="FILE", help=".ply (splats too), .npz, .las, .laz, or a scene's folder of .npy."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="The thinned cloud, all columns kept."
    ),
    ratio: str = typer.Option(
        "0.5", "--ratio", metavar="R|LO:HI", help="Share of every cell that stays, or a range of such."
    ),
    cell: float = typer.Option(0.02, "--cell", help="Edge of the cells, in the file's units."),
    one_per_cell: bool = typer.Option(
        False, "--one-per-cell", help="One point of every cell instead of a share."
    ),
    method: str = typer.Option("exact", "--method", help="exact, nested, bernoulli or sort."),
    faces: str = typer.Option(
        "refuse", "--faces", help="Of a PLY mesh, whose faces lose vertices: refuse or drop."
    ),
    seed: int = typer.Option(0, "--seed", help="Of the draw."),
    device: str = DEVICE,
) -> None:
    """Thin a point cloud, cell by cell.

    Of every cell of a grid a random share of its points stays, each subset as likely as another, and
    at least one point, so that no place is lost. The same seed gives the same points on every device.
    """
    from pinchpoint.backends.base import backend
    from pinchpoint.core.units import show_seconds

    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.backends.base import resolve_device
        from pinchpoint.systems.cloud.sample_file import sample_file

    with printing.explain_interrupt("nothing was written"), printing.progress("sample") as tell:
        tell(str(file))
        made = sample_file(
            file,
            output,
            ratio=ratio,
            cell=cell,
            method=method,
            one_per_cell=one_per_cell,
            faces=faces,
            seed=seed,  # pyright: ignore[reportArgumentType]
            device=resolve_device(device, backend("torch")),
        )
    printing.show_pairs(
        [
            (
                "written",
                f"{made.output}: {made.kept:,} of {made.points:,} points, {made.kept / made.points:.1%}",
            ),
            ("cells", f"{made.cells:,} of {made.cell:g}, {made.points / made.cells:.1f} points each"),
            (
                "time",
                f"read {show_seconds(made.read_s)}, draw {show_seconds(made.sample_s)}, write {show_seconds(made.write_s)}",
            ),
        ]
    )
    if made.asked is not None and made.ratio > 1.1 * made.asked[1]:
        printing.say(
            "note: more stays than was asked for, as every cell keeps a point: a larger --cell holds more of them"
        )
