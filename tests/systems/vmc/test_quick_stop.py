"""A stop that does not wait for a call of C that takes long."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from pinchpoint.systems.vmc.quick_stop import QuickStop

LONG_S = 60.0  # no test waits so long unless it fails


@pytest.fixture
def deaf() -> Iterator[None]:
    """A handler that does nothing, as while the main thread is in C."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("deaf")
def test_a_process_whose_main_thread_does_not_answer_is_left_with_the_code_of_the_signal() -> None:
    codes: list[int] = []
    called = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        called.set()

    with QuickStop(grace_s=0.01, leave=leave):
        os.kill(os.getpid(), signal.SIGTERM)
        assert called.wait(LONG_S)
    assert codes == [143]


@pytest.mark.usefixtures("deaf")
def test_a_block_that_ends_in_time_is_not_left() -> None:
    codes: list[int] = []
    with QuickStop(grace_s=LONG_S, leave=codes.append):
        os.kill(os.getpid(), signal.SIGTERM)
    assert codes == []


class AskedStop(QuickStop):
    """A stop that is never armed, and an event for when the watching thread has asked whether it is."""

    def __init__(self, leave: Callable[[int], object]) -> None:
        self.asked = threading.Event()
        super().__init__(grace_s=0.0, leave=leave)

    @property
    def is_armed(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        self.asked.set()
        return False

    @is_armed.setter
    def is_armed(self, value: bool) -> None:
        pass


@pytest.mark.usefixtures("deaf")
def test_a_block_that_saves_its_work_is_not_left() -> None:
    codes: list[int] = []
    stop = AskedStop(codes.append)
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked.wait(LONG_S)
    assert codes == []


@pytest.mark.usefixtures("deaf")
def test_another_signal_does_not_stop_a_block() -> None:
    codes: list[int] = []
    called = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        called.set()

    # Without a handler of Python, nothing would be written to the descriptor that the thread reads.
    before = signal.signal(signal.SIGWINCH, lambda number, frame: None)
    try:
        with QuickStop(grace_s=0.0, leave=leave):
            os.kill(os.getpid(), signal.SIGWINCH)
            os.kill(os.getpid(), signal.SIGTERM)  # read after the other one: both have been judged then
            assert called.wait(LONG_S)
    finally:
        signal.signal(signal.SIGWINCH, before)
    assert codes == [143]


def test_outside_the_main_thread_nothing_changes() -> None:
    results: list[object] = []

    def work() -> None:
        with QuickStop() as stop:
            results.append(stop.is_armed)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results == [True]
