"""The one loop both models are trained by, and the errors both are judged by.

One body a step, AdamW, a straight rise of the learning rate over a twentieth of the steps and half a cosine down to a
hundredth, gradients clipped to norm 1, float32. The order of the bodies depends on the seed alone. The weights of the
last step are judged: none are chosen by looking at test bodies.
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

_LOOK = 10  # steps between looks at the clock


@dataclass(frozen=True)
class Schedule:
    """What a training is told."""

    steps: int
    lr: float
    seed: int = 0
    loss: str = "l2"
    weight_decay: float = 1e-4
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """Of step 0, 1, ..., as a part of `lr`."""
        rise = max(1, self.steps // 20)
        if step < rise:
            return (step + 1) / rise
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - rise) / max(1, self.steps - rise)))


class Contender(Protocol):
    """A model of the comparison: makes of a sample what it needs, once, and predicts from that in the target's units."""

    def prepare(self, sample: Sample) -> Any: ...
    def __call__(self, body: Any) -> Tensor: ...
    def parameters(self) -> Any: ...
    def train(self, mode: bool = True) -> Any: ...
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any) -> Any: ...


@dataclass(frozen=True)
class Prepared:
    """A body on its device: what the model reads, and the truth."""

    name: str
    body: Any
    target: Tensor  # (P, T)
    areas: Tensor  # (P,)


Told = Callable[[int, int, float], None]


def prepare(model: Contender, samples: Sequence[Sample], device: torch.device) -> list[Prepared]:
    made = []
    for sample in samples:
        there = sample.to(device)
        made.append(Prepared(sample.name, model.prepare(there), there.target, there.areas))
    return made


def relative_error(predicted: Tensor, target: Tensor, which: str) -> Tensor:
    """l1: sum |p - t| / sum |t|; l2: the same with squares, under a root."""
    if which == "l1":
        return (predicted - target).abs().sum() / target.abs().sum()
    return ((predicted - target).square().sum() / target.square().sum()).sqrt()


def train(
    model: Contender,
    bodies: Sequence[Prepared],
    schedule: Schedule,
    *,
    told: Told | None = None,
    states: States | None = None,
    what: str = "",
) -> dict[str, Any]:
    """Train the model in place. Gives the losses (means of twenty stretches), the time, and the peak above bodies and weights.

    states: where the training `what` is put aside and gone on from. Raises Late when its time is up.
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
    done, spent, most = 0, 0.0, 0
    state = states.read(what) if states else None
    if state is not None:
        for part, held in zip((model, optimizer, rates), state["parts"], strict=True):
            part.load_state_dict(held)
        losses, waiting, done, spent, most = (
            state[name] for name in ("losses", "waiting", "step", "seconds", "peak")
        )
        waiting = [loss.to(bodies[0].target.device) for loss in waiting]
    start = time.perf_counter() - spent

    def peak() -> int:
        return max(most, torch.cuda.max_memory_allocated() - before) if on_gpu else 0

    for step, number in enumerate(order[done:], start=done + 1):
        one = bodies[number]
        loss = relative_error(model(one.body), one.target, schedule.loss)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), schedule.clip)
        optimizer.step()
        rates.step()
        waiting.append(loss.detach())
        if step % stretch == 0 or step == schedule.steps:
            # Read a stretch at a time: every reading waits for the device.
            losses.append(float(torch.stack(waiting).mean()))
            waiting = []
            if not math.isfinite(losses[-1]):
                raise TargetFailed(
                    f"the loss is {losses[-1]} at step {step}", hint="take a lower learning rate"
                )
            if told:
                told(step, schedule.steps, losses[-1])
        if states and step % _LOOK == 0 and states.due():
            # GINO lists its own settings, functions among them, beside its tensors; they are built, not restored.
            tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
            parts = [tensors, optimizer.state_dict(), rates.state_dict()]
            held = {"parts": parts, "losses": losses, "waiting": waiting}
            states.write(what, held | {"step": step, "seconds": time.perf_counter() - start, "peak": peak()})
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    times = {"seconds": seconds, "step_s": seconds / schedule.steps, "peak_bytes": peak() if on_gpu else None}
    return asdict(schedule) | {"losses": losses} | times


def bodies_in_order(count: int, schedule: Schedule) -> list[int]:
    """Which body each step takes: all of them in a new order, again and again."""
    generator = torch.Generator().manual_seed(schedule.seed)
    turns = -(-schedule.steps // count)
    return torch.cat([torch.randperm(count, generator=generator) for _ in range(turns)])[
        : schedule.steps
    ].tolist()


@torch.no_grad()
def judge(model: Contender, bodies: Sequence[Prepared]) -> dict[str, Any]:
    """Relative errors of every body and their medians; `l1_by_area` weighs each panel by its area."""
    model.train(False)
    rows = []
    for one in bodies:
        p, t, a = model(one.body).double(), one.target.double(), one.areas.double()[:, None]
        plain = {name: float(relative_error(p, t, name)) for name in ("l1", "l2")}
        rows.append({"name": one.name, **plain, "l1_by_area": float(relative_error(a * p, a * t, "l1"))})
    medians = {name: median(row[name] for row in rows) for name in ("l1", "l2", "l1_by_area")}
    return {"median": medians, "bodies": rows}
