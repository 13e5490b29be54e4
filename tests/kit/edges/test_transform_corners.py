"""The edge transform in its corners: odd inputs and modules, precisions, and what autograd may ask of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.errors import BadInput
from pinchpoint.kit import Edges, edge_transform, flat_path
from pinchpoint.kit.edges import row_chunks as rows
from pinchpoint.kit.edges.flat_transform import Job, _row_gradient
from pinchpoint.kit.edges.row_chunks import row_chunks

Q, S, C = 9, 12, 4
LEAVES = ("x", "y", "f", "quadrature")


def problem(
    transform: str = "linear", weights: str = "mean", *, dims: int = 3, dtype: Any = torch.float64
) -> dict[str, Any]:
    """Rows 0, 4 and the last are without edges; row 2 has 30, so that chunks cut it; source 3 has none."""
    torch.manual_seed(0)
    sources = torch.randint(4, S, (60,))
    into = torch.tensor([2] * 30 + [1, 3, 5, 6, 7] * 6)
    wide = 2 * dims + (C if transform.startswith("non") else 0)
    return {
        "mlp": nn.Sequential(nn.Linear(wide, 8), nn.GELU(), nn.Linear(8, C)).to(dtype),
        "x": torch.rand(Q, dims, dtype=dtype).requires_grad_(),
        "y": torch.rand(S, dims, dtype=dtype).requires_grad_(),
        "f": torch.randn(S, C, dtype=dtype).requires_grad_(),
        "edges": Edges.from_index(torch.stack([sources, into]), queries=Q, sources=S),
        "transform": transform,
        "weights": weights,
        "quadrature": torch.rand(S, dtype=dtype).requires_grad_() if weights == "quadrature" else None,
        "attention": nn.Sequential(nn.Linear(dims, 6), nn.Softplus(), nn.Linear(6, 1, bias=False)).to(dtype)
        if weights == "attention"
        else None,
    }


def run(given: dict[str, Any], **how: Any) -> list[Any]:
    """The output and every gradient."""
    leaves = [given[name] for name in LEAVES if given[name] is not None and given[name].requires_grad]
    leaves += [
        p for name in ("mlp", "attention") if given[name] is not None for p in given[name].parameters()
    ]
    out = edge_transform(**given, **how)
    return [out.detach(), *torch.autograd.grad(out.double().sin().sum(), leaves, allow_unused=True)]


def assert_as_eager(given: dict[str, Any], bar: float = 1e-10) -> None:
    for chunk in (7, 10_000):
        for mine, theirs in zip(
            run(given, memory="flat", chunk=chunk), run(given, memory="eager"), strict=True
        ):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert mine.dtype is theirs.dtype
                assert (
                    float((mine.double() - theirs.double()).norm())
                    <= bar * float(theirs.double().norm()) + 1e-14
                )


@pytest.mark.parametrize("weights", ["mean", "attention", "quadrature"])
def test_points_on_a_plane_and_on_a_line_are_as_in_space(weights: str) -> None:
    for dims in (1, 2):
        assert_as_eager(problem("nonlinear", weights, dims=dims))


def test_strided_turned_and_expanded_inputs_are_read_as_they_are() -> None:
    given = problem(weights="quadrature")
    given["x"] = torch.rand(6, Q, dtype=torch.float64).t()[:, ::2].requires_grad_()
    given["y"] = torch.rand(S, 6, dtype=torch.float64)[:, 1:4].requires_grad_()
    given["f"] = torch.randn(S, 1, dtype=torch.float64).expand(S, C).requires_grad_()
    given["quadrature"] = torch.rand(2 * S, dtype=torch.float64)[::2].requires_grad_()
    assert_as_eager(given)


@pytest.mark.parametrize("weights", ["mean", "sum"])
def test_a_gradient_that_comes_column_by_column_goes_on_row_by_row(weights: str) -> None:
    """The kernels of a GPU read it that way; on a CPU either order gives the same."""
    given = problem()
    parts = list(row_chunks(given["edges"], 7, split_rows=True))
    path = flat_path(given["mlp"], like=given["x"])
    job = Job(given["mlp"], None, False, True, weights, parts, path)
    assert _row_gradient(job, torch.randn(C, Q).t()).is_contiguous()


def test_layers_that_share_a_weight_have_the_sum_of_its_gradients() -> None:
    given = problem()
    first, second = nn.Linear(8, 8).double(), nn.Linear(8, 8).double()
    second.weight = first.weight
    given["mlp"] = nn.Sequential(*given["mlp"][:2], first, nn.GELU(), second, nn.GELU(), given["mlp"][2])
    assert_as_eager(given)


class Twice(nn.Module):
    """Registers one layer under two names."""

    def __init__(self, first: nn.Module, shared: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first, self.m1, self.m2, self.last = first, shared, shared, last

    def forward(self, values: Any) -> Any:
        return self.last(torch.tanh(self.m2(torch.tanh(self.m1(torch.tanh(self.first(values)))))))


def with_shared_layer(form: str, inputs: int, outputs: int) -> tuple[nn.Module, nn.Linear]:
    first, shared, last = nn.Linear(inputs, 8), nn.Linear(8, 8), nn.Linear(8, outputs)
    inner = nn.Tanh(), shared, nn.Tanh(), shared
    modules = {
        "sequential": lambda: nn.Sequential(first, *inner, nn.Tanh(), last),
        "nested": lambda: nn.Sequential(first, nn.Sequential(*inner), nn.Tanh(), last),
        "own module": lambda: Twice(first, shared, last),
    }
    return modules[form]().double(), shared


@pytest.mark.parametrize("form", ["sequential", "nested", "own module"])
@pytest.mark.parametrize("role", ["mlp", "attention"])
def test_a_layer_that_is_registered_twice_trains_as_with_eager(form: str, role: str) -> None:
    trained = {}
    for memory in ("flat", "eager"):
        given = problem(weights="attention" if role == "attention" else "mean")
        given[role], shared = with_shared_layer(form, *((3, 1) if role == "attention" else (6, C)))
        weight, bias = shared.weight, shared.bias
        before = weight.detach().clone()
        optimizer = torch.optim.SGD(given[role].parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            edge_transform(**given, memory=memory, chunk=7).sin().sum().backward()
            assert weight.grad is not None
            assert shared.weight is weight
            assert shared.bias is bias
            optimizer.step()
        assert not torch.equal(weight, before)
        trained[memory] = [value.detach() for value in given[role].parameters()]
    for mine, theirs in zip(trained["flat"], trained["eager"], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


class FailsInBackward(nn.Module):
    """Raises an error in the pass that autograd records."""

    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.m1, self.m2 = shared, shared

    def forward(self, values: Any) -> Any:
        if torch.is_grad_enabled():
            raise ValueError("out of luck")
        return self.m2(torch.tanh(self.m1(values)))


def test_a_module_that_raises_keeps_its_parameters() -> None:
    given = problem("linear_kernelonly")
    shared = nn.Linear(6, 6).double()
    given |= {"mlp": FailsInBackward(shared), "f": None}
    weight = shared.weight
    out = edge_transform(**given, chunk=7)
    with pytest.raises(ValueError, match="out of luck"):
        out.sum().backward()
    assert shared.weight is weight


class Recurrent(nn.Module):
    """Each edge is a sequence of one step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(6, C, batch_first=True)

    def forward(self, values: Any) -> Any:
        return self.cell(values[:, None])[0][:, 0]


