"""Views: names, counts, densities, a single device wait, and input that is rejected."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.segments.segments import Segments
from pinchpoint.systems.cloud.data.scene import IGNORED, Scene
from pinchpoint.systems.cloud.model import views as module
from pinchpoint.systems.cloud.model.views import (
    Batch,
    Dense,
    LogUniform,
    OnePerCell,
    Uniform,
    View,
    draw_views,
    parse_views,
)

ALL: tuple[View, ...] = (Dense(), Uniform(0.3, 0.7), LogUniform(0.05, 1.0), OnePerCell())


def _batch(*sizes: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    points = sum(sizes)
    return Batch(
        torch.rand(points, 3, generator=generator),
        torch.rand(points, 2, generator=generator),
        torch.arange(points) % 5,
        torch.tensor([0, *sizes]).cumsum(0),
    )


def test_names_and_views_correspond_one_to_one() -> None:
    names = ["dense", "uniform:0.3:0.7", "log-uniform:0.05:1", "one-per-cell"]
    assert parse_views(names) == ALL == parse_views(", ".join(names))
    assert [view.name for view in parse_views(names)] == names


@pytest.mark.parametrize(
    "name",
    [
        "",
        "half",
        "dense:1",
        "uniform",
        "uniform:0.3",
        "uniform:a:b",
        "uniform:0.7:0.3",
        "uniform:-0.1:0.5",
        "uniform:0.5:1.5",
        "log-uniform:0:1",
        "uniform:nan:1",
        "uniform:0:0",
    ],
)
def test_an_unknown_view_is_rejected(name: str) -> None:
    with pytest.raises(BadInput):
        parse_views([name])


def test_every_view_contains_distinct_points_of_its_scenes_in_the_right_number() -> None:
    batch = _batch(700, 0, 1, 900)
    draw = draw_views(batch, ALL, cell=0.2, seed=3, step=5)
    cells = Segments.from_coords(batch.xyz, 0.2, torch.tensor([0] * 700 + [2] + [3] * 900))
    of_point, counts = cells.of_point().tolist(), Counter(cells.of_point().tolist())
    assert draw.segments.cells == cells.cells and draw.segments.longest == max(counts.values())
    scene_of = [0] * 700 + [2] + [3] * 900
    start = 0
    for number, (view, size) in enumerate(zip(ALL, draw.sizes, strict=True)):
        index = draw.index[start : start + size].tolist()
        assert len(set(index)) == size
        assert draw.view[start : start + size].eq(number).all()
        assert (
            draw.scene[start : start + size].tolist()
            == [scene_of[i] for i in index]
            == sorted(scene_of[i] for i in index)
        )
        drawn_counts = Counter(of_point[i] for i in index)
        for cell, count in counts.items():
            if isinstance(view, Dense):
                assert drawn_counts[cell] == count
            if isinstance(view, OnePerCell):
                assert drawn_counts[cell] == 1
            if isinstance(view, Uniform):
                assert max(1, math.floor(0.3 * count)) <= drawn_counts[cell] <= max(1, math.ceil(0.7 * count))
        start += size
    pieces = Counter(zip(draw.view.tolist(), draw.scene.tolist(), strict=True))
    assert draw.offsets.diff().tolist() == [pieces[view, scene] for view in range(4) for scene in range(4)]


def test_the_cells_of_a_draw_equal_segments_of_the_same_coordinates() -> None:
    batch = _batch(300, 400)
    segments = draw_views(batch, [Dense()], cell=0.25, seed=0).segments
    truth = Segments.from_coords(batch.xyz, 0.25, torch.tensor([0] * 300 + [1] * 400))

    def groups(of: Segments) -> set[frozenset[int]]:
        return {frozenset(part.tolist()) for part in of.order.split(of.counts.tolist())}

    assert groups(segments) == groups(truth)
    assert segments.of_point()[segments.order.long()].equal(segments.of_place)


def test_a_uniform_view_draws_the_mean_ratio_from_large_cells() -> None:
    """n r >= 1 in all cells, so the minimum of one point has no effect.

    E[k] = n (lo + hi) / 2, var <= n**2 (hi - lo)**2 / 12 + 1 / 4.
    """
    xyz = torch.cat(
        [
            torch.rand(count, 3) * 0.9 + torch.tensor([float(at), 0, 0])
            for at, count in enumerate((4, 5, 7, 20))
        ]
    )
    batch = Batch(xyz, torch.zeros(36, 0), torch.zeros(36), torch.tensor([0, 36]))
    draws = 800
    summed = np.zeros(4)
    for step in range(draws):
        index = draw_views(batch, [Uniform(0.3, 0.7)], cell=1.0, seed=1, step=step).index
        summed += np.bincount(xyz[index.long(), 0].floor().long().numpy(), minlength=4)
    for mean, count in zip(summed / draws, (4, 5, 7, 20), strict=True):
        spread = math.sqrt((count**2 * 0.16 / 12 + 0.25) / draws)
        assert abs(mean - 0.5 * count) < 4.5 * spread


def test_a_log_uniform_view_has_the_stated_density_separately_for_each_scene() -> None:
    batch = _batch(1000, 1000)
    ratios = []
    for step in range(150):
        draw = draw_views(batch, [LogUniform(0.05, 1.0)], cell=0.1, seed=2, step=step)
        ratios.append((draw.offsets.diff() / 1000).tolist())
    logs = np.log(np.array(ratios))
    span = math.log(20)
    # log r is uniform: mean -span / 2, variance span**2 / 12. There is no minimum of one point per cell.
    assert abs(logs.mean() + span / 2) < 4.5 * span / math.sqrt(12 * logs.size) + 0.01
    assert logs.std() == pytest.approx(span / math.sqrt(12), rel=0.12)
    assert np.exp(logs.min()) < 0.07 and np.exp(logs.max()) > 0.9
    assert abs(np.corrcoef(logs.T)[0, 1]) < 4.5 / math.sqrt(150)


def test_a_log_uniform_view_draws_each_point_equally_often() -> None:
    batch = _batch(60)
    waits = np.zeros(60)
    for step in range(1000):
        waits[draw_views(batch, [LogUniform(0.5, 0.5)], cell=0.4, seed=4, step=step).index.numpy()] += 1
    assert np.abs(waits - 500).max() < 4.5 * math.sqrt(1000 * 0.25)


def test_a_draw_depends_only_on_seed_step_rank_and_view() -> None:
    batch = _batch(500)

    def draw(**changes: int) -> list[int]:
        message: dict[str, Any] = {"seed": 1, "step": 2, "rank": 3, **changes}
        return draw_views(batch, [Dense(), Uniform(0.3, 0.7)], cell=0.3, **message).only(1).index.tolist()

    assert draw() == draw()
    assert len({tuple(draw(**change)) for change in ({}, {"seed": 2}, {"step": 3}, {"rank": 4})}) == 4
    twice = draw_views(batch, [Uniform(0.3, 0.7)] * 2, cell=0.3, seed=1)
    assert twice.only(0).index.tolist() != twice.only(1).index.tolist()


def test_one_view_alone_is_drawn_as_among_all_views() -> None:
    """Cells are flat, and of several scenes."""
    batch = _batch(400, 300)
    how: dict[str, Any] = {"cell": (0.3, 0.3, 0.05), "seed": 1, "step": 2, "rank": 3}
    together = draw_views(batch, ALL, **how)
    for number, view in enumerate(ALL):
        alone, part = draw_views(batch, [view], first_view=number, **how), together.only(number)
        for name in ("index", "view", "scene", "offsets"):
            assert torch.equal(getattr(alone, name), getattr(part, name)), (view.name, name)


def test_take_and_only_return_the_points_of_the_views() -> None:
    batch = _batch(300, 200)
    draw = draw_views(batch, ALL, cell=0.3, seed=1)
    points = draw.take(batch)
    assert points.xyz.equal(batch.xyz[draw.index.long()]) and points.labels.equal(
        batch.labels[draw.index.long()]
    )
    parts = [draw.only(number) for number in range(4)]
    assert torch.cat([part.index for part in parts]).equal(draw.index)
    for number, part in enumerate(parts):
        assert part.offsets.diff().equal(draw.offsets.diff()[2 * number : 2 * number + 2])
        assert part.offsets[0] == 0 and part.offsets[-1] == part.sizes[0] == len(part.index)


def test_all_views_of_all_scenes_are_drawn_with_one_device_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits inside the samplers are not counted: given the total, the samplers do not wait on a GPU."""
    waits: list[str] = []
    inside: list[str] = []

    def count_waits(name: str, plain: Any) -> Any:
        def wrapped(*args: Any, **named: Any) -> Any:
            if not inside:
                waits.append(name)
            return plain(*args, **named)

        return wrapped

    def ignore_waits(name: str, plain: Any) -> Any:
        def wrapped(*args: Any, **named: Any) -> Any:
            assert name != "sample_subset" or named["total"] is not None
            inside.append(name)
            try:
                return plain(*args, **named)
            finally:
                inside.pop()

        return wrapped

    batch = _batch(300, 200, 100)
    with monkeypatch.context() as patch:
        for name in (
            "item",
            "tolist",
            "__int__",
            "__bool__",
            "__float__",
            "__index__",
            "nonzero",
            "cpu",
            "numpy",
        ):
            patch.setattr(torch.Tensor, name, count_waits(name, getattr(torch.Tensor, name)))
        for name in ("sample_subset", "sample_one", "draw_counts"):
            patch.setattr(module, name, ignore_waits(name, getattr(module, name)))
        draw_views(batch, ALL, cell=0.3, seed=1)
    assert waits == ["tolist"]


