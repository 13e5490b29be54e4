"""Plans that a graph keeps: used again for calls that are alike, never for others, and small."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, edge_transform
from pinchpoint.kit.edges import flat_plan, transform
from pinchpoint.kit.edges.edge_mlp import layers_of, parameters_of

Q, S, C = 5, 6, 4


def problem() -> dict[str, Any]:
    torch.manual_seed(0)
    index = torch.stack([torch.randint(0, S, (40,)), torch.randint(0, Q, (40,))])
    return {
        "mlp": nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, C)),
        "x": torch.rand(Q, 2),
        "y": torch.rand(S, 2),
        "f": torch.randn(S, C, requires_grad=True),
        "edges": Edges.from_index(index, queries=Q, sources=S),
    }


@pytest.fixture
def paths_asked(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """The modules for which a path was looked up, which is done once for a plan."""
    asked: list[nn.Module] = []

    def path_of(module: nn.Module, *others: Any) -> Any:
        asked.append(module)
        return original(module, *others)

    original = transform.path_of
    monkeypatch.setattr(transform, "path_of", path_of)
    return asked


def test_a_plan_is_used_for_equal_networks_and_new_values_alone(paths_asked: list[nn.Module]) -> None:
    given = problem()
    edge_transform(**given)
    other = {**given, "mlp": problem()["mlp"], "x": torch.rand(Q, 2)}
    with torch.no_grad():
        other["mlp"][0].weight.mul_(2)
    assert torch.equal(edge_transform(**other), edge_transform(**{**other, "edges": problem()["edges"]}))
    assert paths_asked == [given["mlp"], other["mlp"]]  # the second for a graph of its own
    wide = nn.Sequential(nn.Linear(4, 9), nn.GELU(), nn.Linear(9, C))
    by_tanh = nn.Sequential(nn.Linear(4, 8), nn.GELU("tanh"), nn.Linear(8, C))
    changes: list[dict[str, Any]] = [
        {"mlp": wide},
        {"mlp": by_tanh},
        {"chunk": 7},
        {"weights": "sum"},
        {"x": given["x"].clone().requires_grad_()},
        {"transform": "linear_kernelonly"},
    ]
    for number, change in enumerate(changes):
        changed = {**given, **change}
        assert torch.equal(
            edge_transform(**changed), edge_transform(**{**changed, "edges": problem()["edges"]})
        )
        assert len(given["edges"].plans) == number + 2
    with torch.autocast("cpu", torch.bfloat16):
        edge_transform(**given)
    assert len(given["edges"].plans) == len(changes) + 2


def test_wrong_arguments_are_refused_after_right_ones() -> None:
    given = problem()
    edge_transform(**given)
    edge_transform(**given, chunk=1)
    wrong: list[dict[str, Any]] = [
        {"x": torch.rand(Q + 1, 2)},
        {"f": torch.randn(S + 1, C)},
        {"f": None},
        {"weights": "quadrature"},
        {"weights": "attention"},
        {"transform": "other"},
        {"chunk": [7]},
        {"chunk": True},
        {"mlp": nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, C))},
        {"mlp": given["mlp"].double()},
    ]
    for change in wrong:
        with pytest.raises(BadInput):
            edge_transform(**{**given, **change})


def test_tf32_that_is_allowed_by_the_newer_setting_is_noticed() -> None:
    products, given = torch.backends.cuda.matmul, problem()
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this torch has the older setting alone")
    edge_transform(**given)
    before = products.fp32_precision
    try:
        products.fp32_precision = "tf32"
        edge_transform(**given)
    finally:
        products.fp32_precision = before
    assert len(given["edges"].plans) == 2


def test_a_hook_or_a_dropout_that_is_new_is_noticed() -> None:
    given, calls = problem(), []
    edge_transform(**given)
    given["mlp"][0].register_forward_hook(lambda *_: calls.append(1))
    edge_transform(**given)
    assert calls
    given["mlp"].append(nn.Dropout(0.5))
    with pytest.raises(BadInput, match="Dropout in training"):
        edge_transform(**given)


def test_a_graph_keeps_few_plans_and_neither_networks_nor_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem()
    monkeypatch.setattr(flat_plan, "_MOST_PLANS", 3)
    for chunk in range(1, 9):
        edge_transform(**given, chunk=chunk)
        assert 1 <= len(given["edges"].plans) <= 3
    monkeypatch.setattr(flat_plan, "_MOST_CHUNKS", 4)
    given["edges"].plans.clear()
    edge_transform(**given, chunk=4)
    assert not given["edges"].plans
    edge_transform(**given)
    assert given["edges"].plans
    graph, network = weakref.ref(given["edges"].sources), weakref.ref(given["mlp"][0])
    gc.disable()  # what refers to itself would stay
    try:
        del given["mlp"]
        assert network() is None
        del given["edges"]
        assert graph() is None
    finally:
        gc.enable()


def test_the_parameters_of_layers_are_those_of_the_module() -> None:
    mlp = nn.Sequential(nn.Linear(4, 8, bias=False), nn.GELU(), nn.Identity(), nn.Linear(8, C))
    layers = layers_of(mlp)
    assert layers is not None
    own = parameters_of(layers)
    assert len(own) == 3 and all(a is b for a, b in zip(own, mlp.parameters(), strict=True))
    mlp[1].scale = nn.Parameter(torch.ones(1))
    assert layers_of(mlp) is None
    tied = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    assert layers_of(tied) is None
    nested = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
    nested[0].inner = nn.Linear(1, 1)
    assert layers_of(nested) is None
