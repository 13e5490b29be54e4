"""The objective: compared with sums over groups by hand, with finite differences, and over two processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.objective import class_loss, compared_cells
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw, draw_views, parse_views
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.training.breakdown import Parts
from pinchpoint.systems.cloud.training.training_step import Stepper
from pinchpoint.systems.common.training.distributed import Ranks

CONFIG = CloudConfig(
    in_features=3,
    classes=4,
    cell=0.25,
    widths=(8, 12),
    blocks=(1, 1),
    attention=(0, 1),
    heads=2,
    window=16,
    point_width=8,
    features=6,
)
VIEWS = ["dense", "log-uniform:0.3:0.9", "one-per-cell"]


def scene(number: int, points: int = 60) -> Scene:
    rng = np.random.default_rng(number)
    labels = rng.integers(-1, 4, points)
    return Scene(
        str(number),
        rng.uniform(size=(points, 3)).astype(np.float32),
        rng.normal(size=(points, 3)).astype(np.float32),
        labels,
    )


def stepper(settings: Settings, **options: Any) -> Stepper:
    tested_stepper = Stepper(CONFIG, settings, "cpu", **options)
    tested_stepper.model.double()
    return tested_stepper


def wide(batch: Batch) -> Batch:
    return replace(batch, xyz=batch.xyz.double(), features=batch.features.double())


def gradient(of: Stepper, batch: Batch, draw: ViewDraw) -> tuple[float, torch.Tensor]:
    of.model.zero_grad(set_to_none=True)
    loss = of.gradients(batch, draw)
    return float(loss), torch.cat(
        [weight.grad.flatten() for weight in of.model.parameters() if weight.grad is not None]
    )


def draw_of(settings: Settings, *numbers: int, rank: int = 0) -> tuple[Batch, ViewDraw]:
    batch = Batch.from_scenes([scene(number, 50 + 20 * number) for number in numbers])
    return wide(batch), draw_views(
        wide(batch), parse_views(settings.views), cell=0.25, seed=1, step=1, rank=rank
    )


def test_the_class_loss_is_the_mean_over_scenes_of_the_mean_over_points() -> None:
    batch = Batch.from_scenes([scene(1, 30), scene(2, 70)])
    logits = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    each = []
    for rows in (slice(0, 30), slice(30, 100)):
        labelled = batch.labels[rows] >= 0
        each.append(functional.cross_entropy(logits[rows][labelled], batch.labels[rows][labelled]))
    assert float(class_loss(logits, batch, groups=2)) == pytest.approx(float(sum(each)) / 2, rel=1e-6)
    none = replace(batch, labels=torch.full_like(batch.labels, -1))
    assert float(class_loss(logits, none, groups=2)) == 0.0


@pytest.mark.parametrize("consistency", ["none", "cos", "mse", "kl"])
def test_accumulated_views_have_the_same_gradient_as_batched_views(consistency: str) -> None:
    settings = Settings(
        views=["log-uniform:0.3:0.9", "dense", "one-per-cell"],
        consistency=consistency,
        consistency_weight=0.7,
    )
    batch, draw = draw_of(settings, 1, 2)
    together = gradient(stepper(replace(settings, views_mode="batched")), batch, draw)
    apart = gradient(stepper(replace(settings, views_mode="accumulate")), batch, draw)
    assert apart[0] == pytest.approx(together[0], rel=1e-10)
    assert torch.allclose(apart[1], together[1], rtol=1e-8, atol=1e-12)


def test_alternating_views_average_to_the_gradient_of_all_views_together() -> None:
    """Three steps on the same scenes see the views in turn, each with its whole weight."""
    views = ["dense", "uniform:0.3:0.7", "one-per-cell"]
    settings = Settings(views=views, schedule="alternate", seed=3)
    batch = wide(Batch.from_scenes([scene(1, 70), scene(2, 90)]))
    alternating, together = stepper(settings), stepper(replace(settings, schedule="together"))
    apart = []
    for number in (1, 2, 3, 4):
        draw = alternating.draw(batch, number=number)
        assert [view.name for view in draw.views] == [views[(number - 1) % 3]]
        whole = together.draw(batch, number=number).only((number - 1) % 3)
        assert torch.equal(draw.index, whole.index) and torch.equal(draw.view, whole.view)
        apart.append(gradient(alternating, batch, draw))
    # The views of one step, one by one and together.
    draw = together.draw(batch, number=1)
    alone = [gradient(alternating, batch, draw.only(number)) for number in range(3)]
    loss, whole = gradient(together, batch, draw)
    assert sum(part[0] for part in alone) / 3 == pytest.approx(loss, rel=1e-10)
    assert torch.allclose(torch.stack([part[1] for part in alone]).mean(0), whole, rtol=1e-8, atol=1e-12)
    assert apart[0][0] == alone[0][0]


@pytest.mark.parametrize("kind", ["cos", "mse", "kl"])
def test_the_gradient_with_consistency_equals_finite_differences(kind: str) -> None:
    settings = Settings(views=VIEWS, consistency=kind, consistency_weight=2.0, views_mode="batched")
    batch, draw = draw_of(settings, 1)
    with_it, without = stepper(settings), stepper(replace(settings, consistency="none"))
    _, result = gradient(with_it, batch, draw)
    _, gradient_without = gradient(without, batch, draw)
    assert (result - gradient_without).norm() > 1e-3 * gradient_without.norm(), (
        "the consistency loss changes the gradient"
    )
    # Differences are taken along one direction of all weights. The teacher's means stay those of the original
    # weights.
    objective: Any = with_it.objective
    compared = compared_cells(draw)
    with torch.no_grad():
        first = gradient_free(objective, batch, draw.only(0), compared)
        direction = [
            torch.randn(w.shape, dtype=w.dtype, generator=torch.Generator().manual_seed(3))
            for w in weights(with_it)
        ]
        losses = []
        for sign in (1, -1):
            for weight, step in zip(weights(with_it), direction, strict=True):
                weight += sign * 1e-5 * step
            teacher_view = objective(batch, draw.only(0), Parts("cpu"), compared)[0]
            others = sum(objective(batch, draw.only(n), Parts("cpu"), compared, first)[0] for n in (1, 2))
            losses.append(float(teacher_view + others))
            for weight, step in zip(weights(with_it), direction, strict=True):
                weight -= sign * 1e-5 * step
    slope = (losses[0] - losses[1]) / 2e-5
    assert float(result @ torch.cat([step.flatten() for step in direction])) == pytest.approx(slope, rel=1e-4)


def weights(of: Stepper) -> list[torch.Tensor]:
    return list(of.model.parameters())


def gradient_free(objective: Any, batch: Batch, draw: ViewDraw, compared: torch.Tensor) -> Any:
    teacher = objective(batch, draw, Parts("cpu"), compared)[1]
    assert teacher is not None
    return teacher


def test_a_view_without_points_gives_every_weight_a_zero_gradient() -> None:
    settings = Settings(views=["log-uniform:1e-6:1e-6", "dense"], views_mode="accumulate")
    batch, draw = draw_of(settings, 1)
    assert draw.sizes[0] == 0
    tested_stepper = stepper(settings)
    loss = tested_stepper.objective(batch, draw.only(0), Parts("cpu"))[0]
    loss.backward()
    assert all(weight.grad is not None and not weight.grad.any() for weight in weights(tested_stepper))
    only = gradient(stepper(replace(settings, views_mode="batched")), batch, draw.only(1))
    assert torch.allclose(gradient(tested_stepper, batch, draw)[1], only[1], rtol=1e-10)


def test_training_on_a_single_point_is_supported() -> None:
    settings = Settings(views=["dense", "one-per-cell"], consistency="mse", scenes=1)
    tested_stepper = Stepper(CONFIG, settings, "cpu")
    one = scene(3).take(np.array([5]))
    result = tested_stepper.step([replace(one, labels=np.array([2]))], number=1)
    assert torch.isfinite(result).all() and result[1] > 0


CASES = (("batched", "kl"), ("accumulate", "mse"))


def settings_of(mode: str, consistency: str) -> Settings:
    return Settings(
        views=VIEWS, consistency=consistency, consistency_weight=0.7, views_mode=mode, scenes=1, ranks=2
    )


def _worker(rank: int, folder: str) -> None:
    """Run process `rank` of two, each with its own scene; DDP averages the gradients."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    try:
        for mode, consistency in CASES:
            settings = settings_of(mode, consistency)
            tested_stepper = Stepper(CONFIG, settings, "cpu", ranks=Ranks(rank, 2))
            tested_stepper.model.double()
            tested_stepper.objective = Ranks(rank, 2).wrap(tested_stepper.objective.module, "cpu")  # pyright: ignore[reportArgumentType]
            torch.save(
                gradient(tested_stepper, *draw_of(settings, 1 + rank, rank=rank)),
                Path(folder) / f"{mode}{rank}.pt",
            )
            # The buffers that a side stream reads during a step are not written by DDP.
            tested_stepper.model.shift.fill_(rank)
            tested_stepper.gradients(*draw_of(settings, 1 + rank, rank=rank))
            assert (tested_stepper.model.shift == rank).all()
    finally:
        dist.destroy_process_group()


