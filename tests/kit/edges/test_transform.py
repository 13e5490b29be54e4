"""The edge transform: every way to hold memory computes the same, and repeats its own bits."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.kit import Edges, edge_transform, radius_edges
from pinchpoint.kit.edges import transform as transform_module
from pinchpoint.kit.edges.auto_chunk import auto_chunk
from pinchpoint.kit.edges.edge_mlp import layers_of

Q, S, D, C = 23, 31, 3, 5
CASES = [
    ("linear", "mean"),
    ("linear", "attention"),
    ("nonlinear", "quadrature"),
    ("linear_kernelonly", "sum"),
    ("nonlinear_kernelonly", "mean"),
    ("nonlinear", "attention"),
    ("linear", "max"),
    ("nonlinear_kernelonly", "max"),
]


def problem(transform: str, weights: str, dtype: Any = torch.float64) -> dict[str, Any]:
    torch.manual_seed(0)
    wide = 2 * D + (C if transform.startswith("nonlinear") else 0)
    x, y = torch.rand(Q, D, dtype=dtype), torch.rand(S, D, dtype=dtype)
    return {
        "mlp": nn.Sequential(nn.Linear(wide, 16), nn.GELU(), nn.Linear(16, C)).to(dtype),
        "x": x.requires_grad_(),
        "y": y.requires_grad_(),
        "f": torch.randn(S, C, dtype=dtype, requires_grad=True),
        "edges": radius_edges(x.detach(), y.detach(), 0.45),
        "transform": transform,
        "weights": weights,
        "quadrature": torch.rand(S, dtype=dtype, requires_grad=True) if weights == "quadrature" else None,
        "attention": nn.Linear(D, 1, bias=False).to(dtype) if weights == "attention" else None,
    }


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
            parts = [given["y"][s], given["x"][q]] + (
                [given["f"][s]] if given["transform"].startswith("nonlinear") else []
            )
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
        reduce = {"mean": torch.mean, "max": torch.amax}.get(given["weights"], torch.sum)
        rows.append(reduce(stacked, 0))
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
    nobody = Edges.from_index(torch.zeros(2, 0, dtype=torch.int64), queries=Q, sources=S)
    for memory in ("eager", "checkpoint", "flat"):
        assert torch.equal(
            edge_transform(**{**given, "edges": nobody}, memory=memory),
            torch.zeros(Q, C, dtype=torch.float64),
        )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"memory": "small"}, "memory 'small' does not exist"),
        ({"transform": "cubic"}, "transform 'cubic' does not exist"),
        ({"chunk": 0}, "chunk is 0 edges"),
        ({"f": None}, "needs `f`"),
        ({"weights": "quadrature"}, "given together"),
        ({"weights": "attention"}, "given together"),
        ({"edges": torch.tensor([[S], [0]])}, f"names source {S}, but there are {S}"),
        ({"edges": torch.tensor([[0], [-2]])}, f"names destination -2, but there are {Q}"),
        ({"f": torch.zeros(S - 1, C)}, "`f` has shape"),
        ({"edge_attr": torch.zeros(7, 2)}, "`edge_attr` has shape"),
        ({"edge_attr": [[1.0]]}, "`edge_attr` is a list"),
        ({"y": torch.rand(S + 1, D, dtype=torch.float64)}, "edges join"),
        ({"x": torch.zeros(Q, D, dtype=torch.int64)}, "`x` is torch.int64; it must hold floating-point"),
        ({"f": torch.zeros(S, C, dtype=torch.complex64)}, "`f` is torch.complex64"),
    ],
)
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        edge_transform(**{**problem("linear", "mean"), **wrong})


class WrongShape(nn.Module):
    """Returns something else than (e, C)."""

    def __init__(self, returned: str) -> None:
        super().__init__()
        self.returned = returned

    def forward(self, values: Tensor) -> Any:
        return {"flat": values[:, 0], "pair": (values, values), "short": values[:1]}[self.returned]


@pytest.mark.parametrize("memory", ["eager", "checkpoint", "flat"])
@pytest.mark.parametrize(
    ("returned", "text"),
    [("flat", r"shape \(\d+,\) for"), ("pair", "a tuple"), ("short", r"shape \(1, \d+\) for")],
)
def test_a_network_that_does_not_return_a_row_for_each_edge_is_refused(
    returned: str, text: str, memory: Any
) -> None:
    inputs = problem("linear_kernelonly", "mean") | {"mlp": WrongShape(returned)}
    with pytest.raises(BadInput, match=f"WrongShape returns {text}"):
        edge_transform(**inputs, memory=memory)


def test_a_chunk_chosen_by_bytes_takes_no_more_than_they_are() -> None:
    """By hand: 6 inputs, 16 + 16 saved, two more of 16, C outputs, C and C of gradients, and the indices."""
    given = problem("linear", "mean", torch.float32)
    an_edge = 4 * (6 + 16 + 2 * 16 + C + 2 * C) + 36
    assert auto_chunk(given["mlp"], given["x"], given["y"], given["f"], budget_bytes=1000 * an_edge) == 1000
    with pytest.raises(DoesNotFit, match="One point needs"):
        auto_chunk(given["mlp"], given["x"], given["y"], given["f"], budget_bytes=an_edge - 1)


class Watched(nn.Module):
    """Requires that what it returned before is no longer there."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs, self.calls = outputs, 0
        self.earlier: Any = lambda: None

    def forward(self, values: Tensor) -> Tensor:
        assert self.earlier() is None
        out = values[:, : self.outputs].clone()
        self.earlier, self.calls = weakref.ref(out), self.calls + 1
        return out


