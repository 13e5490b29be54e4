"""Draws on a GPU: the same indices as on the CPU, by our kernel and by the sort, without needless waits."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pinchpoint.kit import Segments, draw_counts, sample_one, sample_subset, segment_mean, take_rows
from pinchpoint.kit.segments import hashing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CLOUDS = {
    "even": torch.arange(200_000) % 10_000,
    "uneven": torch.cat(
        [
            torch.randint(0, 5000, (100_000,), generator=torch.Generator().manual_seed(0)),
            torch.zeros(700).long(),
        ]
    ),
    "long": torch.cat([torch.arange(30_000) % 1500, torch.full((16_000,), 7)]),
    "longer": torch.cat([torch.arange(30_000) % 1500, torch.full((200_000,), 7)]),
    "one cell": torch.zeros(1_000_000, dtype=torch.int64),
    "one point": torch.zeros(1, dtype=torch.int64),
    "wide": torch.arange(200_000) % 300,
}


@pytest.mark.parametrize("name", CLOUDS)
@pytest.mark.parametrize("ratio", [0.0, 0.5, (0.3, 0.7), 1.0])
def test_the_gpu_draws_what_the_cpu_draws(name: str, ratio: float | tuple[float, float]) -> None:
    here = Segments.from_ids(CLOUDS[name])
    there = Segments.from_ids(CLOUDS[name].cuda())
    assert there.order.cpu().equal(here.order) and there.offsets.cpu().equal(here.offsets)
    for seed, together in ((1, False), (2**50 + 3, True)):
        counts = draw_counts(here, ratio, seed=seed, step=5, together=together)
        on_gpu = draw_counts(there, ratio, seed=seed, step=5, together=together)
        assert on_gpu.cpu().equal(counts)
        truth = sample_subset(here, counts, method="sort", seed=seed, step=5, view=1)
        for method in ("exact", "sort"):
            for total in (None, len(truth)):
                drawn = sample_subset(there, on_gpu, method=method, seed=seed, step=5, view=1, total=total)  # pyright: ignore
                assert drawn.cpu().equal(truth)
        assert sample_one(there, seed=seed).cpu().equal(sample_one(here, seed=seed))


def test_a_draw_of_known_size_waits_for_nothing() -> None:
    segments = Segments.from_ids(CLOUDS["uneven"].cuda())
    counts = draw_counts(segments, 0.5, seed=0)
    total = int(counts.sum())
    sample_subset(segments, counts, seed=0, total=total)  # compiled by the first
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for method in ("exact", "sort"):
            sample_subset(segments, draw_counts(segments, 0.5, seed=1), method=method, seed=1, total=total)  # pyright: ignore
        sample_one(segments, seed=1)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_draws_from_many_cells_recorded_draws_and_draws_at_once_are_those_of_the_sort() -> None:
    """Draws in one launch share a board of sums; those of many cells and recorded ones do without it."""
    many = Segments.from_ids(torch.arange(400_000, device="cuda") % 140_000)
    counts = draw_counts(many, 0.5, seed=0)
    total = int(counts.sum())
    truth = sample_subset(many, counts, method="sort", seed=0, total=total)
    assert sample_subset(many, counts, seed=0, total=total).equal(truth)

    segments = Segments.from_ids(CLOUDS["uneven"].cuda())
    counts = draw_counts(segments, 0.5, seed=0)
    total = int(counts.sum())
    truths = [
        sample_subset(segments, counts, method="sort", seed=0, step=step, total=total) for step in range(2)
    ]
    apart = torch.stack([counts, counts], 1)[:, 0]
    assert sample_subset(segments, apart, seed=0, total=total).equal(truths[0])
    streams = [torch.cuda.Stream() for _ in truths]
    for _ in range(20):
        drawn = []
        for step, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                drawn.append(sample_subset(segments, counts, seed=0, step=step, total=total))
        torch.cuda.synchronize()
        assert all(points.equal(truth) for points, truth in zip(drawn, truths, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = sample_subset(segments, counts, seed=0, step=1, total=total)
    fewer = (counts - 1).clamp(min=0)
    counts.copy_(fewer)
    graph.replay()
    truth = sample_subset(segments, fewer, method="sort", seed=0, step=1, total=total)
    assert recorded.equal(truth) and int(truth[-1]) == -1


def test_cells_of_coordinates_are_those_of_the_cpu_also_on_borders() -> None:
    xyz = torch.randint(-50, 50, (50_000, 3), generator=torch.Generator().manual_seed(0)).float() * 0.02
    here, there = Segments.from_coords(xyz, 0.02), Segments.from_coords(xyz.cuda(), 0.02)
    assert there.order.cpu().equal(here.order) and there.offsets.cpu().equal(here.offsets)


def test_a_total_that_is_wrong_writes_nowhere_else() -> None:
    segments = Segments.from_ids(CLOUDS["even"].cuda())
    truth = sample_subset(segments, 5, seed=0)
    for method in ("exact", "sort"):
        more = sample_subset(segments, 5, method=method, seed=0, total=len(truth) + 3)  # pyright: ignore
        assert more[:-3].equal(truth) and more[-3:].tolist() == [-1, -1, -1]
        fewer = sample_subset(segments, 5, method=method, seed=0, total=len(truth) - 3)  # pyright: ignore
        assert fewer[:-1].equal(truth[:-4])


def test_counts_above_a_cells_points_leave_their_places_empty() -> None:
    segments = Segments.from_ids(CLOUDS["long"].cuda())
    counts = segments.counts + 3  # not looked at on a GPU, which would wait
    counts[1::2] = 0
    drawn = sample_subset(segments, counts, seed=0, total=int(counts.sum()))
    asked = counts > 0
    assert int((drawn == -1).sum()) == 3 * int(asked.sum())
    assert (
        drawn[drawn >= 0].sort().values.equal(segments.order[asked[segments.of_place.long()]].sort().values)
    )


def test_cells_that_begin_anywhere_in_memory_are_drawn_from_alike() -> None:
    """A kernel compiled for tensors at round addresses must not be taken for others."""
    here = Segments.from_ids(CLOUDS["uneven"].cuda())
    truth = sample_subset(here, 0.5, seed=4), sample_one(here, seed=4)
    padded = torch.cat([here.order.new_zeros(1), here.order])[1:]
    moved = dataclasses.replace(here, order=padded)
    assert moved.order.data_ptr() % 16
    assert sample_subset(moved, 0.5, seed=4).equal(truth[0]) and sample_one(moved, seed=4).equal(truth[1])


def test_keys_in_one_pass_are_those_of_the_chain() -> None:
    points, cells = torch.arange(100_000, dtype=torch.int32), torch.arange(100_000, dtype=torch.int32) // 7
    for seed in (0, 1, 2**64 - 1):
        of = hashing.words(seed=seed)
        assert (
            hashing.keys_in(cells.cuda(), points.cuda(), of).cpu().equal(hashing.keys_in(cells, points, of))
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(32,), (3,), (), (5, 7), (4096,), (5000,)])
def test_rows_are_taken_as_index_select_takes_them(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    values = torch.randn(500, *shape, device="cuda").to(dtype)
    for kind in (torch.int32, torch.int64):
        index = torch.randint(0, 500, (1777,), device="cuda").to(kind)
        assert take_rows(values, index).equal(values.index_select(0, index))
        index[::3] = 500
        none = take_rows(values, index, absent=True)
        assert not none[::3].any() and none[1::3].equal(values.index_select(0, index[1::3]))
        index[::3] = 0
    assert take_rows(values, index[:0]).shape == (0, *shape)  # pyright: ignore[reportPossiblyUnboundVariable]
    assert take_rows(values.float().requires_grad_(), index).requires_grad  # pyright: ignore[reportPossiblyUnboundVariable]


def test_means_have_the_same_bits_every_time() -> None:
    segments = Segments.from_ids(CLOUDS["uneven"].cuda())
    values = torch.randn(segments.points, 16, device="cuda", requires_grad=True)
    found = [torch.autograd.grad((segment_mean(values, segments) ** 2).sum(), values)[0] for _ in range(3)]
    assert found[0].equal(found[1]) and found[0].equal(found[2])
