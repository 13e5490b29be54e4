"""Networks as one kernel with weights in shared memory: every kind of tile, beside float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth, triton_runs
from torch import Tensor, nn

from pinchpoint.core.units import MIB
from pinchpoint.kit import Edges, edge_transform, flat_path
from pinchpoint.kit.edges import edge_mlp, first_use, mlp_support, tile_mlp, wide_mlp
from pinchpoint.kit.edges.auto_chunk import TILE_CHUNK_BYTES, auto_chunk
from pinchpoint.kit.edges.tile_kernels import tested

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, the one these kernels are used on",
)
CUDA = torch.device("cuda")
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
# Every padded width of the hidden layers, of the inputs and of the outputs, every number of layers, and every
# activation, whether they are used or not.
NETWORKS: list[tuple[tuple[int, ...], Any, bool]] = [
    ((6, 16, 16, 16), nn.GELU, True),
    ((3, 12, 1), nn.ReLU, True),
    ((22, 32, 20, 32, 40), nn.SiLU, True),
    ((31, 50, 64, 64), nn.Tanh, False),
    ((6, 64, 64, 64, 10), nn.ReLU, True),
    ((6, 128, 16), nn.GELU, True),
    ((33, 70, 16), nn.GELU, True),  # one hidden layer with more inputs or outputs than a tile
    ((6, 70, 17), nn.SiLU, True),
    ((6, 128, 128, 128, 16), nn.GELU, True),
    ((22, 100, 80, 7), lambda: nn.GELU(approximate="tanh"), False),
    ((6, 128, 128, 128, 128, 16), nn.Tanh, True),
]


# Some that an H200 has compared with float64 in both precisions.
COMPARED: list[tuple[tuple[int, ...], Any]] = [
    ((3, 16, 1), nn.GELU),
    ((6, 16, 16), nn.SiLU),
    ((6, 16, 16, 16), nn.GELU),
    ((9, 16, 16, 3), nn.SiLU),
    ((11, 32, 5), nn.SiLU),
    ((6, 32, 32, 16), nn.GELU),
    ((22, 32, 24, 16), nn.GELU),
    ((6, 64, 64, 16), nn.GELU),
    ((22, 64, 64, 16), nn.SiLU),
    ((6, 128, 128, 128, 16), nn.SiLU),
    ((22, 128, 128, 128, 16), nn.GELU),
    ((6, 64, 16), nn.Tanh),
    ((6, 100, 16), nn.GELU),
    ((6, 100, 128, 16), nn.SiLU),
    ((6, 128, 128, 128, 128, 16), nn.Tanh),
    ((16, 20, 32, 32, 16), nn.Tanh),
    ((63, 64, 64, 64, 64), nn.GELU),
    ((6, 64, 50, 64, 64, 16), nn.ReLU),
]


def run_tiles(
    mlp: nn.Sequential, x: Tensor, gradient: Tensor, dtype: torch.dtype, *parts: slice
) -> list[Tensor]:
    """The outputs, the gradient of the inputs, and that of each parameter, of several chunks."""
    network = tile_mlp.TileMLP(list(mlp), dtype, x)
    into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    results = [
        # Copies, because the results replace them.
        network.backward(x[part].clone(), gradient[part].clone(), into, want_inputs=True, want_values=True)
        for part in parts or (slice(None),)
    ]
    network.finish(into)
    of_inputs, values = (torch.cat([pair[at] for pair in results]) for at in (0, 1))  # type: ignore[misc]
    # The edges of a tile are rows in one kernel and may be columns in the other, which rounds differently.
    name = str(dtype).removeprefix("torch.")
    assert mlp_truth.error(network.forward(x), values.double()) < mlp_truth.BARS[name] / 4
    return [values, of_inputs, *into.values()]


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(("widths", "act", "bias"), NETWORKS)
def test_values_and_gradients_are_those_of_float64_bit_for_bit_again(
    widths: tuple[int, ...], act: Any, bias: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, act, bias=bias).cuda()
    x = torch.rand(mlp_truth.EDGES, widths[0], device="cuda") * 2 - 1
    gradient = torch.randn(mlp_truth.EDGES, widths[-1], device="cuda").to(DTYPES[name])
    gradient = mlp_truth.defined(mlp, x, gradient, name)
    jumps = act is nn.ReLU and name != "float32"  # one unit at its kink is a large part of few edges
    results = run_tiles(mlp, x, gradient, DTYPES[name])
    for value, again in zip(results, run_tiles(mlp, x, gradient, DTYPES[name]), strict=True):
        assert torch.equal(value, again)
    mlp_truth.require_close(results, mlp, x, gradient.float(), name)
    for last in (slice(-1, None), slice(-40, None)):  # a tile that is not full
        expected = mlp_truth.truth(mlp, x[last], gradient[last].float())[:2]
        for value, right in zip(results, expected, strict=False):
            assert mlp_truth.error(value[last], right) < 4 * mlp_truth.BARS[name] or jumps
    monkeypatch.setattr(tile_mlp, "_BUFFER_BYTES", 64 * 2**10)  # many rounds, of one tile per program
    half = 33_001
    parts = slice(0, half), slice(half, None)
    mlp_truth.require_close(run_tiles(mlp, x, gradient, DTYPES[name], *parts), mlp, x, gradient.float(), name)
    for count in (1, 31, 33, 63, 65, 97):
        few = slice(0, count)
        results = run_tiles(mlp, x[few], gradient[few], DTYPES[name])
        if not jumps:
            mlp_truth.require_close(results, mlp, x[few], gradient[few].float(), name)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("weights", ["mean", "sum", "attention", "max"])
@pytest.mark.parametrize("transform", ["linear", "nonlinear"])
def test_a_transform_in_tiles_has_the_gradients_of_float64(transform: Any, weights: Any) -> None:
    torch.manual_seed(0)
    sources, queries, channels, count = 200, 300, 16, 9_000
    pairs = torch.randperm(sources * (queries - 9), device="cuda")[:count]  # no edge twice: it would be a tie
    edges = Edges.from_index(
        torch.stack([pairs % sources, pairs // sources]), queries=queries, sources=sources
    )
    x, y = torch.rand(queries, 3, device="cuda"), torch.rand(sources, 3, device="cuda")
    f = torch.randn(sources, channels, device="cuda", requires_grad=True)
    mlp = mlp_truth.network((6 if transform == "linear" else 22, 64, 64, channels)).cuda()
    attention = mlp_truth.network((3, 16, 1)).cuda() if weights == "attention" else None

    def gradients(dtype: torch.dtype, **options: Any) -> list[Tensor]:
        own = [None if one is None else one.to(dtype) for one in (mlp, x, y, f, attention)]
        how: dict[str, Any] = {"transform": transform, "weights": weights, "attention": own[4], **options}
        out = edge_transform(own[0], own[1], own[2], own[3], edges, **how)  # type: ignore[arg-type]
        leaves = [f, *mlp.parameters()]
        results = [out, *torch.autograd.grad(out.double().sin().mean(), leaves)]
        return [value.detach().double() for value in results]

    truth = gradients(torch.float64, memory="eager")
    mlp.float()
    if attention is not None:
        attention.float()
    for half in (False, True):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            assert flat_path(mlp, like=x).in_tiles
            usual = gradients(torch.float32, memory="eager")
            for chunk in (700, "auto"):
                results = gradients(torch.float32, memory="flat", chunk=chunk)
                for at, (value, eager, right) in enumerate(zip(results, usual, truth, strict=True)):
                    bar = max(2 * mlp_truth.error(eager, right), 2e-2 if half else 1e-5)
                    # In bf16 another edge may be the largest: its gradient is another one.
                    assert mlp_truth.error(value, right) < bar or (half and weights == "max" and at > 0)


@pytest.mark.skipif(not triton_runs.INTERPRETED, reason="needs Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize(
    ("widths", "capability"),
    [
        ((33, 70, 16), (9, 0)),
        ((6, 70, 17), (9, 0)),
        ((6, 16, 16, 16), (9, 0)),
        ((33, 70, 66, 17), (9, 0)),
        ((33, 70, 66, 17), (8, 0)),
        ((6, 70, 66, 16), (8, 9)),
        ((33, 40, 16), (8, 9)),
        ((33, 40, 30, 16), (8, 9)),
    ],
)
def test_interpreted_kernels_are_those_of_float64(
    widths: tuple[int, ...], capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    triton_runs.use_kernels(monkeypatch, "interpreted", capability=capability)
    torch.manual_seed(0)
    mlp, x, gradient = mlp_truth.network(widths), torch.rand(70, widths[0]), torch.randn(70, widths[-1])
    results = run_tiles(mlp, x, gradient, torch.float32, slice(0, 33), slice(33, None))
    mlp_truth.require_close(results, mlp, x, gradient, "float32")


@pytest.mark.skipif(not triton_runs.INTERPRETED, reason="needs Triton with TRITON_INTERPRET=1")
def test_interpreted_tanh_near_zero_has_the_accuracy_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_runs.use_kernels(monkeypatch, "interpreted")
    torch.manual_seed(0)
    mlp = mlp_truth.network((3, 16, 16, 2), nn.Tanh, bias=False)
    x, gradient = (torch.rand(40, 3) * 2 - 1) * 1e-4, torch.randn(40, 2)
    mlp_truth.require_close(run_tiles(mlp, x, gradient, torch.float32), mlp, x, gradient, "float32")


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on every device, as if it were of compute capability 9.0 with the tested Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132)
    )
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)
    monkeypatch.setattr(mlp_support, "_triton_version", lambda: "3.6.0")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (mlp_truth.network((6, 200, 200, 16)), "200 columns, more than 128"),
        (mlp_truth.network((6, 257, 16)), "257 columns, more than 256"),
        (mlp_truth.network((32, 129, 16)), "32 inputs, more than 31 with 129 columns"),
        (mlp_truth.network((64, 64, 64, 16)), "64 inputs and 16 outputs; the kernels take up to 63 and 64"),
        (mlp_truth.network((6, 64, 64, 65)), "6 inputs and 65 outputs; the kernels"),
        (mlp_truth.network((6, 16, 16, 16, 16, 16, 16)), "5 hidden layers, more than 4"),
        (mlp_truth.network((6, 16)), "does not alternate"),
        ([*mlp_truth.network((6, 16, 16, 16)), nn.GELU()], "does not alternate"),
        (mlp_truth.network((6, 16, 16, 16), nn.Sigmoid), "not GELU, SiLU, ReLU or tanh"),
        ([*mlp_truth.network((6, 16, 16)), nn.SiLU(), nn.Linear(16, 1)], "The activations differ."),
        ([nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16, bias=False)], "have a bias, and others do not"),
        ([nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), nn.GELU(), nn.Linear(16, 16)], "do not match"),
    ],
)
def test_a_network_that_is_not_supported_is_refused_with_a_reason(parts: Any, reason: str) -> None:
    assert reason in str(tile_mlp.refusal(list(parts), torch.bfloat16, CUDA))
    assert "torch.float64 is not" in str(tile_mlp.refusal(list(parts), torch.float64, CUDA))


@pytest.mark.usefixtures("hopper")
def test_networks_that_were_not_compared_with_float64_are_when_they_are_first_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tested, "NETWORKS", {"float32": {(64, 2, 16, 16): ("GELU", "SiLU without bias")}})
    for parts, compared in (
        (mlp_truth.network((6, 64, 64, 16)), True),
        (mlp_truth.network((15, 40, 33, 1)), True),
        (mlp_truth.network((6, 64, 64, 16), nn.SiLU, bias=False), True),
        (mlp_truth.network((6, 64, 64, 16), nn.SiLU), False),
        (mlp_truth.network((6, 64, 64, 16), lambda: nn.GELU(approximate="tanh")), False),
        (mlp_truth.network((16, 64, 64, 16)), False),
        (mlp_truth.network((6, 64, 64, 17)), False),
        (mlp_truth.network((6, 64, 16)), False),
        (mlp_truth.network((6, 65, 64, 16)), False),
    ):
        like = torch.zeros(0, parts[0].in_features)  # type: ignore[arg-type]
        path = flat_path(parts, like=like)
        assert path.in_tiles and path.reason == "" and path.compared is compared
        network = edge_mlp.network_of(parts, edges=100, inputs=like, path=path)
        assert isinstance(network, tile_mlp.TileMLP if compared else first_use.CheckedMLP)
    mlp, like = mlp_truth.network((6, 64, 64, 16)), torch.zeros(0, 6)
    monkeypatch.setattr(mlp_support, "_triton_version", lambda: "3.7.1")
    path = flat_path(mlp, like=like)
    assert path.in_tiles and not path.compared
    assert isinstance(edge_mlp.network_of(mlp, edges=100, inputs=like), first_use.CheckedMLP)
    monkeypatch.setattr(edge_mlp, "is_fake", lambda _: True)  # a forecast counts on the kernels
    assert isinstance(edge_mlp.network_of(mlp, edges=100, inputs=like), tile_mlp.TileMLP)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    assert "compute capability" in str(tile_mlp.refusal(list(mlp), torch.bfloat16, CUDA))


@pytest.mark.usefixtures("hopper")
def test_what_was_compared_with_float64_on_a_card_is_known() -> None:
    for widths, act in COMPARED:
        parts = list(mlp_truth.network(widths, act))
        for dtype in DTYPES.values():
            reason, wide = edge_mlp.choose_kernels(parts, dtype, CUDA)
            assert reason is None
            assert wide is (dtype is torch.float32 and len(widths) == 6 and max(widths) > 64)
            assert (wide_mlp if wide else mlp_support).is_compared(parts, dtype, CUDA)
    headline = list(mlp_truth.network((6, 128, 128, 128, 16)))
    assert mlp_support.is_compared(headline, torch.float16, CUDA)
    assert not mlp_support.is_compared(list(mlp_truth.network((22, 128, 128, 128, 16))), torch.float16, CUDA)


@pytest.mark.usefixtures("hopper")
def test_rounds_have_about_the_same_length_and_fit_the_buffer() -> None:
    for widths, dtype in (
        ((6, 128, 128, 128, 16), torch.bfloat16),
        ((6, 128, 128, 128, 128, 16), torch.float32),
        ((63, 128, 128, 128, 64), torch.float32),
    ):
        network = tile_mlp.TileMLP(list(mlp_truth.network(widths)), dtype, torch.zeros(0, widths[0]))
        plan, programs = network._launches.backward, network._launches.backward_programs
        layers = len(widths) - 3 if plan.stored else 1
        assert plan.stored is (dtype is torch.float32)
        for tiles in (1, programs, 17 * programs + 1, 40_000):
            tiles_in_round = network._round_tiles(tiles)
            assert tiles_in_round == tiles or (tiles_in_round < tiles and tiles_in_round % programs == 0)
            assert layers * tiles_in_round * plan.edges * 128 * dtype.itemsize <= tile_mlp._BUFFER_BYTES
            rounds = -(-tiles // tiles_in_round)
            assert rounds * tiles_in_round - tiles < rounds * programs  # a program waits for one tile at most
    narrow = tile_mlp.TileMLP(list(mlp_truth.network((6, 64, 64, 16))), torch.float32, torch.zeros(0, 6))
    assert narrow._round_tiles(40_000) == 40_000  # nothing is passed on


@pytest.mark.usefixtures("hopper")
def test_the_results_replace_the_inputs_and_the_gradient_of_the_same_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tile_mlp.compat, "FakeTensor", Tensor)  # no launch
    network = tile_mlp.TileMLP(list(mlp_truth.network((6, 64, 64, 16))), torch.bfloat16, torch.zeros(0, 6))
    inputs, gradient = torch.zeros(5, 6), torch.zeros(5, 16, dtype=torch.bfloat16)
    results = network.backward(inputs, gradient, {}, want_inputs=True, want_values=True)
    assert results[0] is inputs and results[1] is gradient
    of_inputs, values = network.backward(inputs, gradient.float(), {}, want_inputs=False, want_values=True)
    assert of_inputs is None and values is not None and values.dtype is torch.bfloat16


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("bias", [True, False])
def test_the_sums_of_all_programs_are_added_to_the_gradients_that_are_wanted(bias: bool) -> None:
    mlp = mlp_truth.network((3, 20, 30, 5), bias=bias)
    network = tile_mlp.TileMLP(list(mlp), torch.float32, torch.zeros(0, 3))
    # Of the first layer 20 rows of 16 numbers, three of the weight and one of the bias; then a weight and a
    # bias for each: 600 + 30, 150 + 5. Places of missing biases are not used.
    network._sums = torch.arange(2 * 1105, dtype=torch.float32).view(2, 1105)
    totals = network._sums.sum(0)
    first = totals[:320].view(20, 16)
    places = [first[:, :3], first[:, 3], *totals[320:].split([600, 30, 150, 5])]
    wanted = {at: torch.ones_like(one) for at, one in enumerate(mlp.parameters()) if at != 1}
    network.finish(wanted)
    for at, gradient in wanted.items():
        expected = places[at if bias else 2 * at].reshape(gradient.shape) + 1
        assert torch.equal(gradient, expected)
    network.finish(wanted)  # nothing is added twice
    assert torch.equal(wanted[0], places[0] + 1)


def test_a_network_that_was_slower_than_eager_says_so(monkeypatch: pytest.MonkeyPatch, hopper: None) -> None:
    slower = {(64, 2, 16, 16): 1.06, (32, 1, 64, 64): 1.2, (16, 1, 64, 16): 1.3}
    monkeypatch.setattr(tested, "SLOWER", {"float32": slower})
    narrow, wide = mlp_truth.network((6, 64, 64, 16)), mlp_truth.network((6, 128, 128, 128, 16))
    path = flat_path(narrow, like=torch.zeros(0, 6))
    assert path.in_tiles
    assert str(path).endswith("a network of this size took 1.06 times as long as with eager.")
    assert flat_path(wide, like=torch.zeros(0, 6)).reason == ""
    many = flat_path(mlp_truth.network((40, 32, 64)), like=torch.zeros(0, 40))
    assert many.reason == "On an H200, a network of this size took 1.20 times as long as with eager."
    many = flat_path(mlp_truth.network((32, 64, 64, 16)), like=torch.zeros(0, 32))
    assert many.reason == (
        "On an H200, networks with as many inputs took up to 1.30 times as long as with eager."
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert flat_path(narrow, like=torch.zeros(0, 6)).reason == ""


@pytest.mark.usefixtures("hopper")
def test_weights_that_do_not_fit_shared_memory_together_are_visited_one_by_one() -> None:
    def plan(*widths: int) -> tuple[int, bool, bool]:
        own = tile_mlp.backward_plan(list(widths), torch.float32)
        return own.edges, own.stored, own.columns

    assert plan(6, 128, 16) == plan(15, 128, 128, 128, 16) == (64, False, True)
    assert plan(16, 128, 16) == plan(31, 128, 128, 128, 16) == (32, False, True)
    assert plan(6, 128, 128, 128, 128, 16) == (32, True, True)
    for widths in ((32, 128, 128, 16), (6, 128, 128, 17), (63, 128, 128, 128, 64)):
        assert plan(*widths) == (32, True, False)
    for widths in ((33, 70, 16), (6, 70, 17), (63, 128, 64)):  # nothing to visit between one layer and itself
        assert plan(*widths) == (32, False, True)
    assert plan(63, 64, 64, 64, 64, 64) == (64, False, True)


@pytest.mark.usefixtures("hopper")
def test_a_network_whose_weights_exceed_shared_memory_is_refused_before_a_launch() -> None:
    large = [63, 128, 128, 128, 128, 64]
    reason = "Its weights take 272 KiB of shared memory, which has 227 KiB."  # as an H200 says
    assert tile_mlp.misfit(large, torch.float32) == reason
    assert tile_mlp.misfit(large, torch.bfloat16) is None
    for fits in ([6, 128, 128, 128, 128, 16], [63, 128, 128, 128, 64], [63, 64, 64, 64, 64, 64], [3, 16, 1]):
        assert tile_mlp.misfit(fits, torch.float32) is None
    path = flat_path(mlp_truth.network(tuple(large), nn.Tanh, bias=False), like=torch.zeros(0, 63))
    assert path.wide and str(path).startswith("as a few kernels")
    with mlp_truth.products("tf32"):
        path = flat_path(mlp_truth.network(tuple(large), nn.Tanh, bias=False), like=torch.zeros(0, 63))
    assert str(path) == f"layer by layer, which may be slower than eager. {reason}"


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("capability", "widths", "dtype", "fits"),
    [
        ((8, 0), (6, 128, 128, 128, 16), torch.bfloat16, True),
        ((8, 0), (6, 128, 128, 128, 16), torch.float16, True),
        ((8, 0), (6, 128, 128, 128, 16), torch.float32, True),
        ((8, 0), (6, 128, 128, 128, 128, 16), torch.float32, False),
        ((8, 0), (6, 256, 256, 256, 16), torch.bfloat16, True),
        ((8, 0), (32, 256, 256, 256, 16), torch.bfloat16, False),
        ((8, 6), (6, 128, 128, 128, 16), torch.bfloat16, True),
        ((8, 9), (6, 128, 128, 128, 16), torch.bfloat16, True),
        ((8, 9), (6, 128, 128, 128, 16), torch.float32, False),
        ((8, 9), (63, 64, 64, 64, 64), torch.float32, True),
        ((8, 6), (6, 256, 256, 256, 16), torch.bfloat16, False),
        ((8, 6), (6, 256, 256, 256, 16), torch.float32, True),
    ],
)
def test_other_gpus_run_what_fits_their_shared_memory_and_do_not_know_its_time(
    capability: tuple[int, int],
    widths: tuple[int, ...],
    dtype: torch.dtype,
    fits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    name = ".".join(map(str, capability))
    with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
        path = flat_path(mlp_truth.network(widths), like=torch.zeros(0, widths[0]))
    assert (path.name == "one kernel") == path.is_flat == fits
    assert path.compared != fits  # with float64, when it is first used
    assert f"GPU of compute capability {name}." in path.reason
    assert ("were not timed" if fits else "do not fit into the shared memory") in path.reason


@pytest.mark.usefixtures("hopper")
def test_a_chunk_counts_the_buffers_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, like = mlp_truth.network((6, 128, 128, 128, 16)), torch.zeros(4, 6)
    sums = 132 * 4 * (128 * 16 + 2 * 128 * 129 + 16 * 129)  # the first layer with padded inputs
    with torch.autocast("cpu", torch.bfloat16):
        # By hand: 16 tiles of 64 edges; dz of one hidden layer, or on other GPUs z of two.
        for capability, layers in (((9, 0), 1), ((8, 0), 2), ((8, 6), 2), ((8, 9), 2)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_, own=capability: own)
            path = flat_path(mlp, like=like)
            bytes_of_1000 = edge_mlp.fixed_bytes(path, like=like, edges=1000)
            assert bytes_of_1000 == layers * 16 * 64 * 128 * 2 + sums
            assert edge_mlp.fixed_bytes(path, like=like) == 32 * MIB + sums


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(
    ("widths", "act", "bias"),
    [
        ((6, 64, 64, 16), nn.GELU, True),
        ((6, 128, 128, 128, 16), nn.GELU, True),
        ((6, 32, 32, 16), nn.Tanh, False),  # tanh of numbers near zero
    ],
)
@pytest.mark.parametrize(("inputs", "weights", "gradients"), [(1e4, 1.0, 1e-9), (1e-5, 30.0, 1e6)])
def test_numbers_far_from_1_have_the_accuracy_of_float32(
    widths: tuple[int, ...], act: Any, bias: bool, inputs: float, weights: float, gradients: float
) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, act, bias=bias).cuda()
    with torch.no_grad():
        for layer in list(mlp)[0::2]:
            layer.weight *= weights  # type: ignore[operator]
    x = (torch.rand(5_000, widths[0], device="cuda") * 2 - 1) * inputs
    gradient = torch.randn(5_000, widths[-1], device="cuda") * gradients
    results = run_tiles(mlp, x, gradient, torch.float32)
    usual = mlp_truth.gradients(mlp, x, gradient)
    for value, eager, right in zip(results, usual, mlp_truth.truth(mlp, x, gradient), strict=True):
        assert mlp_truth.error(value, right) < max(4 * mlp_truth.error(eager, right), 3e-6)


@pytest.mark.usefixtures("hopper")
def test_a_chunk_counts_the_buffers_that_do_not_depend_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mlp, points, f = mlp_truth.network((6, 128, 128, 128, 16)), torch.zeros(4, 3), torch.zeros(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        fixed = edge_mlp.fixed_bytes(flat_path(mlp, like=points), like=points)
        assert fixed == 32 * MIB + 132 * 4 * (128 * 16 + 2 * 128 * 129 + 16 * 129)
        # The row, 16 outputs in bf16, and what sorts the sources; six inputs take less than that.
        assert auto_chunk(mlp, points, points, f, moves=False) == (TILE_CHUNK_BYTES - fixed) // 68
        # For a maximum, the values of the forward pass stay beside the gradient of the kernel.
        assert auto_chunk(mlp, points, points, f, moves=False, weights="max") == (
            (TILE_CHUNK_BYTES - fixed) // (68 + 32)
        )
        # The gradient of the inputs, in bf16 too, stays until the sources are sorted.
        assert auto_chunk(mlp, points, points, f) == (TILE_CHUNK_BYTES - fixed) // 80
        # A softmax has a weight, its gradient and a vector per edge, and its network has sums of its own.
        score = mlp_truth.network((3, 16, 1))
        more = fixed + edge_mlp.fixed_bytes(flat_path(score, like=points), like=points)
        assert more > fixed
        for moves, per_edge in ((False, 68 + 8 + 12), (True, 80 + 8 + 4 * 12)):
            chunk = auto_chunk(mlp, points, points, f, attention=score, weights="attention", moves=moves)
            assert chunk == (TILE_CHUNK_BYTES - more) // per_edge
        # If nothing were overwritten: six inputs, the row, 16 outputs and their gradient.
        monkeypatch.setattr(tile_mlp, "OVERWRITES", False)
        assert auto_chunk(mlp, points, points, f, moves=False) == (TILE_CHUNK_BYTES - fixed) // 80
