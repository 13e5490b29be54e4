"""Train a wave function: pretraining where it helps, many steps per compiled program, resumable bit for bit
on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder
from pinchpoint.systems.common.budgets import begin_budget, budget_of
from pinchpoint.systems.common.settings import check_options
from pinchpoint.systems.common.training.training_loop import (
    Outcome,
    Progress,
    Report,
    keep_run_on_stop,
    run_loop,
)
from pinchpoint.systems.vmc.analysis.plots import draw_convergence
from pinchpoint.systems.vmc.data.gto import HartreeFock
from pinchpoint.systems.vmc.data.spins import ground_state
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.devices import Host, on, place
from pinchpoint.systems.vmc.optimization.driver import ProgramDriver, mean_energy
from pinchpoint.systems.vmc.optimization.programs import (
    BLOCK,
    Program,
    Programs,
    ProgramStore,
    Steps,
    heaviest,
    programs_from,
)
from pinchpoint.systems.vmc.optimization.sampling import key_of, start
from pinchpoint.systems.vmc.optimization.spring import spring_bytes
from pinchpoint.systems.vmc.optimization.training_step import Carry, dtype_of, run_inputs
from pinchpoint.systems.vmc.optimization.training_step import begin as first_carry
from pinchpoint.systems.vmc.optimization.warm_start import read_start, start_params
from pinchpoint.systems.vmc.settings import OptimizerStage, RunOptions, Settings, Stage
from pinchpoint.systems.vmc.training.budget import Fit, fit
from pinchpoint.systems.vmc.training.records import Training
from pinchpoint.systems.vmc.training.runs import PICTURE, Row, Run, begin

CHECKPOINTS = 10  # in a run, by default


def train(
    molecule: str | Path | System | None,
    output: str | Path,
    *,
    net: str | None = None,
    spin: int | None = None,
    charge: int | None = None,
    bond: float | None = None,
    pseudopotential: str | None = None,
    states: int | None = None,
    resume: bool = False,
    device: str = "auto",
    budget: str | int | None = None,
    pretrain: int | None = None,
    orbitals: str | Path | None = None,
    start_from: str | Path | None = None,
    checkpoint_every: int | None = None,
    net_changes: Mapping[str, Any] | None = None,
    store: ProgramStore | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **choices: Any,
) -> Training:
    """Train the wave function of a molecule; the run is written to `output`.

    choices: fields of `Settings`; None is the default. budget: bytes, "8GiB" or the name of a card; the
    fastest Laplacian and the largest chunk of walkers that fit are used, by default those that fit the
    device's memory; a resumed run keeps its own. pseudopotential: "ccecp" replaces the core electrons of all
    atoms. states: the lowest states to train together. pretrain: steps towards Hartree-Fock, 1,000 for more
    than four electrons; orbitals: an npz file of `vmc orbitals`, where PySCF is not installed. start_from: a
    run of the same atoms and network, whose parameters are the first. store: compiled programs to share with
    other runs of the process. Ctrl-C and SIGTERM write a checkpoint after the program in progress and are
    then raised.
    """
    tell = progress or (lambda report: None)
    _check_options(resume=resume, start_from=start_from, budget=budget, every=checkpoint_every)
    run = begin(
        Path(output),
        molecule,
        resume=resume,
        spin=spin,
        charge=charge,
        bond=bond,
        pseudopotential=pseudopotential,
        net=net,
        net_changes=net_changes if states is None else {**(net_changes or {}), "states": states},
        choices=choices,
        pretrain=0 if start_from is not None and pretrain is None else pretrain,
        warm="" if start_from is None else str(Path(start_from).resolve()),
    )
    if orbitals is not None and not run.config.pretrain:
        raise BadInput(
            "--set orbitals needs pretraining, which this run does not have.",
            hint="Add --set pretrain=1000, or leave out --set orbitals.",
        )
    check_folder(run.folder)
    spin_reason = "as the run was started"
    if molecule is not None and not resume:
        state = ground_state(
            molecule,
            spin=spin,
            charge=charge or 0,
            bond=bond,
            pseudopotential=pseudopotential,
            tell=lambda text: tell(Report("spin", 0, 0, note=text)),
        )
        run, spin_reason = replace(run, config=replace(run.config, system=state.system)), state.why
        if not isinstance(molecule, System):
            tell(Report("electrons", 1, 1, note=f"electrons: {state.text()}"))
    # What cannot start a run is refused now: compiling its programs takes long.
    field = _orbitals(run, orbitals, tell)
    if start_from is not None:
        read_start(Path(start_from), run.config)
    with on(device, precision=run.config.settings.precision) as host:
        begin_budget(budget, host.name, resume=resume)
        setup = _Setup(run, host, tell, store)
        with setup.programs, keep_run_on_stop(run, tell):
            if setup.is_new and setup.settings.burn:
                setup.programs.burn(setup.settings)
            choice = setup.fit(budget, choices)
            # While these are compiled, walkers are warmed up. SPRING's programs too: compiled when Adam's
            # steps are over, they would make the run seem to stand still.
            setup.programs.start(setup.settings, setup.needed())
            state = setup.run.resumed_state()
            carry = setup.new_carry(field) if state is None else setup.restore(state)
            for program in setup.needed():
                setup.programs.get(setup.settings, program)
        driver = ProgramDriver(
            setup.run,
            carry,
            programs=setup.program,
            block=setup.block,
            state=state,
            host=setup.host,
            tell=tell,
        )
        every = checkpoint_every or max(1, -(-setup.settings.steps // CHECKPOINTS))
        return run_loop(
            setup.run,
            driver,
            checkpoint_every=every,
            eval_every=every,
            record=lambda outcome: replace(_record(setup, driver, outcome, choice), spin_reason=spin_reason),
            tell=tell,
            clock=clock,
        )


class _Setup:
    """What a run on a host needs: programs, the first carry, the chunk for a budget."""

    def __init__(self, run: Run, host: Host, tell: Progress, store: ProgramStore | None = None) -> None:
        walkers = run.config.settings.walkers
        # A new run can have other walkers, a resumed one cannot: it uses as many devices as share its walkers
        # evenly.
        self.is_new = run.checkpoints.last() is None
        self.run, self.tell = run, tell
        self.host = host if self.is_new else host.sharing(walkers)
        self.wave: WaveFunction = wave_function(run.config.system, run.config.net)
        self.mesh = self.host.mesh(walkers)
        if len(self.host.devices) < len(host.devices):
            used = f"{len(self.host.devices)} of {len(host.devices)} devices, which share them evenly"
            tell(Report("budget", 1, 1, note=f"devices: {walkers:,} walkers run on {used}"))
        self.block = BLOCK[host.name]
        self.programs = Programs(self.wave, self.mesh, tell, store)

    @property
    def settings(self) -> Settings:
        return self.run.config.settings

    def needed(self, settings: Settings | None = None) -> list[Steps]:
        """The programs that the run still needs."""
        return programs_from(self.run.checkpoints.last_step(), settings or self.settings, block=self.block)

    def fit(self, budget: str | int | None, choices: Mapping[str, Any]) -> Fit | None:
        """Choose the method and the chunk, which the run has from then on; None where a resumed run keeps its
        own.

        choices: what this call names; of a resumed run, a budget changes only a method and a chunk that are
        not among them.
        """
        if budget is None and not self.is_new and self.settings.method != "auto":
            return None
        base = self.settings
        if budget is not None and not self.is_new:
            base = replace(
                base,
                chunk=base.chunk if "chunk" in choices else None,
                method=base.method if "method" in choices else "auto",
            )

        def compiled(tried: Settings) -> Any:
            measured = heaviest(programs_from(0, tried, block=self.block))
            # Without a budget the first settings tried nearly always fit: the other programs need not wait
            # for them.
            self.programs.start(tried, [measured, *(self.needed(tried) if budget is None else ())])
            return self.programs.get(tried, measured)

        choice = fit(
            base,
            electrons=self.run.config.system.electrons,
            budget=budget,
            host=self.host,
            compile_with=compiled,
            progress=lambda text: self.tell(Report("budget", 0, 0, note=text)),
            spring_bytes=self._spring_bytes(),
        )
        self.run = replace(self.run, config=replace(self.run.config, settings=choice.into(self.settings)))
        self.programs.keep(self.settings)
        self.tell(Report("budget", 1, 1, note=f"laplacian: {choice.text()}"))
        return choice

    def _spring_bytes(self) -> int:
        """Bytes of SPRING's own arrays; 0 where no step is by SPRING."""
        direction = self.programs.like(self.settings).optimizer.direction
        return (
            0
            if direction is None
            else spring_bytes(self.settings.walkers, direction.size, direction.dtype.itemsize)
        )

    def program(self, count: int, stage: OptimizerStage) -> Program:
        return self.programs.get(self.settings, (count, stage))

    def new_carry(self, field: HartreeFock | None) -> Carry:
        """The carry of a new run. field: orbitals to pretrain with."""
        params, x = None, None
        if self.run.config.warm:
            params, x = start_params(Path(self.run.config.warm), self.wave, self.run.config)
        if field is not None:
            params, x = self._pretrain(params, field)
        self.tell(Report("warm-up", 0, 0, note=f"{self.settings.burn:,} steps of moves alone"))
        return jax.block_until_ready(
            first_carry(
                self.wave,
                self.settings,
                params=params,
                x=x,
                mesh=self.mesh,
                burn=self.programs.burn(self.settings).result() if self.settings.burn else None,
            )
        )

    def _pretrain(self, params: Any, field: HartreeFock) -> tuple[Any, Any]:
        """Parameters near the Hartree-Fock determinant, and walkers that follow it."""
        from pinchpoint.systems.vmc.optimization.pretrain import pretrain

        system, settings, steps = self.run.config.system, self.settings, self.run.config.pretrain
        if params is None:
            params = self.wave.init(key_of(settings.seed, Stage.PARAMETERS))
        dtype = dtype_of(settings)
        params = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, dtype), params)
        x = start(system, settings.walkers, key_of(settings.seed, Stage.WALKERS), dtype=dtype)
        result = pretrain(
            self.wave,
            field,
            params,
            x,
            key_of(settings.seed, Stage.PRETRAIN),
            steps=steps,
            chunk=settings.chunk,
            mesh=self.mesh,
            progress=lambda done, loss: self.tell(Report("pretrain", done, steps, note=f"loss {loss:.2e}")),
        )
        return result.params, result.x

    def restore(self, state: dict[str, Any]) -> Carry:
        """The carry of a checkpoint."""
        like = self.programs.like(self.settings)._replace(inputs=None)
        carry = trees.from_arrays(state["arrays"], like, where=str(self.run.last_path()))
        carry = carry._replace(inputs=run_inputs(self.run.config.system, self.settings))
        # Copies: a program may write into its arguments, and JAX may have taken over the numpy arrays
        # themselves.
        return place(jax.tree_util.tree_map(lambda array: jnp.array(array, copy=True), carry), self.mesh)


