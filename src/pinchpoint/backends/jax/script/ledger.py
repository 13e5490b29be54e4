"""`Ledger`: the device arrays that a script keeps alive, and every program that it calls.

A `Buffer` is one array, on one device or with equal parts on several. It is alive while a Python object
refers to it, as in JAX, or until it is donated to a program. For each program the ledger keeps the call with
the most bytes alive around it: what the program itself adds is the same in every call, so this call has the
program's highest peak.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, int]  # file and line of the user
Devices = tuple[int, ...]
FIRST: Devices = (0,)
_NEWS = 0.001  # a rise of the live bytes by less than this share is nothing new, such as a list of losses


class Buffer:
    """One array; its bytes are given back when nothing refers to it any more.

    bytes: on each of its devices; devices: their numbers
    """

    __slots__ = ("_ledger", "bytes", "deleted", "devices", "number", "place", "role")

    def __init__(self, ledger: Ledger, size: int, place: Place, devices: Devices = FIRST) -> None:
        self._ledger, self.bytes, self.place, self.devices = ledger, size, place, devices
        self.deleted = False
        self.role = ""
        self.number = ledger.allocate(self)

    def free(self) -> None:
        if not self.deleted:
            self.deleted = True
            self._ledger.give_back(self)

    def __del__(self) -> None:
        self.free()


@dataclass(frozen=True)
class LiveBuffer:
    """A buffer that is alive during a call. argument: its position among the program's arguments, or None."""

    bytes: int
    place: Place
    role: str
    argument: int | None


@dataclass
class ProgramCalls:
    """The calls of one program.

    live_bytes: the most bytes that were alive on one of its devices around a call, arguments included;
    `live_buffers` are these, and `device` is the number of that device.
    first_live_bytes: those alive before the first call, when XLA compiles the program.
    program: what `describe` made of the program at its first call.
    """

    name: str
    program: Any
    place: Place
    calls: int = 0
    live_bytes: int = -1
    first_live_bytes: int = 0
    live_buffers: tuple[LiveBuffer, ...] = ()
    device: int = 0
    trains: bool = False
    last_live_bytes: int = 0
    growth: list[int] = field(default_factory=list)  # bytes by which the live bytes rose from call to call


@dataclass
class Ledger:
    """now: bytes alive on each device. changed_at: when a new program or a higher peak was last seen."""

    now: Counter[int] = field(default_factory=Counter)
    clock: Callable[[], float] = time.process_time
    changed_at: float = 0.0
    programs: dict[Any, ProgramCalls] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    events: list[tuple[bool, int]] = field(default_factory=list)  # of each call: it trains, bytes alive
    _live: dict[int, tuple[int, Place, Devices]] = field(default_factory=dict)
    _roles: dict[int, str] = field(default_factory=dict)
    _count: int = 0

    @property
    def now_bytes(self) -> int:
        """Bytes alive on the device that has most."""
        return max(self.now.values(), default=0)

    def allocate(self, buffer: Buffer) -> int:
        self._count += 1
        for device in buffer.devices:
            self.now[device] += buffer.bytes
        self._live[self._count] = buffer.bytes, buffer.place, buffer.devices
        return self._count

    def give_back(self, buffer: Buffer) -> None:
        if self._live.pop(buffer.number, None) is not None:
            for device in buffer.devices:
                self.now[device] -= buffer.bytes
            self._roles.pop(buffer.number, None)

    def set_role(self, buffer: Buffer, role: str) -> None:
        self._roles[buffer.number] = role

    def call(
        self,
        key: Any,
        arguments: Sequence[Buffer | int],
        *,
        describe: Callable[[], ProgramCalls],
        devices: Devices = FIRST,
        copied_bytes: int = 0,
    ) -> ProgramCalls:
        """Book one call. arguments: buffers, or the bytes of host arrays that are copied for this call only.

        describe: makes the entry of a program that is called for the first time.
        devices: those that the program runs on; copied_bytes: of buffers that are copied there for the call.
        """
        device = max(devices, key=lambda number: self.now[number])
        now_bytes = self.now[device]
        entry = self.programs.get(key)
        if entry is None:
            entry = self.programs[key] = describe()
            entry.first_live_bytes = now_bytes
            self.changed_at = self.clock()
        live = now_bytes + copied_bytes + sum(size for size in arguments if isinstance(size, int))
        entry.calls += 1
        if entry.calls > 1:
            entry.growth.append(live - entry.last_live_bytes)
        entry.last_live_bytes = live
        if live > entry.live_bytes:
            rise, entry.live_bytes = live - entry.live_bytes, live
            entry.device = device
            entry.live_buffers = self._live_buffers(arguments, entry.place, device)
            if copied_bytes:
                entry.live_buffers += (LiveBuffer(copied_bytes, entry.place, "", None),)
            if rise > _NEWS * live:
                self.changed_at = self.clock()
        if len(self.events) < 100_000:
            self.events.append((entry.trains, live))
        return entry

    def _live_buffers(
        self, arguments: Sequence[Buffer | int], place: Place, device: int
    ) -> tuple[LiveBuffer, ...]:
        position = {item.number: i for i, item in enumerate(arguments) if isinstance(item, Buffer)}
        buffers = [
            LiveBuffer(size, where, self._roles.get(number, ""), position.get(number))
            for number, (size, where, devices) in self._live.items()
            if device in devices
        ]
        buffers += [
            LiveBuffer(size, place, "", i) for i, size in enumerate(arguments) if isinstance(size, int)
        ]
        return tuple(buffers)