def test_a_recurrent_layer_has_gradients() -> None:
    assert_as_eager(problem() | {"mlp": Recurrent().double()})


def test_one_module_may_be_kernel_and_attention() -> None:
    given = problem("linear_kernelonly", "attention")
    shared = nn.Sequential(nn.Linear(3, 1), nn.Softplus()).double()
    given["attention"], given["mlp"] = shared, nn.Sequential(nn.Linear(6, 3), shared).double()
    assert_as_eager(given)


class Turned(nn.Module):
    """Gives its outputs column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(C, 6, dtype=torch.float64))

    def forward(self, values: Any) -> Any:
        return (self.weight @ values.t()).t()


def test_a_hook_on_a_parameter_sees_its_gradient_once() -> None:
    given = problem()
    given["mlp"] = Turned()
    seen: list[Any] = []
    given["mlp"].weight.register_hook(lambda gradient: seen.append(gradient) or 3 * gradient)
    assert_as_eager(given)
    assert len(seen) == 4  # twice flat, twice eager


@pytest.mark.parametrize("transform", ["linear", "nonlinear", "linear_kernelonly", "nonlinear_kernelonly"])
@pytest.mark.parametrize("weights", ["mean", "quadrature", "attention"])
def test_autocast_gives_eagers_dtype_and_numbers(transform: str, weights: str) -> None:
    given = problem(transform, weights, dtype=torch.float32)
    given["attention"] = nn.Linear(3, 1, bias=False) if given["attention"] is not None else None
    exact = run(given, memory="eager")
    with torch.autocast("cpu", torch.bfloat16):
        flat, eager = run(given, memory="flat", chunk=7), run(given, memory="eager")
    for mine, theirs, truth in zip(flat, eager, exact, strict=True):
        assert (mine is None) == (truth is None)
        if truth is not None:
            assert mine.dtype is theirs.dtype
            # What a softmax takes off again is mostly rounding in 16 bits: no further off than twice eager's.
            rough = float((theirs.double() - truth).norm())
            assert float((mine.double() - truth).norm()) <= max(2 * rough, 2e-2 * float(truth.norm()))


def test_autocast_leaves_float64_alone() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_eager(problem(weights="attention"))


def test_values_in_float64_at_points_in_float32_keep_their_digits() -> None:
    given = problem("nonlinear", dtype=torch.float32)
    given["f"], given["mlp"] = given["f"].detach().double().requires_grad_(), given["mlp"].double()
    outputs = [run(given, memory=memory, chunk=7) for memory in ("flat", "eager")]
    for mine, theirs in zip(*outputs, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-12 if theirs.dtype is torch.float64 else 1e-5)


def test_a_long_row_in_16_bits_adds_up_in_32() -> None:
    """4,096 edges of 1 in pieces of 8: added up in bf16 they would stop at 256 * 8."""
    mlp = nn.Sequential(nn.Linear(2, 1)).bfloat16()
    nn.init.zeros_(mlp[0].weight)  # type: ignore[arg-type]
    nn.init.ones_(mlp[0].bias)  # type: ignore[arg-type]
    edges = Edges.from_index(torch.zeros(2, 4096, dtype=torch.int64), queries=1, sources=1)
    point = torch.zeros(1, 1, dtype=torch.bfloat16)
    out = edge_transform(mlp, point, point, torch.ones_like(point), edges, weights="sum", chunk=8)
    assert out.dtype is torch.bfloat16 and float(out.detach()) == 4096


@pytest.mark.parametrize("chunk", [7, 10_000])
def test_scores_have_the_gradient_of_values_that_differ_little_in_16_bits(chunk: int) -> None:
    """The kernel, 16 to 20 in eighths, and the scores are exact in bf16; its rows are not."""
    torch.manual_seed(0)
    given = problem("linear_kernelonly", "attention", dims=1, dtype=torch.bfloat16)
    for name in ("x", "y"):
        given[name] = torch.randint(0, 9, given[name].shape).bfloat16() / 8
    given["mlp"], given["attention"] = nn.Linear(2, C).bfloat16(), nn.Linear(1, 1, bias=False).bfloat16()
    with torch.no_grad():
        for value, weights in ((given["mlp"].weight, (1, 3)), (given["attention"].weight, (1, 2))):
            value.copy_(torch.randint(*weights, value.shape))
        given["mlp"].bias.fill_(16)
    right = {**given, "mlp": copy.deepcopy(given["mlp"]).double()}
    right |= {"attention": copy.deepcopy(given["attention"]).double()}
    right |= {name: given[name].detach().double() for name in ("x", "y", "f")}
    mix = torch.randn(Q, C).bfloat16()

    def of_score(case: dict[str, Any], **how: Any) -> float:
        out = edge_transform(**case, **how)
        return torch.autograd.grad(out, case["attention"].weight, mix.to(out.dtype))[0].item()

    truth = of_score(right, memory="eager")
    assert abs(of_score(given, memory="flat", chunk=chunk) - truth) < 0.01 * abs(truth)


@pytest.mark.parametrize("weights", ["mean", "max"])
def test_the_result_may_be_written_over(weights: str) -> None:
    given = problem(weights=weights)
    leaves = [given["f"], *given["mlp"].parameters()]

    def gradients(memory: Any) -> tuple[Any, ...]:
        return torch.autograd.grad(edge_transform(**given, memory=memory).exp_().sum(), leaves)

    for value, right in zip(gradients("flat"), gradients("eager"), strict=True):
        torch.testing.assert_close(value, right)


@pytest.mark.parametrize("memory", ["eager", "checkpoint", "flat"])
@pytest.mark.parametrize("weights", ["mean", "attention"])
def test_a_graph_without_edges_trains_with_zero_gradients(memory: Any, weights: str) -> None:
    for queries, sources in ((Q, S), (0, S), (Q, 0), (0, 0)):
        given = problem(weights=weights)
        given["x"], given["y"], given["f"] = given["x"][:queries], given["y"][:sources], given["f"][:sources]
        given["edges"] = Edges.from_index(
            torch.zeros(2, 0, dtype=torch.int64), queries=queries, sources=sources
        )
        out = edge_transform(**given, memory=memory)
        assert torch.equal(out, torch.zeros(queries, C, dtype=torch.float64))
        out.sum().backward()
        assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in given["mlp"].parameters())


def test_backward_twice_gives_the_same_and_writes_over_nothing_of_the_callers() -> None:
    given = problem(weights="sum")
    given["mlp"].append(nn.Tanh())
    out = edge_transform(**given, chunk=7)
    gradient = torch.randn(Q, C, dtype=torch.float64)
    before = gradient.clone()
    leaves = [given["x"], given["y"], given["f"], *given["mlp"].parameters()]
    first = torch.autograd.grad(out, leaves, gradient, retain_graph=True)
    assert torch.equal(gradient, before)
    assert all(
        torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(out, leaves, gradient), strict=True)
    )


def test_no_chunk_is_held_between_forward_and_backward() -> None:
    given = problem()
    held: Any = edge_transform(**given, chunk=7).grad_fn
    assert not held.network._spare and not held.network._before


def test_a_failure_half_way_leaves_nothing_to_the_next_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem()
    out = edge_transform(**given, chunk=7)
    right = torch.autograd.grad(out.sum(), given["mlp"][0].weight, retain_graph=True)[0]
    network = type(out.grad_fn.network)  # type: ignore[union-attr]
    whole, calls = network.backward, iter(range(100))

    def failing(*args: Any, **how: Any) -> Any:
        if next(calls) == 3:
            raise MemoryError
        return whole(*args, **how)

    monkeypatch.setattr(network, "backward", failing)
    with pytest.raises(MemoryError):
        torch.autograd.grad(out.sum(), given["mlp"][0].weight, retain_graph=True)
    assert torch.equal(torch.autograd.grad(out.sum(), given["mlp"][0].weight)[0], right)


def test_a_weight_changed_before_backward_is_noticed() -> None:
    for wrap in (lambda mlp: mlp, lambda mlp: nn.Sequential(mlp, nn.Softplus())):
        given = problem()
        given["mlp"] = wrap(given["mlp"])
        out = edge_transform(**given, chunk=7)
        with torch.no_grad():
            next(given["mlp"].parameters()).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_gradient_differentiated_again_is_refused_and_not_taken_for_a_constant() -> None:
    given = problem()
    (of_x,) = torch.autograd.grad(edge_transform(**given, chunk=7).sum(), given["x"], create_graph=True)
    assert of_x.requires_grad
    with pytest.raises(BadInput, match="second derivatives") as caught:
        of_x.square().sum().backward()
    assert "no other memory supports them" in caught.value.hint
    for memory in ("eager", "checkpoint"):
        out = edge_transform(**given, memory=memory, chunk=7)
        (of_x,) = torch.autograd.grad(out.sum(), given["x"], create_graph=True)
        with pytest.raises(RuntimeError, match="not implemented"):
            of_x.square().sum().backward()


def test_without_gradients_the_values_are_the_same() -> None:
    given = problem(weights="attention")
    right = edge_transform(**given, chunk=7).detach()
    for quiet in (torch.no_grad, torch.inference_mode):
        with quiet():
            out = edge_transform(**given, chunk=7)
        assert not out.requires_grad and torch.equal(out, right)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"f": torch.zeros(S, 1, dtype=torch.float64)}, "channels per edge"),
        ({"f": torch.zeros(S)}, "`f` has shape"),
        ({"weights": "attention", "attention": nn.Linear(3, C).double()}, "`attention` returns"),
        ({"weights": "quadrature", "quadrature": torch.ones(S, 1)}, "`quadrature` has shape"),
        ({"weights": "quadrature", "quadrature": torch.ones(S + 1)}, "`quadrature` has shape"),
        ({"y": torch.rand(S, 2, dtype=torch.float64)}, "`x` has shape"),
        ({"mlp": nn.Linear(7, C).double()}, "`mlp` takes 7 inputs, but an edge has 6"),
        ({"mlp": nn.Sequential(nn.Linear(6, C), nn.BatchNorm1d(C)).double()}, "BatchNorm1d in training mode"),
    ],
)
@pytest.mark.parametrize("memory", ["checkpoint", "flat"])
def test_shapes_that_do_not_fit_are_refused(wrong: dict[str, Any], what: str, memory: Any) -> None:
    with pytest.raises(BadInput, match=what):
        edge_transform(**{**problem(), **wrong}, memory=memory, chunk=7)


def test_dropout_is_refused_where_it_would_not_be_drawn_again() -> None:
    given = problem()
    given["mlp"] = nn.Sequential(given["mlp"], nn.Dropout(0.5))
    with pytest.raises(BadInput, match="Dropout in training mode"):
        edge_transform(**given, memory="flat")
    assert edge_transform(**given, memory="checkpoint").shape == (Q, C)
    given["mlp"].eval()
    assert_as_eager(given)


@pytest.mark.parametrize(
    ("offsets", "sources", "what"),
    [
        ([0, 2, 1, 3], [0, 0, 0], "does not divide"),
        ([1, 2, 2, 3], [0, 0, 0], "does not divide"),
        ([0, 1, 2, 2], [0, 0, 0], "does not divide"),
        ([0, 1, 2, 3], [0, 5, 0], "sources from 0 to 5"),
        ([0, 1, 2, 3], [0, -1, 0], "sources from -1 to 0"),
    ],
)
def test_edges_that_contradict_themselves_are_refused(
    offsets: list[int], sources: list[int], what: str
) -> None:
    edges = Edges(torch.tensor(offsets), torch.tensor(sources, dtype=torch.int32), 5)
    with pytest.raises(BadInput, match=what):
        edge_transform(nn.Linear(2, 1), torch.zeros(3, 1), torch.zeros(5, 1), torch.zeros(5, 1), edges)


@pytest.mark.parametrize("into", ["tokens", "points"])
def test_a_predicted_step_runs_some_chunks_and_finds_the_peak_of_all(
    into: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of unequal length, so that chunks are too."""
    degrees = torch.randint(0, 60, (100,)) if into == "tokens" else torch.full((3_400,), 1)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]).numpy()

    def peak() -> int | None:
        def step() -> None:
            with compat.fake_mode():
                sources = torch.zeros(int(starts[-1]), dtype=torch.int32)
                edges = Edges(torch.zeros(len(starts), dtype=torch.int64), sources, S, known_starts=starts)
                mlp = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, C))
                f = torch.zeros(S, C, requires_grad=True)
                edge_transform(
                    mlp, torch.zeros(len(degrees), 3), torch.zeros(S, 3), f, edges, chunk=100
                ).sum().backward()

        return measurement.account(step)

    chunks = list(
        row_chunks(Edges(torch.from_numpy(starts), torch.zeros(int(starts[-1]), dtype=torch.int32), S), 100)
    )
    monkeypatch.setattr(rows, "TRACED_CHUNKS", len(chunks))
    whole = peak()
    assert len(chunks) > 30
    monkeypatch.setattr(rows, "TRACED_CHUNKS", 10)
    assert peak() == whole


