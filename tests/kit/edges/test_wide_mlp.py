"""Edge MLPs of up to 256 columns: their kernels beside float64, and the buffers that they count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth, triton_runs
from torch import Tensor, nn

from pinchpoint.core.units import MIB
from pinchpoint.kit import flat_path
from pinchpoint.kit.edges import edge_mlp, tile_mlp, wide_mlp, wide_pairs
from pinchpoint.kit.edges.auto_chunk import TILE_CHUNK_BYTES, auto_chunk, chunk_bytes
from pinchpoint.kit.edges.tile_kernels import tested

CUDA = torch.device("cuda")
NETWORKS: list[tuple[tuple[int, ...], Any, bool]] = [
    ((6, 256, 256, 256, 16), nn.GELU, True),
    ((22, 256, 256, 16), nn.SiLU, True),
    ((6, 200, 129, 256, 180, 5), nn.Tanh, False),
    ((31, 160, 16), nn.GELU, True),
]


def run(mlp: nn.Sequential, x: Tensor, gradient: Tensor, dtype: torch.dtype, *parts: slice) -> list[Tensor]:
    """The outputs, the gradient of the inputs, and that of each parameter, of several chunks."""
    network = wide_pairs.wide_network(list(mlp), dtype, x)
    into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    results = [
        network.backward(x[part].clone(), gradient[part].clone(), into, want_inputs=True, want_values=True)
        for part in parts or (slice(None),)
    ]
    network.finish(into)
    of_inputs, values = (torch.cat([pair[at] for pair in results]) for at in (0, 1))  # type: ignore[misc]
    name = str(dtype).removeprefix("torch.")
    assert mlp_truth.error(network.forward(x), values.double()) < mlp_truth.BARS[name] / 4
    return [values, of_inputs, *into.values()]


def require_right(widths: tuple[int, ...], act: Any, bias: bool, dtype: torch.dtype, x: Tensor) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, act, bias=bias).to(x.device)
    gradient = torch.randn(len(x), widths[-1], device=x.device).to(dtype)
    name = str(dtype).removeprefix("torch.")
    results = run(mlp, x, gradient, dtype)
    for value, again in zip(results, run(mlp, x, gradient, dtype), strict=True):
        assert torch.equal(value, again)
    mlp_truth.require_close(results, mlp, x, gradient.float(), name)
    half = len(x) // 3
    halves = run(mlp, x, gradient, dtype, slice(0, half), slice(half, None))
    mlp_truth.require_close(halves, mlp, x, gradient.float(), name)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, the one these kernels are used on",
)
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("widths", "act", "bias"), NETWORKS)
def test_values_and_gradients_are_those_of_float64_bit_for_bit_again(
    widths: tuple[int, ...],
    act: Any,
    bias: bool,
    dtype: torch.dtype,
    pairs: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wide_pairs, "PAIRS", pairs)
    require_right(widths, act, bias, dtype, torch.rand(mlp_truth.EDGES, widths[0], device="cuda") * 2 - 1)


@pytest.mark.skipif(not triton_runs.INTERPRETED, reason="needs Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_interpreted_kernels_are_right_with_small_tiles(
    dtype: torch.dtype, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton_runs.use_kernels(monkeypatch, "interpreted")
    monkeypatch.setattr(wide_mlp, "WIDTH", 32)
    monkeypatch.setattr(wide_mlp, "_FAST", False)
    monkeypatch.setattr(wide_mlp, "_MOST_TILE", 16)
    buffers = dict.fromkeys((1, 2), 48 * 32 * 4 * 3 * 2)  # slices of 48 edges in float32
    monkeypatch.setattr(wide_mlp, "_BUFFER_BYTES", buffers)
    monkeypatch.setattr(wide_pairs, "PAIRS", pairs)
    for name in ("_FIRST_TWO", "_LAST_TWO", "_BACK_LAST"):
        monkeypatch.setattr(wide_pairs, name, wide_mlp.Plan(16, 32, 4))
    for name, columns in (
        ("BETWEEN", (16, 16)),
        ("_FIRST", (32, 32)),
        ("_ENDS", (32, 32)),
        ("_OUTPUTS", (32, 32)),
        ("_LAST", (32, 16)),
        ("_MIDDLE", (32, 16)),
        ("_GRADIENT", (16, 16)),
    ):
        plans = {parts: wide_mlp.Plan(16, width, 4) for parts, width in zip((1, 2), columns, strict=True)}
        monkeypatch.setattr(wide_mlp, name, plans)
    for widths in ((6, 32, 20, 32, 5), (6, 32, 20, 5)) if pairs else ((6, 32, 20, 32, 5),):
        require_right(widths, nn.GELU, True, dtype, torch.rand(101, 6) * 2 - 1)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on every device, as if it were an H200 with the tested Triton."""
    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)
    monkeypatch.setattr(tile_mlp, "_triton_version", lambda: "3.6.0")


