"""Train a geometry-aware neural operator, measure it, and predict the pressure on a mesh.

`data` creates bodies with a known field, `train` learns it, `eval` measures the errors on unseen bodies,
and `predict` computes the pressure on your own mesh.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common import commands
from pinchpoint.systems.operator.settings import Settings

if TYPE_CHECKING:
    from pinchpoint.systems.operator.training.records import Evaluation

MIN_BODIES = 6  # the fewest that give a 95 % interval of a median

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

CHECKPOINT: Any = typer.Option(
    "last", "--checkpoint", help="Checkpoint: last, or best if bodies were held back."
)


@app.command("data")
def data(
    output: Path = commands.DATA_OUTPUT,
    kind: str = typer.Option(
        "flow",
        "--kind",
        help="Kind of data: flow (inviscid flow over cars) or harmonic (potentials of charges).",
    ),
    train: int = typer.Option(64, "--train", help="Number of training bodies."),
    test: int = typer.Option(
        16, "--test", help="Number of test bodies, which are the same for every --train."
    ),
    panels: int = typer.Option(2000, "--panels", help="Approximate number of faces of a body."),
    seed: int = typer.Option(0, "--seed", help="Seed of the shapes, which do not depend on --panels."),
    jobs: int = commands.JOBS,
    device: str = typer.Option("cpu", "--device", help="Device: cpu, or cuda for many panels."),
) -> None:
    """Create bodies with a known field.

    Complete bodies in the folder are kept, so the same command resumes a run that was stopped. A body whose
    solution is not accurate enough is kept and listed, but excluded from the splits.
    """
    import time

    with commands.loading_torch():
        from pinchpoint.systems.operator.data.dataset import make_dataset

    start = time.perf_counter()
    with commands.making_data("bodies") as (_, progress):
        dataset = make_dataset(
            output,
            kind=cast("Any", kind),
            train=train,
            test=test,
            panels=panels,
            seed=seed,
            jobs=jobs,
            device=device,
            progress=progress,
        )
    left_out = dataset.left_out()
    counts = [len(dataset.names(split)) for split in ("train", "test")]
    printing.show_pairs(
        [
            ("data", f"{output}, {dataset.kind}"),
            (
                "bodies",
                f"{counts[0]:,} for training, {counts[1]:,} for testing; {progress.there:,} already existed",
            ),
            ("inaccurate", f"{len(left_out):,}, excluded from the splits"),
            ("panels", f"about {panels:,} per body"),
            *commands.size_and_time(output, start),
            *commands.train_next("operator", output, when=bool(dataset.names("train"))),
        ]
    )
    for name, faults in left_out.items():
        printing.say(f"note: {name} is excluded: {'; '.join(faults)}")
    beyond = dataset.beyond()
    if beyond:
        printing.say(
            f"note: {output} contains {len(beyond):,} more bodies, which are in neither split; "
            "a larger --train or --test includes them"
        )
    if not dataset.names("train"):
        printing.say("note: there are no training bodies; --train 64 creates some")


@commands.train_command(
    app,
    training=Settings,
    model="pinchpoint.systems.operator.model.config:OperatorConfig",
    preset=Settings.preset,
    source_help="Folder that `operator data` made. --resume needs none.",
)
def train(request: commands.TrainRequest) -> None:
    """Train an operator on a dataset, or resume a run.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then continues as if the run had never
    stopped, bit for bit on a CPU. --resume --steps N trains a finished run longer: from there on the
    learning rate follows the cosine of N steps. RUN holds config.json, log.csv, checkpoints (the last
    two and the best) and record.json.
    """
    with commands.loading_torch():
        from pinchpoint.systems.operator.train import train as run_training

    record = request.run(run_training)
    errors = f"{request.output}-errors"
    evaluation = printing.shell_command("operator", "eval", request.output, record.data, "-o", errors)
    commands.show_record(record, ("next", evaluation))


@app.command("eval")
def evaluate(
    run: Path = commands.RUN,
    data: Path = typer.Argument(
        ..., metavar="DATA", help="Folder of a dataset; its bodies may be finer than in training."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder for the errors and pictures."
    ),
    split: str = typer.Option("test", "--split", help="Split to evaluate: test or train."),
    checkpoint: str = CHECKPOINT,
    device: str = commands.DEVICE,
    pictures: bool = typer.Option(True, help="Draw the best, the median and the worst body."),
) -> None:
    """Measure the errors on unseen bodies, and draw some of them.

    Every body of the split is predicted, and compared with the error of predicting the training mean.
    relative L1 = sum a |p - t| / sum a |t|, relative L2 = sqrt(sum a (p - t)^2 / sum a t^2), where a is
    the area of a panel. Prints medians over the bodies with a 95 % interval, or with the whole range for
    fewer than 6 bodies. Writes errors.csv, evaluation.json and pictures of the predicted field, the true
    field and the error to DIR; files of an earlier evaluation are replaced.
    """
    with commands.loading_torch():
        from pinchpoint.systems.operator.evaluate import evaluate as measure

    with printing.explain_interrupt("no evaluation was written"), progress_bar.bar("eval") as tell:
        evaluation = measure(
            run,
            data,
            output,
            split=cast("Any", split),
            which=cast("Any", checkpoint),
            device=device,
            pictures=pictures,
            progress=lambda done, total: tell("bodies", done, total),
        )
    files = ", ".join(evaluation.files)
    printing.show_pairs([*_errors(evaluation), ("written", f"{output}: evaluation.json, {files}")])
    if len(evaluation.bodies) < MIN_BODIES:
        bodies = "1 body is" if len(evaluation.bodies) == 1 else f"{len(evaluation.bodies)} bodies are"
        printing.say(f"note: the brackets show the whole range: {bodies} too few for a 95 % interval")


def _errors(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The record's pairs, with the last in words: a factor below one is not a gain."""
    factor = evaluation.factor
    comparison = f"{factor:.2f} times smaller" if factor >= 1 else f"{1 / factor:.2f} times larger"
    return [*evaluation.summary()[:-1], ("against the mean", f"relative L1 is {comparison}")]


