"""The edge transform with our kernels on a GPU: compared with float64 on the CPU, and reproducible."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pinchpoint.kit import Edges, edge_transform

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
Q, S, E = 300, 200, 9000
HUB = 5  # a row of 1,500 edges, longer than the smallest chunk


def perceptron(*widths: int, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    parts: list[nn.Module] = []
    for i in range(len(widths) - 1):
        parts += [nn.Linear(widths[i], widths[i + 1]), act()]
    return nn.Sequential(*parts[:-1])


def problem(
    hidden: tuple[int, ...], channels: int, transform: str, weights: str, act: type[nn.Module]
) -> dict[str, Any]:
    torch.manual_seed(1)
    index = torch.stack([torch.randint(0, S, (E,)), torch.randint(0, Q - 20, (E,))])
    index[1, :1500] = HUB
    return {
        "mlp": perceptron(6 + (channels if transform.startswith("non") else 0), *hidden, channels, act=act),
        "x": torch.rand(Q, 3, requires_grad=True),
        "y": torch.rand(S, 3, requires_grad=True),
        "f": torch.randn(S, channels, requires_grad=True),
        "edges": Edges.from_index(index, queries=Q, sources=S),
        "transform": transform,
        "weights": weights,
        "quadrature": torch.rand(S, requires_grad=True) if weights == "quadrature" else None,
        "attention": nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Linear(8, 1, bias=False))
        if weights == "attention"
        else None,
    }


def moved(given: dict[str, Any], device: str, dtype: torch.dtype) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, nn.Module):
            made[name] = type(value)(*[_copied(part) for part in value]).to(device, dtype)  # type: ignore[arg-type]
        elif isinstance(value, Tensor):
            made[name] = value.detach().to(device, dtype).requires_grad_()
        else:
            made[name] = value.to(device) if isinstance(value, Edges) else value
    return made


def _copied(part: nn.Module) -> nn.Module:
    if not isinstance(part, nn.Linear):
        return type(part)()
    copy = nn.Linear(part.in_features, part.out_features, bias=part.bias is not None)
    copy.load_state_dict(part.state_dict())
    return copy


def run(given: dict[str, Any], **how: Any) -> list[Tensor | None]:
    out = edge_transform(**given, **how)
    leaves = [given[name] for name in ("x", "y", "f", "quadrature") if given[name] is not None]
    leaves += [
        p for name in ("mlp", "attention") if given[name] is not None for p in given[name].parameters()
    ]
    return [
        out.detach(),
        *torch.autograd.grad(
            out.to(torch.promote_types(out.dtype, torch.float32)).sin().mean(), leaves, allow_unused=True
        ),
    ]


def distance(found: list[Tensor | None], truth: list[Tensor | None]) -> float:
    assert [value is None for value in found] == [value is None for value in truth]
    pairs = [
        (a.double().cpu(), b) for a, b in zip(found, truth, strict=True) if a is not None and b is not None
    ]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


# Hidden widths, channels, activation: some for one kernel, some that go layer by layer.
SHAPES = [
    ((128, 128, 128), 16, nn.GELU),
    ((64, 64), 16, nn.GELU),
    ((32,), 5, nn.SiLU),
    ((48, 24, 40), 32, nn.GELU),
    ((100, 60), 64, nn.ReLU),
    ((16, 16), 3, nn.SiLU),
    ((128, 128), 40, nn.GELU),
    ((256, 256), 16, nn.GELU),
]


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("weights", ["mean", "sum", "quadrature", "attention", "max"])
@pytest.mark.parametrize("transform", ["linear", "nonlinear", "linear_kernelonly", "nonlinear_kernelonly"])
def test_flat_on_a_gpu_is_eager_in_float64_on_the_cpu(
    transform: str, weights: str, dtype: torch.dtype, bar: float
) -> None:
    given = problem((32, 24), 16, transform, weights, nn.GELU)
    truth = run(moved(given, "cpu", torch.float64), memory="eager")
    for chunk in (64, 500, 100_000):
        # Of two roundings to float32 the eager one may be the worse: sums of hundreds of edges lose digits.
        usual = distance(run(moved(given, "cuda", dtype), memory="eager"), truth)
        assert distance(run(moved(given, "cuda", dtype), memory="flat", chunk=chunk), truth) < max(
            bar, 1.5 * usual
        )


@pytest.mark.parametrize(("hidden", "channels", "act"), SHAPES)
def test_every_shape_of_network_is_right_in_every_precision(hidden: Any, channels: int, act: Any) -> None:
    given = problem(hidden, channels, "nonlinear", "mean", act)
    truth = run(moved(given, "cpu", torch.float64), memory="eager")
    on_gpu = moved(given, "cuda", torch.float32)
    assert distance(run(on_gpu, memory="flat", chunk=4096), truth) < 1e-5
    with torch.autocast("cuda", torch.bfloat16):
        rough = distance(run(on_gpu, memory="eager"), truth)
        assert distance(run(on_gpu, memory="flat", chunk=4096), truth) < max(2 * rough, 1e-2)


@pytest.mark.parametrize("weights", ["mean", "attention"])
def test_one_chunk_size_gives_the_same_bits_every_time_on_a_gpu(weights: str) -> None:
    given = moved(problem((128, 128, 128), 16, "nonlinear", weights, nn.GELU), "cuda", torch.float32)
    first = run(given, memory="flat", chunk=700)
    for _ in range(3):
        for value, before in zip(run(given, memory="flat", chunk=700), first, strict=True):
            assert (value is None) == (before is None)
            assert value is None or before is None or torch.equal(value, before)


class Turned(nn.Module):
    """Gives its outputs, and the gradient of its inputs, column by column."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 6))

    def forward(self, values: Tensor) -> Tensor:
        return (self.weight @ values.t()).t()


@pytest.mark.parametrize("module", ["one kernel", "layers", "any"])
@pytest.mark.parametrize("weights", ["mean", "sum"])
def test_no_order_in_memory_changes_what_is_computed_on_a_gpu(weights: str, module: str) -> None:
    """Inputs, weights and the gradient that enters lie column by column; f is one column widened."""
    given = problem((100, 80) if module == "one kernel" else (32,), 16, "linear", weights, nn.GELU)
    mlp = Turned(16) if module == "any" else given["mlp"]
    for parameter in mlp.parameters():
        parameter.data = parameter.data.t().contiguous().t() if parameter.dim() == 2 else parameter.data
    f = torch.randn(S, 1)
    mix = torch.randn(16, Q)

    def made(device: str, dtype: torch.dtype, **how: Any) -> list[Tensor | None]:
        x = given["x"].detach().to(device, dtype).t().contiguous().t().requires_grad_()
        y = given["y"].detach().to(device, dtype).repeat_interleave(2, dim=1)[:, ::2].requires_grad_()
        own = mlp.to(device, dtype)
        wide = f.to(device, dtype).requires_grad_()
        out = edge_transform(own, x, y, wide.expand(S, 16), given["edges"].to(device), weights=weights, **how)  # type: ignore[arg-type]
        found = torch.autograd.grad((out.t() * mix.to(device, dtype)).sum(), [x, y, wide, *own.parameters()])
        return [out.detach(), *found]

    truth = made("cpu", torch.float64, memory="eager")
    assert distance(made("cuda", torch.float32, memory="flat", chunk=700), truth) < 1e-5
