"""Trainings put aside: their states in files beside the record, so that a limit on time ends none for nothing.

A state is written at the latest every minute, and when the time is up. The next call that writes the same record, or is given
it with --from, goes on from there; on a CPU to the same bits. The file goes when its training is done.
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
    """The time is up. The training at hand is put aside."""


@dataclass
class States:
    """Where the trainings of one record are put aside, and until when there is time.

    record: the file the record is written to; earlier: records whose states may be gone on from, too. about: what a state must
    have been made for, as the record says it.
    """

    record: Path
    earlier: Sequence[Path] = ()
    about: Any = None
    end: float | None = None
    clock: Callable[[], float] = time.monotonic
    written: float = field(default=float("-inf"))

    def read(self, what: str) -> dict[str, Any] | None:
        """The newest state of a training, by its steps; None where there is none."""
        found = [
            state
            for record in (self.record, *self.earlier)
            if (state := self._state(self._path(record, what))) is not None
        ]
        self.written = self.clock()
        return max(found, key=lambda state: state["step"], default=None)

    def due(self) -> bool:
        """Whether the last state is from long ago, or the time is up."""
        return self.late() or self.clock() - self.written >= _EVERY_S

    def write(self, what: str, state: dict[str, Any]) -> None:
        """Put a training aside; raise Late where the time is up."""
        held = io.BytesIO()
        torch.save(state | {"about": self.about}, held)
        write_bytes(self._path(self.record, what), held.getvalue())
        self.written = self.clock()
        if self.late():
            raise Late(what)

    def done(self, what: str) -> None:
        self._path(self.record, what).unlink(missing_ok=True)

    def late(self) -> bool:
        return self.end is not None and self.clock() >= self.end

    def _state(self, path: Path) -> dict[str, Any] | None:
        if not path.exists():
            return None
        state = torch.load(path, weights_only=True, map_location="cpu")
        if state["about"] != self.about:
            raise BadInput(
                f"{path} is a training of another comparison",
                hint="remove it, or name another record with -o",
            )
        return state

    @staticmethod
    def _path(record: Path, what: str) -> Path:
        short = hashlib.sha256(what.encode()).hexdigest()[
            :6
        ]  # two names may differ in what a file's name cannot hold
        return record.with_name(f"{record.stem}.{re.sub(r'[^a-z0-9.]+', '-', what)}-{short}.state")
