"""Train a radiance-field GAN on images without poses, measure it, and turn what it makes.

`data` makes pictures of cars, `train` learns a field (and a super-resolution that stays true to it) from images, `eval` scores
a run, `orbit` writes a movie of new things from all around, `explain-memory` measures what memory tricks really do.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.progress import followed
from pinchpoint.systems.common.progress import show as show_step
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, OUTPUT, RESUME, settings_command
from pinchpoint.systems.radiance.settings import Settings

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")
CHECKPOINT: Any = typer.Option(
    "last", "--checkpoint", help="last, or best by the distances measured while training."
)

_WIDE = 150  # characters in which a table of tricks tells what each is


@app.command("data")
def data(
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder of the data set; gone on with if it is one."
    ),
    images: str = typer.Option("2k", "--images", help="Pictures in all."),
    size: int = typer.Option(64, "--size", help="Pixels a side."),
    seed: int = typer.Option(0, "--seed", help="Seed of cars and poses, which do not depend on --size."),
    jobs: int = typer.Option(None, "--jobs", help="Processes at one time; every core without it."),
    device: str = typer.Option("cpu", "--device", help="cpu or cuda."),
) -> None:
    """Make pictures of cars.

    One car a picture on white, of its own hue, size and shape, seen from the upper hemisphere; what
    each was made from is kept. Pictures that are there and whole are not made again, so a run that
    was stopped is gone on with by the same command.
    """
    import time

    from pinchpoint.core.units import parse_size, show_bytes, show_count, show_seconds

    count = parse_size(images, what="--images")
    with printing.loading("the generator"):
        from pinchpoint.systems.radiance.data.dataset import make_dataset

    start = time.perf_counter()
    kept = "the pictures made are kept, and the same command makes the others"
    with printing.explain_interrupt(kept), progress_bar.bar("data") as tell:
        progress = progress_bar.AddedProgress(tell, "pictures")
        made = make_dataset(
            output, images=count, size=size, seed=seed, jobs=jobs, device=device, progress=progress
        )
    held = sum(file.stat().st_size for file in output.glob("*") if file.is_file())
    printing.show_pairs(
        [
            ("data", f"{output}, {show_count(made.images, 'picture')} of {made.size} x {made.size}"),
            ("there before", f"{progress.there:,}"),
            ("size", show_bytes(held)),
            ("time", show_seconds(time.perf_counter() - start)),
            ("next", printing.shell_command("radiance", "train", output, "-o", "RUN")),
        ]
    )


@settings_command(
    app,
    "train",
    training=Settings,
    model="pinchpoint.systems.radiance.model.config:FieldConfig",
    preset=Settings.preset,
)
def train(
    data: Path = typer.Argument(
        None,
        metavar="DATA",
        help="Folder that `radiance data` made, or any folder of images. --resume needs none.",
    ),
    output: Path = OUTPUT,
    resume: bool = RESUME,
    budget: str = BUDGET,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Train on images, or resume a run.

    Images need no poses: poses are sampled from a prior (--set v_low, v_high). Ctrl-C and SIGTERM write
    a checkpoint and stop; --resume then continues as if the run had never stopped, bit for bit on a
    CPU, and with --steps N trains a finished run longer. Processes started by torchrun train together.
    RUN holds config.json, log.csv, checkpoints (the last two and the best), samples/ and record.json.
    """
    import os

    from pinchpoint.backends.base import backend

    with printing.loading("torch"):
        backend("torch")  # says how to install torch if it is missing
        from pinchpoint.systems.radiance.train import train as run_training

    again = printing.shell_command(
        "radiance", "train", "-o", output, "--resume", processes=os.environ.get("WORLD_SIZE", "1")
    )
    with followed(by=partial(_show, again=again)) as watch:
        record = run_training(
            data, output, resume=resume, budget=budget, progress=watch, **overrides.choices()
        )
    if os.environ.get("RANK", "0") == "0":
        printing.show_pairs(
            [
                *record.summary(),
                ("next", printing.shell_command("radiance", "orbit", output, "-o", f"{output}.gif")),
            ]
        )


def _show(tell: progress_bar.Bar, report: Any, seen: list[float], *, again: str) -> None:
    """As every system's steps, with the steps a second. again: the command that goes on with the run."""
    row = report.row
    if report.stage == "skipped":  # an image that could not be read
        printing.say(f"skipped {report.note}")
        return
    if row is None:
        show_step(tell, report, seen)
        if report.stage == "stopped":
            printing.say(f"  {again}")
        return
    left = report.total - report.done
    text = f"loss {report.loss:.3f}  {progress_bar.show_memory(row.memory_bytes)}"
    if report.eta_s and left:
        text = f"{left / report.eta_s:.1f} it/s  {text}"
    if row.validation is not None:
        seen.append(row.validation)
    if seen:
        text += f"  KD {seen[-1]:.0f}"
    tell("steps", report.done, report.total, text=text, eta_s=report.eta_s)


