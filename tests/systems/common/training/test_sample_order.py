"""The order of the bodies follows from the seed and the step."""

from __future__ import annotations

from pinchpoint.systems.common.training.sample_order import at_turn


def test_every_epoch_uses_each_body_once_in_its_own_order() -> None:
    names = [f"b{number}" for number in range(7)]
    passes = [[at_turn(names, seed=5, turn=turn) for turn in range(7 * at, 7 * at + 7)] for at in range(3)]
    assert all(sorted(one) == names for one in passes)
    assert passes[0] != passes[1] != passes[2]
