"""Train a wave function: pretraining where it pays, one compiled program for many steps, resumable to the bit on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder
from pinchpoint.systems.common.budgets import budget_of
from pinchpoint.systems.common.stopping import stop_between_steps
from pinchpoint.systems.vmc import logs
from pinchpoint.systems.vmc.budget import Fit, fit
from pinchpoint.systems.vmc.checkpoints import FORMAT, Checkpoint
from pinchpoint.systems.vmc.data.gto import HartreeFock
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.devices import Host, on
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization import trees
from pinchpoint.systems.vmc.optimization.programs import Programs
from pinchpoint.systems.vmc.optimization.sampling import key_of, start
from pinchpoint.systems.vmc.optimization.sharding import placed
from pinchpoint.systems.vmc.optimization.spring import held_bytes
from pinchpoint.systems.vmc.optimization.training_step import Carry, dtype_of, key_bits
from pinchpoint.systems.vmc.optimization.training_step import begin as first_carry
from pinchpoint.systems.vmc.plots import draw_convergence
from pinchpoint.systems.vmc.records import Trained
from pinchpoint.systems.vmc.runs import CONFIG, LOG, PICTURE, RECORD, Run, begin
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings, Stage
from pinchpoint.systems.vmc.training_loop import (
    BLOCK,
    Loop,
    Program,
    Report,
    Tell,
    heaviest,
    programs_from,
    summed,
)
from pinchpoint.systems.vmc.warm_start import beginning, warmed

CHECKPOINTS = 10  # in a run, where nothing else is asked for


def train(
    what: str | Path | System | None,
    output: str | Path,
    *,
    net: str | None = None,
    spin: int | None = None,
    charge: int | None = None,
    bond: float | None = None,
    resume: bool = False,
    device: str = "auto",
    budget: str | int | None = None,
    pretrain: int | None = None,
    orbitals: str | Path | None = None,
    start_from: str | Path | None = None,
    checkpoint_every: int | None = None,
    net_changes: Mapping[str, Any] | None = None,
    progress: Tell | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **choices: Any,
) -> Trained:
    """Train the wave function of a molecule; the run lies in `output`. choices: fields of `Settings`; None is not asked for.

    budget: bytes, "8GiB" or a card's name; the quickest Laplacian and the largest chunk of walkers within it are taken, without
    one those that the device's memory allows; a run that goes on keeps its own. pretrain: steps towards Hartree-Fock, 1,000 for
    more than four electrons; orbitals: an npz of `vmc orbitals`, where PySCF is not at hand. start_from: a run of the same atoms
    and network, whose parameters are the first. Ctrl-C and SIGTERM write a checkpoint after the program at hand and are then
    raised.
    """
    tell = progress or (lambda report: None)
    _check_asked(resume=resume, start_from=start_from, budget=budget, every=checkpoint_every)
    run = begin(
        Path(output),
        what,
        resume=resume,
        spin=spin,
        charge=charge,
        bond=bond,
        net=net,
        net_changes=net_changes,
        choices=choices,
        pretrain=0 if start_from is not None and pretrain is None else pretrain,
        warm="" if start_from is None else str(Path(start_from).resolve()),
    )
    if orbitals is not None and not run.told.pretrain:
        raise BadInput(
            "--orbitals without pretraining", hint="give --pretrain 1000 too, or leave --orbitals out"
        )
    check_folder(run.folder)
    # What cannot begin a run is refused now: to compile its programs takes long.
    field = _orbitals(run, orbitals, tell)
    if start_from is not None:
        beginning(Path(start_from), run.told)
    with on(device, precision=run.told.settings.precision) as host:
        maker = _Maker(run, host, tell)
        with maker.programs, _preparing(run, tell):
            chosen = maker.fit(budget, again="method" not in choices)
            # While these are compiled, walkers are warmed up. Those of SPRING too: compiled when Adam's steps are over, a run
            # would seem to stand still.
            maker.programs.start(maker.settings, maker.needed())
            carry, before_s = maker.carry(field)
            for program in maker.needed():
                maker.programs.get(maker.settings, program)
        maker.run.write()
        every = checkpoint_every or max(1, -(-maker.settings.steps // CHECKPOINTS))
        loop = Loop(
            maker.run,
            carry,
            programs=maker.program,
            block=maker.block,
            every=every,
            before_s=before_s,
            clock=clock,
        )
        with stop_between_steps() as stop:
            if maker.run.checkpoints.last() is None:
                loop.save()
            loop.train(stop, tell)
            made = _record(maker, loop, chosen)
            made.save(maker.run.folder / RECORD)
            if stop.number is not None and not made.complete:
                tell(Report("stopped", made.step, maker.settings.steps))
            stop.leave()
    return made


class _Maker:
    """Makes what a run on a host needs: programs, the first carry, the chunk for a budget."""

    def __init__(self, run: Run, host: Host, tell: Tell) -> None:
        walkers = run.told.settings.walkers
        # A new run can have other walkers, one that goes on cannot: it takes as many devices as share its walkers evenly.
        self.run, self.host, self.tell = (
            run,
            host.sharing(walkers) if run.checkpoints.last() is not None else host,
            tell,
        )
        self.wave: WaveFunction = wave_function(run.told.system, run.told.net)
        self.mesh = self.host.mesh(walkers)
        if len(self.host.devices) < len(host.devices):
            used = f"{walkers:,} walkers go on {len(self.host.devices)} of {len(host.devices)} devices, which share them evenly"
            tell(Report("budget", 1, 1, note=f"devices: {used}"))
        self.block = BLOCK[host.name]
        self.programs = Programs(self.wave, self.mesh, tell)

    @property
    def settings(self) -> Settings:
        return self.run.told.settings

    def needed(self, settings: Settings | None = None) -> list[tuple[int, OptimizerStage]]:
        """The programs that the run still takes."""
        return programs_from(self.run.checkpoints.last() or 0, settings or self.settings, block=self.block)

    def fit(self, budget: str | int | None, *, again: bool) -> Fit | None:
        """Method and chunk, from here on those of the run; None where it goes on with those it has.

        again: whether the method of a run that goes on may be another under a budget, since none was asked for.
        """
        if budget is None and self.run.checkpoints.last() is not None and self.settings.method != "auto":
            return None
        asked = self.settings
        if budget is not None and self.run.checkpoints.last() is not None:
            asked = replace(asked, chunk=None, method="auto" if again else asked.method)

        def compiled(tried: Settings) -> Any:
            measured = heaviest(programs_from(0, tried, block=self.block))
            # Without a budget the first that is tried is nearly always taken: its other programs need not wait for this one.
            self.programs.start(tried, [measured, *(self.needed(tried) if budget is None else ())])
            return self.programs.get(tried, measured)

        found = fit(
            asked,
            electrons=self.run.told.system.electrons,
            budget=budget,
            host=self.host,
            compiled=compiled,
            progress=lambda text: self.tell(Report("budget", 0, 0, note=text)),
            spring_bytes=self._spring_bytes(),
        )
        self.run = replace(self.run, told=replace(self.run.told, settings=found.into(self.settings)))
        self.programs.keep(self.settings)
        self.tell(Report("budget", 1, 1, note=f"laplacian: {found.text()}"))
        return found

    def _spring_bytes(self) -> int:
        """Of SPRING's own arrays; 0 where no step is by SPRING."""
        direction = self.programs.like(self.settings).optimizer.direction
        return (
            0
            if direction is None
            else held_bytes(self.settings.walkers, direction.size, direction.dtype.itemsize)
        )

    def program(self, count: int, stage: OptimizerStage) -> Program:
        return self.programs.get(self.settings, (count, stage))

    def carry(self, field: HartreeFock | None) -> tuple[Carry, float]:
        """What the run goes on from, and the seconds it took so far. field: orbitals to pretrain with."""
        found = self.run.last()
        if found is not None:
            return self._restored(found), float(found.told["seconds"])
        params, x = None, None
        if self.run.told.warm:
            params, x = warmed(Path(self.run.told.warm), self.wave, self.run.told)
        if field is not None:
            params, x = self._pretrained(params, field)
        self.tell(Report("warm-up", 0, 0, note=f"{self.settings.burn:,} steps of moves alone"))
        return jax.block_until_ready(
            first_carry(self.wave, self.settings, params=params, x=x, mesh=self.mesh)
        ), 0.0

    def _pretrained(self, params: Any, field: HartreeFock) -> tuple[Any, Any]:
        """Parameters near the Hartree-Fock determinant, and walkers that follow it."""
        from pinchpoint.systems.vmc.optimization.pretrain import pretrain

        system, told, steps = self.run.told.system, self.settings, self.run.told.pretrain
        if params is None:
            params = self.wave.init(key_of(told.seed, Stage.PARAMETERS))
        dtype = dtype_of(told)
        params = jax.tree_util.tree_map(lambda leaf: jnp.asarray(leaf, dtype), params)
        x = start(system, told.walkers, key_of(told.seed, Stage.WALKERS), dtype=dtype)
        made = pretrain(
            self.wave,
            field,
            params,
            x,
            key_of(told.seed, Stage.PRETRAIN),
            steps=steps,
            chunk=told.chunk,
            mesh=self.mesh,
            progress=lambda done, loss: self.tell(Report("pretrain", done, steps, note=f"loss {loss:.2e}")),
        )
        return made.params, made.x

    def _restored(self, found: Checkpoint) -> Carry:
        where = str(self.run.checkpoints.folder / self.run.checkpoints.name(found.step))
        if found.format != FORMAT:
            raise BadInput(
                f"{where} was written by another version: format {found.format}, and {FORMAT} is read",
                hint=f"begin a new run with its network and walkers: --from {self.run.folder} and another -o",
            )
        like = self.programs.like(self.settings)._replace(key=None)
        carry = trees.from_arrays(found.arrays, like, where=where)._replace(key=key_bits(self.settings.seed))
        # Copies: a program may write into what it is given, and JAX may have taken the numpy arrays as they are.
        return placed(jax.tree_util.tree_map(lambda array: jnp.array(array, copy=True), carry), self.mesh)


