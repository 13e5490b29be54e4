"""Cars in eight minutes: data, pace, timed training, scores with a ladder of the same size, and pictures.

    python benchmarks/radiance/eight_minutes.py WORK -o benchmarks/results/radiance_eight_minutes_h200.json
    python benchmarks/radiance/eight_minutes.py WORK --until pace -o eight.json   # resume without --until
    python benchmarks/radiance/eight_minutes.py WORK --device cpu --preset tiny --seconds 20 --images 50 \\
        --scored 8 -o small.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`; the distances need its extra `radiance`. A
short run measures the steps per second, which determine the length of the run, because learning rates and
annealing depend on it. In any case the run stops with a checkpoint at the time limit. A later call with the
same WORK resumes: data and pace are kept, training continues, and the seconds of all its parts are added up.
The checkpoint nearest to the training images is scored, or the last one if no distances were measured. It is
compared with cars of another seed, which it never saw, and with a ladder of as many images of that size.
--set changes the recipe below and any other setting of a run; --field changes the field.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ladder import ladder

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, make_folder, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.common.overrides import parse_overrides
from pinchpoint.systems.common.training.training_loop import Report
from pinchpoint.systems.radiance.data.dataset import make_dataset
from pinchpoint.systems.radiance.evaluate import evaluate
from pinchpoint.systems.radiance.metrics.features import open_extractor
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.orbit import orbit
from pinchpoint.systems.radiance.settings import PRESETS, Settings
from pinchpoint.systems.radiance.train import Log, Training, train

# Added to the preset. The cars lie inside the unit sphere, on white.
RECIPE: dict[str, Any] = {
    "precision": "bf16",
    "superres": 2,
    "bound": 1.0,
    "haze": 0.05,
    "samples": 24,
    "sample_every": 1000,
    "eval_every": 4000,
}
STAGES = ("data", "pace", "train", "score")
PACED = 40  # steps of the short run before timing starts: compilation and tuning are done by then
SPARE = 0.085  # fraction of the seconds reserved for sheets, distances and checkpoints
RUNG, NAME = "no wheels", "KD-efflite0"
EIGHT = 480.0  # seconds


def pace(data: Path, folder: Path, choices: dict[str, Any], *, steps: int) -> float:
    """Return the steps per second of a short run, which are stored in its folder."""
    file = folder / "pace.json"
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))["steps_per_s"]
    times: list[tuple[int, float]] = []

    def watch(report: Report) -> None:
        if report.row is not None:
            times.append((report.row.step, report.row.seconds))

    shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted short run
    quiet = {"eval_images": 0, "sample_every": 2 * (PACED + steps), "checkpoint_every": 2 * (PACED + steps)}
    train(data, folder, progress=watch, **{**choices, **quiet, "steps": PACED + steps})
    first = next(entry for entry in times if entry[0] >= PACED)
    rate = (times[-1][0] - first[0]) / (times[-1][1] - first[1])
    write_text(file, json.dumps({"steps_per_s": rate}) + "\n")
    return rate


def limit_seconds(seconds: float, tell: Callable[[Report], None]) -> Callable[[Report], None]:
    """Return a progress callback that stops the run with a checkpoint, as SIGTERM does, after `seconds`."""

    def watch(report: Report) -> None:
        tell(report)
        if report.row is not None and report.row.seconds >= seconds and report.done < report.total:
            signal.raise_signal(signal.SIGTERM)

    return watch


def train_run(data: Path, run: Path, choices: dict[str, Any], *, steps: int, seconds: float) -> Training:
    """Start or resume the run, up to its last step or the time limit."""
    last_print = [time.perf_counter()]

    def tell(report: Report) -> None:
        if report.row is not None and (
            time.perf_counter() - last_print[0] > 20 or report.row.validation is not None
        ):
            last_print[0] = time.perf_counter()
            distance = "" if report.row.validation is None else f", KD {report.row.validation:.1f}"
            print(
                f"step {report.done:,} of {report.total:,}, {report.row.seconds:.0f} s, "
                f"loss {report.loss:.3f}{distance}",
                flush=True,
            )

    exists = (run / "config.json").exists()
    settings = {"device": choices["device"]} if exists else {**choices, "steps": steps}
    try:
        return train(data, run, resume=exists, progress=limit_seconds(seconds, tell), **settings)
    except SystemExit:  # raised at the time limit
        return Training.from_json((run / "record.json").read_text(encoding="utf-8"))


def read_distances(run: Path) -> list[dict[str, float]]:
    """Return the distances to the training images that were measured during training."""
    return [
        {"step": row.step, NAME: row.validation}
        for row in Log.read(run / "log.csv")
        if row.validation is not None
    ]


def score_run(
    args: argparse.Namespace, data: Path, run: Path, training: Training, side: int
) -> dict[str, Any]:
    """Return the scores of the run and the ladder for comparison, and write the pictures."""
    device = training.device
    pictures = make_folder(args.work / "pictures")
    options: dict[str, Any] = {
        "which": "last" if training.best_step is None else "best",
        "seed": args.seed,
        "device": device,
    }
    evaluation = evaluate(run, data, pictures, images=args.scored, orbits=args.orbits, **options)
    movie = orbit(run, pictures / "orbit.gif", **options)
    rungs = ladder(open_extractor(device=device), images=args.scored, size=side, seed=args.seed + 2)
    return {
        "evaluation": evaluation.to_dict(),
        "orbit": movie.to_dict(),
        "ladder": [asdict(rung) for rung in rungs],
    }


def verdicts(scores: dict[str, Any], training: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each bar with its verdict, held or missed."""
    rung = next(entry["distances"][NAME] for entry in scores["ladder"] if entry["rung"] == RUNG)
    distance = scores["evaluation"]["distances"][NAME]
    bars = [(f"{NAME} below {RUNG!r}", distance, rung), ("seconds of training", training["seconds"], EIGHT)]
    if scores["evaluation"]["bicubic"] is not None:
        bars.append(
            (
                f"{NAME} below the bicubically enlarged render's",
                distance,
                scores["evaluation"]["bicubic"][NAME],
            )
        )
    return [
        {"bar": bar, "found": value, "most": limit, "verdict": "held" if value < limit else "missed"}
        for bar, value, limit in bars
    ]


