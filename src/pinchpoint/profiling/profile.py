"""`profile`: run a script or a function for real, and return the Trace of its time and memory.

A script runs in a process of its own, with the standard input and output of this one. A function, and what
is inside a `Profiler`, runs here.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pinchpoint.backends.recording.observation import Observation
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.sandbox.run_script import StopScript
from pinchpoint.core.errors import BadInput, PinchpointError, TargetFailed
from pinchpoint.core.records import Trace, load
from pinchpoint.core.targets import Target, find, notebook_cells
from pinchpoint.core.units import check_seconds
from pinchpoint.forecasting.predict import predict as predict_peak
from pinchpoint.profiling import phase as user_phases
from pinchpoint.profiling.assembly import assemble
from pinchpoint.profiling.chrome_trace import write_chrome_trace
from pinchpoint.profiling.script_process import Request

_START_S = 300.0  # for a script to begin, before its time limit counts anyway
_GRACE_S = 15.0  # for a script to end after its time limit or an interrupt, before it is killed


def profile(
    target: str | Callable[[], Any],
    *,
    args: Sequence[str] = (),
    steps: int | None = None,
    light: bool = False,
    time_limit_s: float | None = None,
    predict: bool = False,
    chrome_trace: str | Path | None = None,
    output_to_stderr: bool = False,
    watched: Mapping[str, Collection[int]] | None = None,
    sources: Mapping[str, str] | None = None,
) -> Trace:
    """Run a script, `-m package.module`, or a function without arguments, and record where its time goes.

    steps: stop after so many steps. light: record only phases, steps and waits. chrome_trace: a file to write
    for chrome://tracing or Perfetto. output_to_stderr: where the output of a script goes. predict: also
    predict the peak of a script, and put it beside the measured one. watched: lines by file, of which the
    Trace tells whether they ran; what each line of a script costs is then sampled too. sources: texts by file
    that run in place of what a script's files contain.

    A script that fails has a Trace too: see its `ended` and `error`. An exception of a function is raised
    again.
    """
    if steps is not None and steps < 1:
        raise BadInput(
            f"--steps is {steps}, but it must be at least 1.", hint="Give --steps a number above 0."
        )
    if callable(target):
        name = getattr(target, "__name__", "function")
        with Profiler(steps=steps, light=light, chrome_trace=chrome_trace, name=name) as profiler:
            target()
        return profiler.trace
    if time_limit_s is not None:
        check_seconds("time-limit", time_limit_s)
    with tempfile.TemporaryDirectory(prefix="pinchpoint-") as folder:
        record = Path(folder) / "trace.json"
        request = request_for(
            target,
            record,
            args=tuple(args),
            steps=steps,
            light=light,
            time_limit_s=time_limit_s,
            chrome_trace=None if chrome_trace is None else str(Path(chrome_trace).resolve()),
            watched=None if watched is None else {file: sorted(lines) for file, lines in watched.items()},
            sources=None if sources is None else dict(sources),
        )
        code = _run(request, sys.stderr if output_to_stderr else None)
        if record.is_file():
            trace = load(record)
            assert isinstance(trace, Trace)
            if code != trace.exit_code and trace.ended == "timed out":
                trace = _killed(trace)
            return _with_forecast(trace, args) if predict else trace
    if code == -signal.SIGINT:
        raise KeyboardInterrupt
    raise _no_trace(target, code)


class Profiler:
    """`with pinchpoint.Profiler() as profiler: train()`; then `profiler.trace` is the Trace.

    steps: leave the block after so many steps.
    """

    def __init__(
        self,
        *,
        steps: int | None = None,
        light: bool = False,
        chrome_trace: str | Path | None = None,
        name: str = "this process",
    ) -> None:
        self._name, self._trace, self._chrome_trace = name, None, chrome_trace
        self._is_stopped = False
        self._options: dict[str, Any] = {"step_limit": steps, "on_step_limit": self._stop, "light": light}
        self._options["keep_history"] = chrome_trace is not None

    @property
    def trace(self) -> Trace:
        """The result; known when the block has ended."""
        if self._trace is None:
            raise BadInput(
                "The Trace of a Profiler is not known before its block has ended.",
                hint="Read profiler.trace after the with block.",
            )
        return self._trace

    def __enter__(self) -> Self:
        self._recorder = Recorder(**self._options)
        self._observation = Observation(self._recorder)
        user_phases.use(self._recorder)
        self._observation.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._recorder.end_ns = self._recorder.clock_ns()
        self._observation.close()
        user_phases.use(None)
        is_ours = isinstance(error, StopScript) and self._is_stopped
        ended = "stopped" if is_ours else "finished" if error is None else "raised"
        text = "" if is_ours or error is None else f"{type(error).__name__}: {error}"
        self._trace = assemble(self._recorder, target=self._name, ended=ended, error=text)
        if self._chrome_trace is not None:
            write_chrome_trace(self._recorder, self._chrome_trace)
        return is_ours

    def _stop(self) -> None:
        self._is_stopped = True
        raise StopScript


def check_script(script: Target) -> None:
    """Raise if a target is not a script that Python can compile."""
    if script.kind != "script":
        raise BadInput(
            f"{script.text} is not a script.",
            hint="Give a script.py, a notebook.ipynb, or -m and a module. In Python, pass a function.",
        )
    try:
        if script.where.endswith(".ipynb"):
            notebook_cells(script.where)
            return
        compile(Path(script.where).read_bytes(), script.where, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise TargetFailed(
            f"{script.text} has a syntax error in line {error.lineno}: {error.msg}.",
            hint="Correct the script; nothing was run.",
        ) from error
    except ValueError as error:
        raise BadInput(f"{script.text} is not Python: {error}.", hint="Give a Python script.") from error


def request_for(target: str, record: Path, **options: Any) -> Request:
    """The request to run a target that must be a script, and to write its Trace to `record`."""
    script = find(target)
    check_script(script)
    return Request(
        text=script.text,
        path=script.where if script.name else script.text,
        module=script.name,
        record=str(record),
        started=str(record.with_name("started")),
        **options,
    )


def start_process(request: Request, output: Any, *, pass_fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    """Start the process of a script."""
    # In a file, because the texts of scripts are too long for a command line.
    place = Path(request.record).with_name("request.json")
    place.write_text(json.dumps(asdict(request)), encoding="utf-8")
    command = [sys.executable, "-m", "pinchpoint.profiling.script_process", str(place)]
    return subprocess.Popen(command, stdout=output, pass_fds=pass_fds)


def _run(request: Request, output: Any) -> int:
    """Run the process of a script and return its exit code, negative for a signal."""
    process = start_process(request, output)
    try:
        if request.time_limit_s is None:
            return process.wait()
        _wait_for_start(process, Path(request.started))
        return process.wait(request.time_limit_s + _GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
    except KeyboardInterrupt:
        return _wait_after_interrupt(process)
    except BaseException:
        process.terminate()
        end_process(process)
        raise


def _wait_for_start(process: subprocess.Popen[bytes], started: Path) -> None:
    """Wait until the script begins, and its time limit with it: our imports may take long."""
    give_up = time.monotonic() + _START_S
    while not started.exists() and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)


def _wait_after_interrupt(process: subprocess.Popen[bytes]) -> int:
    """Let an interrupted script write its record. Ctrl-C reaches it too, but not a signal to this process."""
    try:
        return process.wait(2.0)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        return end_process(process)


def end_process(process: subprocess.Popen[bytes]) -> int:
    """Wait for a script that was asked to stop, kill it if it does not, and return its exit code."""
    try:
        return process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _with_forecast(trace: Trace, args: Sequence[str]) -> Trace:
    """The trace with the predicted peaks in its memory, or with a note why there are none."""
    try:
        forecast = predict_peak(trace.target, args=tuple(args))
    except PinchpointError as error:
        return replace(trace, notes=(*trace.notes, f"The peak could not be predicted: {error.what}"))
    peaks = {
        "predicted_allocated_bytes": forecast.peak_allocated_bytes,
        "predicted_reserved_bytes": forecast.peak_reserved_bytes,
        "predicted_low_bytes": forecast.low_bytes,
        "predicted_high_bytes": forecast.high_bytes,
    }
    return replace(trace, memory={**(trace.memory or {}), **peaks})


def _killed(trace: Trace) -> Trace:
    note = f"The script did not stop within {_GRACE_S:g} s after its time limit and was killed."
    return replace(trace, notes=(*trace.notes, note))


def _no_trace(target: str, code: int) -> PinchpointError:
    if code < 0:
        name = signal.Signals(-code).name
        return TargetFailed(
            f"{target} was ended by the signal {name}, and nothing of its profile was kept.",
            hint="Run the script without profile to see whether it ends in the same way; SIGKILL often means "
            "that the machine ran out of memory.",
        )
    return TargetFailed(
        f"{target} ended the process with code {code} before its profile was written.",
        hint="A call of os._exit ends a script at once; remove it to profile the script.",
    )
