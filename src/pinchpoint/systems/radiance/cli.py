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
from pinchpoint.systems.common.progress import chosen, followed
from pinchpoint.systems.common.progress import show as show_step

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


@app.command("train")
def train(
    data: Path = typer.Argument(
        None, metavar="DATA", help="Folder that `radiance data` made, or any folder of images."
    ),
    data_option: Path = typer.Option(None, "--data", metavar="DIR", help="The same as DATA."),
    output: Path = typer.Option(..., "-o", "--output", metavar="RUN", help="Folder of the run."),
    steps: int = typer.Option(None, "--steps", help="Steps in all.  [20000]"),
    preset: str = typer.Option(None, "--preset", help="tuned, graf (as published), small or tiny.  [tuned]"),
    size: int = typer.Option(
        None, "--size", help="Pixels a side that are rendered; images are scaled.  [those of the images]"
    ),
    superres: int = typer.Option(
        None, "--superres", help="Enlarge the render by 2 or 4 to the images' size.  [1, none]"
    ),
    patch: int = typer.Option(None, "--patch", help="Rays a side of a patch: 32, 64 or 128.  [32]"),
    samples: int = typer.Option(None, "--samples", help="Points of a ray.  [32]"),
    batch: int = typer.Option(None, "--batch", help="Images a step, in each process.  [16]"),
    micro: int = typer.Option(
        None, "--micro", help="Images at one time; their gradients are summed.  [the batch]"
    ),
    precision: str = typer.Option(None, "--precision", help="fp32, tf32, bf16 or fp16.  [fp32]"),
    graphs: bool = typer.Option(
        None, "--graphs/--no-graphs", help="On a GPU replay each turn as one graph.  [yes]"
    ),
    form: str = typer.Option(None, "--form", help="Of the field: folded, or eager as published.  [folded]"),
    memory: str = typer.Option(
        None, "--memory", help="none, checkpoint or deferred.  [none, or by --budget]"
    ),
    chunk: str = typer.Option(None, "--chunk", help="Rays at one time, such as 4k.  [all, or by --budget]"),
    budget: str = typer.Option(
        None, "--budget", help="Bytes a step may take: 8GiB, or a card. Chooses memory and chunk."
    ),
    lr: float = typer.Option(None, "--lr", help="Learning rate of the generator.  [0.0005]"),
    lr_d: float = typer.Option(None, "--lr-d", help="Of the discriminator.  [0.0002]"),
    optimizer: str = typer.Option(None, "--optimizer", help="adam or rmsprop, of both.  [adam]"),
    r1: float = typer.Option(None, "--r1", help="Weight of the penalty on the discriminator's slope.  [1]"),
    r1_every: int = typer.Option(None, "--r1-every", help="Steps from one such penalty to the next.  [1]"),
    r1_reduction: str = typer.Option(
        None, "--r1-reduction", help="image, or graf: over the rays of a patch.  [image]"
    ),
    critic_norm: str = typer.Option(
        None, "--critic-norm", help="Of the discriminator: instance, layer or none.  [instance]"
    ),
    critic_bias: bool = typer.Option(
        None, "--critic-bias/--no-critic-bias", help="In its first layer, or as published.  [yes]"
    ),
    sr_weight: float = typer.Option(
        None, "--sr-weight", help="Of the enlarged patches' discriminator, to the generator.  [0.1]"
    ),
    sr_pairs: float = typer.Option(
        None, "--sr-pairs", help="Weight of enlarging real patches right, with --superres.  [10]"
    ),
    clip: float = typer.Option(None, "--clip", help="Largest norm of a player's gradient.  [10]"),
    ema: float = typer.Option(None, "--ema", help="Decay of averaged weights; 0: none.  [0.999]"),
    noise: float = typer.Option(None, "--noise", help="Of the density, at first.  [1]"),
    least: float = typer.Option(
        None, "--least", help="Smallest share of an image a patch spans.  [patch / size]"
    ),
    whole: float = typer.Option(
        None, "--whole", help="Share of patches of whole pixels, side by side.  [0.5]"
    ),
    edge: float = typer.Option(
        None, "--edge", help="Share that touch the upper or lower edge, as many left or right.  [0.25]"
    ),
    fov: float = typer.Option(None, "--fov", help="Degrees an image spans.  [30]"),
    radius: float = typer.Option(None, "--radius", help="Of the camera from the middle.  [4]"),
    near: float = typer.Option(None, "--near", help="Distance from which something may lie.  [3]"),
    far: float = typer.Option(None, "--far", help="Distance up to which.  [5]"),
    bound: float = typer.Option(
        None, "--bound", help="Radius around the middle outside which there is nothing; 0: none.  [0]"
    ),
    haze: float = typer.Option(
        None, "--haze", help="Cover of a ray below which whole images show what lies behind.  [0]"
    ),
    endless: bool = typer.Option(
        None, "--endless/--ends", help="The last interval of a ray: endless as published.  [ends]"
    ),
    v_low: float = typer.Option(None, "--v-low", help="Highest poses: 0 is straight above.  [0]"),
    v_high: float = typer.Option(None, "--v-high", help="Lowest poses: 0.5 is the horizon.  [0.45]"),
    white: bool = typer.Option(None, "--white/--black", help="Behind what is rendered.  [white]"),
    settings: list[str] = typer.Option(
        None, "--set", metavar="KEY=VALUE", help="A setting of the field: width=128, z_app=64"
    ),
    seed: int = typer.Option(None, "--seed", help="Seed of weights and draws.  [0]"),
    device: str = typer.Option(None, "--device", help="auto, cpu or cuda.  [auto]"),
    checkpoint_every: int = typer.Option(None, "--checkpoint-every", help="Steps.  [a tenth]"),
    sample_every: int = typer.Option(
        None, "--sample-every", help="Steps between two sheets of pictures.  [500]"
    ),
    eval_every: int = typer.Option(
        None, "--eval-every", help="Steps between two distances to real images.  [5000]"
    ),
    eval_images: int = typer.Option(
        None, "--eval-images", help="Images such a distance is of; 0: none is taken.  [256]"
    ),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in RUN, with its own settings."),
) -> None:
    """Train on images, or go on with --resume.

    Poses are not needed: they are drawn from a prior (--v-low, --v-high). Ctrl-C and SIGTERM write a
    checkpoint and stop; --resume then goes on as if never stopped, to the bit on a CPU, and with
    --steps N trains a run that has ended longer. Under torchrun its processes train together. RUN
    holds config.json, log.csv, checkpoints (the last two and the best), samples/, record.json.
    """
    import os

    from pinchpoint.backends.base import backend
    from pinchpoint.core.errors import BadInput
    from pinchpoint.core.units import parse_size

    given = [folder for folder in (data, data_option) if folder is not None]
    if len(given) != 1:
        hint = "name one: radiance train DATA -o RUN"
        if resume and not given:
            hint = f"give the folder of images again: {printing.shell_command('radiance', 'train', 'DATA', '-o', output, '--resume')}"
        raise BadInput(f"{len(given)} folders of images", hint=hint)
    rays = None if chunk is None else parse_size(chunk, what="--chunk")
    with printing.loading("torch"):
        backend("torch")  # says how to install it, where it is missing
        from pinchpoint.systems.common.settings import overrides
        from pinchpoint.systems.radiance.model.config import FieldConfig
        from pinchpoint.systems.radiance.train import train as run

    asked = {
        "steps": steps,
        "preset": preset,
        "size": size,
        "superres": superres,
        "patch": patch,
        "samples": samples,
        "batch": batch,
        "micro": micro,
        "graphs": graphs,
        "precision": precision,
        "form": form,
        "memory": memory,
        "chunk": rays,
        "lr": lr,
        "lr_d": lr_d,
        "optimizer": optimizer,
        "r1": r1,
        "r1_every": r1_every,
        "r1_reduction": r1_reduction,
        "critic_norm": critic_norm,
        "critic_bias": critic_bias,
        "sr_weight": sr_weight,
        "sr_pairs": sr_pairs,
        "clip": clip,
        "ema": ema,
        "noise": noise,
        "least": least,
        "whole": whole,
        "edge": edge,
        "fov": fov,
        "radius": radius,
        "near": near,
        "far": far,
        "bound": bound,
        "haze": haze,
        "endless": endless,
        "v_low": v_low,
        "v_high": v_high,
        "white": white,
        "seed": seed,
        "device": device,
        "checkpoint_every": checkpoint_every,
        "sample_every": sample_every,
        "eval_every": eval_every,
        "eval_images": eval_images,
        "model": overrides(settings, FieldConfig) if settings else None,
    }
    again = printing.shell_command(
        "radiance", "train", given[0], "-o", output, "--resume", processes=os.environ.get("WORLD_SIZE", "1")
    )
    with followed(by=partial(_show, again=again)) as watch:
        made = run(given[0], output, resume=resume, budget=budget, progress=watch, **chosen(asked))
    if os.environ.get("RANK", "0") == "0":
        printing.show_pairs(
            [
                *made.summary(),
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
