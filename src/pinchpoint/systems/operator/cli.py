"""Train a geometry-aware neural operator, measure it, and predict the pressure on a mesh.

`data` makes bodies with a known field, `train` learns it, `eval` measures the errors on bodies never
seen, `predict` answers for a mesh of your own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.progress import show_progress
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, OUTPUT, RESUME, settings_command
from pinchpoint.systems.operator.settings import Settings

if TYPE_CHECKING:
    from pinchpoint.systems.operator.records import Evaluation

BODIES = 6  # the fewest that give a 95 % interval of a median

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")
CHECKPOINT: Any = typer.Option("last", "--checkpoint", help="last, or best where bodies were held back.")


@app.command("data")
def data(
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder of the data set; gone on with if it is one."
    ),
    kind: str = typer.Option(
        "flow", "--kind", help="flow: inviscid flow over cars; harmonic: potentials of charges."
    ),
    train: int = typer.Option(64, "--train", help="Bodies to train with."),
    test: int = typer.Option(16, "--test", help="Bodies to test with; the same for every --train."),
    panels: int = typer.Option(2000, "--panels", help="Faces of a body, about."),
    seed: int = typer.Option(0, "--seed", help="Seed of the shapes, which do not depend on --panels."),
    jobs: int = typer.Option(None, "--jobs", help="Processes at one time; every core without it."),
    device: str = typer.Option("cpu", "--device", help="cpu, or cuda for many panels."),
) -> None:
    """Make bodies whose field is known.

    Bodies that are there and whole are not made again, so a run that was stopped is gone on with by
    the same command. A body whose solution is not sound is kept and named, and left out of the splits.
    """
    import time

    from pinchpoint.core.units import show_bytes, show_seconds

    with printing.loading("torch"):
        from pinchpoint.systems.operator.data.dataset import make_dataset

    start = time.perf_counter()
    kept = "the bodies made are kept, and the same command makes the others"
    with printing.explain_interrupt(kept), progress_bar.bar("data") as tell:
        progress = progress_bar.AddedProgress(tell, "bodies")
        made = make_dataset(
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
    left_out = made.left_out()
    size = sum(file.stat().st_size for file in output.glob("*") if file.is_file())
    counts = [len(made.names(split)) for split in ("train", "test")]
    printing.show_pairs(
        [
            ("data", f"{output}, {made.kind}"),
            (
                "bodies",
                f"{counts[0]:,} to train, {counts[1]:,} to test; {progress.there:,} were there already",
            ),
            ("not sound", f"{len(left_out):,}, left out of the splits"),
            ("panels", f"{panels:,} a body, about"),
            ("size", show_bytes(size)),
            ("time", show_seconds(time.perf_counter() - start)),
        ]
    )
    for name, faults in left_out.items():
        printing.say(f"note: {name} is left out: {'; '.join(faults)}")
    beyond = made.beyond()
    if beyond:
        printing.say(
            f"note: {len(beyond):,} more bodies lie in {output}, in neither split now; a larger --train or --test takes them in"
        )
    if not made.names("train"):
        printing.say("note: there are no bodies to train with; --train 64 makes some")


@settings_command(
    app,
    "train",
    training=Settings,
    model="pinchpoint.systems.operator.model.config:OperatorConfig",
    preset=Settings.preset,
)
def train(
    data: Path = typer.Argument(
        None, metavar="DATA", help="Folder that `operator data` made. --resume needs none."
    ),
    output: Path = OUTPUT,
    resume: bool = RESUME,
    budget: str = BUDGET,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Train an operator on a data set, or resume a run.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then continues as if the run had never
    stopped, bit for bit on a CPU. --resume --steps N trains a finished run longer: from there on the
    learning rate follows the cosine of N steps. RUN holds config.json, log.csv, checkpoints (the last
    two and the best) and record.json.
    """
    from pinchpoint.backends.base import backend

    with printing.loading("torch"):
        backend("torch")  # says how to install torch if it is missing
        from pinchpoint.systems.common.budgets import budget_of
        from pinchpoint.systems.operator.train import train as run_training

    if budget is not None:
        budget_of(budget)  # refuse a bad budget before the graphs are built
    with show_progress() as watch:
        record = run_training(
            data, output, resume=resume, budget=budget, progress=watch, **overrides.choices()
        )
    printing.show_summary(record)


