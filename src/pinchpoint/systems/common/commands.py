"""What the commands of the systems share: options, loading torch, the `train` command, and results printed.

Imports no framework.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from pinchpoint.backends.base import backend
from pinchpoint.console import printing, progress_bar
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.processes import refuse_several_processes
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, OUTPUT, RESUME, settings_command
from pinchpoint.systems.common.training.progress import Show, show_progress

if TYPE_CHECKING:
    from pinchpoint.core.records import Record

Result = TypeVar("Result", bound="Record")

DEVICE: Any = typer.Option("auto", "--device", help="Device: auto, cpu or cuda.")
DATA_OUTPUT: Any = typer.Option(
    ..., "-o", "--output", metavar="DIR", help="Folder of the dataset; resumed if it exists."
)
JOBS: Any = typer.Option(None, "--jobs", help="Number of processes.  [default: one per core]")
RUN: Any = typer.Argument(..., metavar="RUN", help="Folder of a run.")


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of a `train` command."""

    source: str | None  # what to train on: a folder of data, or a molecule
    output: Path
    resume: bool
    budget: str | None
    overrides: Overrides

    def run(self, train: Callable[..., Result], *, show: Show | None = None) -> Result:
        """Train a torch system with a progress bar. show: shows one report on the bar."""
        with show_progress(by=show, resume=self.resume) as watch:
            return train(
                self.source,
                self.output,
                resume=self.resume,
                budget=self.budget,
                progress=watch,
                **self.overrides.choices(),
            )


def train_command(
    app: typer.Typer,
    *,
    training: type | Sequence[type],
    model: str,
    preset: str,
    source_help: str,
    metavar: str = "DATA",
    several_processes: bool = False,
) -> Callable[[Callable[[TrainRequest], None]], Callable[[TrainRequest], None]]:
    """Add the command `train`, with the options of `settings_command`, as a function of a `TrainRequest`.

    source_help, metavar: of the argument that names what to train on. several_processes: whether processes
    that torchrun starts train together.
    """

    def add(function: Callable[[TrainRequest], None]) -> Callable[[TrainRequest], None]:
        def command(
            source: str = typer.Argument(None, metavar=metavar, help=source_help),
            output: Path = OUTPUT,
            resume: bool = RESUME,
            budget: str = BUDGET,
            overrides: Overrides = NO_OVERRIDES,
        ) -> None:
            if not several_processes:
                refuse_several_processes()
            function(TrainRequest(source, output, resume, budget, overrides))

        command.__doc__ = function.__doc__
        settings_command(app, "train", training=training, model=model, preset=preset)(command)
        return function

    return add


@contextmanager
def loading_torch() -> Iterator[None]:
    """Import torch within the block; without torch, an error says how to install it."""
    with printing.loading("torch"):
        backend("torch")
        yield


@contextmanager
def making_data(samples: str) -> Iterator[tuple[progress_bar.Bar, progress_bar.AddedProgress]]:
    """Show a progress bar while samples are made: the bar, and the progress to pass to the maker.

    samples: their name in the plural.
    """
    interrupt_note = f"finished {samples} are kept, and the same command makes the others"
    with printing.explain_interrupt(interrupt_note), progress_bar.bar("data") as tell:
        yield tell, progress_bar.AddedProgress(tell, samples)


def size_and_time(folder: Path, start_s: float) -> list[tuple[str, str]]:
    """Return the rows about the files of a dataset and the time since `start_s` of `time.perf_counter`."""
    stored_bytes = sum(file.stat().st_size for file in folder.glob("*") if file.is_file())
    return [("size", show_bytes(stored_bytes)), ("time", show_seconds(time.perf_counter() - start_s))]


def train_next(system: str, data: Path, *, when: bool) -> list[tuple[str, str]]:
    """Return the row with the command that trains on a dataset; none where it has nothing to train on."""
    return [("next", printing.shell_command(system, "train", data, "-o", "RUN"))] if when else []


def show_record(record: Record, *rows: tuple[str, str]) -> None:
    """Print the summary of a record with further rows, and its notes."""
    printing.show_pairs([*record.summary(), *rows])
    for note in getattr(record, "notes", ()):
        printing.say(f"note: {note}")
