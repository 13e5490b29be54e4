"""`phase`: names a part of a program, so that a profile shows its time. Without a profile it does nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pinchpoint.backends.recording.recorder import Recorder

_recorder: ContextVar[Recorder | None] = ContextVar("pinchpoint_recorder", default=None)


def use(recorder: Recorder | None) -> None:
    """Let phases that this program names count in a recorder."""
    _recorder.set(recorder)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """`with pinchpoint.phase("sampling"):` counts the time inside as a phase of its own."""
    recorder = _recorder.get()
    if recorder is None:
        yield
        return
    with recorder.within(name):
        yield
