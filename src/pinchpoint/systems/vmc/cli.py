"""Find the ground-state energy of a molecule with a neural wave function.

`train` learns the wave function of a name (H2, LiH) or an xyz file, `eval` computes its energy with an error
bar and its density, `scan` energies along a bond, and `orbitals` stores a Hartree-Fock solution.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common import commands
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.processes import refuse_several_processes
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, settings_command
from pinchpoint.systems.common.training.progress import say_stopped, show_progress
from pinchpoint.systems.vmc.quick_stop import QuickStop
from pinchpoint.systems.vmc.settings import RunOptions, Settings

if TYPE_CHECKING:
    from pinchpoint.systems.vmc.optimization.driver import EnergyReport as Report

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

MODEL = "pinchpoint.systems.vmc.model.config:NetConfig"
MOLECULE: Any = typer.Argument(
    ..., metavar="MOLECULE", help="H2, LiH, He ..., H10 for a chain, or an .xyz file in angstrom."
)
SPIN: Any = typer.Option(
    None, "--spin", help="Spin-up minus spin-down electrons.  [default: that of the ground state]"
)
CHARGE: Any = typer.Option(None, "--charge", help="Charge of the molecule.  [default: 0]")


@commands.train_command(
    app,
    training=(RunOptions, Settings),
    model=MODEL,
    preset="small",
    metavar="MOLECULE",
    source_help="H2, LiH, He ..., H10, or an .xyz file in angstrom.",
)
def train(request: commands.TrainRequest) -> None:
    """Train the wave function of a molecule, or resume a run.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then continues as if the run had never
    stopped, bit for bit on a CPU; with --steps N it trains longer. RUN holds config.json, log.csv (one
    row per step), convergence.png, checkpoints (the last two) and record.json. An energy that becomes
    NaN or explodes stops the run (exit code 1), and the error names the last good checkpoint.
    """
    start_jax()
    from pinchpoint.systems.vmc.train import train as run_training

    stop = QuickStop()

    def show_report(tell: progress_bar.Bar, report: Report, _: object) -> None:
        stop.is_armed = report.stage != "train"  # a checkpoint after the program in progress is worth waiting
        _show(tell, report)

    with stop, show_progress("vmc", by=show_report, resume=request.resume) as watch:
        record = run_training(
            request.source,
            request.output,
            resume=request.resume,
            budget=request.budget,
            net_changes=request.overrides.model,
            progress=watch,
            **request.overrides.training,
        )
    commands.show_record(
        record, ("next", printing.shell_command("vmc", "eval", request.output, "-o", "eval.json"))
    )


@app.command("eval")
def evaluate(
    run: Path = commands.RUN,
    output: Path = typer.Option(
        None, "-o", "--output", metavar="FILE.json", help="Write the record to this file."
    ),
    samples: int = typer.Option(1000, "--samples", help="Samples of each walker."),
    walkers: int = typer.Option(None, "--walkers", help="Number of walkers.  [default: as in training]"),
    moves: int = typer.Option(
        None, "--moves", help="Moves of each walker between two samples.  [default: as in training]"
    ),
    cube: Path = typer.Option(
        None, "--cube", metavar="FILE.cube", help="Write the one-electron density here."
    ),
    observables: bool = typer.Option(
        False,
        "--observables",
        help="Also measure spin, dipole, quadrupole, forces on the nuclei, and radial densities.",
    ),
    spacing: float = typer.Option(0.2, "--spacing", help="Spacing of the density's grid in bohr."),
    seed: int = typer.Option(None, "--seed", help="Seed of the moves.  [default: as in training]"),
    precision: str = typer.Option(
        None, "--precision", help="Precision: float32 or float64.  [default: as in training]"
    ),
    budget: str = BUDGET,
    device: str = commands.DEVICE,
) -> None:
    """Measure the energy of a trained wave function.

    Parameters are frozen and no energy is clipped. The error bar is one standard error, by blocks of
    samples; above an R-hat of 1.01 the walkers have not mixed. Where the log allows it the energy is
    also extrapolated to zero variance.
    """
    refuse_several_processes()
    start_jax()
    from pinchpoint.systems.vmc.evaluate import evaluate as measure

    interrupt_note = "no evaluation was written"
    with QuickStop(), printing.explain_interrupt(interrupt_note), progress_bar.bar("vmc") as tell:
        evaluation = measure(
            run,
            output,
            samples=samples,
            walkers=walkers,
            moves=moves,
            seed=seed,
            precision=precision,
            device=device,
            budget=budget,
            cube=cube,
            spacing=spacing,
            observables=observables,
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    commands.show_record(evaluation, *([("written", str(output))] if output is not None else []))


@settings_command(
    app,
    "scan",
    training=(RunOptions, Settings),
    model=MODEL,
    preset="small",
    omit=("bond", "start_from", "checkpoint_every", "states"),
)
def scan(
    molecule: str = MOLECULE,
    bond: str = typer.Option(
        ..., "--bond", metavar="FROM:TO:COUNT", help="Lengths in bohr: 1.0:2.0:5, or 1.0,1.4,2.0."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder of the scan; resumed if it exists."
    ),
    follow: int = typer.Option(
        None,
        "--follow",
        help="Steps of every length after the first, which starts from the network before it.  "
        "[default: half as many]",
    ),
    samples: int = typer.Option(1000, "--samples", help="Samples per walker in each evaluation."),
    budget: str = BUDGET,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Compute energies along the bond of two atoms, or of a chain.

    Each length is trained from the network of the one before and evaluated; --steps is the number of
    steps of the first. DIR holds scan.csv, scan.png, scan.json and a run for each length. The same
    command resumes a scan that was stopped.
    """
    refuse_several_processes()
    start_jax()
    from pinchpoint.systems.vmc.scan import scan as run_scan

    stop = QuickStop()

    def watch(number: int, count: int, length: float, report: Report) -> None:
        stop.is_armed = report.stage != "train"
        if report.stage != "stopped":
            _show(tell, report, stage=f"{length:.3g} bohr {number}/{count}")

    interrupt_note = "finished bond lengths are kept, and the same command continues"
    with stop, printing.explain_interrupt(interrupt_note), progress_bar.bar("vmc") as tell:
        record = run_scan(
            molecule,
            output,
            bonds=bond,
            follow=follow,
            samples=samples,
            budget=budget,
            net_changes=overrides.model,
            progress=watch,  # pyright: ignore[reportArgumentType]
            **overrides.training,
        )
    printing.show_pairs([*record.summary(), ("written", f"{output}: scan.json, {', '.join(record.files)}")])