@app.command("eval")
def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run."),
    data: Path = typer.Argument(..., metavar="DATA", help="Folder of images to compare with."),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder for the scores and pictures."
    ),
    images: int = typer.Option(512, "--images", help="Images to make, and to compare with."),
    orbits: int = typer.Option(8, "--orbits", help="Things that are looked at from all around."),
    inception: Path = typer.Option(
        None, "--inception", metavar="FILE", help="Weights of FID's network, for FID and KID."
    ),
    checkpoint: str = CHECKPOINT,
    seed: int = typer.Option(0, "--seed", help="Of the things and poses."),
    device: str = DEVICE,
    pictures: bool = typer.Option(True, help="Write sheets of made and real images and of orbits."),
) -> None:
    """Score a run.

    KD and FD are distances of ImageNet features (EfficientNet-Lite0's) to those of real images; FID
    and KID only with --inception. Beside them: how evenly hues are covered, how much of an image is
    not background, and how well views of one thing agree. DIR gets evaluation.json and PNG sheets.
    """
    from pinchpoint.backends.base import backend

    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.systems.radiance.evaluate import evaluate as measure

    with printing.explain_interrupt("there is no evaluation"), progress_bar.bar("eval") as tell:
        made = measure(
            run,
            data,
            output,
            images=images,
            orbits=orbits,
            which=checkpoint,
            inception=inception,
            seed=seed,
            device=device,  # pyright: ignore[reportArgumentType]
            pictures=pictures,
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    printing.show_pairs(
        [*made.summary(), ("written", f"{output}: {', '.join(('evaluation.json', *made.files))}")]
    )


@app.command("orbit")
def orbit(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run."),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="FILE.gif", help="The movie: .gif, or .mp4 where ffmpeg is."
    ),
    things: int = typer.Option(4, "--things", help="New things side by side."),
    frames: int = typer.Option(48, "--frames", help="Views of one turn."),
    size: int = typer.Option(None, "--size", help="Pixels a side that are rendered.  [as in training]"),
    height: float = typer.Option(
        None, "--height", help="Of the camera: 0 above, 0.5 the horizon.  [3/4 from --v-low to --v-high]"
    ),
    fps: float = typer.Option(16, "--fps", help="Frames a second."),
    checkpoint: str = CHECKPOINT,
    seed: int = typer.Option(0, "--seed", help="Of the things."),
    device: str = DEVICE,
) -> None:
    """Turn new things once around.

    Writes the movie and, beside it, NAME-sheet.png with eight views of each.
    """
    from pinchpoint.backends.base import backend

    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.systems.radiance.orbit import orbit as turn

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("orbit") as tell:
        made = turn(
            run,
            output,
            things=things,
            frames=frames,
            size=size,
            height=height,
            fps=fps,
            which=checkpoint,
            seed=seed,  # pyright: ignore[reportArgumentType]
            device=device,
            progress=lambda done, total: tell("views", done, total),
        )
    printing.show_pairs(made.summary())


@app.command("explain-memory")
def explain_memory(
    output: Path = typer.Option(None, "-o", "--output", metavar="FILE.json", help="Write the record here."),
    figure: Path = typer.Option(None, "--figure", metavar="FILE.png", help="Draw it.  [beside the record]"),
    card: str = typer.Option("h200", "--card", help="The card whose peaks are predicted."),
    repeats: int = typer.Option(5, "--repeats", help="Timed runs of each trick."),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and draws."),
    device: str = DEVICE,
) -> None:
    """Measure what every memory trick does.

    Each trick of the original's guide, and what helps instead, alone and together: its peak (predicted
    at 8 images of 32 x 32 rays with 64 points each; measured too on a GPU), its time, and how far its
    gradients are from the baseline's. Verdicts: helps, no effect, wrong, crashes.
    """
    from pinchpoint.backends.base import backend
    from pinchpoint.core.files import check_output

    drawn = figure if figure is not None or output is None else output.with_suffix(".png")
    for path in (output, drawn):
        if path is not None:
            check_output(path)
    with printing.loading("torch"):
        backend("torch")
        from pinchpoint.systems.radiance.explain.explain import explain_memory as explain

    with printing.explain_interrupt("nothing was written"), progress_bar.bar("explain-memory") as tell:
        made = explain(
            device=device,
            output=output,
            figure=drawn,
            card=card,
            repeats=repeats,
            seed=seed,
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    out = printing.stdout()
    columns, rows = made.table(narrow=out.is_terminal and out.width < _WIDE)
    printing.show_table(
        columns, rows, right=[name for name in columns if name not in ("trick", "verdict", "what it is")]
    )
    written = [str(path) for path in (output, drawn) if path is not None]
    printing.show_pairs([*made.summary(), *([("written", ", ".join(written))] if written else [])])
