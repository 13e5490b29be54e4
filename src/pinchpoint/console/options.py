"""Options that several commands share, declared once so that they are the same everywhere."""

from __future__ import annotations

from typing import Any

import typer

TARGET: Any = typer.Argument(
    ..., metavar="TARGET", help="The name of a workload, or file.py:NAME of your own."
)
SCRIPT_ARGS: Any = typer.Argument(None, metavar="[-- ARGS]", help="The script's own arguments, after --.")
AS_MODULE: Any = typer.Option(False, "-m", help="TARGET is a module to run, as by python -m.")
MODE: Any = typer.Option(None, "--mode", help="train or infer. Default: train if the workload has it.")
SEED: Any = typer.Option(0, "--seed", help="Seed of weights and data.")
RECORD: Any = typer.Option(None, "-o", "--output", metavar="FILE.json", help="Write the record here.")
SET: Any = typer.Option(
    None,
    "--set",
    metavar="KEY=VALUE",
    help="A setting of the workload, such as mlp=64,64. Repeat it for several settings.",
)
RANK: Any = typer.Option(
    "0", "--rank", help="The process to predict, or all for the one that needs most. Default: 0."
)
LOCAL_WORLD_SIZE: Any = typer.Option(
    None, "--local-world-size", help="Processes per machine. Default: up to 8."
)
AS_JSON: Any = typer.Option(False, "--json", help="Print the record instead of the summary.")


def script_target(target: str, *, as_module: bool) -> str:
    """The target as `pinchpoint.predict` takes it: a module to run is `-m NAME`."""
    return f"-m {target}" if as_module else target
