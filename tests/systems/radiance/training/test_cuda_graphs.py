"""Turns as CUDA graphs, tested with a stand-in: inputs, outputs, and when a graph is recorded.

Also, no turn of the GAN reads from the device or copies to it, which a graph does not support.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from pinchpoint.backends.torch import compat  # noqa: E402
from pinchpoint.kit.edges.edge_ops import is_fake  # noqa: E402
from pinchpoint.systems.radiance.data.images import Images  # noqa: E402
from pinchpoint.systems.radiance.data.patches import Real  # noqa: E402
from pinchpoint.systems.radiance.model import critic_passes, discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.objective import Request, draw_request  # noqa: E402
from pinchpoint.systems.radiance.rendering import passes, points  # noqa: E402
from pinchpoint.systems.radiance.settings import Settings  # noqa: E402
from pinchpoint.systems.radiance.training import cuda_graphs as replay  # noqa: E402
from pinchpoint.systems.radiance.training.training_step import Stepper, _noisy  # noqa: E402


class Pool:
    """Tracks whether a run is on the side stream, and into which graph it is recorded."""

    def __init__(self) -> None:
        self.on_side_stream, self.recorded, self.into = False, 0, None
        self.is_closed = False

    @contextmanager
    def use_side_stream(self) -> Iterator[None]:
        self.on_side_stream = True
        yield
        self.on_side_stream = False

    @contextmanager
    def recording(self, graph: Any) -> Iterator[None]:
        self.recorded, self.into = self.recorded + 1, graph
        try:
            with self.use_side_stream():
                yield
        finally:
            self.into, self.on_side_stream = None, False


class Graph:
    """Replays by running again and writing into the memory of the recorded run."""

    again: Callable[[], None]

    def replay(self) -> None:
        self.again()


class Turn:
    """Returns w x and leaves its gradient, x, on w."""

    def __init__(self, weight: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.weight, self.runs, self.pool = weight, 0, Pool()
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)

    def replayed(self) -> replay.ReplayedTurn:
        return replay.ReplayedTurn(self, [self.weight], pool=self.pool)  # pyright: ignore[reportArgumentType]

    def __call__(self, x: Any) -> tuple[Any, ...]:
        assert self.weight.grad is None
        assert self.pool.on_side_stream and x.is_contiguous(), (
            "every run has the conditions of the recorded one"
        )
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
    result = turn.replayed()
    losses = []
    for number in range(1, 8):
        weight.grad = None
        x = torch.tensor([float(number), 0.0, 1.0])[::2]
        losses.append((number, result(x)[0]))
        assert weight.grad is not None and weight.grad.tolist() == [number, 1.0]
    assert [float(loss) for _, loss in losses] == [
        2.0 * number + 3.0 for number, _ in losses
    ]  # none was overwritten
    assert turn.runs == 4 and turn.pool.recorded == 1


def test_tensors_of_another_shape_or_dtype_get_their_own_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one value would be broadcast to three, and a float64 silently rounded to float32."""
    weight = torch.nn.Parameter(torch.tensor(2.0))
    turn = Turn(weight, monkeypatch)
    result = turn.replayed()
    for number in range(1, 7):
        for width, dtype in ((3, torch.float32), (1, torch.float32), (3, torch.float64)):
            weight.grad = None
            loss = result(torch.full((width,), float(number), dtype=dtype))[0]
            assert loss.dtype == dtype and float(loss) == 2 * width * number
            assert weight.grad is not None and float(weight.grad) == width * number
    assert turn.pool.recorded == 3 and turn.runs == 3 * 4


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_request_can_be_rebuilt_from_its_tensors(noise: float) -> None:
    settings = Settings(size=32, batch=2, samples=3, noise=noise, steps=4)
    request = draw_request(FieldConfig.preset("tiny"), settings, step=1, what="made", device="cpu", batch=2)
    again = Request.of(*request.tensors(), whole=request.whole)
    assert (again.draws.noise is None) == (noise == 0)
    assert all(one is other for one, other in zip(again.tensors(), request.tensors(), strict=True))
    assert (
        again.codes.app is request.codes.app
        and again.places is request.places
        and again.whole == request.whole
    )


