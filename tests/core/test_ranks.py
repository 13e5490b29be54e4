"""Ranks of a parallel job: what torchrun sets, wrong numbers, and which ranks may differ."""

from __future__ import annotations

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.ranks import differing_ranks, make_rank, parse_rank


def test_a_rank_has_the_variables_that_torchrun_sets() -> None:
    variables = make_rank(13, 64, 8).environment()
    assert [variables[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")] == [
        "13",
        "5",
        "64",
        "8",
    ]
    assert (variables["GROUP_RANK"], variables["GROUP_WORLD_SIZE"]) == ("1", "8")
    assert variables["TORCHELASTIC_RUN_ID"]


@pytest.mark.parametrize(("world_size", "local"), [(64, 8), (12, 6), (4, 4), (1, 1), (11, 1)])
def test_up_to_eight_processes_share_a_machine(world_size: int, local: int) -> None:
    assert make_rank(0, world_size).local_world_size == local


@pytest.mark.parametrize(
    ("rank", "world_size", "local", "message"),
    [
        (0, 0, None, "--world-size 0"),
        (4, 4, None, "no rank 4 among 4"),
        (-1, 4, None, "no rank -1"),
        (0, 8, 3, "3 does not divide --world-size 8"),
        (0, 8, 0, "0 does not divide"),
    ],
)
def test_wrong_numbers_are_refused(rank: int, world_size: int, local: int | None, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_rank(rank, world_size, local)


def test_a_rank_is_a_number_or_all() -> None:
    assert (parse_rank("3"), parse_rank("all")) == (3, "all")
    with pytest.raises(BadInput, match="--rank first"):
        parse_rank("first")


def test_the_ranks_that_may_differ_include_every_stage_of_a_pipeline() -> None:
    assert differing_ranks(make_rank(0, 64, 8)) == [0, 1, 8, 63]
    assert differing_ranks(make_rank(0, 4), others=(0, 1, 2, 3)) == [0, 1, 2, 3]
    assert differing_ranks(make_rank(0, 1)) == [0]
