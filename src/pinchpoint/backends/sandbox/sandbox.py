"""`Sandbox`: all guards (files, trackers, processes) around one script in a separate process."""

from __future__ import annotations

import posix
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType

from pinchpoint.backends.sandbox.files.overlay import Overlay
from pinchpoint.backends.sandbox.kernel.delegate import Delegate
from pinchpoint.backends.sandbox.kernel.landlock import lock
from pinchpoint.backends.sandbox.kernel.system_calls import can_filter, filter_calls
from pinchpoint.backends.sandbox.network import Network
from pinchpoint.backends.sandbox.processes import Processes
from pinchpoint.backends.sandbox.programs.program_paths import cuda_tools, files_to_start
from pinchpoint.backends.sandbox.programs.safe_commands import PROGRAMS
from pinchpoint.backends.sandbox.trackers import Trackers


@dataclass(frozen=True)
class Guards:
    """The active guards; afterwards they report what the script tried."""

    overlay: Overlay
    processes: Processes
    locked: bool  # whether the kernel refuses writes outside scratch, including those of C code
    network: Network | None  # None if the script may use the network
    filtered: bool  # whether it refuses changes of modes and times, and signals, including those of C code

    def notes(self) -> list[str]:
        """What the script tried in vain and a reader of its forecast should know."""
        refused = [] if self.network is None else self.network.refused_requests
        if not refused:
            return []
        more = f", and {len(refused) - 3} more" if len(refused) > 3 else ""
        return [
            "the script could not send data, and these requests were refused: "
            f"{', '.join(refused[:3])}{more} (--allow-network permits them)"
        ]


class Sandbox:
    """Context manager around a user's script.

    `locked=True` also restricts the process in the kernel, permanently (see `kernel`): it can then write only
    to `scratch`, to files that are already open and to devices. Nothing else should use the process
    afterwards. `allow_network=True` lets the script send data; see `network` for what it may do otherwise.
    """

    def __init__(
        self,
        scratch: Path,
        *,
        locked: bool = False,
        allow_network: bool = False,
        start_process: Callable[[BaseProcess], bool] = lambda process: False,
    ) -> None:
        """start_process: runs a process of `multiprocessing` here, or returns False (see `Processes`)."""
        self._allow_network = allow_network
        self._start_process = start_process
        self._scratch = Path(scratch)
        self._locked = locked
        self._stack = ExitStack()

    def __enter__(self) -> Guards:
        with ExitStack() as stack:
            self._scratch.mkdir(parents=True, exist_ok=True)
            change_attribute, kill, is_locked, is_filtered = None, posix.kill, False, False
            if self._locked:
                delegate = Delegate(self._scratch) if can_filter() else None
                is_locked = lock([self._scratch], [*files_to_start(PROGRAMS), *cuda_tools()]) > 0
                if delegate is not None:
                    stack.callback(delegate.close)
                    change_attribute, kill = delegate.change_attribute, delegate.kill
                    is_filtered = filter_calls()
            overlay = Overlay(self._scratch, change_attribute=change_attribute)
            stack.enter_context(overlay)
            network = None if self._allow_network else stack.enter_context(Network(overlay.write_guard))
            patches = {} if network is None else network.library_patches
            stack.enter_context(Trackers(self._scratch, patches))
            processes = stack.enter_context(Processes(overlay.write_guard, kill, self._start_process))
            self._stack = stack.pop_all()
        return Guards(overlay, processes, is_locked, network, is_filtered)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
