"""A forecaster whose process starts on first use, and again after a time limit or a crash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from pinchpoint.core.errors import TargetFailed, TimedOut
from pinchpoint.core.records import Forecast
from pinchpoint.core.settings import Overrides


class Forecasts(Protocol):
    """Predicts one target at many sizes, as `forecasting.forecaster.Forecaster` does."""

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
        settings: Overrides | None = None,
    ) -> Forecast: ...


class RestartingForecaster:
    """A `Forecasts` that restarts after a failure, so that a run that hangs or crashes costs one point."""

    def __init__(self, start: Callable[[], AbstractContextManager[Forecasts]]) -> None:
        self._start = start
        self._manager: AbstractContextManager[Forecasts] | None = None
        self._forecasts: Forecasts | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
        settings: Overrides | None = None,
    ) -> Forecast:
        if self._forecasts is None:
            self._manager = self._start()
            self._forecasts = self._manager.__enter__()
        try:
            return self._forecasts.predict(
                size=size, mode=mode, variant=variant, chunk=chunk, settings=settings
            )
        except (TimedOut, TargetFailed):
            self._close()
            raise

    def _close(self) -> None:
        if self._manager is not None:
            self._manager.__exit__(None, None, None)
        self._manager = self._forecasts = None
