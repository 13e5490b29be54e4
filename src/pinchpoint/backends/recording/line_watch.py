"""`LineWatch`: which of some given lines the program ran.

From Python 3.12 on, the whole run is watched, and each line reports once. Older versions have only a trace
function, which slows down all Python code: there the watch ends with the second step and is off while other
modules are imported, and it is not known whether a line that did not run until then runs later.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Collection, Mapping
from types import CodeType, FrameType
from typing import Any

_TOOL = 4  # of the numbers that sys.monitoring leaves to tools without one of their own


class LineWatch:
    """lines: by path. `start` must be called in the thread that runs the program."""

    def __init__(self, lines: Mapping[str, Collection[int]]) -> None:
        self._wanted = {os.path.realpath(file): frozenset(numbers) for file, numbers in lines.items()}
        self._modules = {os.path.basename(os.path.dirname(file)) for file in self._wanted} | {
            os.path.splitext(os.path.basename(file))[0] for file in self._wanted
        }
        self._by_code: dict[CodeType, frozenset[int]] = {}
        self._ran: set[tuple[str, int]] = set()
        self._is_on, self._is_complete = False, False
        self._monitoring: Any = getattr(sys, "monitoring", None)
        self._import = builtins.__import__

    def start(self) -> None:
        if self._monitoring is not None:
            if self._monitoring.get_tool(_TOOL) is None:
                self._start_monitoring(self._monitoring)
        elif sys.gettrace() is None:
            self._is_on = True
            builtins.__import__ = self._import_untraced
            sys.settrace(self._trace_call)

    def stop(self) -> None:
        """End the watch at the end of the program: what did not run until now never ran."""
        if not self._is_on:
            return
        self._is_on = False
        if self._monitoring is not None:
            self._is_complete = True
            self._monitoring.set_events(_TOOL, 0)
            self._monitoring.free_tool_id(_TOOL)
            return
        if builtins.__import__ == self._import_untraced:
            builtins.__import__ = self._import
        if sys.gettrace() == self._trace_call:  # else the program has set a trace function of its own
            self._is_complete = True
            sys.settrace(None)

    def stop_if_slow(self) -> None:
        """End a watch that slows down the program."""
        if self._monitoring is None and threading.current_thread() is threading.main_thread():
            self.stop()
            self._is_complete = False

    def result(self) -> list[dict[str, Any]]:
        """`file`, `line` and whether it `ran`; None if that is not known."""
        unseen = False if self._is_complete else None
        return [
            {"file": file, "line": line, "ran": True if (file, line) in self._ran else unseen}
            for file, lines in self._wanted.items()
            for line in sorted(lines)
        ]

    def _lines_of(self, code: CodeType) -> frozenset[int]:
        lines = self._by_code.get(code)
        if lines is None:
            name = code.co_filename
            wanted = frozenset() if name.startswith("<") else self._wanted.get(os.path.realpath(name))
            lines = self._by_code[code] = wanted or frozenset()
        return lines

    def _note(self, code: CodeType, line: int) -> None:
        if line in self._lines_of(code):
            self._ran.add((os.path.realpath(code.co_filename), line))

    def _start_monitoring(self, monitoring: Any) -> None:
        events = monitoring.events

        def on_start(code: CodeType, offset: int) -> Any:
            if self._lines_of(code):
                monitoring.set_local_events(_TOOL, code, events.LINE)
            return monitoring.DISABLE

        def on_line(code: CodeType, line: int) -> Any:
            self._note(code, line)
            return monitoring.DISABLE

        monitoring.use_tool_id(_TOOL, "pinchpoint")
        monitoring.register_callback(_TOOL, events.PY_START, on_start)
        monitoring.register_callback(_TOOL, events.LINE, on_line)
        monitoring.set_events(_TOOL, events.PY_START)
        self._is_on = True

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace_line if self._lines_of(frame.f_code) else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self._note(frame.f_code, frame.f_lineno)
        return self._trace_line

    def _import_untraced(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Import without the trace function, except modules with lines that are watched."""
        is_here = self._is_on and sys.gettrace() == self._trace_call
        if not is_here or self._modules & set(name.split(".")):
            return self._import(name, *args, **kwargs)
        sys.settrace(None)
        try:
            return self._import(name, *args, **kwargs)
        finally:
            if self._is_on:
                sys.settrace(self._trace_call)
