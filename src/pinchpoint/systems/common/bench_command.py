"""What the `bench` commands of the systems share: their options, and one way to run and show a benchmark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.core.files import check_output
from pinchpoint.systems.common.commands import show_record
from pinchpoint.systems.common.processes import refuse_several_processes

OUTPUT: Any = typer.Option(None, "-o", "--output", metavar="FILE.json", help="Write the record here.")


def run_bench(measure: Callable[..., Any], *, output: Path | None, kept: str = "nothing was written") -> None:
    """Call `measure(output=, progress=)`, which returns a record, and show it. kept: what Ctrl-C leaves."""
    refuse_several_processes()
    if output is not None:
        check_output(output)
    with printing.explain_interrupt(kept), progress_bar.bar("bench") as tell:
        record = measure(output=output, progress=lambda stage, done, total: tell(stage, done, total))
    show_record(record, *([] if output is None else [("written", str(output))]))
