"""The rotary embedding: lengths are kept, and scores depend only on the three-dimensional offset."""

from __future__ import annotations

import pytest
import torch

from pinchpoint.systems.operator.model.rotary import BASE_1D, BASE_3D, angles, grid, rotate

SHAPE = (5, 4, 3)


def scores(places: torch.Tensor, query: torch.Tensor, key: torch.Tensor, base: float) -> torch.Tensor:
    """(N, N) scores of the same query and key at every pair of places."""
    turns = angles(places.double(), len(query), base=base)
    q, k = (rotate(v.expand(len(places), -1), turns.cos(), turns.sin()) for v in (query, key))
    return q @ k.T


@pytest.mark.parametrize("width", [6, 16, 32])
def test_scores_depend_only_on_the_offset_between_patches(width: int) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, width, dtype=torch.float64)
    places = grid(SHAPE)
    table = scores(places, query, key, BASE_3D)
    by_offset: dict[tuple[int, ...], list[float]] = {}
    for i, a in enumerate(places.int().tolist()):
        for j, b in enumerate(places.int().tolist()):
            by_offset.setdefault(tuple(y - x for x, y in zip(a, b, strict=True)), []).append(
                float(table[i, j])
            )
    assert len(by_offset) == 9 * 7 * 5
    assert max(max(values) - min(values) for values in by_offset.values()) < 1e-12
    # Different offsets have different scores.
    assert len({round(values[0], 9) for values in by_offset.values()}) == len(by_offset)


def test_along_one_axis_equal_offsets_in_space_have_different_scores() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 16, dtype=torch.float64)
    table = scores(torch.arange(60.0)[:, None], query, key, BASE_1D)
    # Patches 0 and 3 are neighbours along the second axis; 2 and 3 lie two apart along the third and one
    # along the second.
    assert abs(table[0, 1] - table[2, 3]) < 1e-12
    assert abs(table[0, 3] - table[0, 1]) > 1e-3


def test_a_rotation_keeps_lengths_and_does_not_change_the_first_patch() -> None:
    torch.manual_seed(0)
    values = torch.randn(60, 20, dtype=torch.float64)
    turns = angles(grid(SHAPE).double(), 20, base=BASE_3D)
    rotated_values = rotate(values, turns.cos(), turns.sin())
    assert torch.allclose(rotated_values.norm(dim=1), values.norm(dim=1), rtol=1e-12)
    assert torch.equal(rotated_values[0], values[0])
    # 10 pairs over 3 axes: the remaining one is not rotated, and is the last of each half.
    assert torch.equal(rotated_values[:, [9, 19]], values[:, [9, 19]])


def test_the_last_axis_of_the_grid_varies_fastest() -> None:
    assert grid((2, 1, 2)).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]
