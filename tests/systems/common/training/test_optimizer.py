"""Updates: a run may continue with another form of the optimizer than the one that began it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the updates are torch's")

from pinchpoint.systems.common.settings import TrainSettings  # noqa: E402
from pinchpoint.systems.common.training.optimizer import Updates  # noqa: E402


def weights_after(forms: Sequence[bool]) -> Any:
    """Return the averaged weights after two steps of each form, `fused` or not, with the state handed on."""
    settings = TrainSettings(lr=0.1, ema=0.9)
    inputs = torch.linspace(-1, 1, 12).reshape(4, 3)
    updates = [Updates(torch.nn.Linear(3, 2), settings, fused=fused) for fused in forms]
    for network in (updates[0].model, updates[0].trained()):
        network.load_state_dict({"weight": torch.ones(2, 3), "bias": torch.zeros(2)})
    for place, (one, fused) in enumerate(zip(updates, forms, strict=True)):
        if place:
            one.restore(updates[place - 1].state())
        assert all(bool(group["fused"]) == fused for group in one.optimizer.param_groups)
        for number in (2 * place + 1, 2 * place + 2):
            one.begin(number)
            one.model(inputs).square().sum().backward()
            one.finish(number)
    return torch.cat([value.detach().flatten() for value in updates[-1].trained().parameters()])


def test_a_fused_optimizer_and_the_plain_one_continue_each_other() -> None:
    plain = weights_after([False, False])
    for forms in ([True, True], [True, False], [False, True]):
        torch.testing.assert_close(weights_after(forms), plain, rtol=1e-5, atol=1e-6)
