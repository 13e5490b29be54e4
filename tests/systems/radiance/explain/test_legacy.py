"""The super-resolution of the GRAF memory guide trains no weight, and the gradient check reports it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the radiance fields are torch's")

from pinchpoint.core.errors import TargetFailed  # noqa: E402
from pinchpoint.systems.radiance.explain.legacy import LegacySuperRes  # noqa: E402
from pinchpoint.systems.radiance.model.discriminator import Discriminator  # noqa: E402
from pinchpoint.systems.radiance.model.losses import check_gradients, loss_as_real  # noqa: E402


def one_step(no_grad: bool) -> tuple[torch.nn.Module, float]:
    """Take one step with small stand-ins for field, super-resolution and discriminator; return how much the
    weights move.
    """
    torch.manual_seed(0)
    net = torch.nn.ModuleDict(
        {
            "field": torch.nn.Conv2d(3, 3, 1),
            "superres": LegacySuperRes(32, width=4, views=3, up=2, no_grad=no_grad),
        }
    )
    critic = Discriminator(32, width=4).requires_grad_(False)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    result = net["superres"](net["field"](torch.rand(3, 3, 32, 32)), torch.arange(3))
    loss = loss_as_real(critic(result))
    assert loss.requires_grad, "the loss has a gradient in both cases, which hides the fault"
    loss.backward()
    optimizer.step()
    pairs = zip(net.parameters(), before, strict=True)
    return net, max(float((parameter.detach() - old).abs().max()) for parameter, old in pairs)


def test_under_no_grad_no_weight_moves_and_the_check_reports_the_model() -> None:
    net, change = one_step(no_grad=True)
    assert change == 0.0
    with pytest.raises(
        TargetFailed, match=r"9 of 9 parameters of the generator do not get a gradient: field\.weight"
    ):
        check_gradients(net, what="generator")


def test_without_no_grad_the_same_network_trains_every_weight() -> None:
    net, change = one_step(no_grad=False)
    assert change > 0
    check_gradients(net, what="generator")