@pytest.mark.parametrize("weights", ["mean", "attention", "max"])
def test_the_values_of_a_chunk_are_freed_before_those_of_the_next(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transform_module, "can_check", lambda _: False)  # which calls the modules, too
    given = problem("linear", weights)
    given["mlp"] = Watched(C)
    if weights == "attention":
        given["attention"] = Watched(1)
    with torch.no_grad():
        edge_transform(**given, chunk=20)
    assert given["mlp"].calls > 3


def test_an_unknown_module_is_priced_by_what_autograd_keeps_of_it() -> None:
    given = problem("linear", "mean", torch.float32)
    plain = auto_chunk(given["mlp"], given["x"], given["y"], given["f"], budget_bytes=2**20)
    wrapped = nn.Sequential(given["mlp"], nn.Softplus())
    assert 0.2 * plain < auto_chunk(wrapped, given["x"], given["y"], given["f"], budget_bytes=2**20) < plain


class Doubled(nn.Module):
    """Not a plain run of layers: goes through autograd."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, values: Any) -> Any:
        return 2 * self.inner(values)


@pytest.mark.parametrize(
    "act", [nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, lambda: nn.GELU(approximate="tanh"), nn.Softplus]
)
@pytest.mark.parametrize("last", [False, True])
def test_every_activation_and_any_module_has_eagers_gradients(act: Any, last: bool) -> None:
    for wrap in (lambda mlp: mlp, Doubled):
        given = problem("nonlinear", "mean")
        parts = [nn.Linear(2 * D + C, 12), act(), nn.Linear(12, 9), nn.Linear(9, C, bias=False)] + (
            [act()] if last else []
        )
        given["mlp"] = wrap(nn.Sequential(*parts).double())
        for mine, theirs in zip(run(given, memory="flat", chunk=50), run(given, memory="eager"), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-10, atol=1e-12)


def test_a_layer_used_twice_and_a_hook_are_left_to_autograd() -> None:
    shared = nn.Linear(16, 16)
    twice = nn.Sequential(nn.Linear(6, 16), nn.GELU(), shared, nn.GELU(), shared)
    assert layers_of(twice) is None
    hooked = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))
    assert layers_of(hooked) is not None
    hooked[0].register_forward_hook(lambda *_: None)
    assert layers_of(hooked) is None


@pytest.mark.parametrize("weights", ["max", "attention"])
def test_a_module_that_writes_over_its_inputs_has_eagers_gradients(weights: str) -> None:
    given = problem("linear_kernelonly", weights)
    given["mlp"] = nn.Sequential(nn.SiLU(inplace=True), nn.Linear(2 * D, C)).double()
    if weights == "attention":
        given["attention"] = nn.Sequential(nn.SiLU(inplace=True), nn.Linear(D, 1)).double()
    for name in ("x", "y"):
        given[name] = given[name].detach()
    leaves = [*given["mlp"].parameters(), *(given["attention"] or nn.Identity()).parameters()]

    def gradients(**how: Any) -> list[Any]:
        return list(torch.autograd.grad(edge_transform(**given, **how).sin().sum(), leaves))

    for value, right in zip(gradients(memory="flat", chunk=50), gradients(memory="eager"), strict=True):
        torch.testing.assert_close(value, right)


def test_frozen_weights_get_no_gradient_and_the_rest_theirs() -> None:
    given = problem("linear", "mean")
    given["mlp"][0].weight.requires_grad_(False)
    out = edge_transform(**given, memory="flat", chunk=20)
    out.sin().sum().backward()
    assert given["mlp"][0].weight.grad is None and given["mlp"][0].bias.grad is not None


@pytest.mark.parametrize("chunk", [0, -1, 2**31])
def test_a_chunk_beyond_32_bits_or_below_one_is_refused(chunk: int) -> None:
    with pytest.raises(BadInput, match="chunk is"):
        edge_transform(**problem("linear", "mean"), chunk=chunk)
