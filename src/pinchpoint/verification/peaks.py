"""Peaks of a baseline and a variant: measured for torch on CUDA, predicted otherwise.

JAX cannot reset its peak within a process, so its peaks are predicted on CUDA as well.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import Any, Literal

from pinchpoint.core.errors import PinchpointError
from pinchpoint.forecasting.forecaster import Forecasts, open_forecasts
from pinchpoint.verification.probes import CaseBuilder, CaseSpec


@dataclass(frozen=True)
class PeakChange:
    """The allocated peaks of baseline and variant; None, with the reason in `why`, if they are unknown."""

    before_bytes: int | None
    after_bytes: int | None
    how: Literal["predicted", "measured"]
    why: str = ""

    @property
    def share(self) -> float | None:
        """The change of the peak as a share of the baseline's; negative if it falls."""
        if not self.before_bytes or self.after_bytes is None:
            return None
        return self.after_bytes / self.before_bytes - 1


def compare_peaks(
    target: Any,
    builder: CaseBuilder,
    variants: tuple[str, str],
    spec: CaseSpec,
    forecaster: Forecasts | None,
    *,
    seed: int,
) -> PeakChange:
    """Return both peaks at one spec. A peak that cannot be predicted stays unknown, with the reason."""
    if builder.device == "cuda" and builder.workload.framework == "torch":
        before, after = (_measure_peak(builder, variant, spec) for variant in variants)
        return PeakChange(before, after, "measured")
    try:
        with open_forecasts(forecaster, target, seed=seed, settings=builder.settings) as forecasts:
            before, after = [
                forecasts.predict(size=spec.size, mode=builder.mode, variant=variant) for variant in variants
            ]
    except PinchpointError as error:
        return PeakChange(None, None, "predicted", f"the peaks could not be predicted: {error.what}")
    return PeakChange(before.peak_allocated_bytes, after.peak_allocated_bytes, "predicted")


def _measure_peak(builder: CaseBuilder, variant: str, spec: CaseSpec) -> int | None:
    """Return the most bytes allocated during a step, in a run where nothing else of ours is alive."""
    gc.collect()
    case = builder.build(variant, spec)
    for _ in range(2):  # the first step creates the optimizer state and the libraries' workspaces
        builder.backend.wait(builder.device, case.step(*case.args))
    builder.backend.reset_peak(builder.device)
    builder.backend.wait(builder.device, case.step(*case.args))
    return builder.backend.peaks(builder.device).allocated_bytes
