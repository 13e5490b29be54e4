"""Softmax weights and maxima of edges: plain torch and kernels beside a loop over rows in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kit.edges import triton_runs
from torch import Tensor, nn

from pinchpoint.kit import Edges, edge_transform
from pinchpoint.kit.edges import transform, weight_ops
from pinchpoint.kit.edges.row_chunks import row_chunks

Q, S, C = 7, 9, 3
CHUNKS = (4, 1000)  # rows in pieces; all rows at once


def graph() -> Edges:
    """Rows of 0 to 11 edges, of which the fourth and the last have none."""
    counts = torch.tensor([3, 11, 1, 0, 5, 2, 0])
    index = torch.stack([torch.arange(22) * 7 % S, torch.arange(Q).repeat_interleave(counts)])
    return Edges.from_index(index, queries=Q, sources=S)


def problem(device: str, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)

    edges = graph().to(device)
    return {
        "edges": edges,
        "kernel": random(edges.count, C),
        "f": random(S, C),
        "score": 3 * random(edges.count, 1),
        "gradient": random(Q, C),
    }


def rows_of(edges: Edges) -> list[slice]:
    ends = edges.offsets.tolist()
    return [slice(ends[q], ends[q + 1]) for q in range(Q)]


def by_autograd(given: dict[str, Any], weights: str, *, with_f: bool) -> list[Tensor]:
    """The rows, and the gradients of the kernel, of f and of the scores, row by row in float64."""
    kernel, f, score = (
        given[name].detach().cpu().double().requires_grad_() for name in ("kernel", "f", "score")
    )
    edges = given["edges"].to("cpu")
    values = kernel * f[edges.sources.long()] if with_f else kernel
    out = []
    for row in rows_of(edges):
        if row.start == row.stop:
            out.append(torch.zeros(C, dtype=torch.float64))
        elif weights == "max":
            out.append(values[row].amax(0))
        else:
            out.append((torch.softmax(score[row], 0) * values[row]).sum(0))
    rows = torch.stack(out)
    found = torch.autograd.grad(
        rows, [kernel, f, score], given["gradient"].cpu().double(), allow_unused=True, materialize_grads=True
    )
    return [rows.detach(), *found]


def by_ops(given: dict[str, Any], weights: str, chunk: int, *, with_f: bool) -> list[Tensor]:
    """The same by `weight_ops`, chunk by chunk."""
    edges, kernel, score = given["edges"], given["kernel"], given["score"]
    f, gradient = given["f"] if with_f else None, given["gradient"]
    out, second = torch.zeros_like(gradient), torch.zeros_like(gradient)
    lse = second[:, 0].contiguous()
    parts = [part for part in row_chunks(edges, chunk, split_rows=True) if part.count]
    for part in parts:
        here = slice(part.begin, part.end)
        if weights == "max":
            weight_ops.raise_largest(out, second, kernel[here].contiguous(), f, part)
        else:
            weight_ops.softmax_into(out, lse, kernel[here].contiguous(), f, score[here].contiguous(), part)
    of_kernel, of_score = torch.zeros_like(kernel), torch.zeros_like(score)
    of_f = torch.zeros_like(given["f"], device="cpu")  # a GPU would add in another order every time
    for part in parts:
        here, at = slice(part.begin, part.end), part.destinations().to(torch.int32)
        own, dtype = kernel[here].clone(), kernel.dtype
        if weights == "max":
            of_kernel[here], of_source = weight_ops.spread_maximum(
                gradient, (out, second), own, f, part, at, dtype
            )
        else:
            of_kernel[here], powers = weight_ops.spread_softmax(
                gradient, f, score[here].contiguous(), lse, part, at, dtype
            )
            of_score[here] = weight_ops.spread_to_scores(gradient, out, own, f, powers, part, at, dtype)
            of_source = powers[:, None] * gradient[at.long()] * own
        if with_f:
            of_f.index_add_(0, part.sources().long().cpu(), of_source.cpu())
    return [out, of_kernel, of_f, of_score]


def require_same(given: dict[str, Any], weights: str, *, with_f: bool, bar: float) -> None:
    expected = by_autograd(given, weights, with_f=with_f)
    for chunk in CHUNKS:
        results = by_ops(given, weights, chunk, with_f=with_f)
        for value, right in zip(results, expected, strict=True):
            assert float((value.cpu().double() - right).norm()) <= bar * max(1.0, float(right.norm()))
        for value, again in zip(results, by_ops(given, weights, chunk, with_f=with_f), strict=True):
            assert torch.equal(value, again)


@pytest.mark.parametrize("with_f", [True, False])
@pytest.mark.parametrize("weights", ["softmax", "max"])
def test_plain_torch_computes_each_row_in_any_pieces(weights: str, with_f: bool) -> None:
    require_same(problem("cpu", torch.float64), weights, with_f=with_f, bar=1e-13)


@pytest.mark.parametrize("where", triton_runs.WHERE)
@pytest.mark.parametrize("with_f", [True, False])
@pytest.mark.parametrize("weights", ["softmax", "max"])
# In float32, powers and logarithms of a GPU that are wrong by 2 units in the last place give errors of 7e-7.
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
def test_kernels_compute_each_row_in_any_pieces(
    weights: str, with_f: bool, dtype: torch.dtype, bar: float, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = triton_runs.use_kernels(monkeypatch, where)
    require_same(problem(device, dtype), weights, with_f=with_f, bar=bar)


@pytest.mark.parametrize("where", ["cpu", *triton_runs.WHERE])
def test_nan_and_infinite_values_and_ties_are_those_of_a_loop(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = "cpu" if where == "cpu" else triton_runs.use_kernels(monkeypatch, where)
    given = problem(device, torch.float32)
    edges, kernel, score = given["edges"], given["kernel"], given["score"]
    first, second, _, _, fifth, *_ = rows_of(edges)
    kernel[first] = -torch.inf
    kernel[second.start + 2, 1] = torch.nan
    kernel[second, 2] = 0.5
    score[first.start] = -torch.inf
    score[second.start : second.start + 4] = -torch.inf  # all of the first piece of four
    score[fifth.start] = torch.nan
    for chunk in CHUNKS:
        largest, ties, out = (torch.zeros(Q, C, device=device) for _ in range(3))
        lse = torch.zeros(Q, device=device)
        for part in row_chunks(edges, chunk, split_rows=True):
            if part.count:
                own = kernel[part.begin : part.end].contiguous()
                weight_ops.raise_largest(largest, ties, own, None, part)
                scores = score[part.begin : part.end].contiguous()
                weight_ops.softmax_into(out, lse, torch.ones_like(own), None, scores, part)
        assert largest[0].isneginf().all() and ties[0].tolist() == [3.0] * C
        assert largest[1, 1].isnan() and ties[1, 1] == 0
        assert largest[1, 2] == 0.5 and ties[1, 2] == 11
        assert torch.allclose(out[:3], torch.ones_like(out[:3]))  # an edge of score -inf has no weight
        assert out[4].isnan().all() and lse[4].isnan()
        for empty in (3, 6):
            assert largest[empty].tolist() == ties[empty].tolist() == out[empty].tolist() == [0.0] * C


class OwnKernel(nn.Module):
    """Returns a parameter of its own."""

    def __init__(self, kernel: Tensor) -> None:
        super().__init__()
        self.kernel = nn.Parameter(kernel)

    def forward(self, _: Tensor) -> Tensor:
        return self.kernel


@pytest.mark.parametrize("where", triton_runs.WHERE)
def test_the_kernel_of_a_maximum_may_be_a_tensor_of_the_module(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(triton_runs.use_kernels(monkeypatch, where), torch.float32)
    edges, kernel, f = given["edges"], given["kernel"], given["f"].requires_grad_()
    x, y = (torch.zeros(count, 1, device=f.device) for count in (Q, S))
    network = OwnKernel(kernel.clone())
    monkeypatch.setattr(transform, "can_check", lambda _: False)  # it does not return a row for each edge
    edge_transform(network, x, y, f, edges, weights="max").backward(given["gradient"])
    assert torch.equal(network.kernel.detach(), kernel)
    _, of_kernel, of_f, _ = by_autograd(given, "max", with_f=True)
    assert network.kernel.grad is not None and f.grad is not None
    torch.testing.assert_close(network.kernel.grad.cpu().double(), of_kernel, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(f.grad.cpu().double(), of_f, rtol=1e-5, atol=1e-6)
