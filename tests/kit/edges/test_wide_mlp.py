"""Edge MLPs of up to 256 columns: their kernels beside float64, and the buffers that they count."""

from __future__ import annotations

import ast
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.kit.edges import mlp_truth, triton_runs
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pinchpoint.core.units import MIB
from pinchpoint.kit import flat_path
from pinchpoint.kit.edges import edge_mlp, mlp_support, tile_kernels, wide_mlp, wide_plans
from pinchpoint.kit.edges.auto_chunk import TILE_CHUNK_BYTES, auto_chunk, chunk_bytes, inputs_of
from pinchpoint.kit.edges.tile_kernels import tested

CUDA = torch.device("cuda")
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="needs a GPU of compute capability 9.0, the one these kernels are used on",
)
interpreted = pytest.mark.skipif(not triton_runs.INTERPRETED, reason="needs Triton with TRITON_INTERPRET=1")
NETWORKS: list[tuple[tuple[int, ...], Any, bool]] = [
    ((6, 256, 256, 256, 16), nn.GELU, True),
    ((22, 256, 256, 16), nn.SiLU, True),
    ((6, 200, 129, 256, 180, 5), nn.Tanh, False),
    ((31, 160, 256, 16), nn.GELU, True),
    ((6, 256, 256, 16), nn.ReLU, True),
    ((63, 256, 256, 256, 64), nn.SiLU, True),
]
NARROWER: list[tuple[tuple[int, ...], Any, bool]] = [  # in float32 alone
    ((6, 128, 128, 128, 128, 16), nn.GELU, True),
    ((22, 128, 100, 128, 64), nn.ReLU, True),
    ((63, 65, 128, 90, 128, 64), nn.SiLU, False),
]


def run(mlp: nn.Sequential, x: Tensor, gradient: Tensor, dtype: torch.dtype, *parts: slice) -> list[Tensor]:
    """The outputs, the gradient of the inputs, and that of each parameter, of several chunks.

    The gradients of the parameters without that of the inputs, which other kernels compute, must be the same.
    """
    network = edge_mlp.wide_network(list(mlp), dtype, x)
    into = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    results = [
        network.backward(x[part].clone(), gradient[part].clone(), into, want_inputs=True, want_values=True)
        for part in parts or (slice(None),)
    ]
    network.finish(into)
    alone = {at: torch.zeros_like(p) for at, p in enumerate(mlp.parameters())}
    for part in parts or (slice(None),):
        network.backward(x[part].clone(), gradient[part].clone(), alone, want_inputs=False, want_values=False)
    network.finish(alone)
    for at, expected in into.items():
        assert mlp_truth.error(alone[at], expected.double()) < (2e-2 if dtype.itemsize == 2 else 1e-6)
    of_inputs, values = (torch.cat([pair[at] for pair in results]) for at in (0, 1))  # type: ignore[misc]
    name = str(dtype).removeprefix("torch.")
    assert mlp_truth.error(network.forward(x), values.double()) < mlp_truth.BARS[name] / 4
    return [values, of_inputs, *into.values()]


def require_right(widths: tuple[int, ...], act: Any, bias: bool, dtype: torch.dtype, x: Tensor) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, act, bias=bias).to(x.device)
    name = str(dtype).removeprefix("torch.")
    own = x.to(dtype)  # as they are gathered
    x = own.float()
    gradient = torch.randn(len(x), widths[-1], device=x.device)
    gradient = mlp_truth.defined(mlp, x, gradient, name).to(dtype)
    results = run(mlp, own, gradient, dtype)
    for value, again in zip(results, run(mlp, own, gradient, dtype), strict=True):
        assert torch.equal(value, again)
    mlp_truth.require_close(results, mlp, x, gradient.float(), name)
    half = len(x) // 3
    halves = run(mlp, own, gradient, dtype, slice(0, half), slice(half, None))
    mlp_truth.require_close(halves, mlp, x, gradient.float(), name)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("widths", "act", "bias"), NETWORKS)