def run(args: argparse.Namespace) -> dict[str, Any]:
    device = resolve_device(args.device, backend("torch"))
    choices = {**RECIPE, "preset": args.preset, "size": args.size, "seed": args.seed, "device": device}
    choices |= parse_overrides(args.set, training=[Settings], main=True).training
    choices |= {"model": parse_overrides(args.field, model=FieldConfig).model}
    side, work = args.size * choices["superres"], make_folder(args.work)
    record: dict[str, Any] = {
        "what": "cars in eight minutes",
        "commands": ["python " + " ".join(sys.argv)],
        "created": now(),
        "machine": describe(),
        "seconds": args.seconds,
        "images": args.images,
        "choices": choices,
        "steps_per_s": None,
        "steps": None,
        "training": None,
        "distances": None,
        "scores": None,
        "verdicts": [],
        "took_s": {},
    }
    clock = time.perf_counter()

    def finish_stage(stage: str, **more: Any) -> bool:
        """Write the record so far, and return whether this is the last requested stage."""
        nonlocal clock
        record["took_s"][stage], clock = time.perf_counter() - clock, time.perf_counter()
        record.update(more)
        write_text(args.output, json.dumps(record, indent=1) + "\n")
        print(f"{stage}: {record['took_s'][stage]:.0f} s", flush=True)
        return stage == args.until

    for name, images, seed in (("cars", args.images, args.seed), ("unseen", args.scored, args.seed + 1)):
        make_dataset(work / name, images=images, size=side, seed=seed, device=device)
    if finish_stage("data"):
        return record
    rate = pace(work / "cars", work / "pace", choices, steps=args.paced)
    steps = args.steps or max(1, int((1 - SPARE) * args.seconds * rate))
    print(f"{rate:.2f} steps per second: {steps:,} steps", flush=True)
    if finish_stage("pace", steps_per_s=rate, steps=steps):
        return record
    training = train_run(work / "cars", work / "run", choices, steps=steps, seconds=args.seconds)
    # without the folders of this machine
    settings = training.settings | {"data_path": "", "data_given": ""}
    trained = training.to_dict() | {"settings": settings}
    if finish_stage("train", training=trained, distances=read_distances(work / "run")):
        return record
    scores = score_run(args, work / "unseen", work / "run", training, side)
    finish_stage("score", scores=scores, verdicts=verdicts(scores, training.to_dict()))
    return record


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path, metavar="WORK", help="Folder for data, run and pictures.")
    parser.add_argument("--seconds", type=float, default=475.0, help="Seconds of training.")
    parser.add_argument(
        "--steps", type=int, help="Steps, instead of those from the pace; the time limit still applies."
    )
    parser.add_argument("--paced", type=int, default=100, help="Steps timed for the pace.")
    parser.add_argument("--until", choices=STAGES, default="score", help="Last stage of this call.")
    parser.add_argument("--images", type=int, default=4000, help="Training images.")
    parser.add_argument(
        "--scored",
        type=int,
        default=512,
        help="Generated images to score, and unseen images to compare with.",
    )
    parser.add_argument("--orbits", type=int, default=8)
    parser.add_argument("--size", type=int, default=64, help="Rendered pixels per side.")
    parser.add_argument("--preset", default="tuned", choices=tuple(PRESETS))
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="Settings of the run.")
    parser.add_argument("--field", nargs="*", default=[], metavar="KEY=VALUE", help="Settings of the field.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_output(args.output)
        record = run(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for bar in record["verdicts"]:
        print(f"{bar['verdict']:7} {bar['bar']}: {bar['found']:.4g} (at most {bar['most']:.4g})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
