"""Networks in float32 as one kernel: every shape of the kernels, used or not, compared with float64."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth
from torch import nn

from pinchpoint import kit
from pinchpoint.kit import flat_path
from pinchpoint.kit.edges import edge_mlp, fused_mlp, mlp_support
from pinchpoint.kit.edges.tile_kernels import tested

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, the one these kernels are used on",
)
SHAPES = list(
    product((6, 30), (16, 20), (0, 1, 2))
)  # inputs, outputs, layers between: all pairs of padded ends


def network(inputs: int, outputs: int, between: int, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    return mlp_truth.network((inputs, *[128, 100, 80][: between + 1], outputs), act)


def four(inputs: int, hidden: int, outputs: int, act: Any = nn.GELU) -> list[nn.Module]:
    """Four linear layers."""
    ends = [
        nn.Linear(inputs, hidden),
        act(),
        nn.Linear(hidden, hidden),
        act(),
        nn.Linear(hidden, hidden),
        act(),
    ]
    return [*ends, nn.Linear(hidden, outputs)]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("precision", mlp_truth.BARS)
@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU, nn.ReLU])
@pytest.mark.parametrize(("inputs", "outputs", "between"), SHAPES)
def test_values_and_gradients_are_those_of_float64(
    inputs: int, outputs: int, between: int, act: type[nn.Module], precision: str
) -> None:
    torch.manual_seed(0)
    mlp = network(inputs, outputs, between, act).cuda()
    x = torch.rand(mlp_truth.EDGES, inputs, device="cuda") * 2 - 1
    gradient = torch.randn(mlp_truth.EDGES, outputs, device="cuda")
    gradient = mlp_truth.defined(mlp, x, gradient, precision)
    with mlp_truth.products(precision) as dtype:
        fused = fused_mlp.FusedMLP(list(mlp), dtype, x)
        into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
        of_inputs, values = fused.backward(x, gradient.to(dtype), into, want_inputs=True, want_values=True)
        fused.finish(into)
        assert values is not None and of_inputs is not None
        assert torch.equal(values, fused.forward(x))
        mlp_truth.require_close([values, of_inputs, *into.values()], mlp, x, gradient, precision)


@pytest.mark.parametrize("between", [0, 2])
def test_the_bar_of_a_relu_passes_rounding_and_refuses_wrong_tiles(between: int) -> None:
    torch.manual_seed(0)
    mlp = network(6, 16, between, nn.ReLU)
    x, gradient = torch.rand(2_048, 6) * 2 - 1, torch.randn(2_048, 16)
    half = torch.bfloat16
    rounded = mlp_truth.gradients(copy.deepcopy(mlp).to(half), x.to(half), gradient.to(half))
    mlp_truth.require_close(rounded, mlp, x, gradient, "bfloat16")
    right = mlp_truth.truth(mlp, x, gradient)
    gradient[::4] = 0  # a quarter of every tile is left out
    bars = mlp_truth.bars(mlp, x, "bfloat16")
    wrong = mlp_truth.truth(mlp, x, gradient)
    assert all(mlp_truth.error(a, b) > bar for a, b, bar in zip(wrong[1:], right[1:], bars[1:], strict=True))


def test_edges_with_a_relu_at_its_kink_are_left_out_in_float32() -> None:
    torch.manual_seed(0)
    mlp = network(6, 16, 1, nn.ReLU)
    x, gradient = torch.rand(512, 6) * 2 - 1, torch.randn(512, 16)
    first: Any = mlp[0]
    with torch.no_grad():
        first.bias[3] -= first(x)[5, 3] - 1e-7
    other = copy.deepcopy(mlp)
    with torch.no_grad():
        other[0].bias[3] -= 2e-7  # type: ignore[union-attr, operator]
    usable = mlp_truth.defined(mlp, x, gradient, "float32")
    left_out = (usable == 0).all(1)
    assert left_out[5] and left_out.sum() < 10
    assert torch.equal(usable[~left_out], gradient[~left_out])
    mlp_truth.require_close(mlp_truth.gradients(other, x, usable), mlp, x, usable, "float32")
    with pytest.raises(AssertionError):
        mlp_truth.require_close(mlp_truth.gradients(other, x, gradient), mlp, x, gradient, "float32")
    assert mlp_truth.defined(mlp, x, gradient, "bfloat16") is gradient
    smooth = network(6, 16, 1)
    assert mlp_truth.defined(smooth, x, gradient, "float32") is gradient


@pytest.mark.parametrize(
    "parts",
    [
        four(6, 64, 16),  # too narrow
        four(6, 256, 16),  # too wide
        four(40, 128, 16),  # too many inputs
        four(6, 128, 40),  # too many outputs
        four(6, 128, 16, act=nn.SiLU),
        four(6, 128, 16, act=lambda: nn.GELU(approximate="tanh")),
        [*four(6, 128, 16)[:-1], nn.Linear(128, 16, bias=False)],
        [*four(6, 128, 16)[:3], nn.ReLU(), *four(6, 128, 16)[4:]],  # two kinds
        four(6, 128, 16)[:6] + four(6, 128, 16)[2:],  # five layers
        four(6, 128, 16)[2:],  # too many inputs
        [nn.Linear(6, 16)],
        [*four(6, 128, 16), nn.GELU()],
    ],
)
def test_other_networks_are_not_taken(parts: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    good = four(6, 128, 16)
    assert fused_mlp.refusal(good, torch.float32, torch.device("cuda")) is None
    assert fused_mlp.refusal(parts, torch.float32, torch.device("cuda")) is not None
    assert fused_mlp.refusal(good, torch.float64, torch.device("cuda")) is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("inputs", "outputs", "between"), SHAPES)
def test_what_was_compared_with_float64_on_a_card_is_taken(
    inputs: int, outputs: int, between: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    parts = list(network(inputs, outputs, between))
    assert fused_mlp.refusal(parts, dtype, torch.device("cuda")) is None


def test_another_card_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    reason = fused_mlp.refusal(four(6, 128, 16), torch.float32, torch.device("cuda"))
    assert reason is not None and "compute capability 9.0" in reason


def test_on_a_cpu_flat_runs_layer_by_layer_or_through_autograd() -> None:
    points = torch.zeros(0, 3)
    assert str(flat_path(network(6, 16, 1), like=points)) == "layer by layer."
    assert str(flat_path(network(6, 16, 1, nn.ELU), like=points)) == "through autograd."


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on every device, as if it were of compute capability 9.0 with the tested Triton."""
    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)
    monkeypatch.setattr(mlp_support, "_triton_version", lambda: "3.6.0")


@pytest.mark.usefixtures("hopper")
def test_on_a_gpu_flat_runs_as_one_kernel_or_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "SLOWER", {})
    points = torch.zeros(0, 3)
    assert str(flat_path(network(6, 16, 2), like=points)) == "as one kernel."
    with mlp_truth.products("tf32"):
        path = flat_path(network(20, 20, 2), like=points)
    assert str(path) == (
        "as one kernel, which may be slower than eager. "
        "Its kernels are older ones; with three hidden layers, an H200 takes 1.2 times as long as for eager."
    )
    path = flat_path(nn.Sequential(*four(6, 300, 16)), like=points)
    assert str(path) == (
        "layer by layer, which may be slower than eager. "
        "The widest hidden layer has 300 columns, not 65 to 256."
    )


@pytest.mark.usefixtures("hopper")
def test_a_transform_that_does_not_run_as_one_kernel_warns() -> None:
    points, index = torch.rand(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    with pytest.warns(
        UserWarning, match="`mlp` runs layer by layer, which may be slower .* 300 columns.*take up to 96 MiB"
    ):
        kit.edge_transform(nn.Sequential(*four(6, 300, 2)), points, points, torch.rand(4, 2), index)
