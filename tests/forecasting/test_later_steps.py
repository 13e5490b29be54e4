"""Steps after the observed ones, compared with runs in which every step is written out."""

from __future__ import annotations

import random

import pytest

from pinchpoint.core.events import BlockInfo, Observation
from pinchpoint.forecasting import replay
from pinchpoint.forecasting.later_steps import with_later_steps

MIB = 2**20


def run(steps: int, *, seed: int, keeps_mib: float = 0.0, is_rendered: bool = False) -> Observation:
    """A training run: every step makes blocks and frees most; a few replace those of the step before."""
    observation = Observation(steps=steps, trained=True, marks=[(0, "forward")])
    left: dict[int, int] = {}  # line -> the block that the last step left

    def take(mib: float, line: int) -> int:
        observation.blocks.append(BlockInfo(int(mib * MIB), "forward", "/somewhere/train.py", line))
        observation.events.append(len(observation.blocks) - 1)
        return len(observation.blocks) - 1

    for line in range(3):
        take(random.Random(f"{seed} {line}").uniform(1, 60), line)  # weights
    for _ in range(steps):
        shapes = random.Random(seed)
        own: list[int] = []
        for line in range(10, 10 + shapes.randint(8, 30)):
            mib = shapes.choice([2, 5, 11, 30, 31, 64, 120, 250]) * shapes.uniform(0.9, 1.1)
            block = take(mib, line)
            if shapes.random() < 0.2:
                observation.events += [left[line]] if line in left else []
                left[line] = block
            else:
                own.append(block)
            while own and shapes.random() < 0.4:
                observation.events.append(own.pop(shapes.randrange(len(own))))
        observation.events += own
        if keeps_mib:
            take(keeps_mib, 99)
        observation.step_ends.setdefault(1, []).append(len(observation.events))
    if is_rendered:  # after the steps, which leave something behind
        observation.events += left.values()
        for _ in range(3):
            take(200, 200)
    return observation


def test_what_follows_the_steps_is_replayed_after_all_of_them() -> None:
    for seed in range(20):
        short, long = run(2, seed=seed, is_rendered=True), run(10, seed=seed, is_rendered=True)
        longer = with_later_steps(short, expandable=False)
        assert replay.peak_reserved_bytes(longer) == replay.peak_reserved_bytes(long), seed


@pytest.mark.parametrize("expandable", [False, True])
def test_later_steps_reserve_what_a_longer_run_does(expandable: bool) -> None:
    grown = 0
    for seed in range(60):
        short, long = run(2, seed=seed), run(10, seed=seed)
        longer = with_later_steps(short, expandable=expandable)
        before, after, truth = (
            replay.peak_reserved_bytes(observation, expandable=expandable)
            for observation in (short, longer, long)
        )
        assert after == truth, seed
        assert replay.replay(longer).peak_allocated_bytes <= replay.replay(long).peak_allocated_bytes
        grown += after > before
    assert grown >= (1 if expandable else 5)  # the runs do grow, so that the comparison means something


def test_a_step_that_does_not_grow_changes_nothing() -> None:
    observations = [run(2, seed=seed) for seed in range(20)]
    same = [
        observation
        for observation in observations
        if with_later_steps(observation, expandable=False) is observation
    ]
    assert same
    for observation in same:
        assert with_later_steps(observation, expandable=False).events == observation.events


def test_a_step_that_keeps_much_is_not_repeated() -> None:
    for seed in range(20):
        observation = run(2, seed=seed, keeps_mib=40)
        assert with_later_steps(observation, expandable=False) is observation


def test_one_step_is_not_repeated() -> None:
    observation = run(1, seed=0)
    assert with_later_steps(observation, expandable=False) is observation


def test_a_search_after_the_steps_stays_after_them() -> None:
    for seed in range(60):
        short = run(2, seed=seed)
        short.events += [len(short.blocks)]
        short.blocks.append(BlockInfo(MIB, "forward", "/somewhere/train.py", 200))
        short.searches = [(1, 5), (len(short.events), 7)]
        longer = with_later_steps(short, expandable=False)
        assert longer.searches == [(1, 5), (len(longer.events), 7)]