def joined(settings: Settings) -> tuple[Batch, ViewDraw]:
    """Return the draws of the two processes as one batch.

    Views follow each other; in each view, the scene of the first process precedes that of the second.
    """
    (one, first), (other, second) = draw_of(settings, 1, rank=0), draw_of(settings, 2, rank=1)
    batch = wide(Batch.from_scenes([scene(1, 70), scene(2, 90)]))
    assert torch.equal(batch.xyz, torch.cat([one.xyz, other.xyz]))
    # Only the cells of this draw are used.
    whole = draw_views(batch, parse_views(settings.views), cell=0.25, seed=1, step=1)
    index, sizes, starts = [], [], [0]
    for number in range(len(settings.views)):
        parts = first.only(number).index.long(), second.only(number).index.long() + len(one.xyz)
        index += parts
        starts += [starts[-1] + len(parts[0]), starts[-1] + len(parts[0]) + len(parts[1])]
        sizes.append(len(parts[0]) + len(parts[1]))
    view = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    places = torch.searchsorted(torch.tensor(starts[1:]), torch.arange(sum(sizes)), right=True) % 2
    return batch, replace(
        whole,
        index=torch.cat(index).int(),
        view=view,
        scene=places,
        offsets=torch.tensor(starts),
        sizes=tuple(sizes),
    )


