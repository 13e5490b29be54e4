"""How much the turns of a loop may differ in size, judged by the few that were run."""

from __future__ import annotations

import math
import random

from pinchpoint.backends.torch.loops.variation import _largest_deviation


def test_two_turns_say_nothing_about_others() -> None:
    assert _largest_deviation([100.0, 101.0]) == math.inf


def test_the_deviation_of_few_turns_is_rarely_underestimated() -> None:
    numbers = random.Random(0)
    for count in (3, 5, 10, 30):
        too_low = sum(
            _largest_deviation([numbers.gauss(0, 1) for _ in range(count)]) < 1 for _ in range(2000)
        )
        assert too_low <= 40  # 1 of 100, and what chance adds to it
    many = [numbers.gauss(0, 1) for _ in range(1000)]
    assert 1 < _largest_deviation(many) < 1.1
