"""Train a radiance-field GAN on images without poses, evaluate it, and render orbits.

`data` creates pictures of cars, `train` learns a field (and a super-resolution that is faithful to it) from
images, `eval` scores a run, `orbit`, `render` and `grid` show new objects, `mesh` writes their surface,
`export` the trained generator, `explain-memory` measures the effect of memory tricks.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common import commands
from pinchpoint.systems.common.processes import is_first_process
from pinchpoint.systems.common.training.progress import show as show_step
from pinchpoint.systems.radiance.settings import Settings

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

RUN: Any = typer.Argument(
    ...,
    metavar="RUN|FILE",
    help="Folder of a run, a file that `radiance export` wrote, or `packaged`: cars of the package.",
)
CHECKPOINT: Any = typer.Option(
    "last", "--checkpoint", help="Checkpoint to load: last, or best by the distances measured while training."
)
SIZE: Any = typer.Option(
    None, "--size", help="Width and height of the render in pixels.  [default: as in training]"
)
HEIGHT: Any = typer.Option(
    None, "--height", help="Camera height: 0 above, 0.5 the horizon.  [3/4 from v_low to v_high]"
)
THING: Any = typer.Option(0, "--object", help="Number of the object among those of the seed.")
EXACT: Any = typer.Option(False, "--exact", help="Compute each view; a CPU interpolates many by default.")
SEED: Any = typer.Option(0, "--seed", help="Seed of the objects, as in `orbit`.")
CLASS: Any = typer.Option(
    None, "--class", metavar="NAME", help="Class of the objects, in a run with classes.  [default: any]"
)


def _named_after(run: Path, ending: str) -> Path:
    """A file or folder in the current folder with the name of a run, or of a file of weights."""
    return Path((run.stem if run.suffix == ".pt" else run.resolve().name) + ending)


_WIDE = 150  # width from which a table of tricks includes descriptions


@app.command("data")
def data(
    output: Path = commands.DATA_OUTPUT,
    images: str = typer.Option("2k", "--images", help="Number of pictures."),
    size: int = typer.Option(64, "--size", help="Width and height of a picture in pixels."),
    seed: int = typer.Option(0, "--seed", help="Seed of cars and poses; they do not depend on --size."),
    bodies: bool = typer.Option(
        False, "--bodies", help="Cars of four body types, which are their classes for --set label_weight."
    ),
    jobs: int = commands.JOBS,
    device: str = typer.Option("cpu", "--device", help="Device: cpu or cuda."),
) -> None:
    """Create pictures of cars.

    One car per picture on white, with its own hue, size and shape, seen from the upper hemisphere; the
    factors of each car are stored. Complete pictures are not created again, so the same command resumes an
    interrupted run.
    """
    import time

    from pinchpoint.core.units import parse_size, show_count

    count = parse_size(images, what="--images")
    with commands.loading_torch():
        from pinchpoint.systems.radiance.data.dataset import make_dataset

    start = time.perf_counter()
    with commands.making_data("pictures") as (_, progress):
        dataset = make_dataset(
            output,
            images=count,
            size=size,
            seed=seed,
            jobs=jobs,
            device=device,
            bodies=bodies,
            progress=progress,
        )
    printing.show_pairs(
        [
            ("data", f"{output}, {show_count(dataset.images, 'picture')} of {dataset.size} x {dataset.size}"),
            *([("classes", ", ".join(dataset.classes))] if dataset.classes else []),
            ("already existed", f"{progress.there:,}"),
            *commands.size_and_time(output, start),
            *commands.train_next("radiance", output, when=True),
        ]
    )


@commands.train_command(
    app,
    training=Settings,
    model="pinchpoint.systems.radiance.model.config:FieldConfig",
    preset=Settings.preset,
    source_help="Folder that `radiance data` made, or any folder of images. --resume needs none.",
    several_processes=True,
)
def train(request: commands.TrainRequest) -> None:
    """Train on images, or resume a run.

    Images need no poses: poses are sampled from a prior (--set v_low, v_high). Ctrl-C and SIGTERM write
    a checkpoint and stop; --resume then continues as if the run had never stopped, bit for bit on a
    CPU, and with --steps N trains a finished run longer. Processes started by torchrun train together.
    RUN holds config.json, log.csv, checkpoints (the last two and the best), samples/ and record.json.
    """
    import os

    with commands.loading_torch():
        from pinchpoint.systems.radiance.train import train as run_training

    output = request.output
    again = printing.shell_command(
        "radiance", "train", "-o", output, "--resume", processes=os.environ.get("WORLD_SIZE", "1")
    )
    record = request.run(run_training, show=partial(_show, again=again))
    if not is_first_process():
        return
    commands.show_record(
        record, ("next", printing.shell_command("radiance", "orbit", output, "-o", f"{output}.gif"))
    )


def _show(tell: progress_bar.Bar, report: Any, distances: list[float], *, again: str) -> None:
    """Show steps as in every system, with steps per second. again: the command that resumes the run."""
    row = report.row
    if report.stage == "skipped":  # an image that could not be read
        printing.say(f"skipped {report.note}")
        return
    if row is None:
        show_step(tell, report, distances)
        if report.stage == "stopped":
            printing.say(f"  {again}")
        return
    remaining = report.total - report.done
    text = f"loss {report.loss:.3f}  {progress_bar.show_memory(row.memory_bytes)}"
    if report.eta_s and remaining:
        text = f"{remaining / report.eta_s:.1f} it/s  {text}"
    if row.validation is not None:
        distances.append(row.validation)
    if distances:
        text += f"  KD {distances[-1]:.0f}"
    tell("steps", report.done, report.total, text=text, eta_s=report.eta_s)


@app.command("eval")
def evaluate(
    run: Path = RUN,
    data: Path = typer.Argument(..., metavar="DATA", help="Folder of images to compare with."),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder for the scores and pictures."
    ),
    images: int = typer.Option(512, "--images", help="Number of images to generate and to compare with."),
    orbits: int = typer.Option(8, "--orbits", help="Number of objects rendered from all around."),
    inception: Path = typer.Option(
        None, "--inception", metavar="FILE", help="Weights of the FID network, for FID and KID."
    ),
    checkpoint: str = CHECKPOINT,
    seed: int = typer.Option(0, "--seed", help="Seed of objects and poses."),
    device: str = commands.DEVICE,
    pictures: bool = typer.Option(True, help="Write sheets of generated and real images and of orbits."),
) -> None:
    """Score a run.

    KD and FD are distances between ImageNet features (EfficientNet-Lite0) of generated and real images; FID
    and KID need --inception. Also printed: how evenly hues are covered, how much of an image is not
    background, and how well views of one object agree. DIR receives evaluation.json and PNG sheets.
    """
    with commands.loading_torch():
        from pinchpoint.systems.radiance.evaluate import evaluate as measure

    with printing.explain_interrupt("no evaluation was written"), progress_bar.bar("eval") as tell:
        record = measure(
            run,
            data,
            output,
            images=images,
            orbits=orbits,
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            inception=inception,
            seed=seed,
            device=device,
            pictures=pictures,
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    printing.show_pairs(
        [*record.summary(), ("written", f"{output}: {', '.join(('evaluation.json', *record.files))}")]
    )


@app.command("orbit")
def orbit(
    run: Path = RUN,
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        metavar="FILE.gif",
        help='Movie to write: .gif, or .mp4 with ffmpeg or `pip install "pinchpoint[mp4]"`.'
        "  [default: the run's name .gif]",
    ),
    things: int = typer.Option(4, "--things", help="Number of new objects, side by side."),
    frames: int = typer.Option(
        None, "--frames", help="Number of views per turn.  [default: 48, or 16 on a CPU]"
    ),
    size: int = SIZE,
    height: float = HEIGHT,
    fps: float = typer.Option(None, "--fps", help="Frames per second.  [default: a turn takes 3 s]"),
    checkpoint: str = CHECKPOINT,
    seed: int = typer.Option(0, "--seed", help="Seed of the objects."),
    only: str = CLASS,
    exact: bool = EXACT,
    device: str = commands.DEVICE,
) -> None:
    """Render orbits around new objects.

    Writes the movie and, beside it, NAME-sheet.png with eight views of each object.
    """
    with commands.loading_torch():
        from pinchpoint.systems.radiance.orbit import orbit as turn

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("orbit") as tell:
        record = turn(
            run,
            output or _named_after(run, ".gif"),
            things=things,
            frames=frames,
            size=size,
            height=height,
            fps=fps,
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            seed=seed,
            only=only,
            exact=exact,
            device=device,
            progress=lambda done, total: tell("views", done, total),
        )
    printing.show_pairs(record.summary())


@app.command("render")
def render(
    run: Path = RUN,
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        metavar="DIR|FILE.png",
        help="Folder of the views, or the file of one.  [default: the run's name -views]",
    ),
    seed: int = SEED,
    only: str = CLASS,
    thing: int = THING,
    count: int = typer.Option(
        None, "--views", help="Number of views around the object.  [default: 8, or 1 for a file]"
    ),
    depth: bool = typer.Option(False, "--depth", help="Also write depth maps (PNG of 16 bits)."),
    turn: float = typer.Option(0.0, "--turn", help="Direction of the first view, in turns from 0 to 1."),
    height: float = HEIGHT,
    size: int = SIZE,
    exact: bool = EXACT,
    checkpoint: str = CHECKPOINT,
    device: str = commands.DEVICE,
) -> None:
    """Render single images and depth maps of a new object.

    DIR receives the images and views.json with the camera of each view.
    """
    with commands.loading_torch():
        from pinchpoint.systems.radiance.export.pictures import render_views

    with printing.explain_interrupt("views may be missing"), progress_bar.bar("render") as tell:
        record = render_views(
            run,
            output or _named_after(run, "-views"),
            seed=seed,
            only=only,
            thing=thing,
            count=count,
            turn=turn,
            height=height,
            size=size,
            depth=depth,
            exact=exact,
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            device=device,
            progress=lambda done, total: tell("views", done, total),
        )
    printing.show_pairs(record.summary())


@app.command("grid")
def grid(
    run: Path = RUN,
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        metavar="FILE.png",
        help="Picture to write.  [default: the run's name -grid.png]",
    ),
    shapes: int = typer.Option(4, "--shapes", help="Number of rows, each with a shape of its own."),
    appearances: int = typer.Option(6, "--appearances", help="Number of columns, each with its own colours."),
    interpolate: int = typer.Option(
        None, "--interpolate", help="Instead, show this many steps between two objects."
    ),
    seed: int = SEED,
    only: str = CLASS,
    turn: float = typer.Option(0.1, "--turn", help="Direction of the view, in turns from 0 to 1."),
    height: float = HEIGHT,
    size: int = SIZE,
    checkpoint: str = CHECKPOINT,
    device: str = commands.DEVICE,
) -> None:
    """Show shapes and appearances in a grid, or interpolate.

    With --interpolate, the first row goes from the first object of the seed to the second, the second row
    changes the shape alone, and the third the appearance.
    """
    with commands.loading_torch():
        from pinchpoint.systems.radiance.export.pictures import draw_grid

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("grid") as tell:
        record = draw_grid(
            run,
            output or _named_after(run, "-grid.png"),
            shapes=shapes,
            appearances=appearances,
            interpolate=interpolate,
            seed=seed,
            only=only,
            turn=turn,
            height=height,
            size=size,
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            device=device,
            progress=lambda done, total: tell("rows", done, total),
        )
    printing.show_pairs(record.summary())


@app.command("mesh")
def mesh(
    run: Path = RUN,
    output: Path = typer.Option(
        None,
        "-o",
        "--output",
        metavar="FILE.glb",
        help="Mesh to write: .glb, .ply or .obj.  [default: the run's name .glb]",
    ),
    seed: int = SEED,
    only: str = CLASS,
    thing: int = THING,
    resolution: int = typer.Option(96, "--resolution", help="Number of grid points per side."),
    level: float = typer.Option(
        0.5, "--level", help="Opacity at which the surface lies, of a layer between two points of a ray."
    ),
    checkpoint: str = CHECKPOINT,
    device: str = commands.DEVICE,
) -> None:
    """Write the surface of a new object as a mesh.

    The mesh is closed and has colours. Cavities that cannot be seen from outside are filled, and specks are
    left out.
    """
    with commands.loading_torch():
        from pinchpoint.systems.radiance.export.mesh import export_mesh

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("mesh") as tell:
        record = export_mesh(
            run,
            output or _named_after(run, ".glb"),
            seed=seed,
            only=only,
            thing=thing,
            resolution=resolution,
            level=level,
            which=checkpoint,  # pyright: ignore[reportArgumentType]
            device=device,
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    printing.show_pairs(record.summary())


@app.command("export")
def export(
    run: Path = commands.RUN,
    output: Path = typer.Option(..., "-o", "--output", metavar="FILE.pt", help="File of the weights."),
    half: bool = typer.Option(True, help="Store matrices in fp16."),
    checkpoint: str = CHECKPOINT,
) -> None:
    """Write the generator of a run to one file.

    The file holds what rendering needs, without discriminators and optimizers, and a JSON file beside it says
    where it comes from. Other commands accept it in place of a run.
    """
    with commands.loading_torch():
        from pinchpoint.systems.radiance.training.weights import export as write

    record = write(run, output, which=checkpoint, half=half)  # pyright: ignore[reportArgumentType]
    printing.show_pairs(record.summary())


@app.command("explain-memory")
def explain_memory(
    output: Path = typer.Option(None, "-o", "--output", metavar="FILE.json", help="File of the record."),
    figure: Path = typer.Option(
        None, "--figure", metavar="FILE.png", help="File of the figure.  [beside the record]"
    ),
    card: str = typer.Option("h200", "--card", help="GPU whose peaks are predicted."),
    batch: int = typer.Option(None, "--batch", help="Images per step, for the peaks.  [default: 8]"),
    patch: int = typer.Option(
        None, "--patch", help="Width and height of a patch in rays: 32, 64 or 128.  [default: 32]"
    ),
    samples: int = typer.Option(None, "--samples", help="Points per ray.  [default: 64]"),
    only: str = typer.Option(None, "--only", help="Tricks to try, such as amp,checkpoint.  [default: all]"),
    repeats: int = typer.Option(5, "--repeats", help="Timed iterations of each trick."),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and draws."),
    device: str = commands.DEVICE,
) -> None:
    """Measure what every memory trick does.

    Tries each trick of the GRAF memory guide, and what helps instead, alone and together: its peak (predicted
    at 8 images of 32 x 32 rays with 64 points each; on a GPU also measured), its time, and how far its
    gradients are from the baseline. Verdicts: helps, no effect, changes training, wrong, crashes.
    """
    from pinchpoint.core.files import check_output
    from pinchpoint.core.units import show_seconds

    figure_file = figure if figure is not None or output is None else output.with_suffix(".png")
    for path in filter(None, (output, figure_file)):
        check_output(path)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # waiting threads sleep; spinning ones take the cores
    with commands.loading_torch():
        from pinchpoint.systems.radiance.explain.explain import explain_memory as explain

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("explain-memory") as tell:
        report = explain(
            device=device,
            output=output,
            figure=figure_file,
            card=card,
            only=None if only is None else [name.strip() for name in only.split(",")],
            batch=batch,
            patch=patch,
            samples=samples,
            repeats=repeats,
            seed=seed,
            announce=lambda s: printing.say(f"this takes about {show_seconds(s)} if all cores are free"),
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    out = printing.stdout()
    columns, rows = report.table(narrow=out.is_terminal and out.width < _WIDE)
    printing.show_table(
        columns, rows, right=[name for name in columns if name not in ("trick", "verdict", "what it is")]
    )
    written = [str(path) for path in (output, figure_file) if path is not None]
    printing.show_pairs([*report.summary(), *([("written", ", ".join(written))] if written else [])])
