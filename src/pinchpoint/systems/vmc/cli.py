"""Find the ground-state energy of a molecule with a neural wave function.

`train` learns the wave function of a name (H2, LiH) or an xyz file, `eval` gives its energy with an error bar and its
density, `scan` energies along a bond, `bench` times a step and its parts. `orbitals` keeps a Hartree-Fock solution.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pinchpoint.console import printing, progress_bar
from pinchpoint.systems.common.progress import followed

if TYPE_CHECKING:
    from pinchpoint.systems.vmc.optimization.driver import EnergyReport as Report

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

MOLECULE: Any = typer.Argument(
    ..., metavar="MOLECULE", help="H2, LiH, He ..., H10 for a chain, or an .xyz file in angstrom."
)
DEVICE: Any = typer.Option("auto", "--device", help="auto, cpu or cuda.")
NET: Any = typer.Option(
    None, "--net", help="small, medium, ferminet, psiformer, report or report-cpu.  [small]"
)
SPIN: Any = typer.Option(None, "--spin", help="Electrons up less electrons down.  [the ground state's]")
CHARGE: Any = typer.Option(None, "--charge", help="Of the whole molecule.  [0]")
WALKERS: Any = typer.Option(
    None, "--walkers", help="Places of all electrons at one time.  [512; large networks 1024]"
)
OPTIMIZER: Any = typer.Option(None, "--optimizer", help="adam, spring or adam+spring.  [adam+spring]")
MOVES: Any = typer.Option(None, "--moves", help="Of every walker in a step.  [by network and electrons]")
SAMPLER: Any = typer.Option(None, "--sampler", help="metropolis or langevin.  [metropolis]")
SEED: Any = typer.Option(None, "--seed", help="Of parameters, walkers and moves.  [0]")
PRECISION: Any = typer.Option(None, "--precision", help="float32 or float64.  [float32]")
BUDGET: Any = typer.Option(
    None, "--budget", help="Bytes (8GiB) or a card to stay within.  [the device's memory]"
)
CHUNK: Any = typer.Option(None, "--chunk", help="Walkers at one time.")
PRETRAIN: Any = typer.Option(
    None, "--pretrain", help="Steps towards Hartree-Fock.  [0; 1000 for more than 4 electrons]"
)
ORBITALS: Any = typer.Option(
    None, "--orbitals", metavar="FILE.npz", help="Of `vmc orbitals`, where PySCF is not installed."
)
SET: Any = typer.Option(
    None, "--set", metavar="KEY=VALUE", help="Another choice of network or training: layers=3, clip=8."
)


@app.command("train")
def train(
    molecule: str = typer.Argument(
        None, metavar="MOLECULE", help="H2, LiH, He ..., H10, or an .xyz file in angstrom."
    ),
    output: Path = typer.Option(..., "-o", "--output", metavar="RUN", help="Folder of the run."),
    net: str = NET,
    spin: int = SPIN,
    charge: int = CHARGE,
    bond: float = typer.Option(None, "--bond", help="Length in bohr, of two atoms or within a chain."),
    walkers: int = WALKERS,
    steps: int = typer.Option(
        None, "--steps", help="In all.  [by network and electrons: 500 for small and H2]"
    ),
    optimizer: str = OPTIMIZER,
    moves: int = MOVES,
    sampler: str = SAMPLER,
    seed: int = SEED,
    device: str = DEVICE,
    precision: str = PRECISION,
    budget: str = BUDGET,
    chunk: int = CHUNK,
    pretrain: int = PRETRAIN,
    orbitals: Path = ORBITALS,
    start_from: Path = typer.Option(
        None, "--from", metavar="RUN", help="Begin with the network of this run: same atoms."
    ),
    settings: list[str] = SET,
    checkpoint_every: int = typer.Option(None, "--checkpoint-every", help="Steps.  [a tenth]"),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in RUN, with its own settings."),
) -> None:
    """Train the wave function of a molecule, or go on with --resume.

    Ctrl-C and SIGTERM write a checkpoint and stop; --resume then goes on as if never stopped, to the
    bit on a CPU; with --steps N it trains longer. RUN holds config.json, log.csv (a row a step),
    convergence.png, checkpoints (the last two), record.json. An energy that is no number or explodes
    stops the run (exit code 1) and names the last good checkpoint.
    """
    changes, choices = _asked(settings, walkers, steps, optimizer, moves, sampler, seed, precision, chunk)
    _start()
    from pinchpoint.systems.vmc.train import train as run

    with followed("vmc", by=lambda tell, report, _: _show(tell, report)) as watch:
        made = run(
            molecule,
            output,
            net=net,
            spin=spin,
            charge=charge,
            bond=bond,
            resume=resume,
            device=device,
            budget=budget,
            pretrain=pretrain,
            orbitals=orbitals,
            start_from=start_from,
            checkpoint_every=checkpoint_every,
            net_changes=changes,
            progress=watch,
            **choices,
        )
    printing.show_pairs(
        [*made.summary(), ("next", printing.shell_command("vmc", "eval", output, "-o", "eval.json"))]
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
    _start()
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


@app.command("scan")
def scan(
    molecule: str = MOLECULE,
    bond: str = typer.Option(
        ..., "--bond", metavar="FROM:TO:COUNT", help="Lengths in bohr: 1.0:2.0:5, or 1.0,1.4,2.0."
    ),
    output: Path = typer.Option(
        ..., "-o", "--output", metavar="DIR", help="Folder of the scan; gone on with if it is one."
    ),
    net: str = NET,
    spin: int = SPIN,
    charge: int = CHARGE,
    walkers: int = WALKERS,
    steps: int = typer.Option(None, "--steps", help="Of the first length.  [as of train]"),
    follow: int = typer.Option(
        None, "--follow", help="Of every other, begun with the network before.  [half as many]"
    ),
    samples: int = typer.Option(1000, "--samples", help="Of each walker, to evaluate."),
    optimizer: str = OPTIMIZER,
    moves: int = MOVES,
    sampler: str = SAMPLER,
    seed: int = SEED,
    device: str = DEVICE,
    precision: str = PRECISION,
    budget: str = BUDGET,
    chunk: int = CHUNK,
    pretrain: int = PRETRAIN,
    orbitals: Path = ORBITALS,
    settings: list[str] = SET,
) -> None:
    """Compute energies along the bond of two atoms, or of a chain.

    Each length is trained from the network of the one before and evaluated. DIR holds scan.csv,
    scan.png, scan.json and a run for each length. A scan that was stopped is gone on with by the
    same command.
    """
    changes, choices = _asked(settings, walkers, steps, optimizer, moves, sampler, seed, precision, chunk)
    _start()
    from pinchpoint.systems.vmc.scan import scan as run

    def watch(number: int, count: int, length: float, report: Report) -> None:
        if report.stage != "stopped":
            _show(tell, report, stage=f"{length:.3g} bohr {number}/{count}")

    kept = "the lengths that are done are kept, and the same command goes on"
    with printing.explain_interrupt(kept), progress_bar.bar("vmc") as tell:
        made = run(
            molecule,
            output,
            bonds=bond,
            net=net,
            spin=spin,
            charge=charge,
            follow=follow,
            samples=samples,
            device=device,
            budget=budget,
            net_changes=changes,
            pretrain=pretrain,
            orbitals=orbitals,
            progress=watch,
            **choices,
        )
    printing.show_pairs([*made.summary(), ("written", f"{output}: scan.json, {', '.join(made.files)}")])


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


@app.command("bench")
def bench(
    molecule: str = typer.Argument("H2", metavar="MOLECULE", help="H2, LiH ... or an .xyz file."),
    output: Path = typer.Option(None, "-o", "--output", metavar="FILE.json", help="The record."),
    config: str = typer.Option(
        None,
        "--config",
        help="report: 128 walkers, 10 moves; report-cpu: 256 and 5.  [report on cuda, else report-cpu]",
    ),
    repeats: int = typer.Option(15, "--repeats", help="Runs of each."),
    seed: int = typer.Option(0, "--seed", help="Of parameters and walkers."),
    device: str = DEVICE,
) -> None:
    """Time a step and its parts beside the original's.

    train_step, mcmc, energy_gradient, optimizer and forward over the same boundary, in turn, waited
    for. The original's nested energies come last, timed on 2 walkers and scaled up, which the record
    says; it is written before them too.
    """
    _start()
    from pinchpoint.core.files import check_output
    from pinchpoint.systems.vmc.bench import bench as measure

    if output is not None:
        check_output(output)
    kept = (
        "nothing was written"
        if output is None
        else f"{output} holds what was timed, if all but the nested energy was"
    )
    with printing.explain_interrupt(kept), progress_bar.bar("vmc") as tell:
        made = measure(
            molecule,
            config,
            device=device,
            repeats=repeats,
            seed=seed,
            output=output,
            progress=lambda stage, done, total: tell(stage, done, total),
        )
    printing.show_summary(made)
    for note in made.notes:
        printing.say(f"note: {note}")


def _start() -> None:
    """JAX, or how to install it; programs that were compiled before are taken from the user's cache."""
    import os

    from pinchpoint.backends.base import backend

    # SPRING's factors take a twentieth of its step. Shared by LAPACK's threads, which spin while they wait for each other, they
    # make it ten times as long on a machine that has other work.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    with printing.loading("JAX"):
        backend("jax")
        from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache

        use_compile_cache()


def _asked(
    settings: list[str] | None,
    walkers: int | None,
    steps: int | None,
    optimizer: str | None,
    moves: int | None,
    sampler: str | None,
    seed: int | None,
    precision: str | None,
    chunk: int | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was asked for of the network, and of the training."""
    from pinchpoint.systems.vmc.overrides import split_choices

    changes, choices = split_choices(settings or [])
    options = {
        "walkers": walkers,
        "steps": steps,
        "optimizer": optimizer,
        "moves": moves,
        "kind": sampler,
        "seed": seed,
        "precision": precision,
        "chunk": chunk,
    }
    return changes, {**choices, **{name: value for name, value in options.items() if value is not None}}


def _show(tell: progress_bar.Bar, report: Report, *, stage: str = "") -> None:
    """One report on the bar, short enough for 80 columns."""
    if report.stage == "stopped":
        where = (
            f"at step {report.done:,} of {report.total:,} with a checkpoint"
            if report.done
            else "before the first step"
        )
        printing.say(f"stopped {where}; go on with --resume")
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
