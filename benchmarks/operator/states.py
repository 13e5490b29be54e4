"""States of suspended trainings, in files next to the record, so that a time limit wastes no work.

A state is written at least every minute, and when the time is up. The next call that writes the same record,
or gets it with --from, resumes from there; on a CPU the result is bitwise identical. The file is removed when
its training is finished.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes

_EVERY_S = 60.0


class Late(Exception):
    """Raised when the time is up and the current training is suspended."""


@dataclass
class States:
    """The states of one record's trainings, and the time limit.

    record: the file of the record; earlier: other records whose states may be resumed. about: the comparison
    that a state must belong to, as in the record.
    """

    record: Path
    earlier: Sequence[Path] = ()
    about: Any = None
    end: float | None = None
    clock: Callable[[], float] = time.monotonic
    last_write: float = field(default=float("-inf"))

    def read(self, what: str) -> dict[str, Any] | None:
        """Return the state of a training with the most steps, or None."""
        states = [
            state
            for record in (self.record, *self.earlier)
            if (state := self._state(self._path(record, what))) is not None
        ]
        self.last_write = self.clock()
        return max(states, key=lambda state: state["step"], default=None)

    def due(self) -> bool:
        """Return whether the last state is more than a minute old, or the time is up."""
        return self.late() or self.clock() - self.last_write >= _EVERY_S

    def write(self, what: str, state: dict[str, Any]) -> None:
        """Write the state of a training; raise Late if the time is up."""
        buffer = io.BytesIO()
        torch.save(state | {"about": self.about}, buffer)
        write_bytes(self._path(self.record, what), buffer.getvalue())
        self.last_write = self.clock()
        if self.late():
            raise Late(what)

    def remove(self, what: str) -> None:
        self._path(self.record, what).unlink(missing_ok=True)

    def late(self) -> bool:
        return self.end is not None and self.clock() >= self.end

    def _state(self, path: Path) -> dict[str, Any] | None:
        if not path.exists():
            return None
        state = torch.load(path, weights_only=True, map_location="cpu")
        if state["about"] != self.about:
            raise BadInput(
                f"{path} belongs to a training of another comparison.",
                hint="Remove it, or name another record with -o.",
            )
        return state

    @staticmethod
    def _path(record: Path, what: str) -> Path:
        # Two names may differ only in characters that a file name cannot contain.
        short = hashlib.sha256(what.encode()).hexdigest()[:6]
        return record.with_name(f"{record.stem}.{re.sub(r'[^a-z0-9.]+', '-', what)}-{short}.state")
