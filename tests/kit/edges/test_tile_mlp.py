"""Networks in bf16 as one kernel with weights in shared memory: every tile that is used, beside float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth
from torch import Tensor, nn

from pinchpoint.kit import edge_transform, flat_path
from pinchpoint.kit.edges import edge_mlp, tile_mlp
from pinchpoint.kit.edges.edge_mlp import FlatPath

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, the one these kernels are used on",
)
CUDA = torch.device("cuda")
# Every padded width of the hidden layers, every number of them, and every activation.
NETWORKS: list[tuple[tuple[int, ...], type[nn.Module]]] = [
    ((6, 16, 16, 16), nn.GELU),
    ((3, 12, 7, 1), nn.ReLU),
    ((6, 32, 32, 16), nn.ReLU),
    ((15, 20, 32, 3), nn.SiLU),
    ((6, 64, 64, 16), nn.GELU),
    ((4, 50, 64, 10), nn.Tanh),
    ((6, 128, 128, 128, 16), nn.GELU),
    ((6, 100, 80, 128, 7), nn.SiLU),
    ((6, 128, 128, 128, 128, 16), nn.Tanh),
    ((4, 128, 64, 100, 65, 16), nn.ReLU),
]


def run_tiles(mlp: nn.Sequential, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """The outputs, and the gradient of each parameter."""
    network = tile_mlp.TileMLP(list(mlp), torch.bfloat16, x)
    into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    _, values = network.backward(x, gradient, into, want_inputs=False, want_values=True)
    network.finish(into)
    assert values is not None
    # The edges of a tile are rows in one kernel and may be columns in the other, which rounds differently.
    assert mlp_truth.error(network.forward(x), values.double()) < mlp_truth.BARS["bfloat16"] / 4
    return [values, *into.values()]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(("widths", "act"), NETWORKS)
def test_values_and_gradients_are_those_of_float64_bit_for_bit_again(
    widths: tuple[int, ...], act: type[nn.Module]
) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, act).cuda()
    x = torch.rand(mlp_truth.EDGES, widths[0], device="cuda") * 2 - 1
    gradient = torch.randn(mlp_truth.EDGES, widths[-1], device="cuda").to(torch.bfloat16)
    results = run_tiles(mlp, x, gradient)
    for value, again in zip(results, run_tiles(mlp, x, gradient), strict=True):
        assert torch.equal(value, again)
    values, _, *of_parameters = mlp_truth.truth(mlp, x, gradient.float())
    flip, _, *flips = mlp_truth.flip_errors(mlp, x, "bfloat16")
    bars = [max(mlp_truth.BARS["bfloat16"], 2 * one) for one in (flip, *flips)]
    for value, expected, bar in zip(results, [values, *of_parameters], bars, strict=True):
        assert mlp_truth.error(value, expected) < bar


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on every device, as if it were of compute capability 9.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (mlp_truth.network((6, 200, 200, 16)), "200 columns, more than 128"),
        (mlp_truth.network((16, 64, 64, 16)), "16 inputs and 16 outputs, more than 15 and 16"),
        (mlp_truth.network((6, 64, 64, 17)), "6 inputs and 17 outputs, more than 15 and 16"),
        (mlp_truth.network((6, 16, 16)), "1 hidden layers with up to 16 columns, not 2"),
        (mlp_truth.network((6, 16, 64, 16, 16)), "3 hidden layers with up to 64 columns, not 2"),
        (mlp_truth.network((6, 128, 128, 16)), "2 hidden layers with up to 128 columns, not 3 or 4"),
        (mlp_truth.network((6, 128, 128, 128, 128, 128, 16)), "5 hidden layers"),
        (mlp_truth.network((6, 16)), "does not alternate"),
        ([*mlp_truth.network((6, 16, 16, 16)), nn.GELU()], "does not alternate"),
        (mlp_truth.network((6, 16, 16, 16), nn.ELU), "not all GELU"),
        (mlp_truth.network((6, 16, 16, 16), lambda: nn.GELU(approximate="tanh")), "not all GELU"),
        ([*mlp_truth.network((6, 16, 16)), nn.ReLU(), nn.Linear(16, 1)], "not all GELU"),
        (mlp_truth.network((6, 16, 16, 16), bias=False), "has no bias"),
        ([nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), nn.GELU(), nn.Linear(16, 16)], "do not match"),
    ],
)
def test_a_network_that_is_not_supported_is_refused_with_a_reason(parts: Any, reason: str) -> None:
    assert reason in str(tile_mlp.refusal(list(parts), torch.bfloat16, CUDA, of_inputs=False))


@pytest.mark.usefixtures("hopper")
def test_what_is_compared_with_float64_on_a_card_is_supported_in_bf16_without_a_gradient_of_the_inputs() -> (
    None
):
    for widths, act in NETWORKS:
        parts = list(mlp_truth.network(widths, act))
        assert tile_mlp.refusal(parts, torch.bfloat16, CUDA, of_inputs=False) is None
        assert "need a gradient" in str(tile_mlp.refusal(parts, torch.bfloat16, CUDA, of_inputs=True))
        assert "float16 is not" in str(tile_mlp.refusal(parts, torch.float16, CUDA, of_inputs=False))


def test_another_card_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    parts = list(mlp_truth.network((6, 64, 64, 16)))
    reason = tile_mlp.refusal(parts, torch.bfloat16, CUDA, of_inputs=False)
    assert reason is not None and "compute capability 9.0" in reason


@pytest.mark.usefixtures("hopper")
def test_flat_takes_the_kernel_that_supports_the_network_and_otherwise_says_why_not() -> None:
    def path(widths: tuple[int, ...], *, of_inputs: bool = False) -> FlatPath:
        return flat_path(mlp_truth.network(widths), like=torch.zeros(0, 6), of_inputs=of_inputs)

    wide, narrow = (6, 128, 128, 128, 16), (6, 64, 64, 16)
    assert path(wide).name == "one kernel" and not path(wide).in_tiles  # in float32
    assert "64 columns" in path(narrow).reason
    with torch.autocast("cpu", torch.bfloat16):
        for widths in (wide, narrow):
            assert path(widths).name == "one kernel" and path(widths).in_tiles
        assert path(wide, of_inputs=True).name == "one kernel" and not path(wide, of_inputs=True).in_tiles
        assert "need a gradient" in path(narrow, of_inputs=True).reason


@pytest.mark.usefixtures("hopper")
def test_a_transform_whose_coordinates_need_a_gradient_runs_narrow_networks_layer_by_layer() -> None:
    points, index = torch.rand(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    features = torch.rand(4, 16)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.warns(UserWarning, match="`mlp` runs layer by layer, .* need a gradient"),
    ):
        edge_transform(mlp_truth.network((6, 64, 64, 16)), points.requires_grad_(), points, features, index)
