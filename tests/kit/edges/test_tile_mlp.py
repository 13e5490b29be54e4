"""Networks as one kernel with weights in shared memory: every kind of tile, beside float64."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth
from torch import Tensor, nn

from pinchpoint.core.units import MIB
from pinchpoint.kit import Edges, edge_transform, flat_path
from pinchpoint.kit.edges import edge_mlp, tile_mlp
from pinchpoint.kit.edges.auto_chunk import TILE_CHUNK_BYTES, auto_chunk

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
    ((6, 128, 128, 128, 16), nn.GELU, True),
    ((22, 100, 80, 7), lambda: nn.GELU(approximate="tanh"), False),
    ((6, 128, 128, 128, 128, 16), nn.Tanh, True),
]


# Those that an H200 has compared with float64 in both precisions, alone or in `test_transform_gpu`.
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
]


def run_tiles(
    mlp: nn.Sequential, x: Tensor, gradient: Tensor, dtype: torch.dtype, *parts: slice
) -> list[Tensor]:
    """The outputs, the gradient of the inputs, and that of each parameter, of several chunks."""
    network = tile_mlp.TileMLP(list(mlp), dtype, x)
    into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    results = [
        network.backward(x[part], gradient[part], into, want_inputs=True, want_values=True)
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
    results = run_tiles(mlp, x, gradient, DTYPES[name])
    for value, again in zip(results, run_tiles(mlp, x, gradient, DTYPES[name]), strict=True):
        assert torch.equal(value, again)
    mlp_truth.require_close(results, mlp, x, gradient.float(), name)
    for last in (slice(-1, None), slice(-40, None)):  # a tile that is not full
        expected = mlp_truth.truth(mlp, x[last], gradient[last].float())[:2]
        for value, right in zip(results, expected, strict=False):
            assert mlp_truth.error(value[last], right) < 4 * mlp_truth.BARS[name] or act is nn.ReLU
    monkeypatch.setattr(tile_mlp, "_BUFFER_BYTES", 64 * 2**10)
    monkeypatch.setattr(tile_mlp, "_STORED_BYTES", 64 * 2**10)
    half = 33_001
    parts = slice(0, half), slice(half, None)
    mlp_truth.require_close(run_tiles(mlp, x, gradient, DTYPES[name], *parts), mlp, x, gradient.float(), name)
    for count in (1, 31, 33, 63, 65, 97):
        few = slice(0, count)
        results = run_tiles(mlp, x[few], gradient[few], DTYPES[name])
        if act is not nn.ReLU:  # one unit at its kink is a large part of so few edges
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


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on every device, as if it were of compute capability 9.0 with the tested Triton."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132)
    )
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)
    monkeypatch.setattr(tile_mlp, "_triton_version", lambda: "3.6.0")


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (mlp_truth.network((6, 200, 200, 16)), "200 columns, more than 128"),
        (mlp_truth.network((32, 64, 64, 16)), "32 inputs and 16 outputs, more than 31 and 16"),
        (mlp_truth.network((6, 64, 64, 17)), "6 inputs and 17 outputs, more than 31 and 16"),
        (mlp_truth.network((16, 32, 16)), "16 inputs and 16 outputs, more than 15 and 16"),
        (mlp_truth.network((6, 64, 16)), "hidden layers is 1, not 2 as tested with 64 columns"),
        (mlp_truth.network((6, 128, 128, 128, 128, 16)), "hidden layers is 4, not 3"),
        (mlp_truth.network((6, 16, 16, 16, 16)), "hidden layers is 3, not 1 or 2"),
        (mlp_truth.network((6, 16)), "does not alternate"),
        ([*mlp_truth.network((6, 16, 16, 16)), nn.GELU()], "does not alternate"),
        (mlp_truth.network((6, 16, 16, 16), nn.Tanh), "not all GELU or all SiLU"),
        (mlp_truth.network((6, 16, 16, 16), lambda: nn.GELU(approximate="tanh")), "approximated by tanh"),
        ([*mlp_truth.network((6, 16, 16)), nn.SiLU(), nn.Linear(16, 1)], "not all GELU or all SiLU"),
        (mlp_truth.network((6, 16, 16, 16), bias=False), "has no bias"),
        ([nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 8), nn.GELU(), nn.Linear(16, 16)], "do not match"),
    ],
)
def test_a_network_that_is_not_supported_is_refused_with_a_reason(parts: Any, reason: str) -> None:
    assert reason in str(tile_mlp.refusal(list(parts), torch.bfloat16, CUDA))


@pytest.mark.usefixtures("hopper")
def test_what_was_compared_with_float64_on_a_card_is_supported() -> None:
    for widths, act in COMPARED:
        parts = list(mlp_truth.network(widths, act))
        for dtype in DTYPES.values():
            assert tile_mlp.refusal(parts, dtype, CUDA) is None
        for other in (torch.float64, torch.float16):
            assert f"{other} is not" in str(tile_mlp.refusal(parts, other, CUDA))


def test_another_card_or_another_triton_is_not_supported(
    monkeypatch: pytest.MonkeyPatch, hopper: None
) -> None:
    mlp = mlp_truth.network((6, 64, 64, 16))
    assert flat_path(mlp, like=torch.zeros(0, 6)).in_tiles
    monkeypatch.setattr(tile_mlp, "_triton_version", lambda: "3.7.1")
    path = flat_path(mlp, like=torch.zeros(0, 6))
    assert path.name == "layers" and "this machine has 3.7.1" in path.reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    assert "compute capability 9.0" in str(tile_mlp.refusal(list(mlp), torch.bfloat16, CUDA))


def test_a_forecast_takes_the_larger_peak_where_the_version_of_triton_is_not_known(
    monkeypatch: pytest.MonkeyPatch, hopper: None
) -> None:
    monkeypatch.setattr(edge_mlp, "is_fake", lambda _: True)
    like, narrow = torch.zeros(0, 6), mlp_truth.network((6, 64, 64, 16))
    wide = mlp_truth.network((6, 128, 128, 128, 16))
    for version, tiles in (("3.6.0", (True, True)), ("3.5.1", (False, False)), ("", (False, True))):
        monkeypatch.setattr(tile_mlp, "_triton_version", lambda version=version: version)
        assert (flat_path(narrow, like=like).in_tiles, flat_path(wide, like=like).in_tiles) == tiles


@pytest.mark.usefixtures("hopper")
def test_slices_are_whole_tiles_that_fit_the_buffers() -> None:
    for widths, dtype in (((6, 128, 128, 128, 16), torch.bfloat16), ((6, 128, 128, 16), torch.float32)):
        network = tile_mlp.TileMLP(list(mlp_truth.network(widths)), dtype, torch.zeros(0, 6))
        assert network._stored is (dtype is torch.float32)
        for edges in (1, 1000, 131_073, 1_000_000):
            step = network._slice_edges(edges)
            most = tile_mlp._buffer_bytes(network._backward)
            assert step % network._backward.edges == 0
            assert network._passed() * step * 128 * dtype.itemsize <= most
            assert step - edges < network._backward.edges


@pytest.mark.usefixtures("hopper")
def test_one_hidden_layer_stores_nothing_between_layers() -> None:
    network = tile_mlp.TileMLP(list(mlp_truth.network((6, 128, 16))), torch.float32, torch.zeros(0, 6))
    assert network._backward.stored and not network._stored and network._passed() == 0


@pytest.mark.usefixtures("hopper")
def test_a_chunk_counts_the_buffers_that_do_not_depend_on_it() -> None:
    mlp, points, f = mlp_truth.network((6, 128, 128, 128, 16)), torch.zeros(4, 3), torch.zeros(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        fixed = edge_mlp.fixed_bytes(flat_path(mlp, like=points), like=points)
        assert fixed == 32 * MIB + 132 * 4 * sum(p.numel() for p in mlp.parameters())
        # Six inputs in float32, the row, and 16 outputs and their gradient in bf16: 92 bytes.
        assert auto_chunk(mlp, points, points, f, moves=False) == (TILE_CHUNK_BYTES - fixed) // 92
        # A softmax takes more per edge, and its network has sums of its own.
        score = mlp_truth.network((3, 16, 1))
        more = fixed + edge_mlp.fixed_bytes(flat_path(score, like=points), like=points)
        per_edge = 24 + 36 + 128 + 32 + 2 + 16
        chunk = auto_chunk(mlp, points, points, f, attention=score, weights="attention")
        assert more > fixed and chunk == (TILE_CHUNK_BYTES - more) // per_edge
        # The gradient of the inputs needs as much as the inputs.
        assert auto_chunk(mlp, points, points, f) == (TILE_CHUNK_BYTES - fixed) // 116
