"""`Sandbox`: all guards (files, trackers, processes) around one script in a separate process."""

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
    """The active guards; afterwards they report what the script tried."""

    overlay: Overlay
    processes: Processes
    locked: bool  # whether the kernel refuses writes outside scratch, including those of C code


class Sandbox:
    """Context manager around a user's script.

    `locked=True` also restricts the process in the kernel, permanently (see `lock`): it can then write only
    to `scratch`, to files that are already open and to devices. Nothing else should use the process
    afterwards.
    """

    def __init__(self, scratch: Path, *, locked: bool = False) -> None:
        self._scratch = Path(scratch)
        self._locked = locked
        self._stack = ExitStack()

    def __enter__(self) -> Guards:
        with ExitStack() as stack:
            overlay = Overlay(self._scratch)
            is_locked = lock([self._scratch]) if self._locked else False
            stack.enter_context(overlay)
            stack.enter_context(Trackers(self._scratch))
            processes = stack.enter_context(Processes(overlay.write_guard))
            self._stack = stack.pop_all()
        return Guards(overlay, processes, is_locked)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
