"""The process in which a script is profiled: it runs the script as `python` would and writes a Trace.

It is started with one argument, the path of a `Request` in JSON. Standard input, output and error are the
script's own. Its exit handlers run when this process ends. After the time limit the script is stopped by an
exception in its main thread; what was learned until then is written first, because native code may hang.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType

from pinchpoint.backends.recording.line_samples import LineSampler
from pinchpoint.backends.recording.line_watch import LineWatch
from pinchpoint.backends.recording.observation import Observation
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.sandbox.run_script import ScriptEnd, StopScript, run_unconfined
from pinchpoint.core.targets import user_line
from pinchpoint.profiling import phase as user_phases
from pinchpoint.profiling.assembly import assemble
from pinchpoint.profiling.chrome_trace import write_chrome_trace
from pinchpoint.profiling.step_blocks import StepBlocks

_STOP_SIGNAL = signal.SIGVTALRM  # hardly ever used by programs; it interrupts a blocking call
_OURS = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Request:
    """What to run, and where to write the Trace."""

    text: str  # the target as the user gave it
    path: str
    args: tuple[str, ...]
    module: str
    record: str
    started: str  # a file to make when the script begins
    steps: int | None = None
    light: bool = False
    time_limit_s: float | None = None
    chrome_trace: str | None = None  # where to write phases and events one by one
    watched: dict[str, list[int]] | None = None  # lines to watch; what lines cost is then sampled too
    sources: dict[str, str] | None = None  # texts to run in place of those in files
    blocks: tuple[int, int] | None = None  # of a script that waits for orders: where to read and to report


class _Limit:
    """Stops the script after a time limit. It may catch the exception, so that it is raised again later."""

    def __init__(self, recorder: Recorder, request: Request) -> None:
        self.is_reached = False
        self._recorder, self._request = recorder, request
        self._over = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        limit_s = self._request.time_limit_s
        if limit_s is None:
            yield
            return
        before = signal.signal(_STOP_SIGNAL, self._stop)
        Path(self._request.started).touch()
        thread = threading.Thread(target=self._watch, args=(limit_s,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            # A record of the thread must not replace the final one, nor its signal end the process.
            thread.join()
            signal.signal(_STOP_SIGNAL, before)

    def _watch(self, limit_s: float) -> None:
        if self._over.wait(limit_s):
            return
        self.is_reached = True
        main = threading.main_thread().ident
        try:
            trace = assemble(self._recorder.copy(), target=self._request.text, ended="timed out")
            trace.save(self._request.record)
        finally:
            while main is not None and not self._over.is_set():
                signal.pthread_kill(main, _STOP_SIGNAL)
                self._over.wait(1.0)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.is_reached and not self._over.is_set():
            raise StopScript


def main(request: Request) -> int:
    """Run the script, write its Trace, and return the exit code of the script."""

    def stop() -> None:
        nonlocal is_stopped
        if blocks is not None:
            blocks.pass_limit(recorder)
            return
        is_stopped = True
        raise StopScript

    is_stopped = False
    blocks = None if request.blocks is None else StepBlocks(*request.blocks)
    recorder = Recorder(
        step_limit=request.steps if blocks is None else 1,
        on_step_limit=stop,
        light=request.light,
        keep_history=request.chrome_trace is not None,
    )
    observation, limit = Observation(recorder), _Limit(recorder, request)
    user_phases.use(recorder)
    observation.start()
    try:
        with limit.watching(), _watching_lines(recorder, request):
            end = run_unconfined(
                request.path, request.args, module=request.module, sources=request.sources or {}
            )
        ended = {"raised": "raised", "exited": "exited", "finished": "finished", "stopped": "stopped"}[
            end.kind
        ]
    except KeyboardInterrupt as error:
        end, ended = ScriptEnd("raised", 130, error), "interrupted"
    if limit.is_reached:
        ended = "timed out"
    elif is_stopped or (blocks is not None and blocks.is_over):
        ended = "stopped"
    if ended == "interrupted":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the record is written now
    is_failure = ended in ("raised", "interrupted")
    recorder.end_ns = recorder.clock_ns()
    if is_failure and end.error is not None:
        _show(end.error)
    if os.getpid() != recorder.process:
        return end.code  # a process that the script forked came to the end of the script
    observation.close()
    user_phases.use(None)
    trace = assemble(
        recorder,
        target=request.text,
        ended=ended,
        exit_code=end.code if ended in ("raised", "exited", "interrupted") else 0,
        error=_describe(end.error) if is_failure and end.error is not None else "",
        notes=[end.note] if end.note else [],
    )
    trace.save(request.record)
    if request.chrome_trace is not None:
        write_chrome_trace(recorder, request.chrome_trace)
    return trace.exit_code


@contextlib.contextmanager
def _watching_lines(recorder: Recorder, request: Request) -> Iterator[None]:
    """Sample the running lines, and note which of the watched ones ran."""
    if request.watched is None:
        yield
        return
    sampler, watch = LineSampler(recorder), LineWatch(request.watched)
    recorder.parts["line_samples"], recorder.parts["line_watch"] = sampler, watch
    recorder.on_step.append(lambda: watch.stop_if_slow() if recorder.has_passed(2) else None)
    sampler.start()
    watch.start()
    try:
        yield
    finally:
        watch.stop()
        sampler.stop()


def _show(error: BaseException) -> None:
    """Print the traceback of the script without our own frames, as Python would."""
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_OURS):
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)
    sys.stderr.flush()


def _describe(error: BaseException) -> str:
    where = user_line(error)
    text = traceback.format_exception_only(error)[-1].strip()
    return f"{text} at {where}" if where else text


if __name__ == "__main__":
    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(main(Request(**{**values, "args": tuple(values["args"])})))
