"""The losses of both networks and the R1 penalty, compared with closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.core.errors import BadInput, TargetFailed  # noqa: E402
from pinchpoint.systems.radiance.model.discriminator import Discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.losses import (  # noqa: E402
    check_gradients,
    loss_as_generated,
    loss_as_real,
    slope_penalty,
)


def test_losses_are_binary_cross_entropies_of_the_logits() -> None:
    logits = torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float32)
    for loss, truth in ((loss_as_real, 1.0), (loss_as_generated, 0.0)):
        expected = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, torch.full_like(logits, truth)
        )
        assert float(loss(logits)) == pytest.approx(float(expected), rel=1e-6)
    assert float(loss_as_real(torch.zeros(4))) == pytest.approx(math.log(2))


def test_the_penalty_of_a_plane_is_the_square_of_its_slope() -> None:
    slope = torch.randn(3, 32, 32)

    def plane(images: Any) -> Any:
        return (images * slope).sum(dim=(1, 2, 3))

    penalty, logits = slope_penalty(plane, torch.rand(4, 3, 32, 32), reduction="image")
    assert float(penalty) == pytest.approx(float(slope.square().sum()), rel=1e-5) and logits.shape == (4,)


def test_grafs_penalty_for_32_x_32_patches_is_a_1024th_of_the_penalty_per_image() -> None:
    torch.manual_seed(0)
    critic, real = Discriminator(32, width=8), torch.rand(3, 3, 32, 32)
    graf, image = (
        float(slope_penalty(critic, real, reduction=kind)[0].detach()) for kind in ("graf", "image")
    )  # type: ignore[arg-type]
    assert image / graf == pytest.approx(1024, rel=1e-5) and graf > 0
    with pytest.raises(BadInput, match="reduction 'ray' is unknown"):
        slope_penalty(critic, real, reduction="ray")  # type: ignore[arg-type]


def test_the_penalty_is_computed_in_fp32_under_autocast() -> None:
    torch.manual_seed(0)
    critic, real = Discriminator(32, width=8), torch.rand(2, 3, 32, 32)
    alone, _ = slope_penalty(critic, real, reduction="image")
    with torch.autocast("cpu", torch.bfloat16):
        within, logits = slope_penalty(critic, real, reduction="image")
    assert logits.dtype == within.dtype == torch.float32
    assert torch.equal(alone, within)


def test_the_gradient_of_the_penalty_matches_finite_differences() -> None:
    torch.manual_seed(0)
    critic, real = Discriminator(32, width=2).double(), torch.rand(2, 3, 32, 32)
    weight, at = critic.convs[0].weight, (0, 1, 2, 3)

    def penalty() -> Any:
        # The penalty converts its input to fp32; the weights of the critic may be float64.
        images = real.double().requires_grad_()
        (slope,) = torch.autograd.grad(critic(images).sum(), images, create_graph=True)
        return slope.square().sum(dim=(1, 2, 3)).mean()

    penalty().backward()
    actual = float(weight.grad[at])
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            weight[at] += step
        values.append(float(penalty().detach()))
        with torch.no_grad():
            weight[at] -= step
    expected = (values[0] - values[1]) / 2e-5
    single = Discriminator(32, width=2)
    single.load_state_dict({name: value.float() for name, value in critic.state_dict().items()})
    slope_penalty(single, real, reduction="image")[0].backward()
    assert actual == pytest.approx(expected, rel=1e-4)
    assert float(single.convs[0].weight.grad[at]) == pytest.approx(expected, rel=1e-2, abs=1e-5)


def test_parameters_without_a_gradient_are_reported_by_name() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    model(torch.rand(4, 2)).sum().backward()
    check_gradients(model, what="model")
    model.zero_grad(set_to_none=True)
    model[1](model[0](torch.rand(4, 2)).detach()).sum().backward()
    with pytest.raises(
        TargetFailed, match=r"2 of 4 parameters of the model do not get a gradient: 0\.weight, 0\.bias"
    ) as excinfo:
        check_gradients(model, what="model")
    assert "no_grad" in excinfo.value.hint
    model.zero_grad(set_to_none=True)
    (0.0 * model(torch.rand(4, 2))).sum().backward()
    with pytest.raises(TargetFailed, match=r"4 of 4 .* and 1 more"):
        check_gradients(model, what="model")
