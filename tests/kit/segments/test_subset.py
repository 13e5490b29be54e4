"""Subsets of cells: every method compared with keys sorted on the host; exact counts; invalid input."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Segments, draw_counts, sample_one, sample_subset
from pinchpoint.kit.segments import hashing, subset

# 0, 1 and 2 points, some, and one cell beyond each border between ways to choose; the last ones fill blocks
# of keys
LENGTHS = [0, 1, 2, 5, 20, 0, 33, 3, 64, 129, 512, 513, 1, 1500, 4096, 2, 4097, 0, 30]


def cloud(lengths: list[int], seed: int = 0) -> Segments:
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return Segments.from_offsets(
        offsets, torch.randperm(int(offsets[-1]), generator=torch.Generator().manual_seed(seed))
    )


def smallest_keys(segments: Segments, counts: list[int], of: tuple[int, int]) -> list[int]:
    """The definition, in Python's own whole numbers."""
    order, drawn = segments.order.tolist(), []
    for (first, last), count in zip(pairwise(segments.offsets.tolist()), counts, strict=True):
        cell = order[first:last]
        kept = set(sorted(cell, key=lambda point: (hashing.key(point, of), point))[:count])
        drawn += [point for point in cell if point in kept]
    return drawn


@pytest.mark.parametrize("method", ["exact", "sort", "nested"])
@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, (0.3, 0.7), 1.0])
def test_a_draw_is_the_smallest_keys_of_every_cell(
    method: subset.Method, ratio: float | tuple[float, float]
) -> None:
    segments = cloud(LENGTHS)
    counts = draw_counts(segments, ratio, seed=3, least=0)
    drawn = sample_subset(segments, counts, method=method, seed=3, step=4, rank=1, view=2)
    of = hashing.words(seed=3, step=4, rank=1, view=0 if method == "nested" else 2)
    assert drawn.tolist() == smallest_keys(segments, counts.tolist(), of)
    assert drawn.dtype is torch.int32
    assert sample_subset(
        segments, counts, method=method, seed=3, step=4, rank=1, view=2, total=len(drawn)
    ).equal(drawn)


@pytest.mark.parametrize("seed", range(5))
def test_the_methods_agree_on_a_large_cloud_shared_out_among_threads(seed: int) -> None:
    ids = torch.randint(0, 9000, (180_000,), generator=torch.Generator().manual_seed(seed))
    segments = Segments.from_ids(ids)
    counts = draw_counts(segments, (0.05, 0.95), seed=seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        exact = sample_subset(segments, counts, seed=seed, step=seed)
    finally:
        torch.set_num_threads(threads)
    assert exact.equal(sample_subset(segments, counts, method="sort", seed=seed, step=seed))
    cell = segments.of_point()[exact]
    assert torch.bincount(cell, minlength=segments.cells).equal(counts.long())
    assert len(exact.unique()) == len(exact)


@pytest.mark.parametrize("last", [1, 2, 40, 99, 100])
def test_a_run_of_cells_writes_nothing_beyond_its_own_points(last: int) -> None:
    pytest.importorskip("numba")
    from pinchpoint.kit.segments import subset_cpu

    segments = cloud([7] * 100)
    counts = torch.arange(100) % 4  # some give nothing, and so does the last of the run in places
    ends = counts.cumsum(0)
    out = torch.full((int(ends[-1]),), -1, dtype=torch.int32)
    of = hashing.words(seed=2)
    given = counts.int().numpy(), ends.numpy(), out.numpy(), segments.longest
    subset_cpu._draw_cells(*subset_cpu._points(segments, of), *given, 0, last)
    own = int(ends[last - 1])
    assert out[:own].tolist() == smallest_keys(segments, counts.tolist(), of)[:own]
    assert (out[own:] == -1).all()


def test_one_cell_of_a_million_points_is_drawn_exactly() -> None:
    segments = Segments.from_offsets(torch.tensor([0, 1_000_000]))
    drawn = sample_subset(segments, torch.tensor([400_000]), seed=1)
    keys = hashing.keys(torch.arange(1_000_000), hashing.words(seed=1))
    assert drawn.equal((keys <= keys.sort().values[399_999]).nonzero().squeeze(1).int())
    assert len(drawn) == 400_000
    assert sample_one(segments, seed=1).tolist() == [int(keys.argmin())]


def test_without_numba_the_same_points_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = cloud(LENGTHS)
    drawn, one = sample_subset(segments, 0.4, seed=1), sample_one(cloud([3, 600, 1]), seed=1)
    monkeypatch.setattr(subset, "numba_works", lambda: False)
    assert sample_subset(segments, 0.4, seed=1).equal(drawn)
    assert sample_one(cloud([3, 600, 1]), seed=1).equal(one)


def test_threads_may_draw_at_the_same_time() -> None:
    segments = Segments.from_ids(
        torch.randint(0, 500, (140_000,), generator=torch.Generator().manual_seed(0))
    )
    truth = [sample_subset(segments, 0.5, method="sort", seed=seed) for seed in range(6)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda seed: sample_subset(segments, 0.5, seed=seed), range(6)))
    assert all(one.equal(other) for one, other in zip(found, truth, strict=True))


