"""Find the ground-state energy of a molecule with a neural wave function.

`train` learns the wave function of a name (H2, LiH) or an xyz file, `eval` computes its energy with an error
bar and its density, `scan` energies along a bond, and `orbitals` stores a Hartree-Fock solution.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common.overrides import Overrides
from pinchpoint.systems.common.train_options import BUDGET, NO_OVERRIDES, OUTPUT, RESUME, settings_command
from pinchpoint.systems.common.training.progress import show_progress
from pinchpoint.systems.vmc.settings import RunOptions, Settings

if TYPE_CHECKING:
    from pinchpoint.systems.vmc.optimization.driver import EnergyReport as Report

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

MODEL = "pinchpoint.systems.vmc.model.config:NetConfig"
MOLECULE: Any = typer.Argument(
    ..., metavar="MOLECULE", help="H2, LiH, He ..., H10 for a chain, or an .xyz file in angstrom."
)
DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")
SPIN: Any = typer.Option(
    None, "--spin", help="Spin-up minus spin-down electrons.  [default: that of the ground state]"
)
CHARGE: Any = typer.Option(None, "--charge", help="Charge of the molecule.  [default: 0]")


@settings_command(app, "train", training=(RunOptions, Settings), model=MODEL, preset="small")
def train(
    molecule: str = typer.Argument(
        None, metavar="MOLECULE", help="H2, LiH, He ..., H10, or an .xyz file in angstrom."
    ),
    output: Path = OUTPUT,
    resume: bool = RESUME,
    budget: str = BUDGET,
    overrides: Overrides = NO_OVERRIDES,
) -> None:
    """Train the wave function of a molecule, or resume a run.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then continues as if the run had never
    stopped, bit for bit on a CPU; with --steps N it trains longer. RUN holds config.json, log.csv (one
    row per step), convergence.png, checkpoints (the last two) and record.json. An energy that becomes
    NaN or explodes stops the run (exit code 1), and the error names the last good checkpoint.
    """
    start_jax()
    from pinchpoint.systems.vmc.train import train as run_training

    with show_progress("vmc", by=lambda tell, report, _: _show(tell, report)) as watch:
        record = run_training(
            molecule,
            output,
            resume=resume,
            budget=budget,
            net_changes=overrides.model,
            progress=watch,
            **overrides.training,
        )
    printing.show_pairs(
        [*record.summary(), ("next", printing.shell_command("vmc", "eval", output, "-o", "eval.json"))]
    )


@app.command("eval")
def evaluate(
    run: Path = typer.Argument(..., metavar="RUN", help="Folder of a run."),
    output: Path = typer.Option(None, "-o", "--output", metavar="FILE.json", help="The record."),
    samples: int = typer.Option(1000, "--samples", help="Of each walker."),
    walkers: int = typer.Option(None, "--walkers", help="As many as in training without it."),
    moves: int = typer.Option(None, "--moves", help="Of every walker between two samples.  [as in training]"),
    cube: Path = typer.Option(
        None, "--cube", metavar="FILE.cube", help="Write the one-electron density here."
    ),
    spacing: float = typer.Option(0.2, "--spacing", help="Of the density's grid, bohr."),
    seed: int = typer.Option(None, "--seed", help="Of the moves.  [as in training]"),
    precision: str = typer.Option(None, "--precision", help="float32 or float64.  [as in training]"),
    budget: str = BUDGET,
    device: str = DEVICE,
) -> None:
    """Measure the energy of a trained wave function.

    Parameters are frozen and no energy is clipped. The error bar is one standard error, by blocks of
    samples; above an R-hat of 1.01 the walkers have not mixed. Where the log allows it the energy is
    also extrapolated to zero variance.
    """
    start_jax()
    from pinchpoint.systems.vmc.evaluate import evaluate as measure

    with printing.explain_interrupt("there is no evaluation"), progress_bar.bar("vmc") as tell:
        made = measure(
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
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    printing.show_pairs([*made.summary(), *([("written", str(output))] if output is not None else [])])
    for note in made.notes:
        printing.say(f"note: {note}")


@settings_command(
    app,
    "scan",
    training=(RunOptions, Settings),
    model=MODEL,
    preset="small",
    omit=("bond", "start_from", "checkpoint_every"),
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
    start_jax()
    from pinchpoint.systems.vmc.scan import scan as run_scan

    def watch(number: int, count: int, length: float, report: Report) -> None:
        if report.stage != "stopped":
            _show(tell, report, stage=f"{length:.3g} bohr {number}/{count}")

    kept = "the lengths that are done are kept, and the same command continues"
    with printing.explain_interrupt(kept), progress_bar.bar("vmc") as tell:
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
    output: Path = typer.Option(..., "-o", "--output", metavar="FILE.npz", help="The orbitals."),
    spin: int = SPIN,
    charge: int = CHARGE,
    bond: float = typer.Option(None, "--bond", help="Length in bohr, of two atoms or within a chain."),
    basis: str = typer.Option("cc-pvdz", "--basis", help="One that PySCF knows."),
) -> None:
    """Keep Hartree-Fock orbitals by PySCF, to pretrain elsewhere.

    Those of molecules with a name and of atoms up to Ar come with the package;
    these are for others.
    """
    from pinchpoint.backends.base import backend
    from pinchpoint.core.files import check_output
    from pinchpoint.systems.vmc.data.system import system_of

    check_output(output)
    system = system_of(molecule, spin=spin, charge=charge or 0, bond=bond)
    with printing.loading("JAX"):
        backend("jax")
        from pinchpoint.systems.vmc.data.hartree_fock import solve

    with printing.explain_interrupt("nothing was written"), printing.progress("orbitals") as tell:
        tell(f"{system.name}, {system.electrons} electrons in {basis}")
        made = solve(system, basis=basis)
    printing.show_pairs(
        [
            ("written", str(made.save(output))),
            ("energy", f"{made.energy_ha:.6f} Ha by Hartree-Fock in {basis}"),
        ]
    )


def start_jax() -> None:
    """JAX, or how to install it; programs that were compiled before are taken from the user's cache."""
    import os

    from pinchpoint.backends.base import backend

    # Factoring SPRING's matrix takes a twentieth of a step. With several LAPACK threads, which spin while
    # they wait for each other, a step takes ten times as long on a machine that has other work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    with printing.loading("JAX"):
        backend("jax")
        from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache

        use_compile_cache()


def _show(tell: progress_bar.Bar, report: Report, *, stage: str = "") -> None:
    """One report on the bar, short enough for 80 columns."""
    if report.stage == "stopped":
        where = (
            f"at step {report.done:,} of {report.total:,} with a checkpoint"
            if report.done
            else "before the first step"
        )
        printing.say(f"stopped {where}; continue with --resume")
    elif report.stage == "budget" and report.total:
        printing.say(report.note)
    elif report.stage == "train":
        tell(stage, report.done, report.total, text=_numbers(report), eta_s=report.eta_s)
    else:
        # To choose within a budget is to compile one step after another.
        named = {"evaluate": report.note, "budget": "compile"}.get(report.stage, report.stage)
        note = "" if report.stage == "evaluate" else report.note
        tell(f"{stage} {named}".strip(), report.done, report.total, text=note)


def _numbers(report: Report) -> str:
    """`-1.1745±0.0001 var 1e-3 acc 52% 8ms`: as many digits as the error has a say in."""
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
