"""Timings of a training step and its parts, compared with the baseline of the FermiNeuT optimisation report.

Only the command is here. It imports JAX, and `step_bench`, which measures, after `start_jax` has set the
number of LAPACK threads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import typer

from pinchpoint.systems.common import bench_command, commands
from pinchpoint.systems.vmc.cli import start_jax


def command(
    molecule: str = typer.Argument(
        "H2", metavar="MOLECULE", help="Molecule, such as H2 or LiH, or an .xyz file."
    ),
    output: Path = bench_command.OUTPUT,
    config: str = typer.Option(
        None,
        "--config",
        help="report: 128 walkers and 10 moves; report-cpu: 256 walkers and 5 moves.  "
        "[default: report on cuda, else report-cpu]",
    ),
    repeats: int = typer.Option(15, "--repeats", help="Number of timed runs per figure."),
    seed: int = typer.Option(0, "--seed", help="Seed of parameters and walkers."),
    device: str = commands.DEVICE,
) -> None:
    """Time a training step and its parts, compared with the baseline.

    The parts are train_step, mcmc, energy_gradient, optimizer and forward. Both sides are timed in turn over
    the same boundaries, and the clock waits for the device. The baseline is the code of the FermiNeuT
    optimisation report. Its nested energies come last, timed on 2 walkers and scaled up, which the record
    says; the record is also written before them.
    """
    start_jax()
    from pinchpoint.systems.vmc.step_bench import bench

    kept_note = (
        "nothing was written"
        if output is None
        else f"{output} holds the timings if all but the nested energies were done"
    )
    measure = partial(bench, molecule, config, device=device, repeats=repeats, seed=seed)
    bench_command.run_bench(measure, output=output, kept=kept_note)
