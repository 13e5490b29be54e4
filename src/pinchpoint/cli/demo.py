"""Show what pinchpoint does on this machine, in a minute or two."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import printing

if TYPE_CHECKING:
    from pinchpoint.core.records import Record


@dataclass(frozen=True)
class Show:
    """One workload of the demo: what is run for real is small enough for two CPU cores."""

    workload: str
    needs: tuple[str, ...]  # packages; the first is its framework
    sizes: tuple[
        int, ...
    ]  # of the study; the largest is also predicted: both may be far beyond this machine; none: neither
    modes: tuple[str, ...]
    verify_size: int
    verify_mode: str = "train"
    verify_s: float = 5.0  # for the timing
    settings: dict[str, str] = field(default_factory=dict)


SHOWS = (
    Show(
        "field",
        ("torch",),
        (4_000, 9_000, 20_000, 44_000, 96_000, 210_000, 460_000, 1_000_000),
        ("train", "infer"),
        32_768,
    ),
    Show("operator", ("torch",), (125_000, 250_000, 500_000, 1_000_000, 2_000_000), ("train",), 32_768),
    # Its original form is slow to build, here and in a forecast: narrow, of low degree, and not studied.
    Show("density", ("torch", "e3nn"), (), (), 1_024, "infer", 2.0, {"mul": "40", "lmax": "1"}),
    Show("radiance", ("torch", "PIL"), (), (), 1_024, "train", 2.0, {"field": "tiny", "samples": "16"}),
    Show("orbital", ("jax",), (1_024, 4_096, 16_384, 65_536), ("train",), 4_096),
)


def command(
    output: Path = typer.Option(
        Path("demo"), "-o", "--output", help="Folder for the records and report.html; made if absent."
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
    device: str = typer.Option("auto", "--device", help="Where verify runs: auto, cpu or cuda."),
) -> int:
    """Predict, study and verify the built-in workloads here, and write one report of it all.

    Needs no GPU: peaks are predicted, and only verify runs for real, at a small size.
    """
    from pinchpoint.core.errors import Missing
    from pinchpoint.core.files import make_folder
    from pinchpoint.reporting.report import report

    lacking = {show.workload: [name for name in show.needs if not _installed(name)] for show in SHOWS}
    shows = [show for show in SHOWS if not lacking[show.workload]]
    if not shows:
        raise Missing(
            "neither torch nor JAX is installed", hint="pip install 'pinchpoint[torch]' or 'pinchpoint[jax]'"
        )
    for name, packages in lacking.items():
        if packages:
            printing.say(f"{name} is left out: {packages[0]} is not installed")
    make_folder(output)
    start, paths, failed = time.perf_counter(), [], False
    with printing.progress("demo") as tell:
        for show in shows:
            for title, record, path in _records(show, output, seed=seed, device=device, tell=tell):
                printing.show(f"\n{title}", style="bold")
                printing.show_summary(record)
                paths.append(path)
                failed |= (
                    getattr(record, "status", "pass") == "fail" or getattr(record, "passed", True) is False
                )
            if show.workload == "density":
                _show_molecule(output / "density-ethanol", device=device, tell=tell)
            if show.workload == "radiance":
                failed |= not _show_cars(output / "radiance-cars", device=device, tell=tell)
        tell("report")
        page = report(paths, output / "report.html")
    printing.show(f"\n{len(paths)} records in {time.perf_counter() - start:.0f} s; open {page}")
    return 1 if failed else 0


def _records(
    show: Show, output: Path, *, seed: int, device: str, tell: Callable[[str], None]
) -> Iterator[tuple[str, Record, Path]]:
    """Title, record and file: a verdict of the last variant, the leanest; where sizes are named a forecast and a study before."""
    from pinchpoint.core.targets import shipped
    from pinchpoint.forecasting.predict import predict
    from pinchpoint.studies.study import study
    from pinchpoint.verification.verify import verify

    name, last = show.workload, shipped()[show.workload].variants[-1].name
    if show.sizes:
        tell(f"{name}: predict")
        forecast = predict(name, size=show.sizes[-1], mode="train", seed=seed)
        yield (
            f"{name}: the peak of a training step, with no GPU",
            forecast,
            forecast.save(output / f"{name}-forecast.json"),
        )

        folder = output / f"{name}-study"
        result = study(
            name,
            sizes=show.sizes,
            modes=show.modes,
            variants="all",
            on="fake",
            output=folder,
            seed=seed,
            progress=lambda done, total, text: tell(f"{name}: study {min(done + 1, total)}/{total} {text}"),
        )
        yield f"{name}: how the peak grows", result, folder / "study.json"

    verdict = verify(
        name,
        variant=last,
        size=show.verify_size,
        mode=show.verify_mode,
        device=device,
        seed=seed,
        repeats=10,
        limit_s=show.verify_s,
        settings=show.settings,
        progress=lambda text: tell(f"{name}: verify {last}, {text}"),
    )
    path = verdict.save(output / f"{name}-verdict.json")
    yield f"{name}: is {last} the same, and what does it bring?", verdict, path


def _show_molecule(folder: Path, *, device: str, tell: Callable[[str], None]) -> None:
    """The density of a molecule by the packaged weights."""
    from pinchpoint.systems.density.demo import example

    def progress(stage: str, done: int, total: int) -> None:
        if not done:  # once a stage: it takes seconds
            tell(f"density: predict a molecule, {stage}")

    found = example(folder, device=device, progress=progress)
    made = found.made
    printing.show(f"\ndensity: the electrons of {found.name}, which the model never saw", style="bold")
    printing.show_pairs(
        [
            (
                "grid",
                f"{' x '.join(map(str, made.volume.grid))}, {made.probes:,} probes in {made.probes_s:.1f} s on {made.device}",
            ),
            ("electrons", f"{made.electrons_raw:.5g} by the model, {found.electrons} in the molecule"),
            ("bonding moves", f"{found.moved:.1%} of the superposed atoms' density"),
            ("written", f"{made.path}, {found.picture.name}"),
        ]
    )
    for note in made.notes:
        printing.say(f"note: {note}")


def _show_cars(folder: Path, *, device: str, tell: Callable[[str], None]) -> bool:
    """A short training run on a few cars; whether its losses and gradients are as they must be."""
    from pinchpoint.systems.radiance.demo import example

    def progress(stage: str, done: int, total: int) -> None:
        if done % 10 == 0:
            tell(f"radiance: train on a few cars, {stage} {done}/{total}")

    found = example(folder, device=device, progress=progress)
    made = found.made
    printing.show("\nradiance: a tiny GAN, trained for a few steps", style="bold")
    printing.show_pairs(
        [
            ("run", f"{made.step} steps on {made.images} cars in {made.seconds:.0f} s on {made.device}"),
            ("discriminator", f"loss {found.before:.2f} at first, {found.after:.2f} at the end"),
            ("gradients", f"of every parameter; norms from {found.norms[0]:.2g} to {found.norms[1]:.2g}"),
            (
                "checked",
                "pass"
                if found.passed
                else "FAIL: the discriminator has not learned, or a step had no gradient",
            ),
            ("written", str(found.picture)),
        ]
    )
    return found.passed


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