def test_zero_noise_has_the_same_kind_of_tensors_as_noise_and_changes_nothing() -> None:
    settings = Settings(size=32, batch=2, samples=3, noise=0.0, steps=4)
    request = draw_request(FieldConfig.preset("tiny"), settings, step=1, what="made", device="cpu", batch=2)
    noisy = draw_request(
        FieldConfig.preset("tiny"), replace(settings, noise=1.0), step=1, what="made", device="cpu", batch=2
    )
    value = _noisy(request)
    assert [tensor.shape for tensor in value.tensors()] == [tensor.shape for tensor in noisy.tensors()]
    assert _noisy(noisy) is noisy
    result = Stepper(
        FieldConfig.preset("tiny"), replace(settings, superres=2, critic_width=4, sr_width=4), images(), "cpu"
    ).generator
    assert torch.equal(result(value).best, result(request).best)


def test_a_turn_that_cannot_be_recorded_is_run_eagerly_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.nn.Parameter(torch.tensor(2.0))
    turn = Turn(weight, monkeypatch)

    def run(x: Any) -> tuple[Any, ...]:
        result = turn(x)  # leaves a gradient, which the next run must not find
        if turn.pool.into is not None:
            raise RuntimeError("operation not permitted when stream is capturing\nSearch for ...")
        return result

    result = replay.ReplayedTurn(run, [weight], pool=turn.pool)  # pyright: ignore[reportArgumentType]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for number in range(1, 7):
            weight.grad = None
            assert float(result(torch.tensor(float(number)))[0]) == 2 * number
            assert weight.grad is not None and float(weight.grad) == number
    (warning,) = warned
    assert "(operation not permitted when stream is capturing)" in str(warning.message)
    assert "--set graphs=false" in str(warning.message)
    assert turn.pool.recorded == 1 and turn.runs == 7


def test_an_error_of_the_turn_itself_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []

    def run(x: Any) -> tuple[Any, ...]:
        runs.append(x)
        if len(runs) > 3:
            raise RuntimeError("sizes do not match")
        return (x,)

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    result = replay.ReplayedTurn(run, pool=Pool())  # pyright: ignore[reportArgumentType]
    for _ in range(3):
        result(torch.ones(1))
    with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="sizes do not match"):
        result(torch.ones(1))


