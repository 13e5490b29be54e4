"""Stopping between steps: signals are recorded within the block, and their handlers are restored after it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from pinchpoint.systems.common.training.stopping import Stop, stop_between_steps

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _restore_handlers() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "error", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143)],
)
def test_a_signal_is_recorded_and_raised_on_leaving(
    number: signal.Signals, error: type[BaseException], code: int | None
) -> None:
    before = signal.getsignal(number)
    with stop_between_steps() as stop:
        assert stop.number is None
        signal.raise_signal(number)
        assert stop.number == number
    assert signal.getsignal(number) is before
    with pytest.raises(error) as caught:
        stop.leave()
    assert getattr(caught.value, "code", None) == code


def test_without_a_signal_nothing_is_raised() -> None:
    Stop().leave()


def test_a_second_signal_ends_at_once() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    with stop_between_steps():
        signal.raise_signal(signal.SIGTERM)
        assert calls == []
        signal.raise_signal(signal.SIGTERM)
        assert calls == [signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    signal.signal(number, signal.SIG_IGN)
    with stop_between_steps() as stop:
        signal.raise_signal(number)
        assert stop.number is None
    assert signal.getsignal(number) is signal.SIG_IGN


def test_in_another_thread_handlers_are_not_changed() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    within: list[object] = []

    def work() -> None:
        with stop_between_steps():
            within.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert within == before
