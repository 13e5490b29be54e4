"""Train a network over point clouds that works at any density, evaluate it, and thin clouds fast.

`data` makes labelled rooms, `train` learns to classify their points at many densities, `eval` scores a run
against density, `predict` labels the points of a file, and `sample` thins one, cell by cell.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.kit.segments.cell_size import parse_cell
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.common import commands
from pinchpoint.systems.common.processes import is_first_process
from pinchpoint.systems.common.training.progress import show as show_step

if TYPE_CHECKING:
    from pinchpoint.systems.cloud.predict import Prediction
    from pinchpoint.systems.cloud.training.records import Evaluation

SCALE: float = typer.Option(
    None,
    "--scale",
    help="Step of the coordinates of a .las or .laz made from another format, such as 0.001.",
)

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})


@app.command("data")
def data(
    output: Path = commands.DATA_OUTPUT,
    train: int = typer.Option(80, "--train", help="Rooms to train with."),
    test: int = typer.Option(16, "--test", help="Rooms to test with; the same for every --train."),
    points: str = typer.Option("20k", "--points", help="Points per room."),
    gaussians: bool = typer.Option(
        False, "--gaussians", help="Add what a Gaussian splat stores: opacity, scales and rotation."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the rooms, which do not depend on --points."),
    jobs: int = commands.JOBS,
) -> None:
    """Make labelled rooms as a scanner sees them.

    Floor, ceiling, walls, tables, chairs, shelves, lamps and clutter differ by shape more than by
    colour. Complete rooms are not generated again, so the same command resumes a run that was stopped.
    """
    import time

    from pinchpoint.core.units import parse_size

    count = parse_size(points)
    with printing.loading("the generator"):
        from pinchpoint.systems.cloud.data.dataset import make_dataset

    start = time.perf_counter()
    with commands.making_data("rooms") as (_, progress):
        dataset = make_dataset(
            output,
            train=train,
            test=test,
            points=count,
            seed=seed,
            gaussians=gaussians,
            jobs=jobs,
            progress=progress,
        )
    counts = [len(dataset.names(split)) for split in ("train", "test")]
    printing.show_pairs(
        [
            ("data", f"{output}, {len(dataset.classes)} classes: {', '.join(dataset.classes)}"),
            (
                "rooms",
                f"{counts[0]:,} to train, {counts[1]:,} to test; {progress.there:,} already existed",
            ),
            ("points", f"{count:,} per room, with {', '.join(dataset.features)}"),
            *commands.size_and_time(output, start),
            *commands.train_next("cloud", output, when=bool(dataset.names("train"))),
        ]
    )
    if not dataset.names("train"):
        printing.say("note: There are no rooms to train with; --train 12 makes some.")


@commands.train_command(
    app,
    training=Settings,
    model="pinchpoint.systems.cloud.model.config:CloudConfig",
    preset=Settings.preset,
    source_help="Folder that `cloud data` made, or one of your own with train/ and test/. "
    "--resume needs none.",
    several_processes=True,
)
def train(request: commands.TrainRequest) -> None:
    """Train at many densities, or resume a run.

    Each step samples views of some scenes: dense (all points), uniform:LO:HI (a share of every cell),
    log-uniform:LO:HI (one share for the whole scene), one-per-cell. Ctrl-C and SIGTERM write a
    checkpoint and stop; --resume then continues as if the run had never stopped, bit for bit on a CPU,
    and with --steps N trains a finished run longer. Processes started by torchrun train together. RUN
    holds config.json, log.csv (with the seconds of each part of a step, unless the run records its
    steps), checkpoints (the last two and the best) and record.json.
    """
    with commands.loading_torch():
        from pinchpoint.systems.cloud.train import train as run_training
        from pinchpoint.systems.cloud.training.records import MIOU, score_text

    score = MIOU

    def show(tell: progress_bar.Bar, report: Any, errors: list[float]) -> None:
        nonlocal score
        if report.stage == "score":
            score = report.note
        else:
            show_step(tell, report, errors, describe=lambda error: score_text(score, 1 - error))

    record = request.run(run_training, show=show)
    if not is_first_process():
        return
    scores = f"{request.output}-scores"
    evaluation = printing.shell_command("cloud", "eval", request.output, record.data, "-o", scores)
    commands.show_record(record, ("next", evaluation))


@app.command("eval")
def evaluate(
    run: Path = typer.Argument(
        ...,
        metavar="RUN|FILE",
        help="Weights: a run of `cloud train`, a file exported from one, or `packaged`.",
    ),
    data: Path = typer.Argument(
        ..., metavar="DATA", help="Folder of a dataset with the same features and classes."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder for the scores and their plot."
    ),
    split: str = typer.Option("test", "--split", help="Split to score: test or train."),
    checkpoint: str = typer.Option(
        "last", "--checkpoint", help="Checkpoint: last, or best if scenes were held back."
    ),
    densities: str = typer.Option("1,0.5,0.25,0.1,0.05", "--densities", help="Shares of the points to keep."),
    cell: str = typer.Option(
        None,
        "--cell",
        metavar="SIZE|X,Y,Z",
        help="Edge of the cells for one-per-cell; x,y,z for three edges.  [default: as in training]",
    ),
    budget: str = typer.Option(
        None, "--budget", help="Memory to use while points are streamed, such as 8GiB."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the choice of points."),
    device: str = commands.DEVICE,
    plot: bool = typer.Option(True, help="Draw scores.png."),
) -> None:
    """Score a run against density.

    The scenes of the split are thinned uniformly, to one point per cell, and by distance (fewer points
    far from a corner), and classified. mIoU is the mean over classes of the intersection over the union
    of true and predicted points; the last column gives the scores of predicting the most frequent class
    of training everywhere. DIR gets scores.csv, scores.png and evaluation.json, which replace those of an
    earlier evaluation.
    """
    from pinchpoint.core.errors import BadInput

    try:
        shares = [float(text) for text in densities.split(",")]
    except ValueError:
        raise BadInput(
            f"--densities {densities} is not a list of numbers.",
            hint="Give shares separated by commas: 1,0.5,0.1.",
        ) from None
    with commands.loading_torch():
        from pinchpoint.systems.cloud.evaluate import evaluate as measure

    with printing.explain_interrupt("no evaluation was written"), progress_bar.bar("eval") as tell:
        evaluation = measure(
            run,
            data,
            output,
            split=split,  # pyright: ignore[reportArgumentType]
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            device=device,
            densities=shares,
            cell=None if cell is None else parse_cell(cell),  # pyright: ignore[reportUnnecessaryComparison]
            seed=seed,  # pyright: ignore[reportArgumentType]
            budget=budget,
            pictures=plot,
            progress=lambda done, total: tell("thinned scenes", done, total),
        )
    _show_scores(evaluation)
    printing.show_pairs(
        [*evaluation.summary()[:2], ("written", f"{output}: evaluation.json, {', '.join(evaluation.files)}")]
    )


def _show_scores(evaluation: Evaluation) -> None:
    from pinchpoint.systems.cloud.training.records import name_of

    columns = ["thinned", "points left"]
    rows = [[name_of(row), f"{row['kept']:.1%}"] for row in evaluation.rows]
    if "cosine" in evaluation.rows[0]:
        columns.append("cosine")
        cosines = [row["cosine"] for row in evaluation.rows]
        rows = [
            [*texts, "-" if cosine is None else f"{cosine:.3f}"]
            for texts, cosine in zip(rows, cosines, strict=True)
        ]
    if evaluation.majority:
        columns += ["mIoU", "accuracy", f"{evaluation.majority} everywhere"]
        rows = [
            [
                *texts,
                f"{row['miou']:.1%}",
                f"{row['accuracy']:.1%}",
                f"{row['majority_miou']:.1%} {row['majority_accuracy']:>6.1%}",
            ]
            for texts, row in zip(rows, evaluation.rows, strict=True)
        ]
    printing.show_table(columns, rows, right=columns[1:])


@app.command("predict")
def predict(
    run: Path = typer.Argument(
        ...,
        metavar="RUN|FILE",
        help="Weights: a run of `cloud train`, a file exported from one, or `packaged`.",
    ),
    file: Path = typer.Argument(..., metavar="SCAN", help=".las, .laz, .ply, .npz, or a folder of .npy."),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="Labelled copy, in the same format or another."
    ),
    checkpoint: str = typer.Option(
        "last", "--checkpoint", help="Checkpoint: last, or best if scenes were held back."
    ),
    chunk: str = typer.Option("500k", "--chunk", help="Most points that the network sees at a time."),
    scale: float = SCALE,
    budget: str = typer.Option(
        None, "--budget", help="Memory to use while points are streamed, such as 8GiB."
    ),
    device: str = commands.DEVICE,
) -> None:
    """Label the points of a file.

    OUT is a copy with a class for every point (`label`; the classification of a LAS file) and its
    probability (`confidence`). The file needs the columns that the run was trained with, such as
    colours. A file of any size is read in chunks and labelled in tiles that overlap.
    """
    from pinchpoint.core.units import parse_size

    most = parse_size(chunk)
    with commands.loading_torch():
        from pinchpoint.systems.cloud.predict import predict as label_points

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("predict") as tell:
        prediction = label_points(
            run,
            file,
            output,
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            chunk=most,
            scale=scale,
            budget=budget,
            device=device,
            progress=tell,
        )
    _show_prediction(prediction)


def _show_prediction(prediction: Prediction) -> None:
    columns = ("label", "class", "points", "share", "mean confidence")
    rows = [
        (number, row["class"], f"{row['points']:,}", f"{row['share']:.1%}", f"{row['confidence']:.2f}")
        for number, row in enumerate(prediction.rows)
        if row["points"]
    ]
    printing.show_table(columns, rows, right=("label", *columns[2:]))
    printing.show_pairs(prediction.summary())
    for note in prediction.notes:
        printing.say(f"note: {note}")


@app.command("sample")
def sample(
    file: Path = typer.Argument(
        ..., metavar="FILE", help=".ply (splats too), .npz, .las, .laz, or a scene's folder of .npy."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="File for the thinned cloud; all columns are kept."
    ),
    ratio: str = typer.Option(
        None,
        "--ratio",
        metavar="R|LO:HI",
        help="Share of the points to keep in every cell, or a range.  [default: 0.5]",
    ),
    cell: str = typer.Option(
        "0.02",
        "--cell",
        metavar="SIZE|X,Y,Z",
        help="Edge of the cells, in the file's units; x,y,z for three edges.",
    ),
    one_per_cell: bool = typer.Option(
        False, "--one-per-cell", help="Keep one point of every cell instead of a share."
    ),
    method: str = typer.Option(
        "exact", "--method", help="Sampling method: exact, nested, bernoulli or sort."
    ),
    faces: str = typer.Option(
        "refuse",
        "--faces",
        help="What to do with the faces of a PLY mesh, which lose vertices: refuse or drop.",
    ),
    scale: float = SCALE,
    budget: str = typer.Option(
        None,
        "--budget",
        help="Memory to use, such as 2GiB; a larger file is read twice.  [default: half of what is free]",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of the sample."),
    device: str = commands.DEVICE,
) -> None:
    """Thin a point cloud, cell by cell.

    Every cell of a grid keeps a random share of its points, and at least one, so that no place is lost.
    All subsets are equally likely. The same seed gives the same points on every device. The format of
    OUT may differ from that of FILE; a note says what it cannot hold.
    """
    from pinchpoint.backends.base import backend, resolve_device
    from pinchpoint.core.units import show_seconds

    with commands.loading_torch():
        from pinchpoint.systems.cloud.sample_file import sample_file

    with printing.explain_interrupt("nothing was written"), printing.progress("sample") as tell:
        tell(str(file))
        result = sample_file(
            file,
            output,
            ratio=ratio,
            cell=parse_cell(cell),
            method=method,  # pyright: ignore[reportArgumentType]
            one_per_cell=one_per_cell,
            faces=faces,  # pyright: ignore[reportArgumentType]
            scale=scale,
            budget=budget,
            seed=seed,  # pyright: ignore[reportArgumentType]
            device=resolve_device(device, backend("torch")),
        )
    printing.show_pairs(
        [
            (
                "written",
                f"{result.output}: {result.kept:,} of {result.points:,} points, "
                f"{result.kept / result.points:.1%}",
            ),
            ("cells", result.cells_text()),
            (
                "time",
                f"read {show_seconds(result.read_s)}, sample {show_seconds(result.sample_s)}, "
                f"write {show_seconds(result.write_s)}"
                f"{f'; the file was read {result.passes} times' * (result.passes > 1)}",
            ),
        ]
    )
    for note in result.notes:
        printing.say(f"note: {note}")
    if result.asked is not None and result.ratio > 1.1 * result.asked[1]:
        printing.say(
            "note: More points stay than requested, because every cell keeps one: "
            "a larger --cell holds more points."
        )
