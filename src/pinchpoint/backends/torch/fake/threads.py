"""Threads of the script that use the GPU, which are not followed: the first line that does so is kept.

The observer sees the main thread only. A thread of the script may load data on the host as usual.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.torch.compat import DispatchMode, FakeTensor
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.core.errors import CannotFake


def install(patches: Patches, progress: Progress) -> None:
    def run(thread: threading.Thread) -> None:
        if not _is_of_user(thread):
            original(thread)
            return
        with _Refuse(progress):
            original(thread)

    original: Callable[[threading.Thread], None] = patches.set(threading.Thread, "run", run)


def _is_of_user(thread: threading.Thread) -> bool:
    function: Any = getattr(thread, "_target", None)
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and is_user_file(code.co_filename)


class _Refuse(DispatchMode):
    """Raises an error where a thread uses the GPU."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device")
        is_on_gpu = device is not None and torch.device(device).type == "cuda"
        if is_on_gpu or any(issubclass(kind, FakeTensor) for kind in types):
            line = _line()
            self._progress.thread_line = self._progress.thread_line or line
            raise CannotFake(
                f"A thread uses the GPU at {line}, which pinchpoint does not support yet.",
                hint="Call the thread's function directly for the prediction.",
            )
        return func(*args, **(kwargs or {}))


def _line() -> str:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
