"""The training loop and the errors that both models share.

Each step trains on one body with AdamW in float32. The learning rate has a linear warm-up over a twentieth of
the steps, then half a cosine down to a hundredth; gradients are clipped to norm 1. The order of the bodies
depends only on the seed. The weights of the last step are evaluated: none are selected with test bodies.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Protocol

import torch
from states import States
from torch import Tensor

from pinchpoint.core.errors import TargetFailed
from pinchpoint.systems.operator.data.sample import Sample

_CHECK_EVERY = 10  # steps between checks of the clock


@dataclass(frozen=True)
class Schedule:
    """The settings of a training."""

    steps: int
    lr: float
    seed: int = 0
    loss: str = "l2"
    weight_decay: float = 1e-4
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Return the learning rate of step 0, 1, ..., as a fraction of `lr`."""
        rise = max(1, self.steps // 20)
        if step < rise:
            return (step + 1) / rise
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, self.steps - rise)))


class Contender(Protocol):
    """A model of the comparison, which prepares a sample once and predicts from it in the target's units."""

    def prepare(self, sample: Sample) -> Any: ...
    def __call__(self, body: Any) -> Tensor: ...
    def parameters(self) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


@dataclass(frozen=True)
class Prepared:
    """A body on its device: the model's inputs and the truth."""

    name: str
    body: Any
    target: Tensor  # (P, T)
    areas: Tensor  # (P,)


Progress = Callable[[int, int, float], None]


def prepare(model: Contender, samples: Sequence[Sample], device: torch.device) -> list[Prepared]:
    bodies = []
    for sample in samples:
        there = sample.to(device)
        bodies.append(Prepared(sample.name, model.prepare(there), there.target, there.areas))
    return bodies


def relative_error(prediction: Tensor, target: Tensor, which: str) -> Tensor:
    """Return the relative error. l1: sum |p - t| / sum |t|; l2: sqrt(sum (p - t)^2 / sum t^2)."""
    if which == "l1":
        return (prediction - target).abs().sum() / target.abs().sum()
    return ((prediction - target).square().sum() / target.square().sum()).sqrt()


def train(
    model: Contender,
    bodies: Sequence[Prepared],
    schedule: Schedule,
    *,
    progress: Progress | None = None,
    states: States | None = None,
    what: str = "",
) -> dict[str, Any]:
    """Train the model in place.

    Returns the losses (means of twenty stretches), the time, and the peak without bodies and weights.
    states: where the training `what` is suspended and resumed. Raises Late when its time is up.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=schedule.lr, weight_decay=schedule.weight_decay)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule.rate)
    order = bodies_in_order(len(bodies), schedule)
    on_gpu = bodies[0].target.is_cuda
    before = 0
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    model.train()
    stretch = max(1, schedule.steps // 20)
    losses: list[float] = []
    waiting: list[Tensor] = []
    finished, earlier_s, most = 0, 0.0, 0
    state = states.read(what) if states else None
    if state is not None:
        for part, values in zip((model, optimizer, rates), state["parts"], strict=True):
            part.load_state_dict(values)
        losses, waiting, finished, earlier_s, most = (
            state[name] for name in ("losses", "waiting", "step", "seconds", "peak")
        )
        waiting = [loss.to(bodies[0].target.device) for loss in waiting]
    start = time.perf_counter() - earlier_s

    def peak() -> int:
        return max(most, torch.cuda.max_memory_allocated() - before) if on_gpu else 0

    for step, number in enumerate(order[finished:], start=finished + 1):
        one = bodies[number]
        loss = relative_error(model(one.body), one.target, schedule.loss)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        rates.step()
        waiting.append(loss.detach())
        if step % stretch == 0 or step == schedule.steps:
            # Read one stretch at a time: every read waits for the device.
            losses.append(float(torch.stack(waiting).mean()))
            waiting = []
            if not math.isfinite(losses[-1]):
                raise TargetFailed(
                    f"The loss is {losses[-1]} at step {step}.", hint="Use a lower learning rate."
                )
            if progress:
                progress(step, schedule.steps, losses[-1])
        if states and step % _CHECK_EVERY == 0 and states.due():
            # GINO's state_dict also lists its settings, including functions; they are built, not restored.
            tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
            parts = [tensors, optimizer.state_dict(), rates.state_dict()]
            content = {"parts": parts, "losses": losses, "waiting": waiting}
            states.write(
                what, content | {"step": step, "seconds": time.perf_counter() - start, "peak": peak()}
            )
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    times = {"seconds": seconds, "step_s": seconds / schedule.steps, "peak_bytes": peak() if on_gpu else None}
    return asdict(schedule) | {"losses": losses} | times


def bodies_in_order(count: int, schedule: Schedule) -> list[int]:
    """Yield the body of each step: every epoch visits all bodies in a new order."""
    generator = torch.Generator().manual_seed(schedule.seed)
    turns = -(-schedule.steps // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(turns)])[
        : schedule.steps
    ].tolist()


@torch.no_grad()
def judge(model: Contender, bodies: Sequence[Prepared]) -> dict[str, Any]:
    """Return the relative errors of all bodies and their medians; `l1_by_area` weights panels by area."""
    model.train(False)
    rows = []
    for one in bodies:
        p, t, a = model(one.body).double(), one.target.double(), one.areas.double()[:, None]
        plain = {name: float(relative_error(p, t, name)) for name in ("l1", "l2")}
        rows.append({"name": one.name, **plain, "l1_by_area": float(relative_error(a * p, a * t, "l1"))})
    medians = {name: median(row[name] for row in rows) for name in ("l1", "l2", "l1_by_area")}
    return {"median": medians, "bodies": rows}