def test_after_a_recording_that_fails_turns_are_recorded_into_other_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Into the memory of one that fails, torch 2.11 records nothing more."""
    handles, given = count(1), []

    @contextmanager
    def recording_into(graph: str, *, pool: int, stream: str) -> Iterator[None]:
        given.append((graph, pool, stream))
        yield

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "a stream")
    monkeypatch.setattr(replay, "recording_into", recording_into)
    pool = replay.new_pool()
    for graph in ("first", "second"):
        with pool.recording(graph):
            pass
    with pytest.raises(RuntimeError, match="refused"), pool.recording("third"):
        raise RuntimeError("refused")
    for graph in ("fourth", "fifth"):
        with pool.recording(graph):
            pass
    memory = {"first": 1, "second": 1, "third": 1, "fourth": 2, "fifth": 2}
    assert given == [(graph, number, "a stream") for graph, number in memory.items()]


@pytest.mark.parametrize(("is_limited", "recorded"), [(True, 1), (False, 2)])
def test_within_a_budget_nothing_is_recorded_into_a_second_memory(
    is_limited: bool, recorded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first recording keeps the memory that the budget counts."""

    class SidePool(replay.Pool):
        @contextmanager
        def use_side_stream(self) -> Iterator[None]:
            yield

    @contextmanager
    def recording_into(graph: Graph, *, pool: int, stream: str) -> Iterator[None]:
        graph.again = lambda: None
        into.append(pool)
        yield
        into.append(0)

    def refuse(x: Any) -> tuple[Any, ...]:
        if into and into[-1]:
            raise RuntimeError("refused")
        return (x,)

    into: list[int] = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 2)
    monkeypatch.setattr(replay, "recording_into", recording_into)
    pool = SidePool(1, "a stream", is_limited)
    first, third = (replay.ReplayedTurn(lambda x: (x + 1,), pool=pool) for _ in range(2))
    second = replay.ReplayedTurn(refuse, pool=pool)
    for _ in range(4):
        first(torch.ones(1))
    for _ in range(3):
        second(torch.ones(1))
    with pytest.warns(RuntimeWarning, match="could not be recorded"), pytest.raises(RuntimeError):
        second(torch.ones(1))
    for _ in range(5):
        third(torch.ones(1))
    assert pool.recordings == recorded


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recording_that_fails_leaves_the_device_as_it_was() -> None:
    """Random numbers continue; earlier recordings are replayed, later ones made; memory can be released."""
    pool = replay.new_pool()
    earlier, later = (replay.ReplayedTurn(lambda x: (x + 1,), pool=pool) for _ in range(2))
    waits = replay.ReplayedTurn(lambda x: (x * float(x.sum()),), pool=pool)  # reads from the device
    ones = torch.ones(3, device="cuda")
    for _ in range(4):
        earlier(ones)
    torch.cuda.manual_seed(0)
    first, second = (torch.rand(4, device="cuda") for _ in range(2))
    torch.cuda.manual_seed(0)
    assert torch.rand(4, device="cuda").equal(first)
    state = torch.cuda.get_rng_state()
    with pytest.warns(RuntimeWarning, match="could not be recorded"):
        values = [waits(ones)[0].tolist() for _ in range(5)]
    assert values == [[3.0] * 3] * 5
    assert torch.cuda.get_rng_state().equal(state), "as a checkpoint would save it"
    assert torch.rand(4, device="cuda").equal(second)
    torch.cuda.set_rng_state(state)
    assert torch.rand(4, device="cuda").equal(second)
    assert earlier(2 * ones)[0].tolist() == [3.0] * 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [later(number * ones)[0].tolist() for number in range(6)] == [
            [number + 1.0] * 3 for number in range(6)
        ]
    assert len(later._recordings) == 1
    large = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    reserved = torch.cuda.memory_reserved()
    del large
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved - (64 << 20)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_memory_of_a_recording_that_fails_is_released() -> None:
    def wait_with_much_memory(x: Any) -> tuple[Any, ...]:
        many = x.new_ones(64 << 20)  # 256 MiB
        return (x * float(many[:2].sum()),)

    ones = torch.ones(3, device="cuda")
    gc.collect()
    torch.cuda.empty_cache()
    reserved = torch.cuda.memory_reserved()
    pool = replay.new_pool()
    turn = replay.ReplayedTurn(wait_with_much_memory, pool=pool)
    with pytest.warns(RuntimeWarning, match="could not be recorded"):
        assert [turn(ones)[0].tolist() for _ in range(5)] == [[2.0] * 3] * 5
    later = replay.ReplayedTurn(lambda x: (x + 1,), pool=pool)
    assert [later(ones)[0].tolist() for _ in range(5)] == [[2.0] * 3] * 5
    assert len(later._recordings) == 1
    del turn
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + (32 << 20)