class Apart(nn.Module):
    """An MLP whose hidden values go through a function."""

    def __init__(self, between: Any, *, inputs: int = 6, outputs: int = C) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(inputs, 16), nn.Linear(16, outputs), between

    def forward(self, values: Any) -> Any:
        return self.last(self.between(torch.tanh(self.first(values))))


def centred(values: Any) -> Any:
    return values - values.mean(0)


def dropped(values: Any) -> Any:
    return nn.functional.dropout(values, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("between", "reason"), [(centred, "depends on the other edges"), (dropped, "computed again")]
)
def test_a_module_whose_edges_depend_on_more_than_themselves_is_refused(
    between: Any, reason: str, dtype: Any
) -> None:
    given = problem(dtype=dtype) | {"mlp": Apart(between).to(dtype)}
    for _ in range(2):
        with pytest.raises(BadInput, match=f"`mlp`.*Apart.*{reason}") as caught:
            edge_transform(**given)
        assert "memory='eager'" in str(caught.value.hint)
    edge_transform(**given, memory="eager")
    given = problem(weights="attention", dtype=dtype)
    given["attention"] = Apart(between, inputs=3, outputs=1).to(dtype)
    with pytest.raises(BadInput, match=f"`attention`.*{reason}"):
        edge_transform(**given)


