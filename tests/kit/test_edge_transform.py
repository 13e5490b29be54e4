"""The edge transform: every way to hold memory computes the same, and repeats its own bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, edge_transform, radius_edges

Q, S, D, C = 23, 31, 3, 5
CASES = [
    ("linear", "mean"), ("linear", "attention"), ("nonlinear", "quadrature"), ("linear_kernelonly", "sum"),
    ("nonlinear_kernelonly", "mean"), ("nonlinear", "attention"),
]  # fmt: skip


def problem(transform: str, weights: str, dtype: Any = torch.float64) -> dict[str, Any]:
    torch.manual_seed(0)
    wide = 2 * D + (C if transform.startswith("nonlinear") else 0)
    x, y = torch.rand(Q, D, dtype=dtype), torch.rand(S, D, dtype=dtype)
    return {
        "mlp": nn.Sequential(nn.Linear(wide, 16), nn.GELU(), nn.Linear(16, C)).to(dtype),
        "x": x.requires_grad_(), "y": y.requires_grad_(), "f": torch.randn(S, C, dtype=dtype, requires_grad=True),
        "edges": radius_edges(x.detach(), y.detach(), 0.45), "transform": transform, "weights": weights,
        "quadrature": torch.rand(S, dtype=dtype, requires_grad=True) if weights == "quadrature" else None,
        "attention": nn.Linear(D, 1, bias=False).to(dtype) if weights == "attention" else None,
    }  # fmt: skip


def run(given: dict[str, Any], **how: Any) -> list[Any]:
    """The output and every gradient."""
    leaves = [given["x"], given["y"], given["f"], *given["mlp"].parameters()]
    leaves += [given["quadrature"]] if given["quadrature"] is not None else []
    leaves += list(given["attention"].parameters()) if given["attention"] is not None else []
    out = edge_transform(**given, **how)
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), leaves, allow_unused=True)]


def by_hand(given: dict[str, Any]) -> Any:
    """Query by query, edge by edge, with nothing shared with the code under test."""
    index = given["edges"]
    rows = []
    for q in range(Q):
        begin, end = int(index.offsets[q]), int(index.offsets[q + 1])
        terms, scores = [], []
        for s in index.sources[begin:end].tolist():
            parts = [given["y"][s], given["x"][q]] + ([given["f"][s]] if given["transform"].startswith("nonlinear") else [])
            value = given["mlp"](torch.cat(parts))
            value = value if given["transform"].endswith("kernelonly") else value * given["f"][s]
            terms.append(value * given["quadrature"][s] if given["quadrature"] is not None else value)
            if given["attention"] is not None:
                scores.append(given["attention"](given["y"][s] - given["x"][q]))
        if not terms:
            rows.append(torch.zeros(C, dtype=given["x"].dtype))
            continue
        stacked = torch.stack(terms)
        if given["attention"] is not None:
            stacked = stacked * torch.softmax(torch.cat(scores), 0)[:, None]
        rows.append(stacked.mean(0) if given["weights"] == "mean" else stacked.sum(0))
    return torch.stack(rows)


@pytest.mark.parametrize(("transform", "weights"), CASES)
def test_eager_is_the_sum_over_edges(transform: str, weights: str) -> None:
    given = problem(transform, weights)
    assert torch.allclose(edge_transform(**given, memory="eager"), by_hand(given), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 40, 10_000])
@pytest.mark.parametrize("memory", ["checkpoint", "flat"])
@pytest.mark.parametrize(("transform", "weights"), CASES)
def test_values_and_every_gradient_are_those_of_eager_for_any_chunk(
    transform: str, weights: str, memory: str, chunk: int
) -> None:
    given = problem(transform, weights)
    for mine, theirs in zip(run(given, memory=memory, chunk=chunk), run(given, memory="eager"), strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert float((mine - theirs).norm()) <= 1e-10 * float(theirs.norm())


def test_one_chunk_size_gives_the_same_bits_every_time() -> None:
    given = problem("linear", "attention", torch.float32)
    first, second = (run(given, memory="flat", chunk=7) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_an_index_in_any_order_is_the_same_graph() -> None:
    given = problem("linear", "mean")
    edges = given["edges"]
    index = torch.stack([edges.sources.long(), edges.destinations().long()])
    shuffled = index[:, torch.randperm(edges.count)]
    out = edge_transform(**{**given, "edges": shuffled})
    assert torch.allclose(out, edge_transform(**given), rtol=1e-12)


def test_queries_without_edges_get_zeros_and_no_gradient() -> None:
    given = problem("linear", "mean")
    nobody = Edges.of_index(torch.zeros(2, 0, dtype=torch.int64), queries=Q, sources=S)
    for memory in ("eager", "checkpoint", "flat"):
        assert torch.equal(edge_transform(**{**given, "edges": nobody}, memory=memory), torch.zeros(Q, C, dtype=torch.float64))


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"memory": "small"}, "unknown memory"), ({"transform": "cubic"}, "unknown transform"), ({"chunk": 0}, "a chunk of 0"),
        ({"f": None}, "without f"), ({"weights": "quadrature"}, "go together"), ({"weights": "attention"}, "go together"),
        ({"edges": torch.tensor([[S], [0]])}, "an index beyond"), ({"f": torch.zeros(S - 1, C)}, "rows for"),
        ({"y": torch.rand(S + 1, D, dtype=torch.float64)}, "edges from"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        edge_transform(**{**problem("linear", "mean"), **wrong})
