"""The chunk model: how fast chunks grow, where they settle, and how they shrink."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from pinchpoint.backends.stream_backend import Room
from pinchpoint.core import host_memory
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.streaming.chunk_model import GROWTH, Pace


def run(pace: Pace, count: int, need: Callable[[int], int]) -> list[int]:
    """The chunks that the model chooses if a chunk needs `need(chunk)` bytes."""
    chunks = []
    while count > 0:
        chunks.append(pace.next(count))
        pace.record(chunks[-1], need(chunks[-1]))
        count -= chunks[-1]
    return chunks


def test_an_affine_cost_is_learned_in_trials_that_grow_by_at_most_a_factor_of_eight() -> None:
    chunks = run(Pace(10**7, tile=1_000, room=Room(10**9, 10**9)), 10**7, lambda c: 10**8 + 900 * c)
    assert chunks[:4] == [250, 1_000, 8_000, 64_000]
    assert all(b <= GROWTH * a for a, b in pairwise(chunks[1:]))
    assert len(set(chunks[5:])) == 1
    # (1e9 - 1e8) / 900 is 1,000,000 points; calls of equal size are a little smaller.
    assert 850_000 <= chunks[-1] <= 1_000_000 and chunks[-1] % 1_000 == 0


def test_a_tail_of_one_point_does_not_cost_a_whole_chunk() -> None:
    pace = Pace(10_001, tile=100, room=Room(10_000, 10_000), bytes_per_point=1)
    chunks = []
    left = 10_001
    while left > 0:
        chunks.append(pace.next(left))
        left -= chunks[-1]
    assert chunks == [5_100, 5_100]


@pytest.mark.parametrize(
    "bend", [lambda c: c * c, lambda c: 10**6 + int(3 * c**1.5), lambda c: 5_000 * -(-c // 5_000) * 900]
)
def test_chunks_for_a_cost_that_bends_or_jumps_end_within_the_bound(bend: Callable[[int], int]) -> None:
    chunks = run(Pace(10**6, tile=100, room=Room(9 * 10**7, 10**8)), 10**6, bend)
    assert bend(chunks[-1]) <= 10**8
    assert len([chunk for chunk in chunks if bend(chunk) > 10**8]) <= 3
    assert chunks[-1] >= 100 and bend(2 * chunks[-1]) > 5 * 10**7


def test_a_noisy_first_call_does_not_lead_far_beyond_the_budget() -> None:
    """Libraries are initialised in the first call, which then needs more than the second: no slope."""
    calls: list[int] = []

    def need(chunk: int) -> int:
        calls.append(chunk)
        return 50 * 10**6 if len(calls) == 1 else 10**7 + 1_000 * chunk

    chunks = run(Pace(10**6, tile=1_000, room=Room(10**8, 10**8)), 10**6, need)
    assert max(chunks) <= 90_000


def test_a_chunk_over_the_bound_shrinks_and_never_grows_again() -> None:
    pace = Pace(10**6, tile=100, room=Room(90_000, 100_000), bytes_per_point=10)
    first = pace.next(10**6)
    assert 8_900 <= first <= 9_000
    pace.record(first, 150_000)
    second = pace.next(10**6 - first)
    assert second <= 0.6 * first and second % 100 == 0
    pace.record(second, 80_000)
    assert pace.next(10**6 - first - second) == second


def test_a_tile_over_the_bound_is_refused() -> None:
    pace = Pace(10**6, tile=100, room=Room(900, 1_000))
    pace.record(pace.next(10**6), 800)
    with pytest.raises(DoesNotFit, match=r"100 points takes 3\.91 KiB, but the budget is 1,000 B"):
        pace.record(pace.next(10**6), 4_000)
    pace = Pace(10**6, tile=100, room=Room(900, 1_000), held_bytes=2_048)
    with pytest.raises(
        DoesNotFit, match=r"25 points takes 3\.91 KiB, of which 2\.00 KiB were in use before, but the budget"
    ):
        pace.record(pace.next(10**6), 4_000)


def test_a_fixed_chunk_is_kept_and_halved_in_whole_tiles() -> None:
    pace = Pace(10**6, tile=64, chunk=1_000)
    assert pace.next(10**6) == pace.next(1) == 1_000
    records_seen = []
    for _ in range(3):
        pace.halve(pace.next(500), why=MemoryError("full"), free_bytes=None)
        records_seen.append(pace.next(500))
    assert records_seen == [448, 192, 64]
    with pytest.raises(DoesNotFit, match="at a chunk of 64 points: full"):
        pace.halve(64, why=MemoryError("full"), free_bytes=None)


def test_free_memory_is_what_is_available_within_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemFree: 7 kB\nMemAvailable: 50 kB\n")
    assert host_memory.free_bytes(tmp_path) == 50 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert host_memory.free_bytes(tmp_path) == 50 * 1024
    (group / "memory.max").write_text("9000\n")
    assert host_memory.free_bytes(tmp_path) == 8_000
