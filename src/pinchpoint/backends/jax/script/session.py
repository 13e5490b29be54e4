"""`ScriptSession`: runs a script without values, books its programs, and answers what it reads.

It ends the script once its training step has been seen often enough and nothing new has been seen for a
while, so that a script of 10,000 steps takes seconds.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.fake_devices import fake_cuda
from pinchpoint.backends.jax.script import programs
from pinchpoint.backends.jax.script.ahead_of_time import call_instead_of_compiling
from pinchpoint.backends.jax.script.arrays import ScriptArray
from pinchpoint.backends.jax.script.ledger import FIRST, Buffer, Devices, Ledger, Place, ProgramCalls
from pinchpoint.backends.jax.script.loops import ScriptLoops
from pinchpoint.backends.jax.script.number_calls import add_number_calls
from pinchpoint.backends.jax.script.trace import ScriptTrace
from pinchpoint.backends.jax.sharded.communicators import Groups
from pinchpoint.backends.jax.sharded.partitioning import Partition
from pinchpoint.backends.jax.sharded.placement import (
    Placement,
    device_numbers,
    divided_arguments,
    shard_bytes,
    single_program,
)
from pinchpoint.backends.jax.sharded.script_devices import ScriptDevices
from pinchpoint.backends.jax.tracing import JITS
from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.torch.data_dependent.decisions import Decisions
from pinchpoint.backends.torch.data_dependent.unknown_values import DataFloat, DataNumber, NeedsCalibration
from pinchpoint.core import targets
from pinchpoint.core.files import shown_path
from pinchpoint.core.units import show_bytes

# After its steps a script ends when nothing new was seen for so many seconds of this process and steps more.
_STEADY = ((2.0, 20), (10.0, 2))
_OPEN_S = 10.0  # after its steps, while conditions may still have another answer
_AFTER_JUMP_S = 1.0  # of the time without news that is needed after a jump to a turn that may differ
_LONGEST_S = 30.0  # after its steps, even if new programs keep appearing
_WITHOUT_STEPS_S, _WITHOUT_STEPS_CALLS = 5.0, 500  # the same for a script without training steps
_GROWTH_BYTES = 1 << 16  # a program that keeps more than this alive with every call may need more later
_GROWTH_CALLS = 5


class ScriptSession:
    """steps: how many training steps to see at least. stop: raises to end the script.

    devices: those that the script sees, by default one.
    """

    def __init__(
        self,
        *,
        steps: int,
        stop: Callable[[], None],
        decisions: Decisions,
        workspace_bytes: int,
        clock: Callable[[], float] = time.process_time,
        devices: ScriptDevices | None = None,
    ) -> None:
        self.ledger = Ledger(clock=clock)
        self.decisions = decisions
        self.training_steps = 0
        self.calls = 0
        self.evaluation_calls = 0
        self.inference_calls = 0
        self.is_stopped = False
        self.place: Place = ("", 0)
        self._steps, self._stop, self._clock = steps, stop, clock
        self._workspace_bytes = workspace_bytes
        self._calls_at_change = self._steps_at_change = 0
        self._changed_at = 0.0
        self._enough_at: float | None = None
        self._real: dict[int, Buffer] = {}
        self._is_cut = False  # whether the script was ended while new programs or higher memory appeared
        self.loops = ScriptLoops(self._jumped)
        self._open_reasons: list[str] = []
        self._devices = devices or ScriptDevices()
        self.placement = Placement() if self._devices.count > 1 else None
        self.groups: set[Groups] = set()  # of devices that collectives connect

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run what is inside on arrays without values."""
        self._devices.start()
        jax.devices()  # starts the CPU client before the script can change the environment
        with fake_cuda(), Patches() as patches:
            patches.set(jax, "default_backend", lambda: "gpu")
            original = patches.set(jax, "device_get", lambda tree: original(_on_host(tree)))
            compat.answer_concrete(patches, self._concrete)
            compat.allow_set_mesh(patches)
            call_instead_of_compiling(patches)
            add_number_calls(patches)
            self.loops.install(patches)
            trace = ScriptTrace(self)
            self._devices.install(patches, trace, self.ledger.notes)
            run = patches.set(threading.Thread, "run", lambda thread: _run_in(trace, run, thread))
            with compat.set_current_trace(trace):
                yield

    # Booking
    def buffer(self, size: int, devices: Devices = FIRST) -> Buffer:
        return Buffer(self.ledger, size, user_place(), devices)

    def real_array(self, array: Any) -> Buffer:
        """The buffer of an array that was computed for real, such as one made in a thread."""
        key = id(array)
        if key not in self._real:
            sharding = array.sharding
            size = shard_bytes(compat.aval_of(array), sharding)
            self._real[key] = Buffer(self.ledger, size, user_place(), device_numbers(sharding))
            weakref.finalize(array, self._real.pop, key, None)
        return self._real[key]

    def call(
        self,
        primitive: Any,
        args: Sequence[Any],
        params: dict[str, Any],
        out_avals: Sequence[Any],
        buffers: Sequence[Buffer | int],
        partition: Partition | None = None,
    ) -> ProgramCalls:
        self._stop_if_steady()
        self.calls += 1
        self.place = user_place()

        def describe() -> ProgramCalls:
            if partition is not None:
                sizes = programs.sizes_of_partition(partition, params, self._workspace_bytes)
                self.groups |= partition.hlo.groups
            else:
                sizes = programs.sizes_of(primitive, args, params, out_avals, self._workspace_bytes)
            name = str(params.get("name", primitive.name))
            if sizes.captured_bytes:
                self._captured(sizes.captured_bytes, devices)
            return ProgramCalls(name, sizes, self.place, trains=sizes.trains)

        key = _key(primitive, args, params)
        devices, copied = FIRST, 0
        if partition is not None:
            key, devices = (key, id(partition)), partition.devices
            buffers, copied = divided_arguments(partition, args, buffers)
        elif self.placement is not None:
            sharding, _ = single_program(args)
            devices = device_numbers(sharding or self.placement.default())
            key = (key, devices)
        entry = self.ledger.call(key, buffers, describe=describe, devices=devices, copied_bytes=copied)
        if entry.trains:
            for role, buffer in zip(entry.program.roles, buffers, strict=False):
                if isinstance(buffer, Buffer) and role != "inputs":
                    self.ledger.set_role(buffer, role)
        return entry

    def returned(self, entry: ProgramCalls, results: Sequence[Any]) -> None:
        if entry.trains:
            self.training_steps += 1
        elif entry.program.products and entry.program.traced is not None:
            self.inference_calls += 1
            if self.training_steps:
                self.evaluation_calls += 1

    def _captured(self, size: int, devices: Devices) -> None:
        self._real[-len(self._real) - 1] = Buffer(self.ledger, size, self.place, devices)

    # Several devices
    def rest(self, name: str, arrays: Sequence[ScriptArray]) -> None:
        """Book what is alive after arrays were moved, where no program may follow."""
        self.place = user_place()
        for devices in {array.buffer.devices for array in arrays}:
            self.ledger.call(
                (name, devices),
                (),
                describe=lambda: ProgramCalls(name, programs.ProgramSizes(None, 0, 0, 0, 0), self.place),
                devices=devices,
            )

    def _stop_if_steady(self) -> None:
        """End the script when it has made its steps and repeats itself."""
        if self.is_stopped:
            self._stop()
        now = self._clock()
        if self.ledger.changed_at != self._changed_at:
            self._changed_at = self.ledger.changed_at
            self._calls_at_change, self._steps_at_change = self.calls, self.training_steps
        quiet_s = now - self._changed_at
        more_steps = self.training_steps - self._steps_at_change
        if self.training_steps >= self._steps:
            if self._enough_at is None:
                self._enough_at = now
            is_steady = any(quiet_s > seconds and more_steps >= steps for seconds, steps in _STEADY)
            self._is_cut = now - self._enough_at > _LONGEST_S and not is_steady
            self.is_stopped = self._is_cut or (is_steady and not self._goes_on(now - self._enough_at))
        elif not self.training_steps and quiet_s > _WITHOUT_STEPS_S:
            self.is_stopped = self.calls - self._calls_at_change > _WITHOUT_STEPS_CALLS
        if self.is_stopped:
            self._open_reasons = self.loops.reasons()  # while the loops still run
            self._stop()

    def _goes_on(self, late_s: float) -> bool:
        """Whether a script that repeats itself may still do something else. late_s: since its steps."""
        if late_s > _LONGEST_S:
            return False
        if self.loops.is_skipping or self.loops.skip():
            return True
        return late_s < _OPEN_S and bool(self.loops.open_lines())

    def _jumped(self) -> None:
        """A loop begins a turn that may differ: the script does not repeat itself for now."""
        self.ledger.changed_at = self._clock() - _AFTER_JUMP_S

    @property
    def has_jumped(self) -> bool:
        return bool(self.loops.left_out)

    # Reading values
    def known_value(self, array: ScriptArray) -> Any:
        """The value of an array if it follows from data and constants by small operations, else None."""
        value = array.recipe.compute()
        return None if value is None else np.asarray(value)

    def read(self, array: ScriptArray) -> Any:
        value = self.known_value(array)
        if value is not None:
            return value
        dtype = np.dtype(array.dtype)
        if array.shape:
            file, line = user_place()
            self.ledger.notes[f"values read at {file}:{line} are not known: zeros are assumed"] = None
            return np.zeros(array.shape, dtype)
        return np.ones((), dtype)

    def read_number(self, array: ScriptArray) -> Any:
        value = self.known_value(array)
        if value is not None:
            return value.reshape(()).item()
        if array.size != 1:
            raise TypeError("Only scalar arrays can be converted to Python scalars.")
        kind = np.dtype(array.dtype).kind
        if kind == "b":
            return self._decide(True)
        if kind in "iu":
            return DataNumber(_site(), 1, self._decide)
        return DataFloat(1.0, _refuse(_site()), self._decide)

    def read_size(self, array: ScriptArray) -> int:
        value = self.known_value(array)
        if value is None:
            raise NeedsCalibration(_site())
        return int(value.reshape(()).item())

    def read_bool(self, array: ScriptArray) -> bool:
        value = self.known_value(array)
        if value is not None:
            return bool(value.reshape(()).item())
        if array.size != 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous.")
        return self._decide(True)

    def _concrete(self, array: Any) -> Any:
        """The value that JAX itself needs, such as the count of `jnp.nonzero`."""
        if not isinstance(array, ScriptArray):
            return array
        value = self.known_value(array)
        if value is None:
            raise NeedsCalibration(_site())
        return value

    def _decide(self, likely: bool) -> bool:
        return self.decisions.decide(likely, self.training_steps)

    # After the run
    def end_notes(self) -> tuple[str, ...]:
        if not self.is_stopped:
            return self.loops.notes()
        return (
            *self.loops.notes(),
            f"ended after {self.training_steps} training steps, when the script repeated itself",
        )

    def end_reasons(self) -> tuple[str, ...]:
        """What may need more memory later, in a script that was ended early."""
        reasons = [*self._open_reasons]
        growth = self._growth_reasons()
        if self._is_cut and not growth:
            reasons.append(
                f"the script still reached new programs or more memory when it was ended after "
                f"{self.training_steps:,} training steps"
            )
        return (*reasons, *growth)

    def _growth_reasons(self) -> tuple[str, ...]:
        """Programs around which more stays alive with every call, in a script that was ended early."""
        reasons = []
        for entry in self.ledger.programs.values() if self.is_stopped else ():
            if not (entry.trains or (entry.program.products and not self.training_steps)):
                continue
            recent = entry.growth[-_GROWTH_CALLS:]
            if len(recent) == _GROWTH_CALLS and min(recent) > _GROWTH_BYTES:
                file, line = entry.place
                reasons.append(
                    f"every call of {entry.name!r} at {shown_path(f'{file}:{line}')} leaves arrays of "
                    f"{show_bytes(recent[-1])} behind, and the number of calls is unknown"
                )
        return tuple(reasons)


