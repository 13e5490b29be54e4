"""Turns as graphs, with a stand-in for CUDA's: what is copied in, what comes out, and when another is recorded.

And what a graph cannot hold: no turn of the GAN reads from the device or copies to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from pinchpoint.core.errors import TargetFailed  # noqa: E402
from pinchpoint.systems.radiance import cuda_graphs as replay  # noqa: E402
from pinchpoint.systems.radiance.data.images import Images  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Request, draw_request  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402
from pinchpoint.systems.radiance.training_step import Stepper, _noisy  # noqa: E402


class Pool:
    """Says when a run is aside, and into which graph it is recorded."""

    def __init__(self) -> None:
        self.aside_now, self.recorded, self.into = False, 0, None

    @contextmanager
    def aside(self) -> Iterator[None]:
        self.aside_now = True
        yield
        self.aside_now = False

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        self.recorded, self.into = self.recorded + 1, graph
        with self.aside():
            yield
        self.into = None


class Graph:
    """Replays by running again, into the memory of the run that was recorded."""

    again: Callable[[], None]

    def replay(self) -> None:
        self.again()


class Turn:
    """Gives w x and leaves its gradient, x, at w."""

    def __init__(self, weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weight, self.runs, self.pool = weight, 0, Pool()
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)

    def replayed(self) -> replay.Replayed:
        return replay.Replayed(self, [self.weight], pool=self.pool)  # pyright: ignore[reportArgumentType]

    def __call__(self, x: Any) -> tuple[Any, ...]:
        assert self.weight.grad is None
        assert self.pool.aside_now and x.is_contiguous(), "every run is as the one that is recorded"
        self.runs += 1
        loss = (self.weight * x).sum()
        loss.backward()
        if self.pool.into is not None:
            self.pool.into.again = partial(self.again, x, loss.detach(), self.weight.grad)
        return (loss.detach(),)

    def again(self, x: Any, loss: Any, gradient: Any) -> None:
        loss.copy_((self.weight.detach() * x).sum())
        gradient.copy_(x.sum_to_size(gradient.shape))


def test_a_turn_is_recorded_at_its_fourth_run_and_replayed_with_new_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
    turn = Turn(weight, monkeypatch)
    made = turn.replayed()
    kept = []
    for number in range(1, 8):
        weight.grad = None
        x = torch.tensor([float(number), 0.0, 1.0])[::2]
        kept.append((number, made(x)[0]))
        assert weight.grad is not None and weight.grad.tolist() == [number, 1.0]
    assert [float(loss) for _, loss in kept] == [
        2.0 * number + 3.0 for number, _ in kept
    ]  # none was written over
    assert turn.runs == 4 and turn.pool.recorded == 1


def test_tensors_of_another_shape_or_dtype_are_recorded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One value would be spread over three, and a wide number rounded to a narrow one, without a word."""
    weight = torch.nn.Parameter(torch.tensor(2.0))
    turn = Turn(weight, monkeypatch)
    made = turn.replayed()
    for number in range(1, 7):
        for width, dtype in ((3, torch.float32), (1, torch.float32), (3, torch.float64)):
            weight.grad = None
            loss = made(torch.full((width,), float(number), dtype=dtype))[0]
            assert loss.dtype == dtype and float(loss) == 2 * width * number
            assert weight.grad is not None and float(weight.grad) == width * number
    assert turn.pool.recorded == 3 and turn.runs == 3 * 4


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_request_is_its_tensors(noise: float) -> None:
    told = Settings(size=32, batch=2, samples=3, noise=noise, steps=4)
    asked = draw_request(FieldConfig.preset("tiny"), told, step=1, what="made", device="cpu", batch=2)
    again = Request.of(*asked.tensors(), whole=asked.whole)
    assert (again.draws.noise is None) == (noise == 0)
    assert all(one is other for one, other in zip(again.tensors(), asked.tensors(), strict=True))
    assert again.codes.app is asked.codes.app and again.places is asked.places and again.whole == asked.whole


