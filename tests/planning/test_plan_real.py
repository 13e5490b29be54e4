"""A plan made with real forecasts, compared with forecasts made one at a time."""

from __future__ import annotations

import pytest

from pinchpoint.planning.plan import plan

pytestmark = pytest.mark.usefixtures("quick_workers")


@pytest.mark.slow
def test_the_planned_size_fits_and_two_percent_more_does_not() -> None:
    pytest.importorskip("torch", reason="the workload is torch's")
    from pinchpoint.forecasting.forecaster import Forecaster

    result = plan("field", budget="4GiB", variant="eager")
    assert result.size is not None
    assert len(result.tried) <= 8
    with Forecaster("field", card=str(result.budget_bytes) + "B") as forecaster:
        fits, fails = (
            forecaster.predict(size=n, mode="train", variant="eager")
            for n in (result.size, round(result.size * 1.02))
        )
    assert fits.fits[fits.card] is True and fails.fits[fails.card] is False
    assert fits.total_bytes == result.peak_bytes
