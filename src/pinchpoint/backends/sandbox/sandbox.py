"""All guards in one: files, trackers and processes, around one script in a process of its own."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pinchpoint.backends.sandbox.files.landlock import lock
from pinchpoint.backends.sandbox.files.overlay import Overlay
from pinchpoint.backends.sandbox.processes import Processes
from pinchpoint.backends.sandbox.trackers import Trackers


@dataclass(frozen=True)
class Guards:
    """What was entered; afterwards it tells what the script tried."""

    overlay: Overlay
    processes: Processes
    locked: bool  # whether the kernel refuses writes outside scratch, also those of C code


class NoHarm:
    """Context manager around a user's script.

    `locked=True` also asks the kernel (see `lock`), for good: the whole process can then write only to `scratch`,
    to what is open already and to devices. Nothing else should use the process afterwards.
    """

    def __init__(self, scratch: Path, *, locked: bool = False) -> None:
        self._scratch = Path(scratch)
        self._locked = locked
        self._stack = ExitStack()

    def __enter__(self) -> Guards:
        with ExitStack() as entering:
            overlay = Overlay(self._scratch)
            held = lock([self._scratch]) if self._locked else False
            entering.enter_context(overlay)
            entering.enter_context(Trackers(self._scratch))
            processes = entering.enter_context(Processes(overlay.net))
            self._stack = entering.pop_all()
        return Guards(overlay, processes, held)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
