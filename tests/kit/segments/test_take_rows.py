"""Rows by their numbers on a CPU; `test_subset_gpu` has those of a GPU."""

from __future__ import annotations

import pytest
import torch

from pinchpoint.kit import take_rows
from pinchpoint.kit.segments import hashing


@pytest.mark.parametrize("shape", [(3,), (), (2, 4)])
def test_rows_are_those_of_a_loop(shape: tuple[int, ...]) -> None:
    values = torch.randn(20, *shape)
    index = torch.tensor([3, 3, 0, 19, 7], dtype=torch.int32)
    assert take_rows(values, index).equal(torch.stack([values[int(at)] for at in index]))


def test_nothing_is_taken_of_nothing() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    assert take_rows(torch.zeros(0, 3), none).shape == (0, 3)


def test_the_number_after_the_last_row_stands_for_zeros() -> None:
    values = torch.randn(3, 2, requires_grad=True)
    taken = take_rows(values, torch.tensor([3, 1, 3]), absent=True)
    assert taken[1].equal(values[1]) and not taken[0].any() and not taken[2].any()
    assert take_rows(torch.zeros(0, 2), torch.tensor([0]), absent=True).tolist() == [[0.0, 0.0]]


def test_gradients_go_back_to_the_rows_as_often_as_they_were_taken() -> None:
    values = torch.ones(4, 2, requires_grad=True)
    take_rows(values, torch.tensor([1, 1, 3])).sum().backward()
    assert values.grad is not None and values.grad[:, 0].tolist() == [0.0, 2.0, 0.0, 1.0]


def test_keys_lie_below_the_numbers_of_their_cells() -> None:
    points, cells = torch.arange(50, dtype=torch.int32), torch.arange(50, dtype=torch.int32) // 5
    found = hashing.keys_in(cells, points, of := hashing.words(seed=3))
    assert [(int(one) >> 32, int(one) & 2**32 - 1) for one in found] == [
        (int(cell), hashing.key(int(point), of)) for cell, point in zip(cells, points, strict=True)
    ]
