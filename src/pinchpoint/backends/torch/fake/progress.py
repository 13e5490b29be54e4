"""`Progress`: what a script has done so far, and when it has been followed far enough.

Training is followed until every optimizer has taken its steps, and then, where a DataLoader gives its
batches, into what follows the epoch (see `loaders`), and where a loop of the script trains, into what follows
that loop (see `pinchpoint.backends.torch.loops`). Inference is followed to the end of the
script, because its memory may grow from call to call, or until `CALLS_OPERATIONS` operations were observed.
The limit counts operations and not seconds, so that a forecast does not depend on the speed of the machine.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from pinchpoint.core.events import FREE_CACHE, Observation

CALLS_OPERATIONS = 60_000  # observed in inference; about half a minute
LATE_OPERATIONS = 60_000  # observed after the training steps, or as many as before, if that is more
_LATE_STEPS = 3  # optimizer steps after those that were requested, for larger batches


class Progress:
    """Counts what a loop does; `check` is called after each event and may raise to stop the script."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}  # optimizer -> steps
        self.optimizers = 0  # made so far; those that are gone may share an identity in `steps`
        self.calls = 0  # outermost module calls
        self.quiet_calls = 0  # outermost module calls without gradients
        self.backwards = 0
        self.check: Callable[[Progress], None] = lambda progress: None
        self.half = False  # run every outermost call in bf16 autocast
        self.on_weight: Callable[[torch.Tensor], None] = lambda _: None  # called with each trained weight
        self.files = False  # files are redirected to a scratch folder, so a script may load what it saved
        self.observer: Any = None  # set by the session
        self.deadline_s: float | None = None  # time.monotonic() at which inference is followed no further
        self.is_late = False  # whether enough was seen for a forecast, and the rest is only followed
        self._call_ends: list[int] = []  # number of events after each outermost call
        self.is_cut = False  # whether a script that trains was stopped while it was followed beyond that
        self.remainder: Any = None  # what was left when it was stopped
        self._late_limit_s = (0.0, math.inf)  # time.monotonic() when following began and when it ends
        self._late_call = 0  # outermost calls until then
        self._late_steps = 0  # optimizer steps since then
        self._trained_modules: set[int] = set()
        self._evaluated_modules: set[int] = set()
        self._quiet_modules: set[int] = set()  # called without gradients, whatever their mode
        self._has_evaluated_late = False
        self.loaders: Any = None  # set by `loaders.install`
        self.thread_line = ""  # where a thread of the script first used the GPU, which is not followed
        self.loops: Any = None  # set by `script_loops.install`
        self.scaled_steps: int | None = None  # that gradient scalers may take in the whole run, if known
        self.wanted = 2  # steps of each optimizer that are requested
        self.stop: Callable[[], None] = lambda: None  # ends the script
        # Whether `generate` runs its first tokens, which show what the others allocate.
        self.is_generating: Callable[[], bool] = lambda: False
        self._operations_before = 0  # observed before inference was long enough for a forecast

    def count_call(self, module: torch.nn.Module | None, *, quiet: bool) -> None:
        """Count an outermost module call. quiet: without gradients."""
        self.calls += 1
        self.quiet_calls += quiet
        (self._quiet_modules if quiet else self._trained_modules).add(id(module))
        if quiet and (self.is_late or not (module is None or module.training)):
            self._evaluated_modules.add(id(module))
            self._has_evaluated_late = self._has_evaluated_late or self.is_late
        self._call_ends.append(len(self.observer.ledger.observation.events))
        self.check(self)

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Expect steps of an optimizer. Calls before the first one, as of a library that builds a model, are
        not what the script is about.
        """
        self.is_late = self.is_late and any(self.steps.values())
        self.steps.setdefault(id(optimizer), 0)
        self.optimizers += 1

    def count_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
        observation = self.observer.ledger.observation
        observation.step_ends.setdefault(id(optimizer), []).append(len(observation.events))
        self._late_steps += self.is_late
        if self.loaders is not None:
            self.loaders.after_step()
        self.check(self)

    def count_scaled_step(self) -> None:
        """A gradient scaler is about to take a step of an optimizer, which it skips on overflow."""
        if self.scaled_steps is None and self.loops is not None:
            self.scaled_steps = self.loops.planned_steps()

    def has_evaluated(self) -> bool:
        """Whether a module that is trained was called in evaluation, without gradients."""
        return self._has_evaluated_late or bool(self._trained_modules & self._evaluated_modules)

    def add_calls(self, count: int) -> None:
        """Count inference calls that were not run, because what they allocate is known."""
        self.calls += count
        self.quiet_calls += count

    def seen(self, *, trained: bool) -> dict[str, Any]:
        """What of the run was observed, as a Forecast records it."""
        steps = max(self.steps.values(), default=0) or self.backwards
        return {
            "training_steps": steps if trained else 0,
            "inference_calls": self.quiet_calls if trained else self.calls,
            "evaluation": trained
            and (self.has_evaluated() or bool(self._trained_modules & self._quiet_modules)),
        }

    def describe(self, steps: int) -> str:
        """What the script is doing, for someone who waits."""
        calls = f"{self.calls:,} module call{'s' if self.calls != 1 else ''}"
        if not self.trains:
            return f"running the script: {calls} so far"
        if self.is_late:
            return f"following the script beyond its {steps} training steps: {calls} so far"
        step = min(self.steps.values(), default=self.backwards) + 1
        return f"running the script: {calls}, before optimizer step {step} of {steps}"

    @property
    def trains(self) -> bool:
        return bool(self.steps or self.backwards)

    @property
    def trained(self) -> int:
        """Optimizer steps so far, or backward passes if there are none."""
        return sum(self.steps.values()) or self.backwards

    @property
    def has_enough(self) -> bool:
        return self.is_enough(self.wanted)

    def forget_late_steps(self) -> None:
        """Do not count steps of a loop that ends by itself."""
        self._late_steps = 0

    def is_enough(self, steps: int) -> bool:
        """Whether every optimizer took `steps` steps.

        Without an optimizer, backward passes or inference calls are counted. An optimizer that steps rarely
        is ignored once another one took eight times as many steps.
        """
        if self.steps:
            return min(self.steps.values()) >= steps or max(self.steps.values()) >= 8 * steps
        if self.backwards:
            return self.backwards > steps
        return self.quiet_calls >= steps or self.calls > steps

    def is_followed(self, steps: int) -> bool:
        """Whether the script need not, or cannot, be followed any further."""
        self.wanted = steps
        if not self.is_late and not self.is_enough(steps):
            self._operations_before = self.observer.operations
            return False
        is_first, self.is_late = not self.is_late, True
        if is_first:
            self._late_call = len(self._call_ends)
        operations = CALLS_OPERATIONS
        if self.trains:
            loaders, is_driven = self.loaders, self.loops.drive()
            is_done = not (loaders.trains or is_driven) or self._late_steps > _LATE_STEPS
            if is_first and not is_driven and self.has_evaluated() and not loaders.want_more():
                is_done = True
            if is_done:
                self.remainder = self.loops.left_after(sys._getframe(1))
                return True
            operations = self._late_operations
        is_over = self.deadline_s is not None and time.monotonic() > self.deadline_s
        is_long = self.observer.operations - self._operations_before > operations
        is_over = is_over or (is_long and not self.is_generating())
        if is_over and self.trains:
            self.cut(sys._getframe(1))
        return is_over

    @property
    def _late_operations(self) -> int:
        return max(LATE_OPERATIONS, self._operations_before)

    def limit_late(self, seconds: float) -> float:
        """Set the time after which a script that trains is followed no further; returns the seconds left."""
        now_s = time.monotonic()
        seconds = min(seconds, max((self.deadline_s or math.inf) - now_s, 1))
        self._late_limit_s = now_s, now_s + seconds
        return seconds

    def is_running_out(self) -> bool:
        """Whether half of what may be observed after the training steps was."""
        start_s, end_s = self._late_limit_s
        operations = self.observer.operations - self._operations_before
        return operations > self._late_operations / 2 or time.monotonic() > (start_s + end_s) / 2

    def cut(self, frame: FrameType | None) -> None:
        """Remember that the script is stopped in this frame although it would go on."""
        if not self.is_cut:
            self.is_cut, self.remainder = True, self.loops.left_after(frame)

    def late_share(self) -> float:
        """The peak since the last optimizer step as a share of the peak before."""
        observation = self.observer.ledger.observation
        last = max((ends[-1] for ends in observation.step_ends.values()), default=0)
        (before, since), _ = peaks_between(observation, [last, len(observation.events)])
        return since / max(before, 1)

    def late_growth(self) -> bool:
        """Whether memory after the training steps may grow beyond the peak, had the script not been cut.

        What grows with the turns of a loop is assumed to grow with their square, as attention may.
        """
        peaks, _ = peaks_between(self.observer.ledger.observation, self._call_ends)
        late = peaks[self._late_call :]
        if len(late) < 3 or max(late[-(len(late) // 3) :]) <= max(late[: -(len(late) // 3)]):
            return False
        share = self.loops.share_run()
        return not share or min(late) + (max(late) - min(late)) / share**2 > max(peaks)

    def grows(self) -> bool:
        """Whether the last third of the outermost calls reached a higher peak, or kept more, than all before.

        What calls keep, such as keys and values, may pass the peak of an early call only later.
        """
        peaks, kept = peaks_between(self.observer.ledger.observation, self._call_ends)
        split = len(peaks) - max(len(peaks) // 3, 1)
        return any(max(sizes[split:], default=0) > max(sizes[:split], default=0) for sizes in (peaks, kept))


def peaks_between(observation: Observation, ends: list[int]) -> tuple[list[int], list[int]]:
    """The most bytes alive in each stretch of the events, and those alive at its end."""
    peaks: list[int] = []
    kept: list[int] = []
    alive: set[int] = set()
    size = start = 0
    for end in ends:
        peak = size
        for block in observation.events[start:end]:
            if block == FREE_CACHE:
                continue
            if block in alive:
                alive.remove(block)
                size -= observation.blocks[block].bytes
            else:
                alive.add(block)
                size += observation.blocks[block].bytes
                peak = max(peak, size)
        peaks.append(peak)
        kept.append(size)
        start = end
    return peaks, kept