def test_scenes_without_labels_are_ignored_points_in_a_batch() -> None:
    scenes = [
        Scene(
            "a",
            np.zeros((2, 3), np.float32),
            np.ones((2, 1), np.float32),
            np.array([3, 1], np.int16),
            ("red",),
        ),
        Scene("b", np.ones((1, 3), np.float32), np.zeros((1, 1), np.float32), None, ("red",)),
    ]
    batch = Batch.from_scenes(scenes)
    assert batch.offsets.tolist() == [0, 2, 3] and batch.labels.tolist() == [3, 1, IGNORED]
    assert batch.xyz.tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
    other = replace(scenes[1], features=np.zeros((1, 2), np.float32), names=("red", "green"))
    with pytest.raises(BadInput, match="different numbers of features"):
        Batch.from_scenes([scenes[0], other])
    with pytest.raises(BadInput, match="no scenes"):
        Batch.from_scenes([])


def test_invalid_batches_are_rejected() -> None:
    batch = _batch(10)
    wrong = [
        (
            replace(batch, xyz=batch.xyz[:0], features=batch.features[:0], labels=batch.labels[:0]),
            0.1,
            "has no points",
        ),
        (replace(batch, xyz=batch.xyz * math.nan), 0.1, "NaN or infinite"),
        (replace(batch, xyz=batch.xyz * 1e9), 0.1, "at most 65,536 are supported"),
        (replace(batch, labels=batch.labels[:9]), 0.1, "9 labels for 10 points"),
        (replace(batch, offsets=torch.tensor([0, 11])), 0.1, "offsets go from 0 to 11"),
        (replace(batch, offsets=torch.tensor([0, 7, 3, 10])), 0.1, "decrease"),
        (batch, 0.0, "The cell size"),
    ]
    for bad_batch, cell, message in wrong:
        with pytest.raises(BadInput, match=message):
            draw_views(bad_batch, ALL, cell=cell, seed=0)
    with pytest.raises(BadInput, match="The list of views is empty"):
        draw_views(batch, [], cell=0.1, seed=0)


def test_a_single_point_and_a_single_cell_can_be_drawn() -> None:
    for count in (1, 40):
        batch = Batch(
            torch.full((count, 3), 0.5), torch.zeros(count, 0), torch.zeros(count), torch.tensor([0, count])
        )
        draw = draw_views(batch, [Dense(), Uniform(0.5, 0.5), OnePerCell()], cell=1.0, seed=0)
        assert draw.sizes[0] == count and draw.sizes[1] == max(1, count // 2) and draw.sizes[2] == 1