class Host(TorchDispatchMode):
    """Records operations that would wait for a device, or copy to it from unpinned memory.

    Printing a tensor waits too, but no mode sees it. It happens without a print: if an operator has several
    overloads and the first one does not match, the error that is then dropped contains the arguments.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.seen = 0

    def __enter__(self) -> Host:
        def record(tensor: Any, **_: Any) -> str:
            self.found.append("printed")
            return "a tensor"

        self.shown, torch.Tensor.__repr__ = torch.Tensor.__repr__, record
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        torch.Tensor.__repr__ = self.shown
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.seen += 1
        name = func.name()
        masks = "index" in name and any(
            leaf.dtype is torch.bool for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)
        )
        # A number written into a tensor is lifted too, but is passed with the kernel launch.
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


@pytest.mark.parametrize(
    ("form", "precision", "more"),
    [
        ("folded", "fp32", {"label_weight": 1.0, "view_sectors": 4}),
        ("eager", "fp32", {"bound": 1.0, "critic_norm": "layer"}),
        ("folded", "bf16", {"bound": 1.0, "critic_norm": "layer"}),
        ("eager", "fp16", {}),
        ("folded", "fp16", {"bound": 1.0, "critic_bias": False, "memory": "checkpoint", "chunk": 700}),
        ("eager", "bf16", {"bound": 1.0, "critic_bias": False, "memory": "checkpoint", "chunk": 700}),
    ],
)
def test_no_turn_reads_from_the_device_or_copies_to_it(
    form: str, precision: str, more: dict[str, Any]
) -> None:
    settings = Settings(
        preset="tiny",
        steps=9,
        size=32,
        samples=2,
        batch=2,
        superres=2,
        critic_width=4,
        sr_width=4,
        form=form,
        precision=precision,
        **more,
    )
    # Narrow: bf16 products are slow on many CPUs, and the operations are those of any width.
    classes = {"classes": ("a", "b"), "class_images": (1, 2)} if settings.label_weight else {}
    config = FieldConfig.preset("tiny", width=8, **classes)
    labelled = replace(images(), labels=torch.tensor([0, 1, 1]), turns=torch.tensor([0.1, 0.5, 0.9]))
    result = Stepper(config, settings, labelled, "cpu")
    request, real = result.request(1, "made"), result.real(1)
    assert len(real.tensors()) == 2 + bool(classes)
    again = Real.of(*real.tensors(), has_labels=bool(classes))
    assert all(one is other for one, other in zip(again, real, strict=True))
    # The scaler creates its scale on first use, before anything is recorded.
    result._discriminator_part(real, request, None)
    with Host() as host:
        result.critics.refresh()
        result._discriminator_part(real, request, None)
        result._discriminator_part(real, request, torch.full((), 4.0))
        result._generator_part(real, request)
    assert host.seen > 300 and not host.found


@pytest.mark.parametrize("more", [{"label_weight": 1.0, "view_sectors": 4}, {"bound": 1.0}])
def test_no_turn_with_kernels_of_a_gpu_waits_for_it(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On fake tensors, which have no values to read: our own kernels are not run, all else is."""
    for module in (critic_passes, discriminator, passes, points):
        monkeypatch.setattr(module, "own_kernels", is_fake)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    settings = Settings(
        steps=9,
        size=32,
        samples=2,
        batch=2,
        superres=2,
        sr_width=4,
        precision="bf16",
        noise_until=1.0,
        **more,
    )
    with compat.fake_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copying fake weights asks for their address
        labelled = replace(images(), labels=torch.tensor([0, 1, 1]), turns=torch.tensor([0.1, 0.5, 0.9]))
        result = Stepper(FieldConfig.preset("graf"), settings, labelled, "cpu")
        request, real, penalty = result.request(1, "made"), result.real(1), torch.full((), 4.0)
        with Host() as host:
            result.critics.refresh()
            result._discriminator_part(real, request, None)
            result._discriminator_part(real, request, penalty)
            result._generator_part(real if result.generator.learns_from_pairs else None, request)
    assert host.seen > 300 and not host.found
    assert all(parameter.grad is not None for parameter in result.critics.parameters())
    assert all(parameter.grad is not None for parameter in result.generator.parameters())


def test_an_fp16_step_does_not_wait_for_the_device() -> None:
    """Whether the scale was halved to nothing is computed on the device."""
    settings = Settings(preset="tiny", steps=9, size=32, samples=3, batch=2, critic_width=4, precision="fp16")
    result = Stepper(FieldConfig.preset("tiny"), settings, images(), "cpu")
    norm, loss = torch.tensor(torch.inf), torch.tensor(1.0)
    result.scaler.scale(loss)  # the scale is created on first use
    with Host() as host:
        result._reported_norm(norm, loss)
    assert host.seen > 3 and not host.found


def test_operations_that_wait_or_copy_are_recorded() -> None:
    values = torch.arange(3.0)
    for wrong in (
        lambda: values.new_tensor([0.25, 0.5]),
        lambda: torch.tensor([1, 2]),
        lambda: bool(values.any()),
        lambda: values[values > 1],
        lambda: values.nonzero(),
        lambda: torch.ops.aten._foreach_div_([values], [values]),
    ):
        with Host() as host:
            wrong()
        assert host.found
    with Host() as host:
        values[0] = 3.0
    assert not host.found