def test_values_and_gradients_are_those_of_float64_bit_for_bit_again(
    widths: tuple[int, ...], act: Any, bias: bool, dtype: torch.dtype
) -> None:
    require_right(widths, act, bias, dtype, torch.rand(mlp_truth.EDGES, widths[0], device="cuda") * 2 - 1)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "widths", [(6, 256, 256, 256, 16), (54, 256, 200, 256, 256, 48), (40, 128, 96, 128, 5)]
)
def test_launches_that_begin_early_and_recorded_ones_give_the_bits_of_separate_launches(
    widths: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype is torch.bfloat16 and max(widths) < 256:
        pytest.skip("such networks of 16 bits run as one kernel")
    for name in ("_BUFFER_BYTES", "_SMALLER_BUFFER_BYTES"):
        monkeypatch.setattr(wide_mlp, name, {2: 2**24, 4: 2**25})  # many slices
    mlp = mlp_truth.network(widths).cuda()
    x = (torch.rand(200_003, widths[0], device="cuda") * 2 - 1).to(dtype)
    gradient = torch.randn(len(x), widths[-1], device="cuda").to(dtype)

    def step() -> list[Tensor]:
        network = edge_mlp.wide_network(list(mlp), dtype, x)
        into = {at: torch.zeros_like(one) for at, one in enumerate(mlp.parameters())}
        values = network.forward(x)
        of_inputs, again = network.backward(
            x.clone(), gradient.clone(), into, want_inputs=True, want_values=True
        )
        network.finish(into)
        assert of_inputs is not None and again is not None
        return [values, of_inputs, again, *into.values()]

    with monkeypatch.context() as patch:
        patch.setattr(wide_mlp, "_CHAINED", False)
        separate = step()
    for _ in range(5):
        for one, other in zip(step(), separate, strict=True):
            assert torch.equal(one, other)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        results = step()
    for _ in range(3):
        for one in results:
            one.zero_()
        recorded.replay()
        for one, other in zip(results, separate, strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(("widths", "act", "bias"), NARROWER)
def test_narrower_networks_in_float32_are_right(widths: tuple[int, ...], act: Any, bias: bool) -> None:
    x = torch.rand(mlp_truth.EDGES, widths[0], device="cuda") * 2 - 1
    assert flat_path(mlp_truth.network(widths, act, bias=bias).cuda(), like=x).wide
    require_right(widths, act, bias, torch.float32, x)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on the CPU, with tiles of 16 edges, slices of 48 and hidden layers of up to 128 columns.

    New memory is filled with NaN.
    """
    triton_runs.use_kernels(monkeypatch, "interpreted")
    empty = torch.empty

    def nan(*size: Any, **options: Any) -> Tensor:
        values = empty(*size, **options)
        return values.fill_(255 if values.dtype is torch.uint8 else torch.nan)  # 255: NaN in every dtype

    monkeypatch.setattr(torch, "empty", nan)
    for name in ("_FAST", "_CHAINED"):
        monkeypatch.setattr(wide_mlp, name, False)
    monkeypatch.setattr(wide_mlp, "_MOST_TILE", 16)
    # Slices of 48 edges with three layers in backward.
    for name in ("_BUFFER_BYTES", "_SMALLER_BUFFER_BYTES"):
        monkeypatch.setattr(wide_mlp, name, {size: 48 * 128 * size * 3 for size in (2, 4)})
    use_plans(monkeypatch, {(size, 128): small_plans(size) for size in (2, 4)})


def chained_kernels() -> dict[str, ast.FunctionDef]:
    """The kernels that `WideMLP.step` launches, by module and name; those launched alone are left out."""
    folder = Path(str(tile_kernels.__file__)).parent
    return {
        f"{path.stem}.{node.name}": node
        for path in folder.glob("wide_*_triton.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef)
        and "Launcher" in map(ast.unparse, node.decorator_list)
        and node.name not in ("pack", "largest")
    }


@pytest.mark.parametrize("kernel", chained_kernels().values(), ids=chained_kernels().keys())
def test_a_kernel_waits_once_in_every_program_before_it_writes(kernel: ast.FunctionDef) -> None:
    waits = [at for at, line in enumerate(kernel.body) if ast.unparse(line) == "wait_for_last(NET)"]
    assert len(waits) == 1 and ast.unparse(kernel).count("wait_for_last(") == 1
    before = "".join(map(ast.unparse, kernel.body[1 : waits[0]]))  # without the docstring
    assert not any(word in before for word in ("store", "add_to", "add_first", "raise_bound", "atomic"))
    # Weights alone are read before it.
    assert not any(
        word in before for word in ("scale_of", "inputs,", "above,", "before,", "values,", "bounds")
    )


def use_plans(monkeypatch: pytest.MonkeyPatch, plans: dict[tuple[int, int], wide_plans.Plans]) -> None:
    for module in (wide_mlp, wide_plans):
        monkeypatch.setattr(module, "PLANS", plans)


def small_plans(size: int, *, turned: bool = False) -> wide_plans.Plans:
    """With several blocks of columns where the kernels have them. size: the bytes of a number."""
    whole, block = wide_plans.Plan(16, 128, 4), wide_plans.Plan(16, 64, 4)
    middle = whole if size == 2 else block
    between = block._replace(turned=turned)
    return wide_plans.Plans(whole, middle, whole, back_last=middle, between=between, inputs=whole)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_interpreted_kernels_are_right_with_small_tiles(dtype: torch.dtype) -> None:
    for widths in ((6, 128, 20, 5), (6, 96, 70, 128, 5), (6, 20, 100, 30, 96, 5)):
        require_right(widths, nn.GELU, True, dtype, torch.rand(101, 6) * 2 - 1)


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_interpreted_kernels_are_right_with_the_tiles_of_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = small_plans(4, turned=True)._replace(back_last=wide_plans.Plan(16, 128, 4))
    smaller = {(4, 128): plans, (2, 128): small_plans(2)._replace(pair=False)}
    use_plans(monkeypatch, smaller)
    for dtype in (torch.float32, torch.float16):
        require_right((6, 96, 70, 128, 5), nn.GELU, True, dtype, torch.rand(70, 6) * 2 - 1)


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(
    ("dtype", "of_gradient"), [(torch.float16, torch.float32), (torch.float32, torch.float16)]
)
@pytest.mark.parametrize("widths", [(1, 128, 3, 64), (63, 40, 8, 90, 1)])
def test_narrow_layers_and_few_edges_with_a_gradient_of_another_dtype(
    widths: tuple[int, ...], dtype: torch.dtype, of_gradient: torch.dtype
) -> None:
    torch.manual_seed(0)
    mlp = mlp_truth.network(widths, nn.Tanh, bias=False)
    for edges in (1, 16, 49):
        x = torch.rand(edges, widths[0]) * 2 - 1
        gradient = torch.randn(edges, widths[-1]).to(of_gradient)
        results = run(mlp, x, gradient, dtype)
        assert results[0].dtype is dtype
        mlp_truth.require_close(results, mlp, x, gradient.float(), str(dtype).removeprefix("torch."))


@interpreted
@pytest.mark.usefixtures("small_tiles")
def test_large_numbers_of_an_edge_leave_small_errors_in_the_others() -> None:
    torch.manual_seed(0)
    mlp, x, gradient = mlp_truth.network((6, 128, 128, 5)), torch.rand(60, 6) * 2 - 1, torch.randn(60, 5)
    others = slice(16, None)  # the inputs of a tile have a scale of their own
    for numbers, ratio, bar in ((x, 1e3, 3e-6), (x, 1e6, 3e-4), (gradient, 1e3, 3e-6), (gradient, 1e6, 3e-4)):
        numbers[3] *= ratio
        results = run(mlp, x, gradient, torch.float32)[:2]
        for value, right in zip(results, mlp_truth.truth(mlp, x, gradient), strict=False):
            assert mlp_truth.error(value, right) < 3e-6
            assert mlp_truth.error(value[others], right[others]) < bar
        numbers[3] /= ratio


@interpreted
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("act", [nn.GELU, nn.Tanh])
def test_inputs_that_are_not_finite_leave_no_wrong_values(act: Any) -> None:
    torch.manual_seed(0)
    mlp, x = mlp_truth.network((6, 128, 128, 5), act), torch.rand(60, 6)
    network = edge_mlp.wide_network(list(mlp), torch.float32, x)
    right = mlp(x)
    for number in (torch.inf, torch.nan):
        x[3, 1] = number
        values = network.forward(x)
        assert bool(values[3].isnan().all())
        assert bool((values.isnan() | ((values - right).abs() < 1e-5)).all())


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels on every device, as if it were an H200 with the tested Triton."""
    properties = type("Properties", (), {"multi_processor_count": 132})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: properties)
    monkeypatch.setattr(edge_mlp, "own_kernels", lambda _: True)
    monkeypatch.setattr(mlp_support, "_triton_version", lambda: "3.6.0")


@pytest.mark.usefixtures("hopper")
def test_wide_networks_run_by_these_kernels_and_others_are_refused_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tested, "SLOWER", {})
    for widths, act, bias in NETWORKS:
        path = flat_path(mlp_truth.network(widths, act, bias=bias), like=torch.zeros(0, widths[0]))
        assert path.wide and not path.in_tiles
        assert str(path) == "as a few kernels."
    single = flat_path(mlp_truth.network((6, 256, 16)), like=torch.zeros(0, 6))
    assert single.in_tiles and not single.wide  # its weights fit into shared memory together
    for parts, reason in (
        (mlp_truth.network((6, 300, 300, 16)), "300 columns, not 129 to 256"),
        (mlp_truth.network((6, 128, 128, 16)), "128 columns, not 129 to 256"),
        (mlp_truth.network((64, 256, 256, 16)), "64 inputs and 16 outputs, more than 63 and 64"),
        (mlp_truth.network((6, 256, 256, 65)), "6 inputs and 65 outputs, more than 63 and 64"),
        (mlp_truth.network((6, 256, 256, 256, 256, 256, 16)), "hidden layers is 5, not 2 to 4"),
        (mlp_truth.network((6, 256, 16)), "hidden layers is 1, not 2 to 4"),
        (mlp_truth.network((6, 256)), "does not alternate"),
        (mlp_truth.network((6, 256, 256, 16), nn.Sigmoid), "not GELU, SiLU, ReLU or tanh"),
        (_layers(6, 256, 256, 16, last_bias=False), "and others do not"),
        ([nn.Linear(6, 256), nn.GELU(), nn.Linear(200, 16)], "do not match"),
    ):
        assert reason in str(wide_mlp.refusal(list(parts), torch.bfloat16, CUDA))
    assert "float64 is not" in str(
        wide_mlp.refusal(list(mlp_truth.network((6, 256, 256, 16))), torch.float64, CUDA)
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
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [name for name in wide_plans.Plans._fields if name != "pair"])
def test_no_kernel_reads_rows_that_nothing_wrote(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp = list(mlp_truth.network((6, 256, 256, 16)))
    edge_mlp.wide_network(mlp, dtype, torch.zeros(0, 6))
    key = dtype.itemsize, 256
    plans = wide_plans.PLANS[key]._replace(**{name: wide_plans.Plan(256, 128, 8)})
    monkeypatch.setitem(wide_plans.PLANS, key, plans)
    with pytest.raises(AssertionError):
        edge_mlp.wide_network(mlp, dtype, torch.zeros(0, 6))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("dtype", "width", "hidden", "layers"),
    [
        (torch.bfloat16, 256, 2, 2),
        (torch.bfloat16, 256, 3, 2),
        (torch.float32, 256, 3, 3),
        (torch.float32, 128, 4, 4),
    ],
)
def test_the_buffers_of_a_small_graph_are_small_and_counted(
    dtype: torch.dtype, width: int, hidden: int, layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wide_mlp.compat, "FakeTensor", Tensor)  # no launch
    mlp = mlp_truth.network((6, *[width] * hidden, 16))
    network = edge_mlp.wide_network(list(mlp), dtype, torch.zeros(0, 6), 1000)
    gradient = torch.zeros(300, 16, dtype=dtype)
    network.forward(torch.zeros(300, 6))
    network.backward(torch.zeros(300, 6), gradient, {}, want_inputs=True, want_values=True)
    (buffer,) = network._buffers
    assert buffer.numel() == 1024 * width * dtype.itemsize * layers  # eight tiles of 128 edges
    assert network._layers_in_backward(want_inputs=True) == layers
    # Everything that it has allocated, and nothing of the module.
    own = [one for value in vars(network).values() for one in tree_leaves(value) if isinstance(one, Tensor)]
    given = {one.data_ptr() for one in mlp.parameters()}
    held = sum(one.nbytes for one in own if one.data_ptr() not in given)
    linear: Any = list(mlp)[0::2]
    few, many, most = (wide_mlp.fixed_bytes(linear, dtype, CUDA, edges) for edges in (1000, 10**6, None))
    assert few == held
    assert many == most


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_chunk_without_edges_has_no_values_and_adds_nothing(dtype: torch.dtype) -> None:
    mlp = mlp_truth.network((6, 256, 256, 16))
    network = edge_mlp.wide_network(list(mlp), dtype, torch.zeros(0, 6))
    assert network.forward(torch.zeros(0, 6)).shape == (0, 16)
    into = {at: torch.ones_like(one) for at, one in enumerate(mlp.parameters())}
    gradient = torch.zeros(0, 16, dtype=dtype)
    network.backward(torch.zeros(0, 6), gradient, into, want_inputs=True, want_values=True)
    network.finish(into)
    assert all(bool((one == 1).all()) for one in into.values())


