"""What is made ready while a step computes: the steps asked for, and on a GPU the points a step would have
made itself.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="points on a device are torch's")

from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive  # noqa: E402
from pinchpoint.systems.cloud.data.scene import Scene  # noqa: E402
from pinchpoint.systems.cloud.model.views import Batch, ViewDraw, draw_views, parse_views  # noqa: E402


def test_steps_made_ahead_are_those_asked_for_and_errors_come_out() -> None:
    made: list[int] = []

    def make(step: int) -> int:
        made.append(step)
        if step == 5:
            raise ValueError("no such step")
        return 10 * step

    with Prefetcher(make, last=6) as ahead:
        assert [ahead.get(step) for step in (1, 2, 4)] == [10, 20, 40]
        with pytest.raises(ValueError, match="no such step"):
            ahead.get(5)
    with Prefetcher(make, last=2) as ahead:
        made.clear()
        ahead.get(2)
    assert made == [2], "nothing is made beyond the last step"


def points(step: int, device: str) -> tuple[Batch, ViewDraw]:
    rng = np.random.default_rng(step)
    scene = Scene(
        "a",
        rng.uniform(size=(5000, 3)).astype(np.float32),
        rng.uniform(size=(5000, 2)).astype(np.float32),
        None,
    )
    batch = Batch.from_scenes([scene, scene], device=device)
    return batch, draw_views(
        batch, parse_views("dense,uniform:0.3:0.7,one-per-cell"), cell=0.1, seed=3, step=step
    )


def test_points_of_a_cpu_are_taken_as_they_are() -> None:
    batch, drawn = points(1, "cpu")
    assert receive(PreparedStep(batch, drawn)) == (batch, drawn)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_points_made_aside_are_those_of_the_step_itself_however_busy_the_card_is() -> None:
    aside = SideStream()
    busy = torch.randn(4096, 4096, device="cuda")
    with Prefetcher(lambda step: aside.prepare(lambda: points(step, "cuda")), last=8) as ahead:
        for step in range(1, 9):
            batch, drawn = receive(ahead.get(step))
            for _ in range(4):
                busy = (busy @ busy).clamp(-1, 1)  # the stream of the step is behind when it reads
            here, wanted = points(step, "cpu")
            assert batch.xyz.cpu().equal(here.xyz) and drawn.index.cpu().equal(wanted.index), step
            assert drawn.offsets.cpu().equal(wanted.offsets) and drawn.sizes == wanted.sizes
            del batch, drawn
