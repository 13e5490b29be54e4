"""Whole layers at a time: the same gradients as layer by layer, with the kernels written in plain torch."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from torch import Tensor  # noqa: E402

from pinchpoint.backends.torch import compat, measurement  # noqa: E402
from pinchpoint.backends.torch.fake import runner  # noqa: E402
from pinchpoint.forecasting import cards  # noqa: E402
from pinchpoint.kit.edges.edge_ops import is_fake  # noqa: E402
from pinchpoint.systems.radiance import rendering  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.model.field import Field  # noqa: E402
from pinchpoint.systems.radiance.model.folded import FoldedField, Slopes  # noqa: E402
from pinchpoint.systems.radiance.rendering import passes, points  # noqa: E402
from pinchpoint.systems.radiance.rendering import render as render_module  # noqa: E402
from pinchpoint.systems.radiance.rendering.rays import Camera  # noqa: E402
from pinchpoint.systems.radiance.rendering.render import Codes, draw, generator_for, render  # noqa: E402

BATCH, POINTS = 3, 10


def plain_read(encoding: Tensor, entry: Tensor, out: Tensor) -> None:
    out.copy_((encoding @ entry).relu().flatten(0, 1))


def plain_read_again(hidden: Tensor, encoding: Tensor, weights: Tensor, out: Tensor) -> None:
    inputs = torch.cat((hidden.view(*encoding.shape[:2], -1), encoding), dim=2)
    out.copy_((inputs @ weights).relu().flatten(0, 1))


def plain_back(
    slope: Tensor, weight: Tensor, hidden: Tensor, out: Tensor, products: Tensor, sums: Tensor | None
) -> None:
    out.copy_(torch.where(hidden > 0, slope @ weight, 0))
    products.zero_()
    for group, (some, units) in enumerate(
        zip(slope.tensor_split(len(products)), hidden.tensor_split(len(products)), strict=True)
    ):
        products[group] = some.t() @ units
    if sums is not None:
        sums[0] += out.sum(0)


def plain_gather(encoding: Tensor, slope: Tensor, products: Tensor) -> None:
    products.zero_()
    products[:, -1] = encoding.mT @ slope.view(*encoding.shape[:2], -1)


@pytest.fixture
def _plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    name, module = "layers_triton", ModuleType("layers_triton")
    for one in (plain_read, plain_read_again, plain_back, plain_gather):
        setattr(module, one.__name__.removeprefix("plain_"), one)
    monkeypatch.setitem(sys.modules, f"{rendering.__name__}.{name}", module)
    monkeypatch.setattr(rendering, name, module, raising=False)


@torch.no_grad()
def gradients(config: FieldConfig, chunks: list[slice], *, fused: bool) -> Slopes:
    """Gradients of the layers, with chunks of images."""
    random = torch.Generator().manual_seed(0)
    parameters = {name: value.double() for name, value in Field(config).named_parameters()}
    codes = (
        torch.randn(BATCH, size, generator=random, dtype=torch.float64)
        for size in (config.z_shape, config.z_app)
    )
    field = FoldedField(config, parameters, *codes, dtype=torch.float64)
    places = torch.rand(BATCH, POINTS, 3, generator=random, dtype=torch.float64) * 2 - 1
    encoding = points.encode_with_ones(config, places, torch.float64)
    sums = points.Sums(field, own=fused, fused=fused)
    for some in chunks:
        layers, view = points.forward(field, encoding[some], some, keep=True, fused=fused)
        back = points.backward_fused if fused else points.backward
        back(field, encoding[some], layers, view.sin(), sums, some)
        assert not layers
    return sums.total()


@pytest.mark.usefixtures("_plain_kernels")
@pytest.mark.parametrize("changes", [{}, {"skip": 0}, {"skip": 2}, {"depth": 2, "skip": 0}], ids=str)
@pytest.mark.parametrize("chunks", [[slice(0, 3)], [slice(0, 1), slice(1, 3)]], ids=["whole", "chunks"])
def test_gradients_are_those_of_single_products(changes: dict[str, Any], chunks: list[slice]) -> None:
    config = FieldConfig.preset("tiny", **changes)
    value, truth = (gradients(config, chunks, fused=fused) for fused in (True, False))
    for name in ("entry", "again", "head"):
        torch.testing.assert_close(getattr(value, name), getattr(truth, name), rtol=1e-12, atol=1e-12)
    for name in ("weights", "biases"):
        pairs = list(zip(getattr(value, name), getattr(truth, name), strict=True))
        assert len(pairs) == config.depth - (1 if name == "weights" else 2)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.fixture
def _fake_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake tensors of a CPU count as those of a Hopper GPU on which kernels run."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    for module in (points, passes):
        monkeypatch.setattr(module, "own_kernels", is_fake)


@pytest.mark.usefixtures("_fake_gpu")
def test_only_fields_of_the_measured_width_and_type_run_whole_layers() -> None:
    with compat.fake_mode():
        tensor = torch.empty(1)
    graf = FieldConfig.preset("graf")
    assert points.runs_fused(graf, tensor, torch.bfloat16)
    assert not points.runs_fused(graf, tensor, torch.float16)
    assert not points.runs_fused(graf, tensor, torch.float32)
    assert not points.runs_fused(FieldConfig.preset("small"), tensor, torch.bfloat16)
    assert not points.runs_fused(graf, torch.empty(1), torch.bfloat16), "on a CPU"


@pytest.mark.parametrize(("card", "fused"), [("h200", True), ("a100-80", False), ("rtx4090", False)])
def test_a_forecast_follows_whole_layers_only_for_cards_that_run_them(card: str, fused: bool) -> None:
    chosen = cards.card(card)
    device = runner.Device(
        title=chosen.title,
        memory_bytes=chosen.memory_bytes,
        capability=chosen.capability,
        cublas_workspace_bytes=chosen.cublas_workspace_bytes,
        cublaslt_workspace_bytes=chosen.cublaslt_workspace_bytes,
        processors=chosen.processors,
    )
    with runner.simulate_device(device, dynamic=runner.Dynamic()):
        tensor = torch.empty(1, device="cuda")
        assert is_fake(tensor)
        assert points.runs_fused(FieldConfig.preset("graf"), tensor, torch.bfloat16) is fused


@pytest.mark.usefixtures("_fake_gpu")
def test_a_step_needs_no_more_memory_than_with_single_products_but_for_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def peak() -> int:
        with compat.fake_mode():
            field = Field(FieldConfig.preset("graf"))
            rays = Camera().rays(torch.rand(2), torch.rand(2), torch.rand(1024, 2))
            codes = Codes(torch.randn(2, 128), torch.randn(2, 128))
            draws = draw(2, 1024, 16, generator=generator_for(0, 0, "peak"))

            def step() -> None:
                field.zero_grad()
                render(field, rays, codes, draws, precision="bf16").rgb.square().sum().backward()

            return measurement.account(step) or 0

    whole = peak()
    monkeypatch.setattr(render_module, "runs_fused", lambda *_: False)
    single = peak()
    sums = points.GROUPS * 256 * 256 * 4
    assert single < whole <= single + sums, "sums of groups of points, but no further layer"