@pytest.mark.usefixtures("hopper")
def test_wide_networks_run_by_these_kernels_and_others_are_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tested, "SLOWER", {})
    for widths, act, bias in NETWORKS:
        path = flat_path(mlp_truth.network(widths, act, bias=bias), like=torch.zeros(0, widths[0]))
        assert path.wide and not path.in_tiles
        assert str(path).startswith("as one kernel per layer, which may be slower than eager. On an H200")
    for parts, reason in (
        (mlp_truth.network((6, 300, 16)), "300 columns, not 129 to 256"),
        (mlp_truth.network((6, 128, 16)), "128 columns, not 129 to 256"),
        (mlp_truth.network((32, 256, 16)), "32 inputs and 16 outputs, more than 31 and 16"),
        (mlp_truth.network((6, 256, 17)), "6 inputs and 17 outputs, more than 31 and 16"),
        (mlp_truth.network((6, 256, 256, 256, 256, 256, 16)), "5 hidden layers, more than 4"),
        (mlp_truth.network((6, 256)), "does not alternate"),
        (mlp_truth.network((6, 256, 256, 16), nn.Sigmoid), "activations are not all"),
        (mlp_truth.network((6, 256, 16), lambda: nn.GELU(approximate="tanh")), "approximated by tanh"),
        ([nn.Linear(6, 256), nn.GELU(), nn.Linear(256, 16, bias=False)], "some have none"),
        ([nn.Linear(6, 256), nn.GELU(), nn.Linear(200, 16)], "do not match"),
    ):
        assert reason in str(wide_mlp.refusal(list(parts), torch.bfloat16, CUDA))
    assert "float64 is not" in str(
        wide_mlp.refusal(list(mlp_truth.network((6, 256, 16))), torch.float64, CUDA)
    )


@pytest.mark.usefixtures("hopper")
def test_torch_multiplies_in_tf32_where_that_is_allowed() -> None:
    mlp, like = mlp_truth.network((6, 256, 256, 16)), torch.zeros(0, 6)
    with mlp_truth.products("tf32"):
        path = flat_path(mlp, like=like)
        assert path.name == "layers" and "TF32" in path.reason
        with torch.autocast("cpu", torch.bfloat16):
            assert flat_path(mlp, like=like).wide
    assert flat_path(mlp, like=like).wide


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("name", "parts", "pairs"),
    [("_GRADIENT", 1, False), ("_GRADIENT", 2, False), ("_MIDDLE", 2, False), ("BETWEEN", 1, True)],
)
def test_no_kernel_adds_rows_up_that_the_ends_do_not_write(
    name: str, parts: int, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_pairs, "PAIRS", pairs)
    mlp, dtype = list(mlp_truth.network((6, 256, 256, 16))), {1: torch.bfloat16, 2: torch.float32}[parts]
    wide_pairs.wide_network(mlp, dtype, torch.zeros(0, 6))
    monkeypatch.setitem(getattr(wide_mlp, name), parts, wide_mlp.Plan(128, 128, 8))
    with pytest.raises(AssertionError):
        wide_pairs.wide_network(mlp, dtype, torch.zeros(0, 6))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("dtype", "pairs", "layers"),
    # Three hidden layers; in float32 with their activations, of two layers in turn by kernels of two steps.
    [
        (torch.bfloat16, False, 3),
        (torch.bfloat16, True, 3),
        (torch.float32, False, 6),
        (torch.float32, True, 5),
    ],
)
def test_the_buffers_of_a_small_graph_are_small_and_counted(
    dtype: torch.dtype, pairs: bool, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_pairs, "PAIRS", pairs)
    monkeypatch.setattr(wide_mlp.compat, "FakeTensor", Tensor)  # no launch
    mlp = mlp_truth.network((6, 256, 256, 256, 16))
    network = wide_pairs.wide_network(list(mlp), dtype, torch.zeros(0, 6), 1000)
    gradient = torch.zeros(300, 16, dtype=dtype)
    network.forward(torch.zeros(300, 6))
    network.backward(torch.zeros(300, 6), gradient, {}, want_inputs=True, want_values=True)
    (buffer,) = network._buffers
    assert buffer.numel() == 1024 * 256 * dtype.itemsize * layers  # eight tiles of 128 edges
    assert network._most_views() == layers
    assert network.sums is not None
    sums = 4 * sum(one.numel() for one in network.sums)
    linear: Any = list(mlp)[0::2]
    cast = 0 if dtype is torch.float32 else 2 * sum(layer.weight.numel() for layer in linear)
    few, many, most = (
        wide_mlp.fixed_bytes(linear, dtype, CUDA, edges, pairs=pairs) for edges in (1000, 10**6, None)
    )
    assert few == buffer.numel() + sums + cast
    assert many == most