def test_noise_of_nothing_is_the_kind_of_tensors_that_noise_is_and_changes_nothing() -> None:
    told = Settings(size=32, batch=2, samples=3, noise=0.0, steps=4)
    asked = draw_request(FieldConfig.preset("tiny"), told, step=1, what="made", device="cpu", batch=2)
    noisy = draw_request(
        FieldConfig.preset("tiny"), replace(told, noise=1.0), step=1, what="made", device="cpu", batch=2
    )
    found = _noisy(asked)
    assert [tensor.shape for tensor in found.tensors()] == [tensor.shape for tensor in noisy.tensors()]
    assert _noisy(noisy) is noisy
    made = Stepper(
        FieldConfig.preset("tiny"), replace(told, superres=2, critic_width=4, sr_width=4), images(), "cpu"
    ).generator
    assert torch.equal(made(found).best, made(asked).best)


def test_a_turn_that_cannot_be_recorded_says_how_to_train_without() -> None:
    def run(x: Any) -> tuple[Any, ...]:
        if len(runs) == 3:
            raise RuntimeError("operation not permitted when stream is capturing")
        runs.append(x)
        return (x,)

    runs: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        made = replay.Replayed(run, pool=Pool())  # pyright: ignore[reportArgumentType]
        for _ in range(3):
            made(torch.ones(1))
        with pytest.raises(TargetFailed, match="not permitted when stream is capturing") as raised:
            made(torch.ones(1))
    assert "--set graphs=false" in raised.value.hint


class Host(TorchDispatchMode):
    """Notes what would wait for a device, or copy to it from memory that is not pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen += 1
        name = func.name()
        masks = "index" in name and any(
            leaf.dtype is torch.bool for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)
        )
        # A number that is written into a tensor is lifted too, and travels with the launch.
        lifted = name == "aten::lift_fresh" and made.dim() > 0
        if (
            lifted
            or masks
            or name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::_unique2")
        ):
            self.found.append(name)
        return made


def images() -> Images:
    return Images(
        "random",
        torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
    )


@pytest.mark.parametrize("form", ["folded", "eager"])
@pytest.mark.parametrize(
    ("precision", "more"),
    [
        ("fp32", {}),
        ("bf16", {}),
        ("fp16", {}),
        ("bf16", {"bound": 1.0, "critic_norm": "layer"}),
        ("bf16", {"bound": 1.0, "critic_bias": False, "memory": "checkpoint", "chunk": 700}),
    ],
)
def test_no_turn_reads_from_the_device_or_copies_to_it(
    form: str, precision: str, more: dict[str, Any]
) -> None:
    told = Settings(
        preset="tiny",
        steps=9,
        size=32,
        samples=3,
        batch=2,
        superres=2,
        critic_width=4,
        sr_width=4,
        form=form,
        precision=precision,
        **more,
    )
    made = Stepper(FieldConfig.preset("tiny"), told, images(), "cpu")
    asked, real = made.request(1, "made"), made.real(1)
    made._discriminated(
        real, asked, None
    )  # the scaler makes its scale when it is first used, before anything is recorded
    with Host() as host:
        made.critics.refresh()
        made._discriminated(real, asked, None)
        made._discriminated(real, asked, torch.full((), 4.0))
        made._generated(real, asked)
    assert host.seen > 300 and not host.found


def test_what_a_step_of_fp16_tells_is_not_waited_for() -> None:
    """Whether the scale has been halved to nothing is found out where it lies."""
    told = Settings(preset="tiny", steps=9, size=32, samples=3, batch=2, critic_width=4, precision="fp16")
    made = Stepper(FieldConfig.preset("tiny"), told, images(), "cpu")
    norm, loss = torch.tensor(torch.inf), torch.tensor(1.0)
    made.scaler.scale(loss)  # the scale is made when it is first used
    with Host() as host:
        made._told_norm(norm, loss)
    assert host.seen > 3 and not host.found


def test_what_waits_or_copies_is_noted() -> None:
    values = torch.arange(3.0)
    for wrong in (
        lambda: values.new_tensor([0.25, 0.5]),
        lambda: torch.tensor([1, 2]),
        lambda: bool(values.any()),
        lambda: values[values > 1],
        lambda: values.nonzero(),
    ):
        with Host() as host:
            wrong()
        assert host.found
    with Host() as host:
        values[0] = 3.0
    assert not host.found
