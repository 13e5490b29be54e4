"""Segments: points grouped by cell, against groups made one by one on the host."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Segments
from pinchpoint.kit.segments import segments as kit_segments
from pinchpoint.kit.segments.cell_size import parse_cell


def groups(names: list[object]) -> dict[object, list[int]]:
    found: dict[object, list[int]] = defaultdict(list)
    for point, name in enumerate(names):
        found[name].append(point)
    return found


def rows(segments: Segments) -> list[list[int]]:
    order, offsets = segments.order.tolist(), segments.offsets.tolist()
    return [order[first:last] for first, last in pairwise(offsets)]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.uint16, torch.uint32])
def test_ids_in_any_order_become_rising_cells_with_their_points_in_order(dtype: torch.dtype) -> None:
    ids = torch.tensor([7, 3, 200, 7, 7, 3, 0]).to(dtype)
    segments = Segments.from_ids(ids)
    assert segments.ids is not None and segments.ids.tolist() == [0, 3, 7, 200]
    assert rows(segments) == [[6], [1, 5], [0, 3, 4], [2]]
    assert segments.counts.tolist() == [1, 2, 3, 1]
    assert segments.of_point().tolist() == [2, 1, 3, 2, 2, 1, 0]
    assert (segments.points, segments.cells, segments.longest, segments.empty) == (7, 4, 3, False)
    assert segments.order.dtype is segments.offsets.dtype is segments.of_place.dtype is torch.int32


def test_many_ids_of_any_size_and_sign_match_groups_made_one_by_one() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(-(2**62), 2**62, (40,), generator=generator)[
        torch.randint(0, 40, (3000,), generator=generator)
    ]
    segments = Segments.from_ids(ids)
    truth = groups(ids.tolist())
    assert segments.ids is not None and segments.ids.tolist() == sorted(truth)  # type: ignore[type-var]
    assert rows(segments) == [truth[name] for name in segments.ids.tolist()]
    assert segments.longest == max(len(points) for points in truth.values())


@pytest.mark.parametrize("span", [1, 3, 2**11, 2**11 + 1, 50_000, 2**40, 2**45, 2**63 - 1])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_compiled_order_is_that_of_a_stable_sort(
    span: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.randint(
        -(span // 2), span - span // 2, (40_000,), generator=torch.Generator().manual_seed(0)
    ).to(dtype)
    for least in ("_MIN_COMPILED", "_MIN_LOAD"):
        monkeypatch.setattr(kit_segments, least, len(ids))
    found = Segments.from_ids(ids)
    assert found.order.equal(torch.sort(ids, stable=True).indices.int())
    monkeypatch.setattr(kit_segments, "numba_works", lambda: False)
    plain = Segments.from_ids(ids)
    assert found.ids is not None and plain.ids is not None and found.ids.equal(plain.ids)
    assert (
        found.order.equal(plain.order)
        and found.offsets.equal(plain.offsets)
        and found.longest == plain.longest
    )


@pytest.mark.parametrize("batched", [False, True])
def test_coordinates_fall_into_the_cells_that_floor_names(batched: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    xyz = torch.randn(2000, 3, generator=generator)
    batch = torch.randint(0, 3, (2000,), generator=generator) if batched else None
    segments = Segments.from_coords(xyz, 0.4, batch)
    names = [tuple(math.floor(float(value) / 0.4) for value in row) for row in xyz]
    if batch is not None:
        names = [(int(scene), *name) for scene, name in zip(batch, names, strict=True)]
    truth = groups(list(names))
    assert rows(segments) == [truth[name] for name in sorted(truth)]  # type: ignore[type-var]


def test_cells_may_have_different_edges_along_x_y_and_z() -> None:
    xyz = torch.randn(500, 3, generator=torch.Generator().manual_seed(3))
    edges = (0.25, 1.0, 0.5)
    names = [
        tuple(math.floor(float(value) / edge) for value, edge in zip(row, edges, strict=True)) for row in xyz
    ]
    truth = groups(list(names))
    assert rows(Segments.from_coords(xyz, edges)) == [truth[name] for name in sorted(truth)]  # type: ignore[type-var]
    cubes = Segments.from_coords(xyz, [0.4, 0.4, 0.4])
    assert rows(cubes) == rows(Segments.from_coords(xyz, 0.4))
    for wrong in ([0.1, 0.1], [0.1, 0.1, 0.0], "0.1", [0.1, 0.1, "z"]):
        with pytest.raises(BadInput, match="or three of them"):
            Segments.from_coords(xyz, wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadInput, match="1e-06 x 1e-06 x 1 make a grid"):
        Segments.from_coords(torch.eye(3) * 1e5, (1e-6, 1e-6, 1.0))


def test_a_cell_does_not_depend_on_which_other_points_there_are() -> None:
    xyz = torch.rand(500, 3, generator=torch.Generator().manual_seed(2)) * 3
    whole, part = Segments.from_coords(xyz, 0.5), Segments.from_coords(xyz[::2], 0.5)
    together = {frozenset(points) for points in rows(part)}
    assert together == {frozenset(p // 2 for p in points if p % 2 == 0) for points in rows(whole)} - {
        frozenset()
    }


def test_one_point_and_all_points_in_one_cell_are_clouds_too() -> None:
    one = Segments.from_coords(torch.zeros(1, 3), 0.1)
    assert (one.points, one.cells, one.longest) == (1, 1, 1)
    same = Segments.from_coords(torch.full((1000, 3), 0.05), 0.1)
    assert (same.cells, same.longest, same.order.tolist()) == (1, 1000, list(range(1000)))


def test_offsets_may_hold_empty_cells_and_an_order() -> None:
    segments = Segments.from_offsets(torch.tensor([0, 2, 2, 5]), torch.tensor([4, 1, 0, 3, 2]))
    assert rows(segments) == [[4, 1], [], [0, 3, 2]]
    assert segments.empty and segments.longest == 3
    assert segments.of_point().tolist() == [2, 0, 2, 2, 0]
    assert rows(Segments.from_offsets(torch.tensor([0, 1, 3]))) == [[0], [1, 2]]


def test_moving_keeps_what_the_host_knows() -> None:
    moved = Segments.from_ids(torch.tensor([1, 1, 2])).to("meta")
    assert moved.order.device.type == moved.ids.device.type == "meta"  # type: ignore[union-attr]
    assert (moved.longest, moved.empty) == (2, False)
    assert "3 points in 2 cells" in repr(moved)


@pytest.mark.parametrize(
    ("xyz", "cell", "says"),
    [
        (torch.zeros(0, 3), 0.1, "no points"),
        (torch.tensor([[0.0, float("nan"), 0.0]]), 0.1, "NaN"),
        (torch.tensor([[0.0, 1.0, 0.0], [float("inf"), 0.0, 0.0]]), 0.1, "infinite"),
        (torch.rand(5, 3), 0.0, "size is 0.0"),
        (torch.rand(5, 3), -1.0, "size is -1.0"),
        (torch.rand(5, 3), float("nan"), "size is nan"),
        (torch.rand(5, 3), True, "size is True"),
        (torch.eye(3) * 100, 1e-6, "more than 64 bits can number"),
        (torch.eye(3) * 1e6, 1e-12, "cannot be distinguished"),
        (torch.rand(5, 2), 0.1, "(5, 2)"),
        (torch.ones(5, 3, dtype=torch.int64), 0.1, "int64"),
        (np.zeros((5, 3)), 0.1, "not a tensor"),
    ],
)
def test_invalid_coordinates_and_cell_sizes_are_refused(xyz: torch.Tensor, cell: float, says: str) -> None:
    with pytest.raises(BadInput, match="hint:") as refused:
        Segments.from_coords(xyz, cell)
    assert says in refused.value.what


def test_the_hint_for_too_small_cells_names_a_size_that_works() -> None:
    xyz = torch.eye(3) * 100
    with pytest.raises(BadInput) as refused:
        Segments.from_coords(xyz, 1e-6)
    least = float(refused.value.hint.split()[-1].rstrip("."))
    assert Segments.from_coords(xyz, least).cells == 3


@pytest.mark.parametrize(
    ("offsets", "order", "says"),
    [
        ([0, 3, 2, 5], None, "must not decrease"),
        ([1, 3], None, "starts at 1"),
        ([0], None, "1 entries"),
        ([0, 0], None, "no points"),
        ([0, 3], [0, 1], "`order` has 2 points"),
        ([0, 3], [0, 1, 1], "has missing points"),
        ([0, 3], [0, 1, 7], "has missing points"),
        ([0.0, 3.0], None, "float32"),
    ],
)
def test_invalid_offsets_are_refused(offsets: list[int], order: list[int] | None, says: str) -> None:
    with pytest.raises(BadInput) as refused:
        Segments.from_offsets(torch.tensor(offsets), None if order is None else torch.tensor(order))
    assert says in refused.value.what and refused.value.hint


@pytest.mark.parametrize(
    "ids",
    [
        torch.zeros(0, dtype=torch.int64),
        torch.zeros(3),
        torch.zeros(2, 2).long(),
        torch.zeros(2, dtype=torch.uint64),
        [1, 2],
    ],
)
def test_ids_that_are_not_a_row_of_integers_are_refused(ids: torch.Tensor) -> None:
    with pytest.raises(BadInput):
        Segments.from_ids(ids)


def test_a_batch_of_another_length_is_refused() -> None:
    with pytest.raises(BadInput, match="`batch` has 2 entries, but there are 3 points"):
        Segments.from_coords(torch.rand(3, 3), 0.1, torch.tensor([0, 1]))


def test_a_cell_size_is_one_number_or_three_separated_by_commas() -> None:
    assert parse_cell("0.1") == 0.1 and parse_cell("0.1,0.2,0.5") == (0.1, 0.2, 0.5)
    for text in ("", "a", "1,2", "1;2;3", "1,2,3,4"):
        with pytest.raises(BadInput, match="neither one number nor three numbers separated by commas"):
            parse_cell(text)
