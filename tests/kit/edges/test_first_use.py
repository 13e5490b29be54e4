"""Kernels of MLPs that are compared with float64 before they are used, with stand-ins for the kernels."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges import edge_mlp, first_use
from pinchpoint.kit.edges.edge_mlp import layers_of
from pinchpoint.kit.edges.layered_mlp import LayeredMLP


class Kernels:
    """Layers that run as kernels do, with a fault in the forward pass or in one kind of backward pass."""

    def __init__(
        self, mlp: list[nn.Module], dtype: torch.dtype, fault: Any = None, how: str = "wrong"
    ) -> None:
        layers = layers_of(nn.Sequential(*mlp))
        assert layers is not None
        self.dtype, self.fault, self.how = dtype, fault, how
        self.layers = LayeredMLP.of(layers, 4096, dtype)
        self.calls: list[Any] = []
        shapes = [one.shape for layer, _ in layers for one in layer.parameters()]
        self.sums = {at: torch.zeros(shape) for at, shape in enumerate(shapes)}

    def forward(self, inputs: Tensor) -> Tensor:
        out = self.layers.forward(inputs)
        self._fail(first_use.FORWARD, out)
        return out

    def backward(
        self, inputs: Tensor, gradient: Tensor, into: dict[int, Tensor], **wants: bool
    ) -> tuple[Tensor | None, Tensor | None]:
        results = self.layers.backward(inputs, gradient, self.sums, **wants)  # type: ignore[arg-type]
        self._fail(tuple(wants.values()), self.sums[0])
        return results

    def finish(self, into: dict[int, Tensor]) -> None:
        self.layers.finish(into)
        for at, one in into.items():
            one += self.sums[at]

    def _fail(self, what: Any, result: Tensor) -> None:
        self.calls.append(what)
        if what != self.fault:
            return
        if self.how == "raises":
            raise ValueError("out of resources: shared memory")
        result[: len(result) // 16] = torch.rand(()) if self.how == "changes" else 0.0


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(first_use, "_EDGES", 500)
    first_use._known.clear()
    yield
    first_use._known.clear()


def checked(
    mlp: nn.Sequential, dtype: torch.dtype, x: Tensor, fault: Any = None, how: str = "wrong"
) -> tuple[first_use.CheckedMLP, list[Kernels]]:
    made: list[Kernels] = []

    def make(parts: list[nn.Module], _: Tensor, programs: int | None) -> Kernels:
        assert programs in (None, first_use.PROGRAMS)
        made.append(Kernels(parts, dtype, fault, how))
        return made[-1]

    layers = layers_of(mlp)
    assert layers is not None
    return first_use.CheckedMLP(list(mlp), layers, x, dtype, "key", make, lambda: 1), made


@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("widths", [(6, 16, 16), (6, 64, 128, 64, 3)])
def test_right_kernels_are_used_and_compared_once(
    act: Any, dtype: torch.dtype, widths: tuple[int, ...]
) -> None:
    mlp, x = mlp_truth.network(widths, act, bias=widths[1] > 16), torch.rand(50, 6)
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network, made = checked(mlp, dtype, x)
        for _ in range(2):
            network.forward(x)
            network.backward(
                x.clone(),
                torch.rand(50, widths[-1]).to(dtype),
                {0: torch.zeros(widths[1], 6)},
                want_inputs=True,
                want_values=False,
            )
    assert made[0].calls == [first_use.FORWARD, (True, False)] * 2
    assert len(made) == 5  # its own, and two comparisons of two runs
    torch.set_rng_state(before)
    checked(mlp, dtype, x)[0].forward(x)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("how", ["wrong", "raises", "changes"])
@pytest.mark.parametrize("fault", [first_use.FORWARD, (True, True), (False, False)])
def test_layers_replace_kernels_that_fail_the_comparison(fault: Any, how: str) -> None:
    torch.manual_seed(0)
    mlp, edges = mlp_truth.network((6, 32, 32, 5)), 2500  # more than one slice
    x, gradient = torch.rand(edges, 6), torch.randn(edges, 5)
    network, made = checked(mlp, torch.float32, x, fault, how)
    wants = {"want_inputs": True, "want_values": True} if fault == first_use.FORWARD else {}
    wants = wants or {"want_inputs": fault[0], "want_values": fault[1]}
    words = {
        "wrong": "an error of",
        "raises": "ValueError: out of resources",
        "changes": "the second time|an error",
    }
    into = {at: torch.zeros_like(one) for at, one in enumerate(mlp.parameters())}
    with warnings.catch_warnings(record=True) as notes:
        out = network.forward(x)
        of_inputs, values = network.backward(x.clone(), gradient.clone(), {}, **wants)
        network.finish(into)
    assert len(notes) == 1
    assert re.search(f"runs layer by layer.*({words[how]})", str(notes[0].message))
    assert fault not in made[0].calls
    expected = mlp_truth.truth(mlp, x, gradient)
    results = [out, *into.values()]
    for value, right in zip(results, [expected[0], *expected[2:]], strict=True):
        assert mlp_truth.error(value, right) < 1e-5
    for value, right in ((values, expected[0]), (of_inputs, expected[1])):
        assert value is None or mlp_truth.error(value, right) < 1e-5
    assert (of_inputs is not None, values is not None) == tuple(wants.values())


def test_a_lack_of_memory_is_no_fault_of_the_kernels() -> None:
    mlp, x = mlp_truth.network((6, 16, 16)), torch.rand(50, 6)
    network, _ = checked(mlp, torch.float32, x)

    def fail(*_: Any) -> Kernels:
        raise torch.OutOfMemoryError("CUDA out of memory")

    network._make = fail
    with pytest.raises(torch.OutOfMemoryError):
        network.forward(x)
    assert not first_use._known


def test_a_kernel_after_which_cuda_cannot_go_on_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: torch.device) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    device, problem = torch.device("cuda"), ValueError("out of resources")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    first_use._require_working(device, problem)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    first_use._require_working(torch.device("cpu"), problem)
    with pytest.raises(BadInput, match="CUDA cannot go on") as caught:
        first_use._require_working(device, problem)
    assert caught.value.__cause__ is problem


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, on which these kernels are timed",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("widths", "act"),
    [
        ((40, 64, 64, 48), nn.ReLU),
        ((6, 100, 64, 60), nn.Tanh),
        ((20, 128, 128, 128, 20), nn.SiLU),
        ((6, 32, 16, 32, 8, 40), lambda: nn.GELU(approximate="tanh")),
        ((6, 256, 40), nn.Tanh),
        ((40, 256, 130, 64), nn.ReLU),
        ((6, 140, 256, 16, 16), lambda: nn.GELU(approximate="tanh")),
    ],
)
def test_kernels_that_were_not_compared_beforehand_are_right_on_a_gpu(
    widths: tuple[int, ...], act: Any, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, act).cuda()
    x, gradient = torch.rand(30_001, widths[0], device="cuda"), torch.randn(30_001, widths[-1], device="cuda")
    name = str(dtype).removeprefix("torch.")
    gradient = mlp_truth.defined(mlp, x, gradient, name).to(dtype)
    with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
        path = edge_mlp.flat_path(mlp, like=x)
        network = edge_mlp.network_of(mlp, edges=len(x), inputs=x, path=path)
    if path.name == "layers":
        assert max(widths[1:-1]) > 128 and dtype is torch.float16
        return
    assert isinstance(network, first_use.CheckedMLP)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        into = {at: torch.zeros_like(one) for at, one in enumerate(mlp.parameters())}
        with torch.no_grad():
            out = network.forward(x)
            of_inputs, values = network.backward(
                x.clone(), gradient.clone(), into, want_inputs=True, want_values=True
            )
            network.finish(into)
    assert of_inputs is not None and values is not None
    mlp_truth.require_close([values, of_inputs, *into.values()], mlp, x, gradient.float(), name)
    assert mlp_truth.error(out, values.double()) < mlp_truth.BARS[name] / 4