def test_two_processes_have_the_same_gradient_as_one_with_both_scenes(tmp_path: Path) -> None:
    spawn(_worker, (str(tmp_path),), nprocs=2)
    for mode, consistency in CASES:
        settings = settings_of(mode, consistency)
        result = [torch.load(tmp_path / f"{mode}{rank}.pt") for rank in (0, 1)]
        loss, expected = gradient(
            stepper(replace(settings, views_mode="batched", scenes=2)), *joined(settings)
        )
        assert torch.equal(result[0][1], result[1][1]), "both take the same step"
        assert torch.allclose(result[0][1], expected, rtol=1e-7, atol=1e-11), mode
        assert (result[0][0] + result[1][0]) / 2 == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("mode", ["batched", "accumulate"])
def test_points_and_tables_prepared_ahead_give_the_same_gradient(mode: str) -> None:
    settings = Settings(views=VIEWS, consistency="kl", views_mode=mode, cell=0.25, classes=list("abcd"))
    batch = wide(Batch.from_scenes([scene(1), scene(2, 80)]))
    results = []
    for prepares_ahead in (False, True):
        of = stepper(settings, prepares_ahead=prepares_ahead)
        draw = of.draw(batch, number=3)
        with_tables = prepares_ahead and mode == "batched"
        assert (draw.tables is not None) == (draw.points is not None) == with_tables
        results.append(gradient(of, batch, draw))
        if draw.tables is not None:
            only = draw.only(1)
            assert only.tables is None and only.points is None
            assert only.take(batch).xyz.equal(batch.xyz[only.index.long()])
    assert results[0][0] == results[1][0] and results[0][1].equal(results[1][1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_steps_on_a_gpu_with_tables_from_a_side_stream_are_those_of_a_cpu() -> None:
    settings = Settings(views=VIEWS, consistency="kl", cell=0.25, classes=list("abcd"), precision="fp32")
    losses = {}
    for device in ("cpu", "cuda"):
        of = Stepper(CONFIG, settings, device)
        side_stream = SideStream() if device == "cuda" else None

        def make(number: int, of: Stepper = of, side: SideStream | None = side_stream) -> PreparedStep:
            def draw() -> tuple[Batch, ViewDraw]:
                scenes = [scene(number, 4000), scene(number + 9, 3000)]
                batch = Batch.from_scenes(scenes, device=of.device)
                return batch, of.draw(batch, number=number)

            return PreparedStep(*draw()) if side is None else side.prepare(draw)

        with Prefetcher(make, last=6) as prefetcher:
            # Losses are read after the last step: a reading waits for the device, and memory that is reused
            # too early would not be noticed. For the same reason the prefetcher does not bound the host.
            results = [of.step_on(*receive(prefetcher.get(number)), number=number) for number in range(1, 7)]
        losses[device] = torch.stack(results)[:, 0].tolist()
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=2e-3)
