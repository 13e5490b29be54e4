"""The field workload: three variants, one computation, and memory that grows as each claims."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the field workload needs torch")

from pinchpoint.backends.torch import measurement  # noqa: E402
from pinchpoint.workloads.field import WORKLOAD  # noqa: E402
from pinchpoint.workloads.field.model import points, truth  # noqa: E402


def case(variant, *, size=700, mode="train", chunk=128, seed=3):
    return WORKLOAD.case(size, device="cpu", mode=mode, variant=variant, seed=seed, chunk=chunk)


@pytest.mark.parametrize("variant", ["checkpoint", "chunked"])
@pytest.mark.parametrize("mode", ["train", "infer"])
def test_every_variant_gives_the_values_and_gradients_of_the_baseline(variant, mode):
    expected, result = case("eager", mode=mode).probe(), case(variant, mode=mode).probe()
    assert expected.outputs.keys() == result.outputs.keys()
    assert expected.gradients.keys() == result.gradients.keys()
    assert len(expected.gradients) == (13 if mode == "train" else 0)  # 6 weights, 6 biases, the coordinates
    for name, value in expected.outputs.items():
        assert np.linalg.norm(result.outputs[name] - value) <= 1e-5 * np.linalg.norm(value)
    for name, value in expected.gradients.items():
        assert np.linalg.norm(result.gradients[name] - value) <= 1e-4 * np.linalg.norm(value)


def test_the_gradient_of_the_coordinates_is_the_finite_difference_of_the_loss():
    built = case("eager", size=8)
    gradient = built.probe().gradients["coordinates"]
    torch.manual_seed(3)
    from pinchpoint.workloads.field.model import Field

    field = Field(recompute=False).double()
    where = points(0, 8, seed=3, device="cpu").double()

    def loss(at):
        with torch.no_grad():
            return float((field(at) - truth(at)).square().sum() / 8)

    push = torch.zeros_like(where)
    push[5, 1] = 1e-6
    assert gradient[5, 1] == pytest.approx((loss(where + push) - loss(where - push)) / 2e-6, rel=1e-3)


def test_the_points_do_not_depend_on_the_chunk():
    whole = points(0, 1000, seed=1, device="cpu")
    parts = torch.cat([points(0, 300, seed=1, device="cpu"), points(300, 1000, seed=1, device="cpu")])
    assert torch.equal(whole, parts)
    assert whole.abs().max() <= 1
    assert whole.mean(dim=0).abs().max() < 0.01  # they fill the box evenly
    assert not torch.equal(whole, points(0, 1000, seed=2, device="cpu"))


def test_training_lowers_the_loss():
    step = case("chunked").step
    losses = [float(step()) for _ in range(12)]
    assert losses[-1] < 0.6 * losses[0]


def test_processed_counts_the_ragged_last_chunk():
    assert case("chunked", size=700, chunk=128).processed == 700
    assert case("eager", size=700).processed == 700


def peak(variant, size, mode="train"):
    def run():
        step = case(variant, size=size, mode=mode, chunk=512).step
        step()
        step()

    return measurement.account(run)


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_chunked_stays_flat_beyond_its_chunk(mode):
    assert peak("chunked", 1024, mode) == peak("chunked", 4096, mode)


def test_eager_training_grows_by_what_the_network_saves_for_backward():
    # 5 layers save their input and that of GELU, both 1,024 B per point; +1,024 B for the current gradient.
    growth = (peak("eager", 4096) - peak("eager", 2048)) / 2048
    assert growth == pytest.approx(11 * 1024, rel=0.01)
    assert (peak("checkpoint", 4096) - peak("checkpoint", 2048)) / 2048 < 0.75 * growth