def _orbitals(run: Run, path: str | Path | None, tell: Tell) -> HartreeFock | None:
    """To pretrain with: those given, or the system's own where a run is to begin; None where nothing is pretrained."""
    from pinchpoint.systems.vmc.data.hartree_fock import orbitals_for

    if path is not None:
        return _given(path, run.told.system)
    if not run.told.pretrain or run.checkpoints.last() is not None:
        return None
    tell(Report("orbitals", 0, 0, note="Hartree-Fock"))
    return orbitals_for(run.told.system)


def _given(path: str | Path, system: System) -> HartreeFock:
    field = HartreeFock.load(path)
    if not field.fits(system):
        raise BadInput(
            f"{path} holds orbitals of another molecule than {system.name}",
            hint=f"make them with: pinchpoint vmc orbitals {system.name} -o FILE.npz",
        )
    return field


@contextmanager
def _preparing(run: Run, tell: Tell) -> Iterator[None]:
    """Within, a stop leaves a run that can be resumed, at its first step or where it was. An error leaves no new one."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if not (run.folder / CONFIG).exists():
            run.write()
        tell(Report("stopped", run.checkpoints.last() or 0, run.told.settings.steps))
        raise


def _record(maker: _Maker, loop: Loop, chosen: Fit | None) -> Trained:
    """The record, and the picture where there are steps to draw."""
    run, settings, system = maker.run, maker.settings, maker.run.told.system
    rows = logs.read(run.folder / LOG)
    good = [row for row in rows if row.energy_ha == row.energy_ha]
    late = [row for row in good if row.step > 0.9 * loop.step]
    energy, error = summed(late)
    files: tuple[str, ...] = ()
    if len(good) > 1:
        title = f"{system.name}, {run.told.net_name}, {settings.walkers:,} walkers"
        columns = (
            [getattr(row, name) for row in good] for name in ("step", "energy_ha", "variance", "seconds")
        )
        files = (
            draw_convergence(run.folder / PICTURE, *columns, exact_ha=system.exact_ha, title=title).name,
        )
    return Trained(
        target=str(run.folder),
        system=system.name,
        electrons=system.electrons,
        net=run.told.net_name,
        parameters=trees.count(loop.carry.params),
        settings={**asdict(settings), "pretrain": run.told.pretrain},
        step=loop.step,
        complete=loop.step >= settings.steps,
        energy_ha=energy,
        error_ha=error,
        variance=sum(row.variance for row in late) / len(late) if late else None,
        acceptance=sum(row.acceptance for row in late) / len(late) if late else None,
        reference_ha=system.exact_ha,
        device=maker.host.name,
        devices=len(maker.host.devices),
        method=settings.method,
        chunk=settings.chunk,
        step_s=loop.step_s(),
        peak_bytes=maker.host.peak_bytes(),
        seconds=loop.elapsed(),
        files=files,
        skipped=len(rows) - len(good),
        predicted_bytes=chosen.predicted_bytes if chosen else None,
        budget_bytes=chosen.budget_bytes if chosen else None,
        why=chosen.why if chosen else "as the run was begun",
    )


def _check_asked(
    *, resume: bool, start_from: str | Path | None, budget: str | int | None, every: int | None
) -> None:
    """Refuse before anything is made."""
    if every is not None and every < 1:
        raise BadInput(f"--checkpoint-every {every}", hint="give at least 1 step")
    if resume and start_from is not None:
        raise BadInput(
            "--from with --resume", hint="leave one out: a run that goes on has its own parameters"
        )
    if budget is not None:
        budget_of(budget)
