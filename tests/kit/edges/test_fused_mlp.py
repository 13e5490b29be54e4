"""Networks as one kernel: every shape of the kernels, used or not, in every precision, compared with float64.

Many edges and every program at work: a tile that the compiler gets wrong may be right for a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pinchpoint import kit
from pinchpoint.kit import flat_path
from pinchpoint.kit.edges import edge_mlp, fused_mlp

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, the one these kernels are used on",
)
EDGES = 100_003
BARS = {"float32": 3e-6, "tf32": 1e-2, "bfloat16": 2e-2, "float16": 4e-3}
# Of a product's operands. TF32 cuts digits off, and sums of products in float32 add to it.
ROUNDOFF = {"float32": 2.0**-21, "tf32": 2.0**-10, "bfloat16": 2.0**-8, "float16": 2.0**-11}
SHAPES = list(
    product((6, 30), (16, 20), (0, 1, 2))
)  # inputs, outputs, layers between: all pairs of padded ends


def network(inputs: int, outputs: int, between: int, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    widths = [inputs, *[128, 100, 80][: between + 1], outputs]
    parts: list[nn.Module] = []
    for i in range(len(widths) - 1):
        parts += [nn.Linear(widths[i], widths[i + 1]), act()]
    return nn.Sequential(*parts[:-1])


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


@pytest.fixture
def products_as_before() -> Iterator[None]:
    # pytest's monkeypatch would delete the attribute afterwards, because torch keeps it elsewhere.
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("precision", BARS)
@pytest.mark.parametrize("act", [nn.GELU, nn.SiLU, nn.ReLU])
@pytest.mark.parametrize(("inputs", "outputs", "between"), SHAPES)
def test_values_and_gradients_are_those_of_float64(
    inputs: int,
    outputs: int,
    between: int,
    act: type[nn.Module],
    precision: str,
    products_as_before: None,
) -> None:
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.manual_seed(0)
    mlp = network(inputs, outputs, between, act).cuda()
    dtype = torch.float32 if precision == "tf32" else getattr(torch, precision)
    x = torch.rand(EDGES, inputs, device="cuda") * 2 - 1
    gradient = torch.randn(EDGES, outputs, device="cuda")
    truth = _truth(mlp, x, gradient)
    made = fused_mlp.FusedMLP(list(mlp), dtype, x)
    into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    of_inputs, values = made.backward(x, gradient.to(dtype), into, want_inputs=True, want_values=True)
    made.finish(into)
    assert torch.equal(values, made.forward(x)) if values is not None else False
    flips = _flip_errors(mlp, x, precision)
    for found, right, flip in zip([values, of_inputs, *into.values()], truth, flips, strict=True):
        assert found is not None
        assert _error(found, right) < max(BARS[precision], 2 * flip)  # the flips of one draw scatter


def _truth(mlp: nn.Sequential, x: Tensor, gradient: Tensor) -> list[Tensor]:
    return _gradients(network_like(mlp).double(), x.double(), gradient.double())


def _error(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).norm() / right.norm())


def _flip_errors(mlp: nn.Sequential, x: Tensor, precision: str) -> list[float]:
    """The usual error that a ReLU at its kink adds to the values, the inputs' gradient and each parameter's.

    An input of a ReLU that rounding moves across zero changes the gradient by the whole term of this unit. If
    a share of the units flips, of which half are active, the relative error is about sqrt(2 share), whatever
    computes it. A unit counts as flipped if its input, in float64, is nearer to zero than the error of its
    products: with independent errors of size u in each of them, u times the root of the sum of their squares.
    A gradient depends on the flips of the layers between it and the outputs; values do not jump.
    """
    linear: list[nn.Linear] = list(network_like(mlp).double()[0::2])  # type: ignore[arg-type]
    if not isinstance(mlp[1], nn.ReLU):
        return [0.0] * (2 + 2 * len(linear))
    shares = []
    hidden = x.double()
    with torch.no_grad():
        for layer in linear[:-1]:
            products = (hidden.square() @ layer.weight.square().T + layer.bias.square()).sqrt()
            hidden = layer(hidden)
            shares.append(float((hidden.abs() < ROUNDOFF[precision] * products).double().mean()))
            hidden = hidden.relu()
    later = [sum(shares[at:]) for at in range(len(linear))]
    flips = [0.0, later[0], *(share for share in later for _ in ("weight", "bias"))]
    return [(2 * share) ** 0.5 for share in flips]


def _gradients(mlp: nn.Sequential, x: Tensor, gradient: Tensor) -> list[Tensor]:
    leaf = x.detach().clone().requires_grad_()
    out = mlp(leaf)
    return [out.detach(), *torch.autograd.grad(out, [leaf, *mlp.parameters()], gradient)]


def network_like(mlp: nn.Sequential) -> nn.Sequential:
    """A copy whose weights are its own."""
    linear: list[Any] = [part for part in mlp if isinstance(part, nn.Linear)]
    widths = [linear[0].in_features, *[layer.out_features for layer in linear]]
    copy = nn.Sequential(
        *[part for i in range(len(linear)) for part in (nn.Linear(widths[i], widths[i + 1]), type(mlp[1])())][
            :-1
        ]
    ).to(linear[0].weight.device)
    copy.load_state_dict(mlp.state_dict())
    return copy


@pytest.mark.parametrize("between", [0, 2])
def test_the_bar_of_a_relu_passes_rounding_and_refuses_wrong_tiles(between: int) -> None:
    torch.manual_seed(0)
    mlp = network(6, 16, between, nn.ReLU)
    x, gradient = torch.rand(2_048, 6) * 2 - 1, torch.randn(2_048, 16)
    truth = _truth(mlp, x, gradient)
    bars = [max(BARS["bfloat16"], flip) for flip in _flip_errors(mlp, x, "bfloat16")]
    rounded = _gradients(
        network_like(mlp).to(torch.bfloat16), x.to(torch.bfloat16), gradient.to(torch.bfloat16)
    )
    assert all(_error(a, b) < bar for a, b, bar in zip(rounded, truth, bars, strict=True))
    gradient[::32] = 0  # one edge of every tile is left out
    wrong = _gradients(network_like(mlp).double(), x.double(), gradient.double())
    assert all(_error(a, b) > bar for a, b, bar in zip(wrong[1:], truth[1:], bars[1:], strict=True))


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
    """The kernels on every device, as if it were of compute capability 9.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)


@pytest.mark.usefixtures("hopper")
def test_on_a_gpu_flat_runs_as_one_kernel_or_says_why_not() -> None:
    points = torch.zeros(0, 3)
    assert str(flat_path(network(6, 16, 1), like=points)) == "as one kernel."
    path = flat_path(nn.Sequential(*four(6, 200, 16)), like=points)
    assert str(path) == (
        "layer by layer, which may be slower than eager. "
        "The widest hidden layer has 200 columns, not 65 to 128."
    )


@pytest.mark.usefixtures("hopper")
def test_a_transform_that_does_not_run_as_one_kernel_warns() -> None:
    points, index = torch.rand(4, 3), torch.tensor([[0, 1, 2], [1, 2, 3]])
    with pytest.warns(UserWarning, match="`mlp` runs layer by layer, which may be slower .* 200 columns"):
        kit.edge_transform(nn.Sequential(*four(6, 200, 2)), points, points, torch.rand(4, 2), index)
