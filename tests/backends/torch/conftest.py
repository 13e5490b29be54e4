"""A simulated H200 for tests in this process, and the bytes that a piece of code allocates on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("torch", reason="the fake run needs torch")

from pinchpoint.backends.torch.data_dependent.operations import Dynamic
from pinchpoint.backends.torch.fake.session import Device, simulate_device
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.events import FREE_CACHE, BlockInfo, Observation

MIB = 2**20
H200 = Device("NVIDIA H200", 143155 * MIB, (9, 0), 32 * MIB, MIB, 132)


@dataclass(frozen=True)
class Allocations:
    """Rounded bytes: the most added at one instant and what stayed allocated; and the new blocks."""

    peak: int
    kept_bytes: int
    blocks: list[BlockInfo]


def rounded(size: int) -> int:
    return -(-size // 512) * 512  # an empty tensor takes nothing


def allocations(observation: Observation, run: Callable[[], Any]) -> Allocations:
    """Count directly from the events, without the code of the replay."""
    start, first = len(observation.events), len(observation.blocks)
    alive = {number for number, times in Counter(observation.events).items() if times % 2}
    keep = run()
    now = peak = 0
    for number in observation.events[start:]:
        if number == FREE_CACHE:
            continue
        now += (
            -rounded(observation.blocks[number].bytes)
            if number in alive
            else rounded(observation.blocks[number].bytes)
        )
        alive ^= {number}
        peak = max(peak, now)
    del keep
    return Allocations(peak, now, observation.blocks[first:])


@contextmanager
def _simulate(device: Device = H200, **how: Any) -> Iterator[Observer]:
    with simulate_device(device, dynamic=Dynamic(**how)) as observer:
        yield observer


@pytest.fixture(scope="session")
def simulate() -> Callable[..., AbstractContextManager[Observer]]:
    """`with simulate() as observer:` runs as if an H200 were installed."""
    return _simulate


@pytest.fixture(scope="session")
def count() -> Callable[[Observation, Callable[[], Any]], Allocations]:
    """What a call adds to an Observation: `count(observer.ledger.observation, run)`."""
    return allocations


@pytest.fixture
def observer() -> Iterator[Observer]:
    with _simulate() as observer:
        yield observer


@pytest.fixture
def take(observer: Observer) -> Callable[[Callable[[], Any]], Allocations]:
    """What a call allocates on the simulated device; its result is kept alive until the count ends."""
    return lambda run: allocations(observer.ledger.observation, run)