@app.command("eval")
def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run."),
    data: Path = typer.Argument(
        ..., metavar="DATA", help="Folder of a data set; its bodies may be finer than in training."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder for the errors and pictures."
    ),
    split: str = typer.Option("test", "--split", help="test or train."),
    checkpoint: str = CHECKPOINT,
    device: str = DEVICE,
    pictures: bool = typer.Option(True, help="Draw the best, the median and the worst body."),
) -> None:
    """Measure the errors on bodies never seen, and draw some.

    Every body of the split is predicted, and beside it stands the error of predicting the training mean.
    relative L1 = sum a |p - t| / sum a |t|, relative L2 = sqrt(sum a (p - t)^2 / sum a t^2), a being
    the areas of the panels. Medians over the bodies with a 95 % interval, or with the whole range where
    they are fewer than 6. DIR gets errors.csv, evaluation.json and pictures of predicted, true and error;
    those of an earlier evaluation are replaced.
    """
    from pinchpoint.backends.base import backend

    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.systems.operator.evaluate import evaluate as measure

    with printing.explain_interrupt("there is no evaluation"), progress_bar.bar("eval") as tell:
        made = measure(
            run,
            data,
            output,
            split=split,
            which=checkpoint,
            device=device,
            pictures=pictures,  # pyright: ignore[reportArgumentType]
            progress=lambda done, total: tell("bodies", done, total),
        )
    printing.show_pairs([*_errors(made), ("written", f"{output}: evaluation.json, {', '.join(made.files)}")])
    if len(made.bodies) < BODIES:
        printing.say(
            f"note: in brackets is the whole range: {len(made.bodies)} bodies are too few for a 95 % interval"
        )


def _errors(made: Evaluation) -> list[tuple[str, str]]:
    """The record's pairs, the last in words: a factor below one is no gain."""
    against = (
        f"{made.factor:.2f} times smaller" if made.factor >= 1 else f"{1 / made.factor:.2f} times LARGER"
    )
    return [*made.summary()[:-1], ("against the mean", f"relative L1 is {against}")]


@app.command("predict")
def predict(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run on flow data."),
    mesh: Path = typer.Argument(
        ..., metavar="MESH", help="A closed surface: .stl, .obj, .ply, .vtp, .vtk or .vtu."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="OUT", help="The mesh with its Cp: .vtp, .vtu or .vtk."
    ),
    yaw: float = typer.Option(0.0, "--yaw", help="Angle of the flow, degrees."),
    clearance: float = typer.Option(
        None, "--clearance", help="Metres from the ground to the lowest point; as the mesh stands."
    ),
    scale: float = typer.Option(
        1.0, "--scale", help="Metres for one unit of the mesh: 0.001 for millimetres."
    ),
    device: str = DEVICE,
    budget: str = typer.Option(
        None, "--budget", help="Take the largest chunk predicted to stay within: 8GiB, or a card."
    ),
    chunk: int = typer.Option(None, "--chunk", help="Edges at one time."),
    checkpoint: str = CHECKPOINT,
) -> None:
    """Predict the pressure on a mesh, for ParaView to open.

    The mesh is a closed surface in metres, x along the car, z up. It is moved so that it is centred
    over the ground as the bodies of training are; OUT holds it where it was.
    """
    from pinchpoint.backends.base import backend
    from pinchpoint.core.units import show_seconds

    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.systems.operator.predict import predict as answer

    with printing.explain_interrupt("nothing was written"), printing.progress("predict") as tell:
        made = answer(
            run,
            mesh,
            output,
            yaw=yaw,
            clearance=clearance,
            scale=scale,
            device=device,
            budget=budget,
            chunk=chunk,
            which=checkpoint,
            progress=tell,  # pyright: ignore[reportArgumentType]
        )
    printing.show_pairs(
        [
            (
                "written",
                f"{made.path}: Cp and Normals on {made.faces:,} faces"
                + (", over an earlier file" if made.replaced else ""),
            ),
            ("Cp", f"{made.cp_low:.3f} to {made.cp_high:.3f}"),
            ("edges", f"{made.edges:,}" + (f" in chunks of {made.chunk:,}" if made.chunk else "")),
            ("device", made.device),
            ("time", show_seconds(made.seconds)),
        ]
    )
    for note in made.notes:
        printing.say(f"note: {note}")
