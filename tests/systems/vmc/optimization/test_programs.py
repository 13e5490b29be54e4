"""The programs of a run: blocks of steps by one optimizer, single steps where no block fits."""

from __future__ import annotations

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.systems.vmc.optimization.programs import heaviest, program_at, programs_from
from pinchpoint.systems.vmc.settings import Settings


def taken(settings: Settings, *, first: int = 0, block: int = 10) -> list[tuple[int, str]]:
    found, step = [], first
    while step < settings.steps:
        found.append(program_at(step, settings, block=block))
        step += found[-1][0]
    assert step == settings.steps
    return found


def test_steps_that_fill_no_block_are_taken_one_by_one() -> None:
    settings = Settings(steps=43, optimizer="spring")
    assert [count for count, _ in taken(settings, first=17)] == [1, 1, 1, 10, 10, 1, 1, 1]


def test_no_program_holds_steps_by_both_optimizers() -> None:
    settings = Settings(steps=40, optimizer="adam+spring", adam_steps=13)
    assert taken(settings) == [
        (10, "adam"),
        *[(1, "adam")] * 3,
        *[(1, "spring")] * 7,
        (10, "spring"),
        (10, "spring"),
    ]
    for cut in (0, 10, 40, 99):
        settings = Settings(steps=40, optimizer="adam+spring", adam_steps=cut)
        assert taken(settings) == [(10, "adam" if at < cut else "spring") for at in range(0, 40, 10)]


@pytest.mark.parametrize("first", range(0, 41, 7))
@pytest.mark.parametrize("cut", [0, 4, 10, 25])
def test_a_run_taken_up_between_two_programs_goes_on_with_those_that_were_left(first: int, cut: int) -> None:
    settings = Settings(steps=43, optimizer="adam+spring", adam_steps=cut)
    whole, at, starts = taken(settings), 0, {}
    for number, (count, _) in enumerate(whole):
        starts[at] = number
        at += count
    if first in starts:
        assert taken(settings, first=first) == whole[starts[first] :]


def test_all_programs_a_run_still_needs_are_named_once() -> None:
    settings = Settings(steps=40, optimizer="adam+spring", adam_steps=13)
    assert programs_from(0, settings, block=10) == [(10, "adam"), (1, "adam"), (1, "spring"), (10, "spring")]
    assert programs_from(20, settings, block=10) == [(10, "spring")]
    assert programs_from(40, settings, block=10) == []
    assert heaviest(programs_from(0, settings, block=10)) == (10, "spring")
    assert heaviest(programs_from(0, Settings(steps=43, optimizer="adam"), block=10)) == (10, "adam")