def test_a_child_forked_after_a_draw_can_draw() -> None:
    script = """
import os, torch
from pinchpoint.kit import Segments, sample_subset
torch.set_num_threads(1)  # torch's own threads do not live on in a child
segments = Segments.from_ids(torch.arange(140_000) % 7000)
torch.set_num_threads(2)
drawn = sample_subset(segments, 0.5, seed=0).tolist()
child = os.fork()
if child == 0:
    os._exit(0 if sample_subset(segments, 0.5, seed=0).tolist() == drawn else 7)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=600, check=False).returncode == 0


def test_smaller_nested_draws_lie_inside_larger_ones_whatever_the_view() -> None:
    segments = cloud(LENGTHS)
    draws = [
        set(sample_subset(segments, ratio, method="nested", seed=5, step=2, view=view).tolist())
        for view, ratio in enumerate([0.05, 0.3, 0.31, 0.7, 1.0])
    ]
    assert all(small < large for small, large in pairwise(draws))
    assert not draws[0] <= set(sample_subset(segments, 0.3, seed=5, step=2, view=1).tolist())


def test_one_point_of_every_cell_is_the_first_that_a_draw_takes() -> None:
    segments = Segments.from_ids(torch.randint(0, 300, (5000,), generator=torch.Generator().manual_seed(0)))
    one = sample_one(segments, seed=2, step=3, view=1)
    assert one.equal(sample_subset(segments, 1, seed=2, step=3, view=1))
    assert segments.of_point()[one].tolist() == list(range(segments.cells))


def test_one_number_for_all_cells_is_cut_to_what_a_cell_has() -> None:
    segments = cloud([0, 1, 2, 5])
    assert torch.bincount(segments.of_point()[sample_subset(segments, 3, seed=0)], minlength=4).tolist() == [
        0,
        1,
        2,
        3,
    ]
    assert sample_subset(segments, 0, seed=0).tolist() == []
    assert sorted(sample_subset(segments, 10**12, seed=0).tolist()) == list(range(8))


def test_a_draw_depends_on_each_of_its_words_and_on_nothing_else() -> None:
    segments = cloud([50] * 10)
    words = [{}, {"seed": 1}, {"step": 1}, {"rank": 1}, {"view": 1}, {"seed": 2**40}]
    draws = [sample_subset(segments, 10, **({"seed": 0} | word)).tolist() for word in words]
    assert len({tuple(draw) for draw in draws}) == len(words)
    torch.rand(5)  # torch's own generator has no part in it
    assert sample_subset(segments, 10, seed=0).tolist() == draws[0]


def test_the_same_points_in_other_cells_are_drawn_anew_with_nothing_remembered() -> None:
    ids = torch.arange(1000) % 50
    shuffled = ids[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    for cells in (ids, shuffled):
        segments = Segments.from_ids(cells)
        drawn = sample_subset(segments, 7, seed=0)
        assert torch.bincount(cells[drawn]).tolist() == [7] * 50


def test_bernoulli_keeps_points_below_the_ratio_and_one_of_each_cell() -> None:
    segments = cloud([4] * 500)
    drawn = sample_subset(segments, 0.2, method="bernoulli", seed=1)
    of = hashing.words(seed=1)
    truth = []
    for points in segments.order.view(500, 4).tolist():
        kept = [point for point in points if hashing.key(point, of) < 0.2 * 2**32]
        truth += kept or [min(points, key=lambda point: hashing.key(point, of))]
    assert drawn.tolist() == truth


def test_a_ratio_draws_between_its_floor_and_the_next() -> None:
    segments = cloud([0, 1, 2, 3, 4, 5, 20, 1000])
    for seed in range(20):
        counts = draw_counts(segments, 0.35, seed=seed, least=0).tolist()
        assert all(
            int(n * 0.35) <= k <= int(n * 0.35) + 1
            for n, k in zip([0, 1, 2, 3, 4, 5, 20, 1000], counts, strict=True)
        )
        least = draw_counts(segments, 0.35, seed=seed, least=2).tolist()
        assert least == [min(max(k, 2), n) for n, k in zip([0, 1, 2, 3, 4, 5, 20, 1000], counts, strict=True)]
    assert draw_counts(segments, 1.0, seed=0).tolist() == segments.counts.tolist()
    assert draw_counts(segments, 0.0, seed=0, least=0).tolist() == [0] * 8


def test_a_range_drawn_together_is_one_ratio_for_all_cells() -> None:
    segments = cloud([10_000] * 20)
    shares = {seed: draw_counts(segments, (0.2, 0.8), seed=seed, together=True) for seed in range(5)}
    for counts in shares.values():
        assert (
            int(counts.max() - counts.min()) <= 1 and int(counts.min()) >= 2000 and int(counts.max()) <= 8000
        )
    assert len({int(counts[0]) // 10 for counts in shares.values()}) == 5
    apart = draw_counts(segments, (0.2, 0.8), seed=0)
    assert int(apart.max() - apart.min()) > 2000


def test_a_draw_whose_size_is_known_needs_no_numbers_on_a_gpu_that_is_only_thought_of() -> None:
    with compat.fake_mode():
        order, offsets, cells = (torch.empty(size, dtype=torch.int32, device="cuda") for size in (60, 7, 60))
        moved = Segments(order, offsets, cells, None, longest=10, empty=False)
        counts = draw_counts(moved, (0.3, 0.7), seed=0)
        for method in ("exact", "sort"):
            drawn = sample_subset(moved, counts, method=method, seed=0, total=31)  # pyright: ignore[reportArgumentType]
            assert drawn.shape == (31,) and drawn.dtype is torch.int32 and drawn.is_cuda
        assert sample_one(moved, seed=0).shape == (6,)


@pytest.mark.parametrize(
    ("counts", "options", "says"),
    [
        (1.5, {}, "ratio is 1.5"),
        (-0.1, {}, "ratio is -0.1"),
        (float("nan"), {}, "ratio is nan"),
        (True, {}, "`counts` is True"),
        (-1, {}, "`counts` is -1"),
        ("0.5", {}, "`counts` is '0.5'"),
        (torch.tensor([1, 1]), {}, "(2,)"),
        (torch.ones(3), {}, "float32"),
        (torch.tensor([1, 1, 9]), {}, "above the number of points"),
        (torch.tensor([1, -1, 1]), {}, "below 0"),
        (0.5, {"seed": -1}, "`seed` is -1"),
        (0.5, {"seed": 1.5}, "`seed` is 1.5"),
        (0.5, {"step": "3"}, "`step` is '3'"),
        (0.5, {"method": "prefix"}, "method 'prefix' does not exist"),
        (1, {"total": 5}, "`total` is 5, but the counts sum to 3"),
        (1, {"total": -1}, "`total` is -1"),
        (1, {"total": 7}, "`total` is 7"),
        (1, {"method": "sort", "total": 2}, "`total` is 2"),
        (2, {"method": "bernoulli"}, "`counts` is 2"),
        (0.5, {"method": "bernoulli", "total": 3}, "`total` cannot be given"),
    ],
)
def test_what_cannot_be_drawn_is_refused(counts: Tensor, options: dict[str, int], says: str) -> None:
    segments = cloud([2, 2, 2])
    with pytest.raises(BadInput) as refused:
        sample_subset(segments, counts, **({"seed": 0} | options))  # pyright: ignore[reportArgumentType]
    assert says in refused.value.what and refused.value.hint


@pytest.mark.parametrize("ratio", [(0.7, 0.3), (0.1, 1.1), (0.1,), (0.1, 0.2, 0.3), "0.5", None, True])
def test_an_invalid_ratio_is_refused(ratio: tuple[float, float]) -> None:
    with pytest.raises(BadInput, match="lo <= hi"):
        draw_counts(cloud([3]), ratio, seed=0)


def test_drawing_one_point_from_an_empty_cell_is_refused() -> None:
    with pytest.raises(BadInput, match="sample_subset"):
        sample_one(cloud([2, 0]), seed=0)
    with pytest.raises(BadInput, match="from_ids"):
        sample_subset(torch.zeros(5), 0.5, seed=0)  # pyright: ignore[reportArgumentType]
