"""Worker processes that make samples, one thread each: the bytes do not depend on the number of processes.

Each process runs a module that calls `serve_pipes`: it reads a line of JSON per sample and writes a line and
the sample's file. Its environment limits it to one thread, because sums depend on the number of threads.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, ClassVar, Protocol, TypeVar

from pinchpoint.core.child_process import Warden
from pinchpoint.core.errors import PinchpointError, TargetFailed, from_dict, to_dict

SOURCE = Path(__file__).resolve().parents[4]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Named(Protocol):
    """An order: a dataclass of plain values with the name of the sample to make."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def name(self) -> str: ...


Order = TypeVar("Order", bound=Named)


@dataclass(frozen=True)
class Program:
    """A module that makes samples when it is run as a program."""

    module: str
    what: str  # what it makes: "bodies"
    hint: str  # for the error where one of its processes dies


def run_workers(program: Program, orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Each order with the bytes of its file, as they finish. All processes end with the iteration, however it
    ends.
    """
    todo: queue.SimpleQueue[Order] = queue.SimpleQueue()
    for order in orders:
        todo.put(order)
    done: queue.SimpleQueue[tuple[Order, bytes] | BaseException] = queue.SimpleQueue()
    wardens: list[Warden] = []
    with tempfile.TemporaryDirectory(prefix="pinchpoint-") as scratch:
        try:
            for number in range(min(jobs, len(orders))):
                log = Path(scratch) / f"{number}.txt"
                process = _start(program, log)
                wardens.append(Warden(process, scratch))
                threading.Thread(target=_feed, args=(program, process, log, todo, done), daemon=True).start()
            for _ in orders:
                answer = done.get()
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            for warden in wardens:
                warden.end()


def _start(program: Program, log: Path) -> subprocess.Popen[bytes]:
    paths = [str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | dict.fromkeys(_THREADS, "1")
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", program.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            env=environment,
            start_new_session=True,
        )


def _feed(
    program: Program,
    process: subprocess.Popen[bytes],
    log: Path,
    todo: queue.SimpleQueue[Order],
    done: queue.SimpleQueue[tuple[Order, bytes] | BaseException],
) -> None:
    """Give one process its orders, in a thread that sleeps until the process answers."""
    assert process.stdin is not None and process.stdout is not None
    try:
        while True:
            order = todo.get_nowait()
            process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            process.stdin.flush()
            header = json.loads(process.stdout.readline() or b"{}")
            if "error" in header:
                raise from_dict(header)
            data = process.stdout.read(header["bytes"]) if "bytes" in header else b""
            if not data or len(data) != header["bytes"]:
                raise _died(program, process, log, f" ({order.name})")
            done.put((order, data))
    except queue.Empty:
        process.stdin.close()
    except BrokenPipeError:
        done.put(_died(program, process, log))
    except BaseException as error:
        done.put(error)


def _died(program: Program, process: subprocess.Popen[bytes], log: Path, order: str = "") -> PinchpointError:
    code = process.wait()
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    if code == -signal.SIGKILL:
        last = ": it was killed, most likely because the host ran out of memory"
    else:
        last = f": {lines[-1][:200]}" if lines else f" with code {code}"
    return TargetFailed(f"A process that makes {program.what} ended{last}{order}.", hint=program.hint)


def serve(orders: IO[bytes], answers: IO[bytes], make: Callable[[dict[str, Any]], bytes]) -> None:
    """Answer orders until there are no more. make: an order's fields to the bytes of its file."""
    for line in orders:
        try:
            data = make(json.loads(line))
        except PinchpointError as error:
            answers.write(json.dumps(to_dict(error)).encode() + b"\n")
        else:
            answers.write(json.dumps({"bytes": len(data)}).encode() + b"\n" + data)
        answers.flush()


def serve_pipes(make: Callable[[dict[str, Any]], bytes]) -> None:
    """Serve as a worker process: orders come from the standard input, answers go to the standard output."""
    # Libraries that print (MKL_VERBOSE) write to the error file: the pipe is only for answers.
    pipe = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(pipe, "wb") as answers:
        serve(sys.stdin.buffer, answers, make)
