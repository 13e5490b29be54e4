"""Show what pinchpoint does on this machine, in a minute or two.

Each workload describes its part in a module `demo.py`; see `pinchpoint.core.demo`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pinchpoint.console import printing

if TYPE_CHECKING:
    from pinchpoint.core.demo import Show
    from pinchpoint.core.records import Record


def command(
    output: Path = typer.Option(
        Path("demo"),
        "-o",
        "--output",
        help="Folder for the records and report.html; created if it is missing.",
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of weights and data."),
    device: str = typer.Option("auto", "--device", help="Where verify runs: auto, cpu or cuda."),
) -> int:
    """Predict, study and verify the built-in workloads, and write one report about all of them.

    Needs no GPU: peaks are predicted, and only verify runs for real, at a small size.
    """
    from pinchpoint.core.discovery import demo_modules
    from pinchpoint.core.errors import Missing
    from pinchpoint.core.files import make_folder
    from pinchpoint.reporting.report import report

    modules = sorted(demo_modules(), key=lambda module: module.SHOW.order)
    missing_packages = {
        module.SHOW.workload: [name for name in module.SHOW.needs if not _installed(name)]
        for module in modules
    }
    if all(missing_packages.values()):
        raise Missing(
            "Neither PyTorch nor JAX is installed.",
            hint="Run pip install 'pinchpoint[torch]' or pip install 'pinchpoint[jax]'.",
        )
    for name, packages in missing_packages.items():
        if packages:
            printing.say(f"skipping {name}: {packages[0]} is not installed")
    make_folder(output)
    start, paths, passed = time.perf_counter(), [], True
    with printing.progress("demo") as tell:
        for module in modules:
            if missing_packages[module.SHOW.workload]:
                continue
            for title, record, path in _records(module.SHOW, output, seed=seed, device=device, tell=tell):
                printing.show(f"\n{title}", style="bold")
                printing.show_summary(record)
                paths.append(path)
                passed &= getattr(record, "status", "pass") != "fail" and bool(
                    getattr(record, "passed", True)
                )
            if hasattr(module, "show"):
                passed &= module.show(output, device=device, tell=tell)
        tell("report")
        page = report(paths, output / "report.html")
    printing.show(f"\n{len(paths)} records in {time.perf_counter() - start:.0f} s; open {page}")
    return 0 if passed else 1


def _records(
    show: Show, output: Path, *, seed: int, device: str, tell: Callable[[str], None]
) -> Iterator[tuple[str, Record, Path]]:
    """Yield title, record and file: of a forecast and a study if the demo has sizes, then of a verdict.

    The verdict compares the last variant, which needs the least memory, with the baseline.
    """
    from pinchpoint.core.discovery import load_workload
    from pinchpoint.forecasting.predict import predict
    from pinchpoint.studies.study import study
    from pinchpoint.verification.verify import verify

    name, last = show.workload, load_workload(show.workload).variants[-1].name
    if show.sizes:
        tell(f"{name}: predict")
        forecast = predict(name, size=show.sizes[-1], mode="train", seed=seed)
        yield (
            f"{name}: peak of a training step, predicted without a GPU",
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
    yield f"{name}: does {last} compute the same, and what does it save?", verdict, path


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None