@app.command("orbitals")
def orbitals(
    molecule: str = MOLECULE,
    output: Path = typer.Option(..., "-o", "--output", metavar="FILE.npz", help="File for the orbitals."),
    spin: int = SPIN,
    charge: int = CHARGE,
    bond: float = typer.Option(None, "--bond", help="Bond length in bohr, of two atoms or in a chain."),
    pseudopotential: str = typer.Option(
        None, "--pseudopotential", help="Replace the core electrons of all atoms: ccecp.  [default: none]"
    ),
    basis: str = typer.Option(
        None, "--basis", help="Basis set, as PySCF names it.  [default: cc-pvdz, or ccecp-cc-pvdz]"
    ),
) -> None:
    """Compute Hartree-Fock orbitals with PySCF, to pretrain elsewhere.

    The package has those of atoms up to Ar and of most named molecules; this command is for other systems.
    """
    from pinchpoint.backends.base import backend
    from pinchpoint.core.files import check_output
    from pinchpoint.core.units import show_count
    from pinchpoint.systems.vmc.data.spins import ground_state
    from pinchpoint.systems.vmc.data.system import show_name

    check_output(output)
    state = ground_state(molecule, spin=spin, charge=charge or 0, bond=bond, pseudopotential=pseudopotential)
    system = state.system
    with printing.loading("JAX"):
        backend("jax")
        from pinchpoint.systems.vmc.data.hartree_fock import solve

    with printing.explain_interrupt("nothing was written"), printing.progress("orbitals") as tell:
        tell(f"{show_name(system.name, system.charge)}, {show_count(system.electrons, 'electron')}")
        solution = solve(system, basis=basis)
    printing.show_pairs(
        [
            ("written", str(solution.save(output))),
            ("electrons", state.text()),
            ("energy", f"{solution.energy_ha:.6f} Ha by Hartree-Fock in {solution.basis}"),
        ]
    )


def start_jax() -> None:
    """Import JAX, or say how to install it; compiled programs are kept in the user's cache."""
    import logging
    import os

    from pinchpoint.backends.base import backend

    # Factoring SPRING's matrix takes a twentieth of a step. With several LAPACK threads, which spin while
    # they wait for each other, a step takes ten times as long on a machine that has other work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    # folx logs every exception with its traceback; a stop while it traces is none to report.
    stops = (KeyboardInterrupt, SystemExit)
    logging.getLogger().addFilter(
        lambda record: not (record.exc_info and isinstance(record.exc_info[1], stops))
    )

    with printing.loading("JAX"):
        backend("jax")
        from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache

        use_compile_cache()


def _show(tell: progress_bar.Bar, report: Report, *, stage: str = "") -> None:
    """Show one report on the bar, short enough for 80 columns."""
    if report.stage == "stopped":
        say_stopped(report.done, report.total)
    elif report.stage in ("budget", "electrons") and report.total:
        printing.say(report.note)
    elif report.stage == "train":
        tell(stage, report.done, report.total, text=_numbers(report), eta_s=report.eta_s)
    else:
        # Choosing within a budget compiles one step after another.
        names = {"evaluate": report.note, "budget": "compiling", "compile": "compiling"}
        named = names.get(report.stage, report.stage)
        note = "" if report.stage == "evaluate" else report.note
        tell(f"{stage} {named}".strip(), report.done, report.total, text=note)


def _numbers(report: Report) -> str:
    """Return `-1.1745±0.0001 var 1e-3 acc 52% 8ms`, with as many digits as the error justifies."""
    import math

    parts = []
    if report.energy_ha is not None:
        places = min(5, max(1, -math.floor(math.log10(report.error_ha)))) if report.error_ha else 4
        error = "" if report.error_ha is None else f"±{report.error_ha:.{places}f}"
        parts.append(f"{report.energy_ha:.{places}f}{error}")
    if report.variance is not None:
        parts.append(f"var {report.variance:.0e}".replace("e-0", "e-").replace("e+0", "e"))
    if report.acceptance is not None:
        parts.append(f"acc {report.acceptance:.0%}")
    if report.step_s is not None:
        parts.append(f"{report.step_s * 1e3:.{0 if report.step_s > 0.01 else 1}f}ms")
    return " ".join(parts)
