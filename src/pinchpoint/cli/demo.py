"""Show what pinchpoint does on this machine, in a minute or two."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.cli import console

if TYPE_CHECKING:
    from pinchpoint.core.records import Record


@dataclass(frozen=True)
class Show:
    """One workload of the demo: sizes small enough for two CPU cores."""

    workload: str
    framework: str
    predict_size: int  # only predicted: may be far beyond this machine
    sizes: tuple[int, ...]  # of the study
    verify_size: int


SHOWS = (
    Show("field", "torch", 1_000_000, (4_000, 16_000, 64_000, 256_000, 1_000_000), 8_192),
    Show("orbital", "jax", 16_384, (256, 1_024, 4_096, 16_384), 512),
)


def command(
    output: Path = typer.Option(Path("demo"), "-o", "--output", help="Folder for the records and report.html; made if absent."),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
    device: str = typer.Option("auto", "--device", help="Where verify runs: auto, cpu or cuda."),
) -> int:
    """Predict, study and verify the built-in workloads here, and write one report of it all.

    Needs no GPU: peaks are predicted, and only verify runs for real, at a small size.
    """
    from pinchpoint.core.errors import BadInput, Missing
    from pinchpoint.render.page import report

    shows = [show for show in SHOWS if _installed(show.framework)]
    if not shows:
        raise Missing("neither torch nor JAX is installed", mend="pip install 'pinchpoint[torch]' or 'pinchpoint[jax]'")
    for show in SHOWS:
        if show not in shows:
            console.say(f"{show.workload} is left out: {show.framework} is not installed")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot make the folder {output}: {error.strerror}", mend="choose another folder with -o") from error
    start, made = time.perf_counter(), []
    failed = False
    with console.progress("demo") as tell:
        for show in shows:
            for path, record in _records(show, output, seed=seed, device=device, tell=tell):
                made.append(path)
                failed |= getattr(record, "status", "pass") == "fail" or getattr(record, "passed", True) is False
        tell("report")
        page = report(made, output / "report.html")
    console.show(f"\n{len(made)} records in {time.perf_counter() - start:.0f} s; open {page}")
    return 1 if failed else 0


def _records(
    show: Show, output: Path, *, seed: int, device: str, tell: Callable[[str], None]
) -> list[tuple[Path, Record]]:  # fmt: skip
    """Predict, study and verify one workload; each record is saved and summed up as it comes."""
    from pinchpoint.core.discover import shipped
    from pinchpoint.measure.study import study
    from pinchpoint.memory.forecast import predict
    from pinchpoint.proof.verdict import verify

    name = show.workload
    workload = shipped()[name]
    made: list[tuple[Path, Record]] = []

    def keep(title: str, record: Record, path: Path) -> None:
        made.append((path, record))
        console.show(f"\n{title}", style="bold")
        console.show_summary(record)

    tell(f"{name}: predict")
    forecast = predict(name, size=show.predict_size, mode="train", seed=seed)
    keep(f"{name}: the peak of one training step, with no GPU", forecast, forecast.save(output / f"{name}-forecast.json"))

    tell(f"{name}: study")
    folder = output / f"{name}-study"
    result = study(name, sizes=show.sizes, on="fake", output=folder, seed=seed)
    keep(f"{name}: how the peak grows", result, folder / "study.json")

    for variant in workload.variants[1:]:
        tell(f"{name}: verify {variant.name}")
        verdict = verify(name, variant=variant.name, size=show.verify_size, device=device, seed=seed, repeats=10)
        path = verdict.save(output / f"{name}-{variant.name}-verdict.json")
        keep(f"{name}: is {variant.name} the same, and what does it bring?", verdict, path)
    return made


def _installed(framework: str) -> bool:
    from importlib.util import find_spec

    return find_spec(framework) is not None
