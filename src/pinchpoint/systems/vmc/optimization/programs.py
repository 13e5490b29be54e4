"""The programs of a training run: which ones it needs, and their concurrent compilation.

A program runs a block of steps of one optimizer, Adam or SPRING; where no whole block fits, steps run one by
one. Programs start at multiples of a block, whatever the step at which a run is resumed. Each program is
traced here and compiled in a thread, where XLA does not need Python. Nothing is compiled twice: the run uses
the programs that were compiled to measure a budget, and runs of one process that differ in their seed, their
number of steps or the positions of their nuclei share programs through a store.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh

from pinchpoint.systems.common.training.training_loop import Progress, Report
from pinchpoint.systems.vmc.optimization.devices import device_of, shapes
from pinchpoint.systems.vmc.optimization.sampling import stage_key
from pinchpoint.systems.vmc.optimization.training_step import (
    Burn,
    Carry,
    Stats,
    Wave,
    begin,
    make_burn,
    make_steps,
    program_settings,
)
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings, Stage

BLOCK = {
    "cpu": 10,
    "cuda": 50,
}  # steps per program: enough to make a launch cheap, few enough to stop soon
Program = Callable[[Carry], tuple[Carry, Stats]]
Steps = tuple[int, OptimizerStage]  # number of steps in one program, and their optimizer

_NAMES = {"adam": "Adam", "spring": "SPRING"}
_AT_ONCE = 5  # a block and a single step, each by Adam and by SPRING, and moves alone: there are no more


def program_at(step: int, settings: Settings, *, block: int) -> Steps:
    """Return the program at a step: a whole block if one starts there with one optimizer, else one step."""
    end, stage = step + block, settings.stage_at(step)
    whole = step % block == 0 and end <= settings.steps and settings.stage_at(end - 1) == stage
    return block if whole else 1, stage


def programs_from(step: int, settings: Settings, *, block: int) -> list[Steps]:
    """Return all programs that a run needs from a step on, each once, in the order of their first use."""
    programs: dict[Steps, None] = {}
    while step < settings.steps:
        programs[program := program_at(step, settings, block=block)] = None
        step += program[0]
    return list(programs)


def heaviest(programs: list[Steps]) -> Steps:
    """Return the program that needs most memory: SPRING needs all that Adam does, and its matrix."""
    return max(programs, key=lambda program: (program[1] == "spring", program[0]))


def carry_like(wave: Wave, settings: Settings) -> Carry:
    """Return the shapes and dtypes of a carry, without computing anything."""
    return jax.eval_shape(lambda: begin(wave, replace(settings, burn=0)))


class ProgramStore:
    """Programs of one process, by the wave function, the settings and the device that they depend on."""

    def __init__(self) -> None:
        self._programs: dict[Hashable, Any] = {}

    def get(self, wave: Wave, settings: Settings, what: Hashable, make: Callable[[], Any]) -> Any:
        """Return the stored program, or make and store it. what: which of the programs with these settings.

        Programs take the nuclei, the seed and the first step by SPRING as inputs.
        """
        key = self._key(wave, settings, what)
        if key not in self._programs:
            self._programs[key] = make()
        return self._programs[key]

    def burn(
        self, wave: Wave, settings: Settings, mesh: Mesh | None, threads: ThreadPoolExecutor
    ) -> Future[Burn]:
        """Start compiling the program that only moves walkers, unless it is stored."""
        settings = replace(settings, method="auto", chunk=None)  # moves depend on neither

        def compiled() -> Future[Burn]:
            like = shapes(carry_like(wave, settings), mesh)
            key = shapes(jax.eval_shape(lambda: stage_key(settings.seed, Stage.BURN)), mesh)
            burn: Any = make_burn(wave, settings, mesh=mesh)
            return threads.submit(burn.lower(like.params, like.walkers, 1, key, like.inputs.nuclei).compile)

        return self.get(wave, settings, ("burn", mesh), compiled)

    def drop(self, wave: Wave, settings: Settings, what: Hashable) -> None:
        """Forget a program, if it is stored."""
        self._programs.pop(self._key(wave, settings, what), None)

    def drop_cancelled(self) -> None:
        """Forget programs whose compilation was cancelled before it began, or failed."""
        for key, program in list(self._programs.items()):
            if isinstance(program, Future) and _is_useless(program):
                del self._programs[key]

    def _key(self, wave: Wave, settings: Settings, what: Hashable) -> Hashable:
        # Without a mesh, a program is compiled for the default device, which nothing else in the key names.
        return wave.signature, program_settings(settings), device_of(None), what


def _is_useless(program: Future[Any]) -> bool:
    return program.cancelled() or (program.done() and program.exception() is not None)


class Programs:
    """The compiled programs of one wave function, for use in a `with` block.

    At the end of the block, compilations that have not started are cancelled.
    """

    def __init__(
        self, wave: Wave, mesh: Mesh | None, tell: Progress, store: ProgramStore | None = None
    ) -> None:
        self.wave, self.mesh, self.tell = wave, mesh, tell
        self.store = ProgramStore() if store is None else store
        self._is_shared = store is not None
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="compile")
        self._futures: dict[tuple[Settings, Steps], Future[Any]] = {}

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *raised: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.store.drop_cancelled()

    def like(self, settings: Settings) -> Carry:
        """Return the shapes and dtypes of a carry, without computing anything."""
        return carry_like(self.wave, settings)

    def burn(self, settings: Settings) -> Future[Burn]:
        """Start compiling the program that only moves walkers; the method and chunk may be chosen later."""
        return self.store.burn(self.wave, settings, self.mesh, self._threads)

    def start(self, settings: Settings, programs: Sequence[Steps]) -> None:
        """Start compiling the programs that are not compiled yet, in order; returns once they are traced."""
        for program in programs:
            if (settings, program) in self._futures:
                continue
            self._futures[settings, program] = self.store.get(
                self.wave, settings, (program, self.mesh), partial(self._compile, settings, program)
            )

    def _compile(self, settings: Settings, program: Steps) -> Future[Any]:
        self.tell(Report("compile", 0, 0, note=self._pending(settings, program)))
        count, stage = program
        steps: Any = make_steps(self.wave, settings, count, stage=stage, mesh=self.mesh)
        return self._threads.submit(steps.lower(shapes(self.like(settings), self.mesh)).compile)

    def get(self, settings: Settings, program: Steps) -> Program:
        """Return one compiled program, waiting for it if necessary."""
        self.start(settings, [program])
        future = self._futures[settings, program]
        if not future.done():
            self.tell(Report("compile", 0, 0, note=self._pending(settings)))
        return future.result()

    def keep(self, settings: Settings) -> None:
        """Drop the programs of all other settings, which were only tried out.

        A store that other runs share keeps those that are compiled: the next run may try them too.
        """
        for tried, program in [key for key in self._futures if key[0] != settings]:
            self._futures.pop((tried, program)).cancel()
            if not self._is_shared:
                self.store.drop(self.wave, tried, (program, self.mesh))
        self.store.drop_cancelled()

    def _pending(self, settings: Settings, *more: Steps) -> str:
        """Return a text such as `steps: 10 by Adam, 1 by SPRING`: the programs being compiled, and these."""
        running = [
            program
            for (own, program), future in self._futures.items()
            if own == settings and not future.done()
        ]
        return "steps: " + ", ".join(f"{count} by {_NAMES[stage]}" for count, stage in (*running, *more))
