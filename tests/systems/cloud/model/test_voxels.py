"""Voxels: keys, levels and tables equal brute force, and invalid clouds are rejected."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.model.voxels import (
    AXIS_BITS,
    Level,
    check_extent,
    group_least,
    groups_of,
    voxelise,
)


def _cloud(points: int = 300, *, seed: int = 0, side: float = 1.0) -> torch.Tensor:
    return (torch.rand(points, 3, generator=torch.Generator().manual_seed(seed)) - 0.5) * side


def _places(level: Level) -> list[tuple[int, ...]]:
    return [(int(g), *at) for g, at in zip(level.group, level.coordinates().tolist(), strict=True)]


def test_points_share_a_voxel_if_and_only_if_cell_and_group_agree() -> None:
    xyz, offsets = _cloud(400), torch.tensor([0, 150, 150, 400])
    voxels = voxelise(xyz, offsets, cell=0.2)
    group = [0] * 150 + [2] * 250
    expected = [
        (g, *(math.floor(float(v) / 0.2) for v in row.double())) for g, row in zip(group, xyz, strict=True)
    ]
    assert voxels.group.tolist() == group
    result = voxels.of_point.tolist()
    assert len(set(expected)) == voxels.levels[0].voxels
    assert len(set(zip(expected, result, strict=True))) == len(set(expected)) == len(set(result))


def test_neighbour_tables_of_all_levels_equal_brute_force() -> None:
    voxels = voxelise(_cloud(500), torch.tensor([0, 200, 500]), cell=0.13, levels=4)
    for level in voxels.levels:
        where = {place: row for row, place in enumerate(_places(level))}
        assert len(where) == level.voxels
        offsets = list(itertools.product((-1, 0, 1), repeat=3))
        for row, (group, *at) in enumerate(_places(level)):
            expected = [
                where.get((group, *(a + d for a, d in zip(at, step, strict=True))), level.voxels)
                for step in offsets
            ]
            assert level.neighbours[row].tolist() == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_voxels_of_a_gpu_are_those_of_a_cpu() -> None:
    ends = torch.tensor([[-1.0, 0.0, 2.0], [6527.95, 0.0, 1.0], [6527.95, 6527.95, 2.0]])
    xyz = torch.cat([_cloud(5000, side=3.0), _cloud(3000, seed=1), ends])
    offsets = torch.tensor([0, 2000, 2000, len(xyz)])
    on_cpu, on_gpu = (
        voxelise(xyz.to(device), offsets.to(device), cell=0.1, levels=6) for device in ("cpu", "cuda")
    )
    for level, other in zip(on_cpu.levels, on_gpu.levels, strict=True):
        assert other.keys.cpu().equal(level.keys) and other.neighbours.cpu().equal(level.neighbours)
    for stride, other in zip(on_cpu.strides, on_gpu.strides, strict=True):
        assert other.place.cpu().equal(stride.place) and other.children.cpu().equal(stride.children)
    assert on_gpu.of_point.cpu().equal(on_cpu.of_point)


def test_neighbours_do_not_wrap_around_at_the_ends_of_an_axis() -> None:
    xyz = torch.tensor([[0.5, 0.5, 0.5], [2.0**AXIS_BITS - 0.5, 0.5, 0.5]])
    table = voxelise(xyz, torch.tensor([0, 2]), cell=1.0).levels[0].neighbours
    assert (table < 2).sum().item() == 2


def test_a_level_has_the_halved_coordinates_of_the_finer_one_and_lists_its_children() -> None:
    voxels = voxelise(_cloud(500, side=3.0), torch.tensor([0, 300, 500]), cell=0.1, levels=4)
    for fine, coarse, stride in zip(voxels.levels, voxels.levels[1:], voxels.strides, strict=False):
        above = _places(coarse)
        assert above == sorted({(g, *(c // 2 for c in at)) for g, *at in _places(fine)}, key=above.index)
        for row, (group, *at) in enumerate(_places(fine)):
            parent, octant = divmod(int(stride.place[row]), 8)
            assert above[parent] == (group, *(c // 2 for c in at))
            assert octant == 4 * (at[0] % 2) + 2 * (at[1] % 2) + at[2] % 2
            assert stride.children[8 * parent + octant] == row
        assert int((stride.children < fine.voxels).sum()) == fine.voxels


def test_a_thinned_cloud_keeps_the_grid_of_the_full_cloud_at_every_level() -> None:
    xyz = _cloud(400, side=4.0)
    whole = voxelise(xyz, torch.tensor([0, 400]), cell=0.1, levels=4)
    thin = voxelise(xyz[::7], torch.tensor([0, 58]), cell=0.1, levels=4)
    for a, b in zip(whole.levels, thin.levels, strict=True):
        assert set(_places(b)) <= set(_places(a))


def test_the_position_of_a_point_in_its_voxel_is_relative_to_the_centre() -> None:
    xyz = torch.tensor([[0.05, 0.10, 0.19], [-0.05, -0.15, 0.0]])
    inside = voxelise(xyz, torch.tensor([0, 2]), cell=0.2).inside
    assert torch.allclose(inside, torch.tensor([[-0.25, 0.0, 0.45], [0.25, -0.25, -0.5]]), atol=1e-6)


@pytest.mark.parametrize("points", [3, 400, 40_000])
def test_group_least_is_the_minimum_over_all_points_of_a_group(points: int) -> None:
    values, group = _cloud(points, seed=5), torch.arange(points) * 3 // points
    group[group == 1] = 2
    result = group_least(values, group, 4)
    for number in (0, 2):
        assert result[number].equal(values[group == number].min(0).values)
    assert result[1].tolist() == result[3].tolist() == [math.inf] * 3


def test_groups_of_skips_empty_groups() -> None:
    assert groups_of(torch.tensor([0, 0, 2, 2, 3]), 3).tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    ("xyz", "offsets", "cell", "message"),
    [
        (torch.zeros(0, 3), [0, 0], 0.1, "has no points"),
        (torch.zeros(4, 2), [0, 4], 0.1, "shape"),
        (torch.full((4, 3), math.nan), [0, 4], 0.1, "NaN or infinite"),
        (torch.tensor([[0.0, 0, 0], [math.inf, 0, 0]]), [0, 2], 0.1, "NaN or infinite"),
        (torch.tensor([[0.0, 0, 0], [1e6, 0, 0]]), [0, 2], 0.1, "at most 65,536 are supported"),
        (torch.zeros(4, 3), [0, 4], 0.0, "The cell size"),
        (torch.zeros(4, 3), [0, 4], math.nan, "The cell size"),
        (torch.zeros(4, 3), [0, 3], 0.1, "offsets go from 0 to 3"),
        (torch.zeros(4, 3), [1, 4], 0.1, "offsets go from 1"),
        (torch.zeros(4, 3), [0, 3, 2, 4], 0.1, "decrease"),
        (torch.zeros(4, 3), [4], 0.1, "offsets have shape"),
    ],
)
def test_clouds_without_valid_voxels_are_rejected(
    xyz: torch.Tensor, offsets: list[int], cell: float, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        voxelise(xyz, torch.tensor(offsets), cell=cell)


def test_the_hint_for_too_small_cells_names_a_size_that_works() -> None:
    with pytest.raises(BadInput) as error:
        check_extent(1e7, 0.01)
    size = float(error.value.hint.split("at least ")[1].split(",")[0])
    check_extent(1e7 * 0.01 / size, size)
