"""Options that several commands share, declared once so that they are the same everywhere."""

from __future__ import annotations

from typing import Any

import typer

from pinchpoint.core.errors import BadInput


def complete_target(incomplete: str) -> list[str]:
    """The names of workloads; where none matches, the shell offers files."""
    from pinchpoint.core.discovery import added_names, builtin_names

    return [name for name in (*builtin_names(), *added_names()) if name.startswith(incomplete)]


TARGET: Any = typer.Argument(
    ...,
    metavar="TARGET",
    help="The name of a workload, or file.py:NAME of your own.",
    autocompletion=complete_target,
)
SCRIPT_ARGS: Any = typer.Argument(None, metavar="[-- ARGS]", help="The script's own arguments, after --.")
AS_MODULE: Any = typer.Option(False, "-m", help="TARGET is a module to run, as by python -m.")
ALLOW_NETWORK: Any = typer.Option(
    False, "--allow-network", help="Let a script send data while it is predicted; it may always download."
)
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
MODEL: Any = typer.Option(
    None,
    "--model",
    help="Instead of TARGET: a config.json of transformers, or a YAML file of axolotl or LLaMA-Factory.",
)
TASK: Any = typer.Option(
    None, "--task", help="With --model: finetune (default), lora, qlora, pretrain or generate."
)
BATCH: Any = typer.Option(None, "--batch", help="With --model: sequences per step. Default: 1.")
SEQUENCE: Any = typer.Option(
    None, "--sequence", help="With --model: tokens per sequence, or of the prompt. Default: 2048."
)
NEW_TOKENS: Any = typer.Option(
    None, "--new-tokens", help="With --task generate: tokens after the prompt. Default: 256."
)
OPTIMIZER: Any = typer.Option(
    None, "--optimizer", help="With --model: adamw (default), adamw8bit, paged-adamw8bit, sgd and others."
)
PRECISION: Any = typer.Option(
    None, "--precision", help="With --model: bf16 (default), mixed (fp32 weights), or fp32."
)
SHARDING: Any = typer.Option(
    None, "--sharding", help="With --model and --world-size: ddp (default) or fsdp2."
)
SCRIPT: Any = typer.Option(
    None, "--script", metavar="FILE.py", help="With --model: write the script that is predicted here."
)
ENGINE: Any = typer.Option(
    "local",
    "--engine",
    help="Where it runs: local (default), ray or slurm.",
    autocompletion=lambda incomplete: [e for e in ("local", "ray", "slurm") if e.startswith(incomplete)],
)
WORKERS: Any = typer.Option(
    None, "--workers", help="With --engine ray or slurm: jobs at one time. Default: all that fit."
)
ENGINE_OPTION: Any = typer.Option(
    None,
    "--engine-option",
    metavar="KEY=VALUE",
    help="For ray: address, cpus. For slurm: a parameter of sbatch, such as partition=gpu or time=30.",
)
AS_JSON: Any = typer.Option(False, "--json", help="Print the record instead of the summary.")


def script_target(target: Any, *, as_module: bool) -> Any:
    """The target as `pinchpoint.predict` takes it: a module to run is `-m NAME`; None if a model is given."""
    return f"-m {target}" if as_module and target is not None else target


def parse_growth(text: str) -> float:
    """The value of --max-growth: `5%` or `5` is 0.05."""
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent < float("inf"):
        raise BadInput(
            f"--max-growth {text!r} is not a percentage of at least 0.", hint="Give a percentage, such as 5%."
        )
    return percent / 100
