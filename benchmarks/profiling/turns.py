"""`Turns`: lets the training loop of a program run in turns, so that several programs can be timed in turn.

    for batch in loader:
        if not turns.allows_step():
            break

Without a referee (see overhead.py) the program runs `steps` steps and prints what it would have sent.
"""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

_FIRST = 5  # steps of the only turn without a referee that are not timed


class Turns:
    """address: the Unix socket of the referee, or empty. wait: waits until the device has nothing to do."""

    def __init__(self, address: str, *, steps: int, wait: Callable[[], None]) -> None:
        self._steps, self._wait = steps, wait
        self._left = self._timed = 0
        self._start = self._start_cpu = 0.0
        self._is_first = True
        self._socket = self._lines = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.connect(address)
            self._lines = self._socket.makefile("r")

    def allows_step(self) -> bool:
        """Whether there is another step; waits for the next turn if this one is over."""
        if not self._left and not self._begin():
            return False
        if self._left == self._timed:
            self._wait()
            self._start, self._start_cpu = time.perf_counter(), time.process_time()
        self._left -= 1
        return True

    def close(self, **result: Any) -> None:
        """Send the result of the program."""
        self._send(result)

    def _begin(self) -> bool:
        """End the turn, report it, and wait for the next one; return whether there is one."""
        if self._timed:
            self._wait()
            self._send(
                {
                    "steps": self._timed,
                    "loop_s": time.perf_counter() - self._start,
                    "cpu_s": time.process_time() - self._start_cpu,
                }
            )
        elif self._lines is not None:
            self._send({"ready": True})
        if self._lines is None:
            lead, self._timed = (_FIRST, self._steps - _FIRST) if self._is_first else (0, 0)
        else:
            lead, self._timed = (int(word) for word in (self._lines.readline() or "0 0").split())
        self._is_first = False
        self._left = lead + self._timed
        return self._left > 0

    def _send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message)
        if self._socket is None:
            print(text)
        else:
            self._socket.sendall(f"{text}\n".encode())