def test_a_checkpoint_may_draw_random_numbers_but_not_mix_edges() -> None:
    given = problem() | {"mlp": Apart(dropped).double()}
    edge_transform(**given, memory="checkpoint", chunk=7)
    with pytest.raises(BadInput, match="depends on the other edges"):
        edge_transform(**given | {"mlp": Apart(centred).double()}, memory="checkpoint", chunk=7)


def test_a_module_that_starts_with_zero_outputs_is_checked_later() -> None:
    module = Apart(centred).double()
    given = problem() | {"mlp": module}
    with torch.no_grad():
        module.last.weight.zero_()
        module.last.bias.zero_()
        edge_transform(**given)
        module.last.weight.fill_(1.0)
        module.last.weight[:, ::2] = -2.0
    with pytest.raises(BadInput, match="depends on the other edges"):
        edge_transform(**given)


class Counting(nn.Module):
    """Counts its calls, on the host and in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(6, C), 0
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, values: Any) -> Any:
        self.calls += 1
        self.total += 1
        self.steps = self.steps + 1
        return self.linear(values)


def test_the_check_runs_once_and_leaves_buffers_and_random_numbers() -> None:
    module = Counting().double()
    given = problem() | {"mlp": module}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    calls = []
    with torch.no_grad():
        for _ in range(3):
            module.calls = 0
            edge_transform(**given, chunk=10_000)
            calls.append(module.calls)
    assert calls[0] > 1
    assert calls[1:] == [1, 1]
    assert float(module.total) == float(module.steps) == 3
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("autocast", [False, True])
def test_rounding_is_no_dependence_on_other_edges(scale: float, autocast: bool) -> None:
    """Cancellation makes rounding as large as the result itself."""
    torch.manual_seed(0)
    functions = (
        torch.sin,
        lambda values: nn.functional.layer_norm(values, (16,)),
        lambda values: (values + 1e4) - (values.cos() + 1e4),
        lambda values: torch.softmax(1e3 * values, dim=1),
    )
    for between in functions:
        given = problem(dtype=torch.float32) | {"mlp": Apart(between)}
        given["x"], given["y"] = given["x"].detach() * scale + scale, given["y"].detach() * scale + scale
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            edge_transform(**given)
