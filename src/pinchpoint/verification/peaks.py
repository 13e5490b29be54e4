"""Peaks of a baseline and a variant: measured where torch runs on CUDA, predicted elsewhere.

JAX cannot set its peak back within one process, so its peaks are predicted on CUDA as well.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.records import Forecast
from pinchpoint.verification.probes import Bench, Way


class Forecasts(Protocol):
    """Predicts one target. `memory.forecaster.Forecaster` is one."""

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
    ) -> Forecast: ...


@dataclass(frozen=True)
class Change:
    """Allocated peaks before and after; None with `why` where they are not known."""

    before_bytes: int | None
    after_bytes: int | None
    how: Literal["predicted", "measured"]
    why: str = ""

    @property
    def share(self) -> float | None:
        """The variant's peak less the baseline's, as a share of the baseline's."""
        if not self.before_bytes or self.after_bytes is None:
            return None
        return self.after_bytes / self.before_bytes - 1


def compare_peaks(
    target: Any, bench: Bench, variants: tuple[str, str], way: Way, forecaster: Forecasts | None, *, seed: int
) -> Change:
    """Both peaks, built in one way. What cannot be predicted is left unknown, with the reason."""
    if bench.device == "cuda" and bench.workload.framework == "torch":
        before, after = (_measured(bench, variant, way) for variant in variants)
        return Change(before, after, "measured")
    try:
        with _forecasts(target, forecaster, seed, bench.settings) as forecasts:
            found = [
                forecasts.predict(size=way.size, mode=bench.mode, variant=variant) for variant in variants
            ]
    except PinchpointError as error:
        return Change(None, None, "predicted", f"the peaks could not be predicted: {error.what}")
    return Change(found[0].peak_allocated_bytes, found[1].peak_allocated_bytes, "predicted")


def _forecasts(
    target: Any, forecaster: Forecasts | None, seed: int, settings: Mapping[str, str]
) -> AbstractContextManager[Forecasts]:
    if forecaster is not None:
        return nullcontext(forecaster)
    from pinchpoint.forecasting.forecaster import Forecaster

    make: Callable[..., AbstractContextManager[Forecasts]] = Forecaster
    return make(target, seed=seed, settings=settings)


def _measured(bench: Bench, variant: str, way: Way) -> int | None:
    """Most bytes allocated during a step, in a run of its own: nothing else of ours is alive."""
    gc.collect()
    case = bench.case(variant, way)
    for _ in range(2):  # the first step makes the optimizer's state and the libraries' workspaces
        bench.backend.wait(bench.device, case.step(*case.args))
    bench.backend.reset_peak(bench.device)
    bench.backend.wait(bench.device, case.step(*case.args))
    return bench.backend.peaks(bench.device).allocated_bytes