def _orbitals(run: Run, path: str | Path | None, tell: Progress) -> HartreeFock | None:
    """Orbitals to pretrain with: those in a file, or the system's own where a run is new; None without
    pretraining.
    """
    from pinchpoint.systems.vmc.data.hartree_fock import orbitals_for

    if path is not None:
        return _read_orbitals(path, run.config.system)
    if not run.config.pretrain or run.checkpoints.last() is not None:
        return None
    tell(Report("orbitals", 0, 0, note="Hartree-Fock"))
    return orbitals_for(run.config.system)


def _read_orbitals(path: str | Path, system: System) -> HartreeFock:
    field = HartreeFock.load(path)
    if not field.fits(system):
        raise BadInput(
            f"{path} holds orbitals of another molecule than {system.name}.",
            hint=f"Compute them with: pinchpoint vmc orbitals {system.name} -o FILE.npz",
        )
    return field


def _record(setup: _Setup, driver: ProgramDriver, outcome: Outcome[Row], choice: Fit | None) -> Training:
    """The record; the plot too, where there are steps to draw."""
    run, settings, system = setup.run, setup.settings, setup.run.config.system
    references = system.states_ha[: run.config.net.states]
    reference = sum(references) if len(references) == run.config.net.states else None
    sound = [row for row in outcome.rows if row.energy_ha == row.energy_ha]
    late = [row for row in outcome.late if row.energy_ha == row.energy_ha]
    energy, error = mean_energy(late)
    files: tuple[str, ...] = ()
    if len(sound) > 1:
        title = f"{system.name}, {run.config.net_name}, {settings.walkers:,} walkers"
        columns = (
            [getattr(row, name) for row in sound] for name in ("step", "energy_ha", "variance", "seconds")
        )
        files = (draw_convergence(run.folder / PICTURE, *columns, exact_ha=reference, title=title).name,)
    return Training(
        target=str(run.folder),
        system=system.name,
        electrons=system.electrons,
        up=system.up,
        down=system.down,
        charge=system.charge,
        pseudopotential=system.pseudopotential,
        net=run.config.net_name,
        parameters=trees.count(driver.carry.params),
        settings={**asdict(settings), "pretrain": run.config.pretrain},
        step=outcome.step,
        complete=outcome.complete,
        energy_ha=energy,
        error_ha=error,
        variance=sum(row.variance for row in late) / len(late) if late else None,
        acceptance=sum(row.acceptance for row in late) / len(late) if late else None,
        reference_ha=reference,
        states=run.config.net.states,
        device=setup.host.name,
        devices=len(setup.host.devices),
        method=settings.method,
        chunk=settings.chunk,
        step_s=driver.step_s(),
        peak_bytes=outcome.peak_bytes,
        seconds=outcome.seconds,
        files=files,
        skipped=len(outcome.rows) - len(sound),
        predicted_bytes=choice.predicted_bytes if choice else None,
        budget_bytes=choice.budget_bytes if choice else None,
        why=choice.why if choice else "as the run was started",
    )


def _check_options(
    *, resume: bool, start_from: str | Path | None, budget: str | int | None, every: int | None
) -> None:
    """Refuse wrong options before anything is written."""
    check_options(RunOptions(checkpoint_every=every))
    if resume and start_from is not None:
        raise BadInput(
            "--from cannot be used with --resume: a resumed run has its own parameters.",
            hint="Leave out one of the two.",
        )
    if budget is not None:
        budget_of(budget)
