"""The worker process that imports a target and runs it on fake tensors; `forecaster` starts it.

It reads one JSON request per line from standard input and answers with one JSON object per line. The
libraries of the target are imported once, and every request runs in a fork, so that no run affects another.
What the target prints goes to standard error and never into the answers.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pinchpoint.core import errors
from pinchpoint.core.errors import Missing, PinchpointError, TargetFailed
from pinchpoint.core.failures import failure
from pinchpoint.core.workload import Workload
from pinchpoint.forecasting.worker_process import jax_forecast, torch_forecast
from pinchpoint.forecasting.worker_process.script_end import SILENT
from pinchpoint.forecasting.worker_process.target_loading import (
    STATUS_FILE,
    Fork,
    LoadedTarget,
    load_target,
)

_BEFORE_END_S = 0.5
_SHAPES_FILE = "shapes.pickle"


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    hello = json.loads(sys.stdin.readline())
    tempfile.tempdir = hello["scratch"]  # removed by the parent: this process may be killed at any time
    with contextlib.ExitStack() as stack:
        try:
            loaded_target = replace(
                load_target(hello, stack),
                only_card=hello["only_card"],
                find_least=hello["find_least"],
                shapes=Path(hello["scratch"], _SHAPES_FILE),
                status=_open_status(hello["scratch"]),
            )
        except PinchpointError as error:
            _answer(answers, errors.to_dict(error))
            return
        _answer(answers, {"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            fork = partial(in_fork, end_s=time.monotonic() + request["timeout_s"])
            _answer(answers, fork(lambda request=request, fork=fork: _forecast(loaded_target, request, fork)))


def _open_status(scratch: str) -> int:
    """Opened here, because the process of a script must not open files for writing."""
    return os.open(os.path.join(scratch, STATUS_FILE), os.O_WRONLY | os.O_CREAT)


def _forecast(loaded_target: LoadedTarget, request: dict[str, Any], fork: Fork) -> dict[str, Any]:
    """Answer one request with a Forecast as a dict, or raise."""
    start = time.perf_counter()
    if request["chunk_must_apply"] and isinstance(loaded_target.thing, Workload):
        loaded_target.thing.check_chunk(request["variant"])
    if loaded_target.framework == "jax" and loaded_target.target.kind == "script":
        from pinchpoint.forecasting.worker_process import jax_script_forecast

        forecast = jax_script_forecast.predict(loaded_target, request, fork)
    elif loaded_target.framework == "jax":
        forecast = jax_forecast.predict(loaded_target, request)
    elif loaded_target.target.kind == "script":
        from pinchpoint.forecasting.worker_process import script_forecast

        forecast = script_forecast.predict(loaded_target, request, fork)
    else:
        forecast = torch_forecast.predict(loaded_target, request, fork)
    return replace(forecast, took_s=round(time.perf_counter() - start, 3)).to_dict()


def _answer(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def in_fork(work: Callable[[], dict[str, Any]], *, end_s: float) -> dict[str, Any]:
    """Run `work` in a child process and return its answer; a crash of the child becomes an error.

    end_s: when this process is killed, on the monotonic clock. Just before, and when it crashes, the child
    writes the line that it is at to its output.
    """
    faulthandler.cancel_dump_traceback_later()  # where the child is says more than where its parent waits
    # Opened before the child runs, because a sandboxed script's process must not open files for writing.
    handle, path = tempfile.mkstemp(prefix="pinchpoint-answer-")
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        log = os.dup(2)  # a script's own output goes elsewhere
        faulthandler.enable(file=log)
        faulthandler.dump_traceback_later(max(0.1, end_s - time.monotonic() - _BEFORE_END_S), file=log)
        _child(work, handle)
    os.close(handle)
    _, status = os.waitpid(child, 0)
    text = Path(path).read_text(encoding="utf-8")
    os.unlink(path)
    if text:
        return json.loads(text)
    if os.WIFSIGNALED(status):
        how = f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        hint = (
            "The host may be out of memory: try a smaller --size."
            if os.WTERMSIG(status) == signal.SIGKILL
            else "Run again with --debug."
        )
    else:
        how, hint = (
            f"ended with exit code {os.waitstatus_to_exitcode(status)}",
            "Change the target so that it does not end the process itself.",
        )
    error = TargetFailed(f"The target failed: its process {how}.", hint=hint)
    return errors.to_dict(error) | {SILENT: "yes"}


def _child(work: Callable[[], dict[str, Any]], handle: int) -> None:
    process = os.getpid()
    try:
        text = json.dumps(work())
    except PinchpointError as error:
        text = json.dumps(errors.to_dict(error))
    except ModuleNotFoundError as error:
        missing = Missing(
            f"The target needs the package {error.name}, which is not installed.",
            hint=f"Run pip install {error.name}.",
        )
        missing.__cause__ = error
        text = json.dumps(errors.to_dict(missing))
    except BaseException as error:
        with contextlib.suppress(OSError, ValueError):  # a target may have closed or replaced its stderr
            traceback.print_exc()
        fault = failure("the target", error, "predicting")
        fault.__cause__ = error if fault is not error else None  # --debug shows its traceback
        text = json.dumps(errors.to_dict(fault))
    if os.getpid() != process:  # C code of the target has forked, and only its parent answers
        os._exit(0)
    # No interpreter shutdown: exit handlers and threads of a target must not run in this fork.
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
