"""The worker process that imports a target and runs it on fake tensors; `forecaster` starts it.

It reads one JSON request per line from standard input and answers with one JSON object per line. The
libraries of the target are imported once, and every request runs in a fork, so that no run affects another.
What the target prints goes to standard error and never into the answers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pinchpoint.core import errors
from pinchpoint.core.errors import Missing, PinchpointError, TargetFailed
from pinchpoint.core.failures import failure
from pinchpoint.core.workload import Workload
from pinchpoint.forecasting.worker_process import jax_forecast, torch_forecast
from pinchpoint.forecasting.worker_process.target_loading import LoadedTarget, load_target


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    hello = json.loads(sys.stdin.readline())
    tempfile.tempdir = hello["scratch"]  # removed by the parent: this process may be killed at any time
    with contextlib.ExitStack() as stack:
        try:
            loaded_target = load_target(hello, stack)
        except PinchpointError as error:
            _answer(answers, errors.to_dict(error))
            return
        _answer(answers, {"ready": True})
        for line in sys.stdin:
            request = json.loads(line)
            _answer(answers, in_fork(lambda request=request: _forecast(loaded_target, request)))


def _forecast(loaded_target: LoadedTarget, request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request with a Forecast as a dict, or raise."""
    start = time.perf_counter()
    if request["chunk_must_apply"] and isinstance(loaded_target.thing, Workload):
        loaded_target.thing.check_chunk(request["variant"])
    if loaded_target.framework == "jax" and loaded_target.target.kind == "script":
        from pinchpoint.forecasting.worker_process import jax_script_forecast

        forecast = jax_script_forecast.predict(loaded_target, request, in_fork)
    elif loaded_target.framework == "jax":
        forecast = jax_forecast.predict(loaded_target, request)
    elif loaded_target.target.kind == "script":
        from pinchpoint.forecasting.worker_process import script_forecast

        forecast = script_forecast.predict(loaded_target, request, in_fork)
    else:
        forecast = torch_forecast.predict(loaded_target, request, in_fork)
    return replace(forecast, took_s=round(time.perf_counter() - start, 3)).to_dict()


def _answer(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()


def in_fork(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run `work` in a child process and return its answer; a crash of the child becomes an error."""
    # Opened before the child runs, because a sandboxed script's process must not open files for writing.
    handle, path = tempfile.mkstemp(prefix="pinchpoint-answer-")
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
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
    return errors.to_dict(TargetFailed(f"The target failed: its process {how}.", hint=hint))


def _child(work: Callable[[], dict[str, Any]], handle: int) -> None:
    answer: dict[str, Any]
    try:
        answer = work()
    except PinchpointError as error:
        answer = errors.to_dict(error)
    except ModuleNotFoundError as error:
        answer = errors.to_dict(
            Missing(
                f"The target needs the package {error.name}, which is not installed.",
                hint=f"Run pip install {error.name}.",
            )
        )
    except BaseException as error:
        traceback.print_exc()
        fault = failure("the target", error, "predicting")
        fault.__cause__ = error if fault is not error else None  # --debug shows its traceback
        answer = errors.to_dict(fault)
    # No interpreter shutdown: exit handlers and threads of a target must not run in this fork.
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