def test_a_slice_has_whole_tiles_for_any_number_of_programs() -> None:
    for programs, layers, size in product((8, 114, 131, 201, 301), (2, 3, 4), (2, 4)):
        for edges in (0, 1, 10**6, None):
            step = wide_mlp._slice_edges(layers, edges, size, 256, programs, 50 * MIB)
            assert step >= 128 and step % 128 == 0


@pytest.mark.usefixtures("hopper")
def test_a_chunk_of_16_bits_has_equally_many_tiles_for_all_programs() -> None:
    linear: Any = list(mlp_truth.network((6, 256, 256, 16)))[0::2]
    unit = 132 * 128
    for edges, expected in ((5 * unit + 7, 5 * unit), (4 * unit, 4 * unit), (4 * unit - 1, 4 * unit - 1)):
        assert wide_mlp.even_chunk(linear, torch.bfloat16, CUDA, edges) == expected
        assert wide_mlp.even_chunk(linear, torch.float32, CUDA, edges) == edges


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("hidden", [(256, 256), (128, 128, 128)])
@pytest.mark.parametrize("half", [True, False])
def test_the_buffers_of_two_networks_leave_room_for_a_chunk(hidden: tuple[int, ...], half: bool) -> None:
    mlp, points, f = mlp_truth.network((6, 256, 256, 256, 16)), torch.zeros(4, 3), torch.zeros(4, 16)
    attention = mlp_truth.network((3, *hidden, 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        first, second = (flat_path(one, like=points) for one in (mlp, attention))
        fixed = sum(edge_mlp.fixed_bytes(path, like=points) for path in (first, second))
        assert fixed + 16 * MIB > TILE_CHUNK_BYTES
        assert chunk_bytes(first, second, inputs_of(points, points, None, None)) == fixed + 16 * MIB
        assert auto_chunk(mlp, points, points, f, weights="attention", attention=attention) > 80_000


@pytest.mark.usefixtures("hopper")
def test_a_chunk_counts_what_the_network_reads_if_the_points_have_fewer_bits() -> None:
    wide, narrow = mlp_truth.network((8, 128, 128, 128, 128, 16)), mlp_truth.network((8, 64, 16))
    points, f, attributes = torch.zeros(4, 3), torch.zeros(4, 16), torch.zeros(5, 2)
    half, attributes_half = points.bfloat16(), attributes.bfloat16()
    for mlp in (wide, narrow):
        chunk = auto_chunk(mlp, points, points, f, edge_attr=attributes)
        assert auto_chunk(mlp, half, half, f, edge_attr=attributes) == chunk
        assert auto_chunk(mlp, half, points, f, edge_attr=attributes_half) == chunk
        outputs = [layer.out_features for layer in list(mlp)[0::2]]  # type: ignore[union-attr]
        more = mlp_truth.network((6 + 16, *outputs))
        chunk = auto_chunk(more, points, points, f, transform="nonlinear")
        assert auto_chunk(more, half, half, f, transform="nonlinear") == chunk


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    "parts",
    [
        [nn.Linear(6, 32), nn.Identity(), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 16)],
        [nn.Identity(), nn.Linear(6, 256), nn.GELU(), nn.Linear(256, 16)],
        [nn.Linear(6, 256), nn.Linear(256, 32), nn.GELU(), nn.Linear(32, 16)],
        [nn.Linear(6, 16)],
    ],
)
def test_layers_in_another_order_run_one_by_one(parts: list[nn.Module]) -> None:
    path = flat_path(nn.Sequential(*parts), like=torch.zeros(0, 6))
    assert path.name == "layers" and "does not alternate" in path.reason


