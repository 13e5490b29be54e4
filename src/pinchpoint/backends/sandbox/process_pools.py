"""Process pools that run their functions in this process, in order.

`multiprocessing.Pool`, that of torch, and `concurrent.futures.ProcessPoolExecutor` prepare data; the results
are the same without other processes. A function that changes its arguments or globals changes those of the
script, which a pool of processes would not. Pools of threads stay as they are.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import starmap
from multiprocessing.pool import Pool, ThreadPool
from typing import Any

from pinchpoint.backends.patches import Patches


def install(patches: Patches) -> None:
    for name, method in _POOL.items():
        patches.set(Pool, name, _unless_threads(method, getattr(Pool, name, None)))
    for name, method in _EXECUTOR.items():
        patches.set(ProcessPoolExecutor, name, method)
    patches.set_environment("JOBLIB_MULTIPROCESSING", "0")  # joblib's own way to use one process


def _unless_threads(method: Callable[..., Any], original: Callable[..., Any] | None) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if original is not None and isinstance(self, ThreadPool):
            return original(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return call


class _Result:
    """A call that has ended, like `multiprocessing.pool.AsyncResult`."""

    def __init__(self, call: Callable[[], Any], callback: Any = None, error_callback: Any = None) -> None:
        self._value: Any = None
        self._error: Exception | None = None
        try:
            self._value = call()
        except Exception as error:
            self._error = error
        if self._error is not None and error_callback is not None:
            error_callback(self._error)
        elif self._error is None and callback is not None:
            callback(self._value)

    def get(self, timeout: float | None = None) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None: ...
    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self._error is None


class _Results:
    """Results of `imap`, computed when they are read; `finish` computes those that nobody read."""

    def __init__(self, results: Iterator[Any]) -> None:
        self._results = results

    def __iter__(self) -> _Results:
        return self

    def __next__(self) -> Any:
        return next(self._results)

    def next(self, timeout: float | None = None) -> Any:
        return next(self._results)

    def finish(self) -> None:
        for _ in self._results:
            pass


def _init(
    self: Any,
    processes: int | None = None,
    initializer: Callable[..., object] | None = None,
    initargs: Iterable[Any] = (),
    maxtasksperchild: int | None = None,
    context: Any = None,
) -> None:
    if processes is not None and processes < 1:
        raise ValueError("Number of processes must be at least 1")  # the original's message
    self._processes = processes or os.cpu_count() or 1
    self._ctx = context or multiprocessing.get_context()
    self._unread = []
    self._state = "RUN"
    if initializer is not None:
        initializer(*initargs)


def _imap(self: Any, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int = 1) -> _Results:
    _check_running(self)
    results = _Results(map(func, iterable))
    self._unread.append(results)
    return results


def _map_async(
    self: Any,
    func: Callable[..., Any],
    iterable: Iterable[Any],
    chunksize: int | None = None,
    callback: Any = None,
    error_callback: Any = None,
) -> _Result:
    _check_running(self)
    return _Result(lambda: list(map(func, iterable)), callback, error_callback)


def _starmap_async(
    self: Any,
    func: Callable[..., Any],
    iterable: Iterable[Iterable[Any]],
    chunksize: int | None = None,
    callback: Any = None,
    error_callback: Any = None,
) -> _Result:
    _check_running(self)
    return _Result(lambda: list(starmap(func, iterable)), callback, error_callback)


def _apply_async(
    self: Any,
    func: Callable[..., Any],
    args: Iterable[Any] = (),
    kwds: dict[str, Any] | None = None,
    callback: Any = None,
    error_callback: Any = None,
) -> _Result:
    _check_running(self)
    return _Result(lambda: func(*args, **(kwds or {})), callback, error_callback)


def _check_running(self: Any) -> None:
    if self._state != "RUN":
        raise ValueError("Pool not running")  # the original's message


def _close(self: Any) -> None:
    self._state = "CLOSE"


def _join(self: Any) -> None:
    for results in self._unread:
        results.finish()
    self._unread.clear()


def _submit(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    try:
        future.set_result(fn(*args, **kwargs))
    except Exception as error:
        future.set_exception(error)
    return future


def _init_executor(
    self: Any,
    max_workers: int | None = None,
    mp_context: Any = None,
    initializer: Callable[..., object] | None = None,
    initargs: tuple[Any, ...] = (),
    **_: Any,
) -> None:
    self._max_workers = max_workers or os.cpu_count() or 1
    if initializer is not None:
        initializer(*initargs)


_POOL: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "apply": lambda self, func, args=(), kwds=None: _apply_async(self, func, args, kwds).get(),
    "apply_async": _apply_async,
    "map": lambda self, func, iterable, chunksize=None: _map_async(self, func, iterable).get(),
    "map_async": _map_async,
    "starmap": lambda self, func, iterable, chunksize=None: _starmap_async(self, func, iterable).get(),
    "starmap_async": _starmap_async,
    "imap": _imap,
    "imap_unordered": _imap,
    "close": _close,
    "terminate": _close,
    "join": _join,
    "__repr__": lambda self: f"<Pool state={self._state} in this process>",
    "__del__": lambda self, **_: None,
}
_EXECUTOR: dict[str, Callable[..., Any]] = {
    "__init__": _init_executor,
    "submit": _submit,
    "shutdown": lambda self, wait=True, *, cancel_futures=False: None,
}