@pytest.mark.usefixtures("hopper")
def test_a_forecast_without_triton_takes_the_larger_peak_for_these_edges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_mlp, "is_fake", lambda _: True)
    monkeypatch.setattr(tile_mlp, "_triton_version", lambda: "")
    like = torch.zeros(0, 6)
    wide, narrow = (mlp_truth.network((6, *hidden, 16), nn.SiLU) for hidden in ((256, 256, 256), (64, 64)))
    for mlp, kernels, few in ((wide, wide_mlp.WideMLP, 20_000), (narrow, tile_mlp.TileMLP, 1000)):
        assert flat_path(mlp, like=like).name == "layers"
        # Buffers and sums of a fixed size are more than the layers of few edges.
        assert isinstance(edge_mlp.network_of(mlp, edges=few, inputs=like), kernels)
        assert not isinstance(edge_mlp.network_of(mlp, edges=100_000, inputs=like), kernels)
    monkeypatch.setattr(tile_mlp, "_triton_version", lambda: "3.5.1")  # known: not the tested one
    assert not isinstance(edge_mlp.network_of(wide, edges=1000, inputs=like), wide_mlp.WideMLP)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("hidden", [(256, 256), (128, 128, 128)])
@pytest.mark.parametrize("half", [True, False])
def test_the_buffers_of_two_networks_leave_room_for_a_chunk(hidden: tuple[int, ...], half: bool) -> None:
    mlp, points, f = mlp_truth.network((6, 256, 256, 256, 16)), torch.zeros(4, 3), torch.zeros(4, 16)
    attention = mlp_truth.network((3, *hidden, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        first, second = (flat_path(one, like=points) for one in (mlp, attention))
        fixed = sum(edge_mlp.fixed_bytes(path, like=points) for path in (first, second))
        assert fixed > TILE_CHUNK_BYTES
        assert chunk_bytes(first, second, points) == fixed + 16 * MIB
        assert auto_chunk(mlp, points, points, f, weights="attention", attention=attention) > 80_000


@pytest.mark.usefixtures("hopper")
def test_a_wide_network_says_that_it_may_be_slower_than_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "SLOWER", {"float32": {(256, 3): 1.25}})
    like = torch.zeros(0, 6)
    assert "1.25 times as long as eager" in str(
        flat_path(mlp_truth.network((6, 256, 200, 256, 16)), like=like)
    )
    monkeypatch.setattr(tested, "SLOWER", {})
    for widths in ((6, 256, 256, 16), (6, 256, 16)):
        reason = flat_path(mlp_truth.network(widths), like=like).reason
        assert (
            reason
            == "On an H200, eager was faster wherever both were timed; some of these kernels are newer."
        )


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_kernel_does_two_steps_of_networks_that_were_compared_so(dtype: torch.dtype) -> None:
    like = torch.zeros(0, 6)
    for widths, act, pairs in (
        ((6, 256, 256, 16), nn.GELU, True),
        ((6, 200, 256, 130, 256, 5), nn.Tanh, True),
        ((6, 256, 256, 16), nn.SiLU, True),
        ((6, 256, 256, 16), nn.ReLU, False),
        ((6, 256, 16), nn.GELU, False),
    ):
        mlp = mlp_truth.network(widths, act)
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            path = flat_path(mlp, like=like)
            network = edge_mlp.network_of(mlp, edges=1000, inputs=like, path=path)
        assert path.wide and path.pairs is pairs
        assert isinstance(network, wide_mlp.WideMLP)
        assert isinstance(network, wide_pairs._Pairs) is pairs


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("pairs", [False, True])
def test_slices_fit_the_buffers_and_a_chunk_counts_them(pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_pairs, "PAIRS", pairs)
    mlp, points, f = mlp_truth.network((6, 256, 256, 256, 16)), torch.zeros(4, 3), torch.zeros(4, 16)
    for dtype, per_edge, groups in ((torch.bfloat16, 68, 66), (torch.float32, 100, 33)):
        network = wide_pairs.wide_network(list(mlp), dtype, points)
        layers = network._most_views()
        buffers = (64 if dtype is torch.bfloat16 else 96) * MIB
        for edges in (1, 1000, 400_000):
            step = network._slice_edges(layers, edges)
            assert step % 128 == 0 and step - edges < 128
            # By kernels of two steps, all programs have equally many tiles of the larger size.
            assert not pairs or edges < step + 128 or step % (132 * 128) == 0
            assert layers * step * 256 * dtype.itemsize <= buffers
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            fixed = edge_mlp.fixed_bytes(flat_path(mlp, like=points), like=points)
            assert auto_chunk(mlp, points, points, f, moves=False) == (TILE_CHUNK_BYTES - fixed) // per_edge
        # By hand: the buffers, the weights in bf16, and the sums of 132 programs and of their groups.
        weights, ends, between = (6 + 512 + 16) * 256, 7 * 256 + 257 * 16, 2 * 257 * 256
        cast = 2 * weights if dtype is torch.bfloat16 else 0
        assert fixed == buffers + cast + 4 * (132 * ends + groups * between)