@pytest.mark.usefixtures("hopper")
def test_a_wide_network_says_by_how_much_it_is_slower_than_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested, "SLOWER", {"float32": {(256, 3, 16, 16): 1.25}})
    path = flat_path(mlp_truth.network((6, 256, 200, 256, 16)), like=torch.zeros(0, 6))
    assert str(path) == (
        "as a few kernels, which may be slower than eager. "
        "On an H200, a network of this size took 1.25 times as long as with eager."
    )


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(
    ("widths", "rounds"),
    [
        ((6, 256, 256, 16), (9, 6)),
        ((6, 256, 256, 256, 16), (8, 6)),
        ((6, 256, 200, 256, 129, 16), (9, 6)),
        ((6, 256, 256, 17), (6, 3)),
        ((32, 256, 256, 256, 3), (6, 3)),
        ((6, 256, 200, 256, 129, 64), (6, 4)),
    ],
)
def test_slices_fit_the_buffers_and_a_chunk_counts_them(
    widths: tuple[int, ...], rounds: tuple[int, int]
) -> None:
    """rounds: those of 132 tiles of 128 edges that fit into 75 MiB in bf16 and 99 MiB in float32.

    They are of all layers together; in float32 a layer has tiles of 64 edges. With many inputs or outputs
    they fit into 50 MiB, or with more than two layers of float32 into 66 MiB.
    """
    mlp, points, f = mlp_truth.network(widths), torch.zeros(4, 3), torch.zeros(4, widths[-1])
    for dtype, count in zip((torch.bfloat16, torch.float32), rounds, strict=True):
        buffers = count * 132 * 128 * 256 * dtype.itemsize
        network = edge_mlp.wide_network(list(mlp), dtype, points)
        sum_bytes = network.places.bytes_of(network.programs, network.groups)
        limit = wide_mlp._buffer_limit(network.widths, dtype.itemsize, sum_bytes)
        for edges, want_inputs in product((1, 1000, 400_000), (True, False)):
            layers = network._layers_in_backward(want_inputs=want_inputs)
            assert layers <= len(widths) - 2
            step = wide_mlp._slice_edges(layers, edges, dtype.itemsize, 256, 132, limit)
            assert step % 128 == 0 and step - edges < 128
            # All programs have equally many tiles.
            assert edges < step + 128 or step % (132 * 256 // dtype.itemsize) == 0
            assert layers * step * 256 * dtype.itemsize <= buffers
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            fixed = edge_mlp.fixed_bytes(flat_path(mlp, like=points), like=points)
            # 136 MiB, or 144 less 3/8 for each channel; a row, the outputs, and what sorts the sources.
            room = max(min(136, 144 - 0.375 * widths[-1]) * MIB - fixed, 16 * MIB)
            per_edge = 4 + widths[-1] * dtype.itemsize + 32
            even = 132 * 128 if dtype is torch.bfloat16 else 1  # all programs have equally many tiles
            if widths[0] == 6:
                assert auto_chunk(mlp, points, points, f, moves=False) == room // per_edge // even * even
        # By hand: the buffers, the converted weights, and the sums of 132 programs and of their 33 groups.
        sizes = [above * below for below, above in pairwise(widths)]
        biased = [above * (below + 1) for below, above in pairwise(widths)]
        biased[0] = widths[1] * mlp_support.pad_width(widths[0] + 1)  # with padded inputs
        converted = 2 * sum(sizes[1:])
        if dtype is torch.float32:  # with four numbers of each layer, and bounds of its values and gradients
            converted = 4 * len(sizes[1:-1]) * 256 * 256 + 4 * 6 * len(sizes)
        ends, between = biased[0] + biased[-1], sum(biased[1:-1])
        assert fixed == buffers + converted + 4 * (132 * ends + 33 * between)


def _layers(*widths: int, last_bias: bool) -> list[nn.Module]:
    return [*list(mlp_truth.network(widths))[:-1], nn.Linear(widths[-2], widths[-1], bias=last_bias)]
