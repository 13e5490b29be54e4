"""The case of `bench radiance`: every way renders the same image with the same gradients."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the field is torch's")

from pinchpoint.backends.base import backend  # noqa: E402
from pinchpoint.systems.common.bench.cases import Setup  # noqa: E402
from pinchpoint.systems.common.bench.runner import compare  # noqa: E402
from pinchpoint.systems.radiance.bench import cases  # noqa: E402


def test_every_way_renders_the_image_and_gradients_of_the_baseline() -> None:
    (case,) = cases()
    comparison = compare(case, Setup("cpu", "tiny", 16), backend("torch"), repeats=1, limit_s=60.0)
    assert [row.name.partition(",")[0] for row in comparison.rows] == [
        "eager",
        "folded",
        "checkpoint",
        "deferred",
        "folded+checkpoint",
    ]
    assert all(row.agreement is not None and row.agreement.equal for row in comparison.rows)
    assert all(row.ratio is None or row.ratio > 0 for row in comparison.rows)
