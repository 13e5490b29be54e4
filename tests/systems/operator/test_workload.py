"""The operator as a workload: all edges are used, variants agree, and memory matches a count by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the operator is torch's")

import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.kit import Lattice
from pinchpoint.systems.operator import WORKLOAD, workload
from pinchpoint.systems.operator.data import sheet
from pinchpoint.systems.operator.data.sheet import K

PARTS = ("encoder", "decoder", "full")
CHANNELS = 16
pytestmark = pytest.mark.usefixtures("quick_workers")


def case(
    size: int = 3_000,
    *,
    variant: str = "eager",
    mode: Any = "train",
    chunk: int | None = None,
    **settings: str,
) -> Case:
    all_settings = {"mlp": "12,20", **settings}
    return WORKLOAD.case(
        size, device="cpu", mode=mode, variant=variant, seed=1, chunk=chunk, settings=all_settings
    )


@pytest.fixture(scope="module")
def forecaster() -> Iterator[Forecaster]:
    with Forecaster("operator") as forecasts:
        yield forecasts


@pytest.fixture
def small_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use 512 tokens instead of 16,384, so that a CPU takes milliseconds instead of seconds."""
    lattice = Lattice((8, 8, 8), sheet.LATTICE.low, sheet.LATTICE.high)
    monkeypatch.setattr(sheet, "LATTICE", lattice)
    monkeypatch.setattr(workload, "LATTICE", lattice)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("size", [2, 33, 3_001])
def test_a_step_processes_the_requested_edges(part: str, size: int) -> None:
    assert case(size, part=part).processed == size


@pytest.mark.usefixtures("small_lattice")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("variant", ["checkpoint", "flat"])
def test_variants_agree_with_the_baseline_in_values_and_every_gradient(part: str, variant: str) -> None:
    before, after = (case(variant=name, part=part, chunk=257).probe for name in ("eager", variant))
    assert before is not None and after is not None
    expected, result = before(), after()
    assert result.outputs["values"] == pytest.approx(expected.outputs["values"], rel=1e-4, abs=1e-6)
    assert set(result.gradients) == set(expected.gradients) and "values" in result.gradients
    for name, gradient in expected.gradients.items():
        assert gradient is not None, f"{name} does not learn"
        assert np.linalg.norm(result.gradients[name] - gradient) <= 1e-4 * np.linalg.norm(gradient) + 1e-9, (
            name
        )


@pytest.mark.usefixtures("small_lattice")
@pytest.mark.parametrize("part", PARTS)
def test_every_edge_affects_the_result(part: str) -> None:
    """The GAOT-3D memory study of the whole model never used its edges."""
    few, more = (case(size, part=part, mode="infer") for size in (K * 90, K * 90 + 1))
    with torch.no_grad():
        a, b = few.step(), more.step()
    assert a.shape != b.shape or not torch.equal(a, b)


@pytest.mark.usefixtures("small_lattice")
@pytest.mark.parametrize("part", PARTS)
def test_a_training_step_lowers_the_loss(part: str) -> None:
    built_case = case(part=part, variant="flat")
    losses = [float(built_case.step()) for _ in range(3)]
    assert losses[-1] < losses[0]


def test_bf16_is_close_to_fp32() -> None:
    exact, half = (case(mode="infer", precision=name).step() for name in ("fp32", "bf16"))
    error = float((exact - half.float()).norm() / exact.norm())
    assert 1e-5 < error < 0.05


def test_one_edge_is_too_few_for_an_encoder_and_a_decoder() -> None:
    with pytest.raises(BadInput, match="at least 2"):
        case(1, part="full")


def test_an_empty_chunk_is_refused() -> None:
    with pytest.raises(BadInput, match="chunk is 0 edges"):
        case(variant="flat", chunk=0)


def slope(
    forecaster: Forecaster, variant: str, mode: str, *, sizes: tuple[int, int], **settings: str
) -> float:
    small, large = (
        forecaster.predict(size=size, mode=mode, variant=variant, settings=settings) for size in sizes
    )
    return (large.peak_allocated_bytes - small.peak_allocated_bytes) / (sizes[1] - sizes[0])


@pytest.mark.parametrize("hidden", [(64, 64), (128, 128, 128)])
def test_eager_bytes_per_edge_match_a_count_by_hand(forecaster: Forecaster, hidden: tuple[int, ...]) -> None:
    """Each layer stores its product and its activation, and the last needs one gradient.

    Then come the inputs (6), the kernel's values and f at the edge (16 each), and an index. The points, with
    32 edges each, add a few bytes.
    """
    mlp = ",".join(map(str, hidden))
    train = 4 * (2 * sum(hidden) + hidden[-1]) + 4 * 6 + 2 * 4 * CHANNELS + 8
    assert slope(forecaster, "eager", "train", sizes=(400_000, 800_000), mlp=mlp) == pytest.approx(
        train, abs=16
    )
    infer = 2 * 4 * hidden[-1] + 116
    assert slope(forecaster, "eager", "infer", sizes=(400_000, 800_000), mlp=mlp) == pytest.approx(
        infer, abs=8
    )


@pytest.mark.parametrize(("dimension", "channels"), [(2, 32), (2, 128), (3, 64)])
def test_bytes_per_edge_follow_from_the_dimension_and_the_channels(
    forecaster: Forecaster, dimension: int, channels: int
) -> None:
    """The same count with 2 d inputs and C values twice; a point has C values.

    With many channels, the peak is where the backward pass begins: with the gradients of the messages, of the
    kernel's values and of f at the edge.
    """
    stored = 4 * 2 * 128 + 4 * 2 * dimension + 2 * 4 * channels + 8 + 4 * channels / K
    train = stored + 4 * max(64, 3 * channels)
    settings = {"mlp": "64,64", "dimension": str(dimension), "channels": str(channels)}
    assert slope(forecaster, "eager", "train", sizes=(400_000, 800_000), **settings) == pytest.approx(
        train, abs=12
    )


def test_the_edges_of_the_whole_model_read_two_or_three_coordinates(forecaster: Forecaster) -> None:
    """Two coordinates save the inputs of the edge MLPs: 8 bytes for each edge of encoder and decoder."""
    sizes = (1_000_000, 2_000_000)
    flat, solid = (
        slope(forecaster, "eager", "train", sizes=sizes, part="full", mlp="64,64", dimension=dimension)
        for dimension in ("2", "3")
    )
    assert solid - flat == pytest.approx(8, abs=1)  # less a copy of the points


@pytest.mark.parametrize(
    ("part", "most"), [("encoder", 12), ("decoder", 12), ("full", WORKLOAD.variant("flat").held_bytes)]
)
def test_flat_grows_only_by_the_graph_and_the_points(forecaster: Forecaster, part: str, most: float) -> None:
    assert 4 < slope(forecaster, "flat", "train", sizes=(1_000_000, 2_000_000), part=part) <= most


def test_the_whole_models_memory_grows_with_its_edges(forecaster: Forecaster) -> None:
    assert slope(forecaster, "eager", "train", sizes=(100_000, 200_000), part="full") > 3_000
