"""`write_chrome_trace`: phases and events of a run as a file for chrome://tracing or Perfetto.

At most 100,000 phases and 60,000 events are written, the first ones, so that the file stays below 20 MB.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import line_of
from pinchpoint.backends.recording.steps import OTHER
from pinchpoint.core.files import write_text


def write_chrome_trace(recorder: Recorder, path: str | Path) -> Path:
    """Write what the recorder kept; it must have been made with `keep_history`."""
    assert recorder.history is not None, "the recorder kept no history"
    entries = [*_names(), *_phases(recorder), *_events(recorder)]
    return write_text(path, json.dumps({"traceEvents": entries}, separators=(",", ":")) + "\n")


def _names() -> Iterator[dict[str, Any]]:
    for thread, name in ((0, "phases"), (1, "waits, copies, compilations")):
        yield {"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": {"name": name}}


def _entry(recorder: Recorder, thread: int, name: str, start_ns: int, spent_ns: int) -> dict[str, Any]:
    start_us = round((start_ns - recorder.start_ns) / 1e3, 1)
    return {"ph": "X", "pid": 0, "tid": thread, "name": name, "ts": start_us, "dur": round(spent_ns / 1e3, 1)}


def _phases(recorder: Recorder) -> Iterator[dict[str, Any]]:
    assert recorder.history is not None
    rows = recorder.history.rows
    for row, following in pairwise(rows):
        if row.phase != OTHER and following.at_ns > row.at_ns:
            yield _entry(recorder, 0, row.phase, row.at_ns, following.at_ns - row.at_ns)
    step = 0
    for row in rows:
        if row.mark is not None:
            step += 1
            at_us = round((row.at_ns - recorder.start_ns) / 1e3, 1)
            yield {"ph": "i", "pid": 0, "tid": 0, "name": row.mark[0], "ts": at_us, "s": "t"}


def _events(recorder: Recorder) -> Iterator[dict[str, Any]]:
    assert recorder.history is not None
    lines: dict[Any, str] = {}
    for start_ns, spent_ns, what, place in recorder.history.events:
        if place not in lines:
            file, line, _ = line_of(place)
            lines[place] = f"{file}:{line}" if file else ""
        yield {**_entry(recorder, 1, what, start_ns, spent_ns), "args": {"line": lines[place]}}