def _run_in(trace: ScriptTrace, run: Callable[[Any], None], thread: threading.Thread) -> None:
    """Run a thread of the script on arrays without values too: JAX has a current trace per thread."""
    with compat.set_current_trace(trace):
        run(thread)


def _on_host(tree: Any) -> Any:
    return jax.tree_util.tree_map(lambda x: np.asarray(x) if isinstance(x, ScriptArray) else x, tree)


def unknown_site(error: BaseException | None) -> str:
    """The line that needs an unknown device value as a size, if that ended the script."""
    while error is not None:
        if isinstance(error, NeedsCalibration):
            return error.site
        if isinstance(error, (jax.errors.ConcretizationTypeError, jax.errors.NonConcreteBooleanIndexError)):
            return targets.user_line(error)
        error = error.__cause__ or error.__context__
    return ""


def user_place() -> Place:
    """File and line of the innermost frame of the user's own code."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0


def _site() -> str:
    file, line = user_place()
    return f"{file}:{line}"


def _refuse(site: str) -> Callable[[int], int]:
    def whole(count: int) -> int:
        raise NeedsCalibration(site)

    return whole


def _key(primitive: Any, args: Sequence[Any], params: dict[str, Any]) -> Any:
    if primitive.name in JITS:
        return id(params["jaxpr"]), tuple(params.get("donated_invars", ()))
    avals = tuple(str(compat.aval_of(arg)) for arg in args)
    try:
        return primitive.name, avals, hash(tuple(sorted(params.items(), key=lambda item: item[0])))
    except TypeError:
        return primitive.name, avals
