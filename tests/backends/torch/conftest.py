"""A pretended H200 for tests in this process, and the bytes a piece of code takes on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="the fake run needs torch")

from pinchpoint.backends.torch.data_dependent.operations import Dynamic
from pinchpoint.backends.torch.fake.session import Device, pretending
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import FREE_CACHE, BlockInfo, Observation

MIB = 2**20
H200 = Device("NVIDIA H200", 143155 * MIB, (9, 0), 32 * MIB, MIB, 132)


@dataclass(frozen=True)
class Taken:
    """Bytes rounded as the allocator rounds them: the most added at once, what stayed, and the blocks made."""

    peak: int
    kept: int
    blocks: list[BlockInfo]


def rounded(size: int) -> int:
    return max(512, -(-size // 512) * 512)


def taken(seen: Observation, run: Callable[[], Any]) -> Taken:
    """Counts straight from the events, with none of the replay's code."""
    start, first = len(seen.events), len(seen.blocks)
    alive: set[int] = set()
    for number in seen.events:
        alive ^= {number}
    keep = run()
    now = peak = 0
    for number in seen.events[start:]:
        if number == FREE_CACHE:
            continue
        now += -rounded(seen.blocks[number].bytes) if number in alive else rounded(seen.blocks[number].bytes)
        alive ^= {number}
        peak = max(peak, now)
    del keep
    return Taken(peak, now, seen.blocks[first:])


@contextmanager
def _pretend(device: Device = H200, **how: Any) -> Iterator[Observer]:
    with pretending(device, dynamic=Dynamic(**how)) as observer:
        yield observer


@pytest.fixture(scope="session")
def pretend() -> Callable[..., AbstractContextManager[Observer]]:
    """`with pretend() as observer:` runs as if an H200 were here."""
    return _pretend


@pytest.fixture(scope="session")
def count() -> Callable[[Observation, Callable[[], Any]], Taken]:
    """What a call adds to an Observation: `count(observer.ledger.seen, run)`."""
    return taken


@pytest.fixture
def observer() -> Iterator[Observer]:
    with _pretend() as made:
        yield made


@pytest.fixture
def take(observer: Observer) -> Callable[[Callable[[], Any]], Taken]:
    """What a call takes on the pretended device; its result is held until the count is done."""
    return lambda run: taken(observer.ledger.seen, run)
