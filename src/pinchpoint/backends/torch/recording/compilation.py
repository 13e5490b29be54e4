"""`watch_compilation`: what torch.compile compiles, how long it takes, and why it compiles again.

When the compiler is imported it makes a table of torch's functions by identity. Its import happens with the
functions of torch in place; later it traces through those that report here as through functions of the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import CodeType
from typing import Any

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.torch.recording import compat


def watch_compilation(recorder: Recorder, patches: Patches, *, tell_compiler: Callable[[], None]) -> None:
    """Watch from now on, or from the import of the compiler.

    tell_compiler: lets the compiler know the function that replaces `nn.Module.__call__`
    """

    def start() -> None:
        tell_compiler()
        _watch(recorder, patches)

    if compat.is_compiler_imported():
        start()
    else:
        recorder.after_import["torch._dynamo"] = start


def _watch(recorder: Recorder, patches: Patches) -> None:
    started: list[int] = []
    again: list[tuple[CodeType, str]] = []

    def start() -> None:
        started.append(recorder.clock_ns())

    def end() -> None:
        if not started:
            return
        spent_ns = recorder.clock_ns() - started.pop()
        place = recorder.lines.place(1)
        if again:
            code, reason = again.pop()
            # The code of a module of torch, or of what the compiler wraps it in, tells nothing.
            name = code.co_name if is_user_file(code.co_filename) else "a function of a library"
            recorder.event("recompile", name, place, spent_ns, detail=reason)
            again.clear()
        else:
            recorder.event("compile", "torch.compile", place, spent_ns)

    def explain(code: Any, reasons: list[str]) -> None:
        # The reason begins with the number of the compilation that does not fit: `0/3: `.
        again.append((code, re.sub(r"^\d+/\d+: ", "", " ".join(reasons[0].split()))[:300]))

    compat.watch_compiler(patches, on_start=start, on_end=end, on_reasons=explain)
