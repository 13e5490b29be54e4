"""Choices of modules, compared with the best one of all that can be made."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from pinchpoint.planning.checkpointing.module_choice import (
    Candidate,
    Profile,
    choose,
    choose_smallest,
    read_profile,
)


def profile(*modules: tuple[str, int, float], fixed_bytes: int = 100, peak_bytes: int = 1000) -> Profile:
    """Modules as (name, freed bytes, seconds), all of which free theirs at the peak."""
    candidates = tuple(Candidate(name, "Block", size, seconds) for name, size, seconds in modules)
    rows = ((peak_bytes, {at: c.freed_bytes for at, c in enumerate(candidates)}), (fixed_bytes, {}))
    return Profile(candidates, rows)


def drawn_profile(seed: int) -> Profile:
    """A run of ten modules, some inside others: each is free from its forward to its backward pass."""
    chance = random.Random(seed)
    names = [f"net.{at}" for at in range(6)] + [f"net.{at}.inner" for at in range(4)]
    candidates = tuple(
        Candidate(name, "Block", chance.randint(50, 400), chance.uniform(0.1, 2.0)) for name in names
    )
    total = sum(c.freed_bytes for c in candidates[:6])
    rows = []
    for moment in range(6):
        alive = total - moment * total // 8
        freed = {
            at: c.freed_bytes for at, c in enumerate(candidates) if int(c.name.split(".")[1]) < 6 - moment
        }
        rows.append((alive, freed))
    return Profile(candidates, tuple(rows))


def best_seconds(run: Profile, limit_bytes: int) -> float | None:
    """The least seconds of all choices that stay below the limit, counted out."""
    numbers = range(len(run.candidates))
    best = None
    for size in range(len(run.candidates) + 1):
        for chosen in combinations(numbers, size):
            names = [run.candidates[at].name for at in chosen]
            if any(a != b and a.startswith(f"{b}.") for a in names for b in names):
                continue
            if run.peak(chosen) <= limit_bytes and (best is None or run.seconds(chosen) < best):
                best = run.seconds(chosen)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_a_choice_meets_the_limit_and_is_as_cheap_as_the_best(seed: int) -> None:
    run = drawn_profile(seed)
    for share in (0.85, 0.7, 0.55):
        limit = int(share * run.peak())
        best, chosen = best_seconds(run, limit), choose(run, limit)
        assert (chosen is None) == (best is None)
        if chosen is not None and best is not None:
            assert run.peak(chosen) <= limit
            assert run.seconds(chosen) <= 1.001 * best


def test_nothing_is_chosen_where_the_run_stays_below_the_limit_anyway() -> None:
    assert choose(profile(("net.0", 300, 1.0)), 1000) == frozenset()


def test_the_module_that_frees_most_per_second_comes_first() -> None:
    run = profile(("net.0", 300, 1.0), ("net.1", 300, 0.5), ("net.2", 300, 2.0))
    assert choose(run, 700) == {1}
    assert choose(run, 400) == {0, 1}
    assert choose(run, 100) == {0, 1, 2}
    assert choose(run, 99) is None  # the fixed bytes


def test_a_module_is_not_chosen_together_with_one_inside_it() -> None:
    run = profile(("net.0", 500, 1.0), ("net.0.mlp", 300, 0.1), ("net.0.attention", 150, 0.2))
    assert choose(run, 700) == {1}
    assert choose(run, 550) == {1, 2}
    assert choose(run, 500) == {0}


def test_a_module_is_recomputed_in_one_way_only() -> None:
    blocks = [
        Candidate("net.0", "Block", 500, 1.0),
        Candidate("net.0", "Block", 300, 0.1, keeps_products=True),
    ]
    run = Profile(tuple(blocks), ((1000, {0: 500, 1: 300}),))
    assert choose(run, 700) == {1}
    assert choose(run, 600) == {0}
    assert choose(run, 300) is None


def test_the_host_decides_where_it_takes_longer_than_the_gpu() -> None:
    slow_on_host = Candidate("net.0", "Norm", 300, device_s=0.1, host_s=2.0)
    slow_on_gpu = Candidate("net.1", "Block", 300, device_s=1.0, host_s=0.2)
    rows = ((1000, {0: 300, 1: 300}),)
    assert choose(Profile((slow_on_host, slow_on_gpu), rows, device_s=10.0, host_s=1.0), 700) == {0}
    on_host = Profile((slow_on_host, slow_on_gpu), rows, device_s=1.0, host_s=10.0)
    assert choose(on_host, 700) == {1}
    assert on_host.seconds({1}) == pytest.approx(0.2)


def test_the_smallest_peak_uses_every_module_that_helps() -> None:
    run = profile(("net.0", 300, 1.0), ("net.1", 200, 9.0), ("net.0.mlp", 250, 0.1))
    assert choose_smallest(run) == {0, 1}


def test_a_profile_leaves_out_the_model_itself_and_what_frees_too_little() -> None:
    module = {
        "class": "Block",
        "device_s": 1.0,
        "host_s": 0.5,
        "is_layer": False,
        "has_batch_norm": False,
        "keeps_products": False,
    }
    recorded = {
        "modules": [
            {"name": "Net", "freed_bytes": 900, **module},
            {"name": "Net.tiny", "freed_bytes": 1, **module},
            {"name": "Net.block", "freed_bytes": 500, **module},
            {"name": "Net.head", "freed_bytes": 400, **module, "class": "Head"},
        ],
        "rows": [(1000, {"0": 900, "1": 1, "2": 500, "3": 400})],
    }
    run = read_profile(recorded, least_bytes=10, without={"Head"})
    assert [candidate.name for candidate in run.candidates] == ["Net.block"]
    assert run.rows == ((1000, {0: 500}),)
