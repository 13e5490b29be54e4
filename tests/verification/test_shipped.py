"""A shipped workload of each framework, run on this machine's CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pinchpoint.core.discovery import load_workload
from pinchpoint.verification.verify import verify


class Shrinking:
    """Predicts less for every variant after the first, so that a slow-down here is not a failure."""

    def __init__(self) -> None:
        self.first: str | None = None

    def predict(self, *, variant: str | None = None, **_: Any) -> Any:
        @dataclass(frozen=True)
        class Forecast:
            peak_allocated_bytes: int

        self.first = self.first or variant
        return Forecast(1000 if variant == self.first else 500)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "variant", "size"), [("field", "chunked", 96), ("orbital", "loop", 8)])
def test_a_variant_of_either_framework_passes_against_its_baseline(
    name: str, variant: str, size: int
) -> None:
    pytest.importorskip(load_workload(name).framework, reason="its framework is not installed")
    verdict = verify(
        name, variant=variant, size=size, device="cpu", repeats=8, limit_s=1.0, forecaster=Shrinking()
    )
    assert verdict.status in ("pass", "inconclusive"), verdict.reason
    assert all(c["ok"] for c in verdict.comparisons)
    assert {c["what"] for c in verdict.comparisons} == {"points", "output", "gradient"}
    assert not any("nothing was compared" in note for note in verdict.notes), "every setting was compared"