@app.command("predict")
def predict(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run on flow data."),
    mesh: Path = typer.Argument(
        ..., metavar="MESH", help="A closed surface: .stl, .obj, .ply, .vtp, .vtk or .vtu."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="File for the mesh with its Cp: .vtp, .vtu or .vtk."
    ),
    yaw: float = typer.Option(0.0, "--yaw", help="Angle of the flow in degrees."),
    clearance: float = typer.Option(
        None,
        "--clearance",
        help="Metres from the ground to the lowest point; the mesh's own height by default.",
    ),
    scale: float = typer.Option(1.0, "--scale", help="Metres per unit of the mesh: 0.001 for millimetres."),
    device: str = commands.DEVICE,
    budget: str = typer.Option(
        None, "--budget", help="Use the largest chunk predicted to stay within this memory: 8GiB, or a card."
    ),
    chunk: int = typer.Option(None, "--chunk", help="Edges processed together."),
    checkpoint: str = CHECKPOINT,
) -> None:
    """Predict the pressure on a mesh, for ParaView.

    The mesh is a closed surface in metres, with x along the car and z up. It is moved so that it is centred
    over the ground like the training bodies; OUT contains it at its original place.
    """
    from pinchpoint.core.units import show_seconds

    with commands.loading_torch():
        from pinchpoint.systems.operator.predict import predict as run_prediction

    with printing.explain_interrupt("nothing was written"), printing.progress("predict") as tell:
        prediction = run_prediction(
            run,
            mesh,
            output,
            yaw=yaw,
            clearance=clearance,
            scale=scale,
            device=device,
            budget=budget,
            chunk=chunk,
            which=cast("Any", checkpoint),
            progress=tell,
        )
    printing.show_pairs(
        [
            (
                "written",
                f"{prediction.path}: Cp and Normals on {prediction.faces:,} faces"
                + (", replacing an earlier file" if prediction.replaced else ""),
            ),
            ("Cp", f"{prediction.cp_low:.3f} to {prediction.cp_high:.3f}"),
            (
                "edges",
                f"{prediction.edges:,}" + (f" in chunks of {prediction.chunk:,}" if prediction.chunk else ""),
            ),
            ("device", prediction.device),
            ("time", show_seconds(prediction.seconds)),
        ]
    )
    for note in prediction.notes:
        printing.say(f"note: {note}")
