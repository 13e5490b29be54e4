"""`Referee`: starts one program several times in different ways and lets the loops run in turns.

All processes are started at once, but only one of them computes at a time: each waits in its loop until the
referee gives it a turn of some steps (see turns.py). So a machine that becomes slower does so for all.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from profilers import Way

_FIRST = 5  # steps at the start, in which libraries are loaded and kernels chosen
_TURN_S = 25.0  # after which a turn counts as failed; longer if there is much time
_FEW = 3  # rounds of the ways that are not the main ones
_SLOW = 4.0  # a way that is so many times slower has shorter turns


class Player:
    """The process of one way, and the connection to its loop."""

    def __init__(self, way: Way, address: Path, turn_s: float) -> None:
        self.way, self.failure, self._turn_s = way, "", turn_s
        self.turns: list[dict[str, Any]] = []
        self.result: dict[str, Any] = {}
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(address))
        self._server.listen(1)
        self._log = address.with_suffix(".log")
        self._connection: socket.socket | None = None
        self._rest = b""
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                way.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def connect(self, deadline: float) -> None:
        """Wait until the loop is about to begin, and let it begin."""
        if self._wait(self._server, deadline):
            self._connection, _ = self._server.accept()
            if self._receive(deadline):
                self._connection.sendall(f"{_FIRST} 1\n".encode())

    def warm_up(self, deadline: float) -> None:
        """Wait until the first steps are over."""
        if not self.failure:
            self._receive(deadline)

    def play(self, lead: int, steps: int) -> dict[str, Any] | None:
        """Let the loop run `lead` steps and then `steps` that are timed."""
        if self.failure or self._connection is None:
            return None
        self._connection.sendall(f"{lead} {steps}\n".encode())
        return self._receive(time.monotonic() + self._turn_s)

    def end(self, deadline: float) -> None:
        """Read the result of a loop that is ending, and wait for the process."""
        if not self.failure:
            self.result = self._receive(deadline) or {}
        try:
            self.process.wait(max(deadline - time.monotonic(), 1.0))
        except subprocess.TimeoutExpired:
            self.failure = self.failure or "it did not end in time"
        self.kill()

    def tell_end(self) -> None:
        if not self.failure and self._connection is not None:
            self._connection.sendall(b"0 0\n")

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)

    def _receive(self, deadline: float) -> dict[str, Any] | None:
        assert self._connection is not None
        while b"\n" not in self._rest:
            if not self._wait(self._connection, deadline):
                return None
            data = self._connection.recv(65536)
            if not data:
                return self._fail("its loop ended early")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _wait(self, source: socket.socket, deadline: float) -> bool:
        """Whether there is something to read before the deadline and before the process ends."""
        while True:
            if select.select([source], [], [], 0.5)[0]:
                return True
            if self.process.poll() is not None:
                self._fail(f"it ended with code {self.process.returncode}")
                return False
            if time.monotonic() > deadline:
                self._fail("it took too long")
                return False

    def _fail(self, why: str) -> None:
        last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
        self.failure = f"{why}: {' | '.join(last)}"[:600]
        self.kill()


def contest(
    ways: dict[str, Way],
    addresses: dict[str, Path],
    *,
    main: Collection[str],
    block_s: float,
    seconds: float,
    most: int,
) -> dict[str, Any]:
    """Time the loops in turn until the seconds are over or there were `most` rounds.

    main: ways that play in all rounds; the others play in the first ones, and then end. Returns what each
    way's turns took. The first steps of a run are not timed.
    """
    start = time.monotonic()
    deadline = start + seconds
    players: dict[str, Player] = {}
    try:
        _start(players, ways, addresses, main, max(_TURN_S, seconds / 12))
        print(f"  all started after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        steps = _block_steps({name: player.play(3, 5) for name, player in players.items()}, block_s)
        names, took = list(players), 0.0
        for number in range(most):
            begin = time.monotonic()
            if number == _FEW:
                for name in set(names).difference(main):
                    players[name].tell_end()
                names = [name for name in names if name in main]
            if number and begin + 1.1 * took > deadline - 6.0:
                break
            for name in [*names[number % len(names) :], *names[: number % len(names)]]:
                players[name].turns.append(players[name].play(2, steps[name]) or {})
            took = time.monotonic() - begin
            print(f"  round {number + 1}: {took:.1f} s", file=sys.stderr, flush=True)
        for name in names:
            players[name].tell_end()
        for player in players.values():
            player.end(deadline)
    finally:
        for player in players.values():
            player.kill()
    return {
        name: {
            "failure": player.failure,
            "turns": player.turns,
            "result": player.result,
            "recorded": "" if player.failure else _recorded(player.way),
        }
        for name, player in players.items()
    }


def _start(
    players: dict[str, Player],
    ways: dict[str, Way],
    addresses: dict[str, Path],
    main: Collection[str],
    turn_s: float,
) -> None:
    """Start all processes, and let their first steps run.

    Not more at once than the machine can start without some running into time limits of their own.
    """
    waiting, together, slowest = sorted(ways, key=lambda name: name not in main), _at_once(), 0.0
    while waiting:
        wave, waiting = waiting[:together], waiting[together:]
        begin = time.monotonic()
        for name in wave:
            players[name] = Player(ways[name], addresses[name], turn_s)
        for act in (Player.connect, Player.warm_up):
            for name in wave:
                limit_s = 120.0 if name in main else max(40.0, 3 * slowest)
                act(players[name], begin + limit_s)
                if name in main:
                    slowest = max(slowest, time.monotonic() - begin)


def _at_once() -> int:
    return max(1, (os.cpu_count() or 1) - 4)


def _block_steps(turns: dict[str, dict[str, Any] | None], block_s: float) -> dict[str, int]:
    """The steps of a turn, by way: as many as the plain run does in `block_s`, fewer for much slower ways."""
    times = {name: turn["loop_s"] / turn["steps"] for name, turn in turns.items() if turn}
    steps = max(3, round(block_s / times["plain"]))
    slower = {name: time_s / times["plain"] for name, time_s in times.items()}
    return {
        name: steps
        if slower.get(name, 1.0) <= _SLOW
        else max(3, min(steps, round(_SLOW * steps / slower[name])))
        for name in turns
    }


def _recorded(way: Way) -> str:
    try:
        return way.recorded()
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"nothing: {type(error).__name__}: {error}"
