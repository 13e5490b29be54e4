"""`Ledger`: the device arrays that a script keeps alive, and every program that it calls.

A `Buffer` is one array on the device. It is alive while a Python object refers to it, as in JAX, or until it
is donated to a program. For each program the ledger keeps the call with the most bytes alive around it:
what the program itself adds is the same in every call, so this call has the program's highest peak.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Place = tuple[str, int]  # file and line of the user
_NEWS = 0.001  # a rise of the live bytes by less than this share is nothing new, such as a list of losses


class Buffer:
    """One array on the device; its bytes are given back when nothing refers to it any more."""

    __slots__ = ("_ledger", "bytes", "deleted", "number", "place", "role")

    def __init__(self, ledger: Ledger, size: int, place: Place) -> None:
        self._ledger, self.bytes, self.place = ledger, size, place
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

    live_bytes: the most bytes that were alive around a call, arguments included; `live_buffers` are these.
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
    trains: bool = False
    last_live_bytes: int = 0
    growth: list[int] = field(default_factory=list)  # bytes by which the live bytes rose from call to call


@dataclass
class Ledger:
    """now_bytes: bytes alive. changed_at: when a new program or a higher peak was last seen."""

    now_bytes: int = 0
    clock: Callable[[], float] = time.process_time
    changed_at: float = 0.0
    programs: dict[Any, ProgramCalls] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    events: list[tuple[bool, int]] = field(default_factory=list)  # of each call: it trains, bytes alive
    _live: dict[int, tuple[int, Place, Any]] = field(default_factory=dict)
    _roles: dict[int, str] = field(default_factory=dict)
    _count: int = 0

    def allocate(self, buffer: Buffer) -> int:
        self._count += 1
        self.now_bytes += buffer.bytes
        self._live[self._count] = buffer.bytes, buffer.place, None
        return self._count

    def give_back(self, buffer: Buffer) -> None:
        if self._live.pop(buffer.number, None) is not None:
            self.now_bytes -= buffer.bytes
            self._roles.pop(buffer.number, None)

    def set_role(self, buffer: Buffer, role: str) -> None:
        self._roles[buffer.number] = role

    def call(
        self, key: Any, arguments: Sequence[Buffer | int], *, describe: Callable[[], ProgramCalls]
    ) -> ProgramCalls:
        """Book one call. arguments: buffers, or the bytes of host arrays that are copied for this call only.

        describe: makes the entry of a program that is called for the first time.
        """
        entry = self.programs.get(key)
        if entry is None:
            entry = self.programs[key] = describe()
            entry.first_live_bytes = self.now_bytes
            self.changed_at = self.clock()
        copied = sum(size for size in arguments if isinstance(size, int))
        live = self.now_bytes + copied
        entry.calls += 1
        if entry.calls > 1:
            entry.growth.append(live - entry.last_live_bytes)
        entry.last_live_bytes = live
        if live > entry.live_bytes:
            rise, entry.live_bytes = live - entry.live_bytes, live
            entry.live_buffers = self._live_buffers(arguments, entry.place)
            if rise > _NEWS * live:
                self.changed_at = self.clock()
        if len(self.events) < 100_000:
            self.events.append((entry.trains, live))
        return entry

    def _live_buffers(self, arguments: Sequence[Buffer | int], place: Place) -> tuple[LiveBuffer, ...]:
        position = {item.number: i for i, item in enumerate(arguments) if isinstance(item, Buffer)}
        buffers = [
            LiveBuffer(size, where, self._roles.get(number, ""), position.get(number))
            for number, (size, where, _) in self._live.items()
        ]
        buffers += [
            LiveBuffer(size, place, "", i) for i, size in enumerate(arguments) if isinstance(size, int)
        ]
        return tuple(buffers)
