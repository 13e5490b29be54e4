"""Turns as graphs, with a stand-in for CUDA's: what is copied in, what comes out, and when another is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.workloads.radiance import replay  # noqa: E402
from pinchpoint.workloads.radiance.config import FieldConfig  # noqa: E402
from pinchpoint.workloads.radiance.objective import Request, draw_request  # noqa: E402
from pinchpoint.workloads.radiance.settings import Settings  # noqa: E402


class Graph:
    """Replays by running again, into the memory of the run that was recorded."""

    def replay(self) -> None:
        self.turn.again()


class Turn:
    """Gives w x and leaves its gradient, x, at w."""

    def __init__(self, weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weight, self.runs, self.recorded = weight, 0, 0
        made: list[Graph] = []

        def graph() -> Graph:
            made.append(Graph())
            made[-1].turn = self  # pyright: ignore[reportAttributeAccessIssue]
            return made[-1]

        @contextmanager
        def recording(graph: Graph, pool: Any) -> Iterator[None]:
            self.recorded += 1
            yield

        monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
        monkeypatch.setattr(torch.cuda, "graph", recording)

    def __call__(self, x: Any) -> tuple[Any, ...]:
        assert self.weight.grad is None
        self.runs += 1
        loss = (self.weight * x).sum()
        loss.backward()
        self.held = x, loss.detach(), self.weight.grad
        return (self.held[1],)

    def again(self) -> None:
        x, loss, gradient = self.held
        loss.copy_((self.weight.detach() * x).sum())
        gradient.copy_(x)


def test_a_turn_is_recorded_at_its_fourth_run_and_replayed_with_new_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
    turn = Turn(weight, monkeypatch)
    made = replay.Replayed(turn, [weight])
    kept = []
    for number in range(1, 8):
        weight.grad = None
        x = torch.tensor([float(number), 1.0])
        kept.append((number, made(x)[0]))
        assert weight.grad is not None and weight.grad.tolist() == [number, 1.0]
    assert [float(loss) for _, loss in kept] == [2.0 * number + 3.0 for number, _ in kept]  # none was written over
    assert turn.runs == 4 and turn.recorded == 1


def test_tensors_of_another_shape_are_recorded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.tensor(2.0))
    turn = Turn(weight, monkeypatch)
    made = replay.Replayed(turn, [weight])
    for width in (2, 2, 2, 2, 3, 3, 3, 3):
        weight.grad = None
        made(torch.ones(()) * width)
        weight.grad = None
        made(torch.tensor(float(width), dtype=torch.float64))
    assert turn.recorded == 2 and turn.runs == 8


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_request_is_its_tensors(noise: float) -> None:
    told = Settings(size=32, batch=2, samples=3, noise=noise, steps=4)
    asked = draw_request(FieldConfig.preset("tiny"), told, step=1, what="made", device="cpu", batch=2)
    again = Request.of(*asked.tensors())
    assert (again.draws.noise is None) == (noise == 0)
    assert all(one is other for one, other in zip(again.tensors(), asked.tensors(), strict=True))
    assert again.codes.app is asked.codes.app and again.pitch is asked.pitch
