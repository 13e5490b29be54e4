"""The programs of a training, compiled side by side: each is traced here and handed to a thread, where XLA needs no Python.

Nothing is compiled twice: what a budget was measured with is what the run takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from pinchpoint.systems.vmc.optimization.sharding import shapes
from pinchpoint.systems.vmc.optimization.training_step import Carry, Wave, begin, make_steps
from pinchpoint.systems.vmc.settings import OptimizerStage, Settings
from pinchpoint.systems.vmc.training_loop import Program, Report, Tell

Asked = tuple[int, OptimizerStage]  # how many steps in one program, and what they are by

_NAMES = {"adam": "Adam", "spring": "SPRING"}
_AT_ONCE = 4  # a block and a single step, by Adam and by SPRING: a run has no more


class Programs:
    """Those of one wave function. Within `with`; what was not begun at its end is let go."""

    def __init__(self, wave: Wave, mesh: Mesh | None, tell: Tell) -> None:
        self.wave, self.mesh, self.tell = wave, mesh, tell
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="compile")
        self._begun: dict[tuple[Settings, Asked], Future[Any]] = {}

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *raised: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)

    def like(self, settings: Settings) -> Carry:
        """Shapes and kinds of a carry: nothing is computed."""
        return jax.eval_shape(lambda: begin(self.wave, replace(settings, burn=0)))

    def start(self, settings: Settings, asked: Sequence[Asked]) -> None:
        """Have those compiled that are not yet, the first of them first; returns once they are traced."""
        for program in asked:
            if (settings, program) in self._begun:
                continue
            self.tell(Report("compile", 0, 0, note=self._pending(settings, program)))
            count, stage = program
            steps: Any = make_steps(self.wave, settings, count, stage=stage, mesh=self.mesh)
            lowered = steps.lower(shapes(self.like(settings), self.mesh))
            self._begun[settings, program] = self._threads.submit(lowered.compile)

    def get(self, settings: Settings, asked: Asked) -> Program:
        """One, compiled: waits for it where it must."""
        self.start(settings, [asked])
        made = self._begun[settings, asked]
        if not made.done():
            self.tell(Report("compile", 0, 0, note=self._pending(settings)))
        return made.result()

    def keep(self, settings: Settings) -> None:
        """Let go of all others, which were only tried."""
        for key in [key for key in self._begun if key[0] != settings]:
            self._begun.pop(key).cancel()

    def _pending(self, settings: Settings, *more: Asked) -> str:
        """`steps: 10 by Adam, 1 by SPRING`, those at work and these: four of them fit a line."""
        at_work = [
            program for (told, program), made in self._begun.items() if told == settings and not made.done()
        ]
        return "steps: " + ", ".join(f"{count} by {_NAMES[stage]}" for count, stage in (*at_work, *more))
