"""Attributes of edges, maxima of rows, and the MLP of PyG in the edge transform."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, edge_transform
from pinchpoint.kit.edges import flat_transform
from pinchpoint.kit.edges.row_chunks import Rows

Q, S, D, C, A, E = 6, 8, 2, 3, 4, 40


def problem(transform: str = "linear", weights: str = "mean") -> dict[str, Any]:
    """Row 0 has no edges, and row 2 has 15, so that chunks of 7 split it."""
    torch.manual_seed(1)
    index = torch.stack([torch.randint(0, S, (E,)), torch.tensor([2] * 15 + [1, 3, 4, 5, 3] * 5)])
    wide = 2 * D + (C if transform.startswith("non") else 0) + A
    return {
        "mlp": nn.Sequential(nn.Linear(wide, 8), nn.GELU(), nn.Linear(8, C)).double(),
        "x": torch.rand(Q, D).double().requires_grad_(),
        "y": torch.rand(S, D).double().requires_grad_(),
        "f": torch.randn(S, C).double().requires_grad_(),
        "edges": index[:, torch.randperm(E)],
        "edge_attr": torch.randn(E, A).double().requires_grad_(),
        "transform": transform,
        "weights": weights,
        "attention": nn.Linear(D, 1).double() if weights == "attention" else None,
    }


def run(inputs: dict[str, Any], **how: Any) -> list[torch.Tensor]:
    """The output and every gradient."""
    leaves = [inputs[name] for name in ("x", "y", "f", "edge_attr")]
    leaves += [
        p for name in ("mlp", "attention") if inputs[name] is not None for p in inputs[name].parameters()
    ]
    out = edge_transform(**inputs, **how)
    return [out.detach(), *torch.autograd.grad(out.sin().sum(), leaves)]


def by_hand(inputs: dict[str, Any]) -> torch.Tensor:
    """Edge by edge, in the order of the index."""
    values: list[list[torch.Tensor]] = [[] for _ in range(Q)]
    scores: list[list[torch.Tensor]] = [[] for _ in range(Q)]
    for number, (s, q) in enumerate(inputs["edges"].T.tolist()):
        f = [inputs["f"][s]] if inputs["transform"].startswith("non") else []
        value = inputs["mlp"](torch.cat([inputs["y"][s], inputs["x"][q], *f, inputs["edge_attr"][number]]))
        values[q].append(value if inputs["transform"].endswith("only") else value * inputs["f"][s])
        if inputs["attention"] is not None:
            scores[q].append(inputs["attention"](inputs["y"][s] - inputs["x"][q]))
    rows = []
    for row, score in zip(values, scores, strict=True):
        if not row:
            rows.append(torch.zeros(C).double())
        elif inputs["weights"] == "max":
            rows.append(torch.stack(row).amax(0))
        elif score:
            rows.append((torch.stack(row) * torch.cat(score).softmax(0)[:, None]).sum(0))
        else:
            rows.append(torch.stack(row).mean(0))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("transform", "weights"),
    [("linear", "mean"), ("nonlinear", "attention"), ("nonlinear_kernelonly", "max"), ("nonlinear", "max")],
)
def test_attributes_of_edges_reach_the_mlp_in_the_order_of_the_index(transform: str, weights: str) -> None:
    inputs = problem(transform, weights)
    leaves = [inputs["x"], inputs["edge_attr"], *inputs["mlp"].parameters()]
    truth = by_hand(inputs)
    gradients = torch.autograd.grad(truth.sin().sum(), leaves)
    eager = run(inputs, memory="eager")
    assert torch.allclose(eager[0], truth, rtol=1e-12)
    for mine, theirs in zip([eager[1], eager[4], *eager[5 : 3 + len(leaves)]], gradients, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-14)
    for memory, chunk in (("checkpoint", 7), ("flat", 7), ("flat", "auto")):
        for mine, theirs in zip(run(inputs, memory=memory, chunk=chunk), eager, strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-13), (memory, chunk)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("weights", ["mean", "max", "attention"])
def test_on_a_gpu_attributes_and_maxima_are_those_of_the_cpu(weights: str) -> None:
    inputs = problem("nonlinear", weights)
    truth = run(inputs, memory="eager")
    for name in ("mlp", "attention"):
        inputs[name] = None if inputs[name] is None else inputs[name].cuda()
    for name in ("x", "y", "f", "edge_attr"):
        inputs[name] = inputs[name].detach().cuda().requires_grad_()
    inputs["edges"] = inputs["edges"].cuda()
    for chunk in (7, 10_000):
        for mine, theirs in zip(run(inputs, memory="flat", chunk=chunk), truth, strict=True):
            assert torch.allclose(mine.cpu(), theirs, rtol=1e-9, atol=1e-12)


def test_attributes_for_edges_of_the_kit_are_in_its_order() -> None:
    inputs = problem()
    index = inputs["edges"]
    order = torch.sort(index[1], stable=True).indices
    sorted_edges = Edges.from_index(index, queries=Q, sources=S)
    same = {**inputs, "edges": sorted_edges, "edge_attr": inputs["edge_attr"][order]}
    assert torch.equal(edge_transform(**inputs), edge_transform(**same))


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_edges_that_are_equally_large_share_the_gradient_of_a_maximum(sign: float) -> None:
    """Every edge into row 2 comes from one source, so all of them are its maximum."""
    x, y = torch.zeros(Q, D).double(), torch.rand(S, D).double()
    index = torch.stack([torch.full((E,), 3), torch.tensor([2] * 15 + [1, 3, 4, 5, 3] * 5)])
    mlp = nn.Linear(2 * D + 1, C).double()
    attr = torch.zeros(E, 1).double().requires_grad_()
    gradients = []
    for memory in ("eager", "flat"):
        out = edge_transform(
            mlp,
            x,
            y,
            None,
            index,
            edge_attr=attr,
            weights="max",
            transform="linear_kernelonly",
            memory=memory,  # pyright: ignore[reportArgumentType]
            chunk=4,
        )
        gradients.append(torch.autograd.grad(sign * out.sum(), attr)[0])
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-12)
    assert torch.allclose(gradients[1][:15], sign * mlp.weight[:, -1].sum() / 15, rtol=1e-12)
    assert out[0].tolist() == [0.0] * C


def test_the_maximum_of_a_row_may_be_infinite() -> None:
    index = torch.tensor([[0, 1], [0, 0]])
    attr = torch.tensor([[torch.inf], [1.0]], dtype=torch.float64, requires_grad=True)
    mlp = nn.Linear(2 * D + 1, 1).double()
    nn.init.ones_(mlp.weight)
    points = torch.zeros(2, D).double()
    out = edge_transform(
        mlp,
        points,
        points,
        None,
        index,
        edge_attr=attr,
        weights="max",
        transform="linear_kernelonly",
        memory="eager",
    )
    assert out[0].isinf().all()


def test_integer_attributes_and_lazy_layers_are_refused_with_what_to_do() -> None:
    inputs = problem()
    with pytest.raises(BadInput, match="must hold floating-point") as refused:
        edge_transform(**{**inputs, "edge_attr": torch.ones(E, A, dtype=torch.int64)})
    assert "one_hot" in refused.value.hint
    with pytest.raises(BadInput, match="takes 8 inputs, but an edge has 4"):
        edge_transform(**{**inputs, "edge_attr": None})
    with pytest.raises(BadInput, match="lazy layers"):
        edge_transform(**{**inputs, "mlp": nn.LazyLinear(C)})


def test_the_mlp_of_pyg_is_accepted_or_refused_with_the_reason() -> None:
    mlp_of_pyg = pytest.importorskip("torch_geometric.nn", reason="needs torch_geometric").MLP
    inputs = problem(weights="max")
    channels = [2 * D + A, 16, C]
    inputs["mlp"] = mlp_of_pyg(channels, norm=None).double()
    for mine, theirs in zip(run(inputs, memory="flat", chunk=7), run(inputs, memory="eager"), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-13)
    refusals: list[tuple[dict[str, Any], str, str]] = [
        ({}, "has a BatchNorm1d in training mode", "memory='eager'"),
        ({"norm": None, "dropout": 0.5}, "has dropout in its MLP in training mode", "memory='checkpoint'"),
        ({"norm": "layer_norm"}, "LayerNorm of PyG, which normalises over all edges", "norm=None"),
        ({"norm": "graph_norm"}, "GraphNorm of PyG", "memory='eager'"),
    ]
    for options, says, hint in refusals:
        inputs["mlp"] = mlp_of_pyg(channels, **options).double()
        with pytest.raises(BadInput, match=says) as refused:
            edge_transform(**inputs)
        assert hint in refused.value.hint
        assert edge_transform(**inputs, memory="eager").isfinite().all()
    node = {"norm": "layer_norm", "norm_kwargs": {"mode": "node"}}
    for options in ({}, node):  # statistics that are fixed, and those of a row
        inputs["mlp"] = mlp_of_pyg(channels, **options).double().eval()
        assert torch.allclose(
            edge_transform(**inputs, chunk=7), edge_transform(**inputs, memory="eager"), rtol=1e-10
        )
    inputs["mlp"] = mlp_of_pyg([5, 16, C], norm=None).double()
    with pytest.raises(BadInput, match="takes 5 inputs, but an edge has 8"):
        edge_transform(**inputs)


def test_attributes_are_converted_as_they_join_the_inputs_without_a_copy() -> None:
    attributes = torch.randn(E, A).bfloat16()
    rows = Rows.all_of(Edges.from_index(torch.zeros(2, E, dtype=torch.int64), queries=1, sources=1))
    inputs = torch.randn(E, 6)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        joined = flat_transform._with_attr(inputs, attributes, rows)
    assert torch.equal(joined, torch.cat([inputs, attributes], dim=1))
    assert sum(one.count for one in trace.key_averages() if one.key == "aten::empty") == 1
    assert "aten::to" not in {one.key for one in trace.key_averages()}
