"""Train a geometry-aware neural operator, measure it, and predict fields on a mesh.

`data` creates bodies with a known field, or reads your own cases with --from; `train` learns the fields,
`eval` measures the errors on unseen bodies, and `predict` computes the fields on another mesh.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import parse_size
from pinchpoint.systems.common import commands
from pinchpoint.systems.operator.settings import Settings

if TYPE_CHECKING:
    from pinchpoint.systems.operator.predict import Prediction
    from pinchpoint.systems.operator.training.records import Evaluation

MIN_BODIES = 6  # the fewest that give a 95 % interval of a median

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

CHECKPOINT: Any = typer.Option(
    "last", "--checkpoint", help="Checkpoint: last, or best if bodies were held back."
)


@app.command("data")
def data(
    output: Path = commands.DATA_OUTPUT,
    source: Path = typer.Option(
        None,
        "--from",
        metavar="FOLDER",
        help="Read your own cases: one mesh with fields per file or subfolder (.vtk, .vtp, .vtu, .vts, "
        ".vtr, .vti; .stl, .obj or .ply with a table of fields; .npz, .csv, .h5).",
    ),
    files: str = typer.Option(
        None, "--files", metavar="PATTERN", help="With --from: the files that are cases, such as '*/out.vtu'."
    ),
    inputs: str = typer.Option(
        None, "--inputs", metavar="NAMES", help="With --from: fields that are known, separated by commas."
    ),
    targets: str = typer.Option(
        None,
        "--targets",
        metavar="NAMES",
        help="With --from: fields to learn, separated by commas.  [default: all others]",
    ),
    parameters: str = typer.Option(
        None,
        "--parameters",
        metavar="NAMES",
        help="With --from: numbers of a whole case, separated by commas.  [default: those of the files named "
        "parameters]",
    ),
    kind: str = typer.Option(
        None,
        "--kind",
        help="Kind of data: flow (inviscid flow over cars) or harmonic (potentials of charges).  "
        "[default: flow]",
    ),
    train: int = typer.Option(None, "--train", help="Number of training bodies.  [default: 64]"),
    test: int = typer.Option(
        None,
        "--test",
        help="Number of test bodies, which are the same for every --train.  [default: 16; a fifth with "
        "--from]",
    ),
    panels: str = typer.Option(
        None, "--panels", help="Approximate number of faces of a body, such as 5k.  [default: 2k]"
    ),
    seed: int = typer.Option(
        0, "--seed", help="Seed of the shapes, which do not depend on --panels; with --from, of the split."
    ),
    jobs: int = commands.JOBS,
    device: str = typer.Option(
        None, "--device", help="Device: cpu, or cuda for many panels.  [default: cpu]"
    ),
) -> None:
    """Create bodies with a known field, or read your own cases.

    Complete bodies in the folder are kept, so the same command resumes a run that was stopped. A body whose
    solution is not accurate enough is kept and listed, but excluded from the splits. All cases of your own
    are checked before the first is written; a case whose files have changed is converted again.
    """
    import time

    with_source = {"--files": files, "--inputs": inputs, "--targets": targets, "--parameters": parameters}
    without = {"--kind": kind, "--train": train, "--panels": panels, "--jobs": jobs, "--device": device}
    for name, value in (with_source if source is None else without).items():
        if value is not None:
            how = "without" if source is None else "with"
            raise BadInput(
                f"{name} cannot be used {how} --from.", hint=f"Leave {name} out, or change --from."
            )
    if source is not None:
        _convert(source, output, files, inputs, targets, parameters, test, seed)
        return
    kind, device = kind or "flow", device or "cpu"
    train, test = (default if value is None else value for value, default in ((train, 64), (test, 16)))
    faces = parse_size(panels or "2k", what="--panels")
    with commands.loading_torch():
        from pinchpoint.systems.operator.data.dataset import make_dataset

    start = time.perf_counter()
    with commands.making_data("bodies") as (_, progress):
        dataset = make_dataset(
            output,
            kind=cast("Any", kind),
            train=train,
            test=test,
            panels=faces,
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
            ("panels", f"about {faces:,} per body"),
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


def _convert(
    source: Path,
    output: Path,
    files: str | None,
    inputs: str | None,
    targets: str | None,
    parameters: str | None,
    test: int | None,
    seed: int,
) -> None:
    import time

    with commands.loading_torch():
        from pinchpoint.systems.operator.data.own.collection import Choices, make_own_dataset
        from pinchpoint.systems.operator.data.own.summary import summary_of

    start = time.perf_counter()
    choices = Choices(
        _names(inputs, "--inputs") or (),
        _names(targets, "--targets"),
        () if parameters == "" else _names(parameters, "--parameters"),
    )
    with commands.making_data("cases") as (tell, progress):
        dataset, notes = make_own_dataset(
            source,
            output,
            choices=choices,
            files=files,
            test=test,
            seed=seed,
            progress=progress,
            reading=lambda done, total: tell("reading", done, total),
        )
    printing.show_pairs(
        [
            ("data", f"{output}, own data from {source}"),
            *summary_of(dataset),
            *commands.size_and_time(output, start),
            *commands.train_next("operator", output, when=bool(dataset.names("train"))),
        ]
    )
    for note in notes:
        printing.say(f"note: {note}")
    if dataset.beyond():
        printing.say(f"note: {output} contains {len(dataset.beyond()):,} more cases, which {source} lacks")


def _names(text: str | None, flag: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if "" in names or len(set(names)) != len(names):
        raise BadInput(f"{flag} {text!r} has an empty or a repeated name.", hint=f"Give {flag} p,U.")
    return names


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
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run on flow data or your own data."),
    mesh: Path = typer.Argument(
        ...,
        metavar="MESH",
        help="A closed surface (.stl, .obj, .ply, .vtp, .vtk or .vtu), or a file like those of your data.",
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="File for the mesh with its fields: .vtp, .vtu or .vtk."
    ),
    yaw: float = typer.Option(None, "--yaw", help="Cars: angle of the flow in degrees.  [default: 0]"),
    clearance: float = typer.Option(
        None,
        "--clearance",
        help="Cars: metres from the ground to the lowest point; the mesh's own height by default.",
    ),
    parameter: list[str] = typer.Option(
        None,
        "--parameter",
        metavar="NAME=VALUE",
        help="Own data: a parameter of the case; by default from the file, or parameters.json beside it.",
    ),
    scale: float = typer.Option(
        1.0, "--scale", help="Metres (units of training) per unit of the mesh: 0.001 for millimetres."
    ),
    fit: bool = typer.Option(
        False, "--fit", help="Scale and move a mesh outside the box of training into it; a note says how."
    ),
    device: str = commands.DEVICE,
    budget: str = typer.Option(
        None, "--budget", help="Use the largest chunk predicted to stay within this memory: 8GiB, or a card."
    ),
    chunk: int = typer.Option(None, "--chunk", help="Edges processed together."),
    checkpoint: str = CHECKPOINT,
) -> None:
    """Predict the fields of a run on a mesh, for ParaView.

    For a run on cars, the mesh is a closed surface in metres, with x along the car and z up. It is moved so
    that it is centred over the ground like the training bodies, and Cp is predicted. For a run on your own
    data, the file is like those of training, without the targets, which are predicted under their own names.
    OUT contains the mesh at its original place.
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
            fit=fit,
            parameters=_values(parameter),
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
                f"{prediction.path}: {_fields(prediction)} on {prediction.count:,} {prediction.places}"
                + (", replacing an earlier file" if prediction.replaced else ""),
            ),
            *((name, f"{low:.4g} to {high:.4g}") for name, (low, high) in prediction.ranges.items()),
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


def _fields(prediction: Prediction) -> str:
    names = [*prediction.ranges, *(["Normals"] if prediction.places == "faces" else [])]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _values(items: list[str] | None) -> dict[str, float]:
    """Numbers by name, from NAME=VALUE."""
    values: dict[str, float] = {}
    for item in items or []:
        name, _, text = item.partition("=")
        try:
            values[name.strip()] = float(text)
        except ValueError as error:
            raise BadInput(
                f"--parameter {item!r} is not NAME=VALUE with a number.", hint="Give it as U=1.5."
            ) from error
    return values
