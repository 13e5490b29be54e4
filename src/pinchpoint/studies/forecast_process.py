"""A forecaster whose process starts on first use, and again after a time limit or a crash."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from pinchpoint.core.errors import TargetFailed, TimedOut
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting.forecaster import Forecasts


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

    def predict(self, **request: Any) -> Forecast:
        """As `Forecasts.predict`."""
        if self._forecasts is None:
            self._manager = self._start()
            self._forecasts = self._manager.__enter__()
        try:
            return self._forecasts.predict(**request)
        except (TimedOut, TargetFailed):
            self._close()
            raise

    def _close(self) -> None:
        if self._manager is not None:
            self._manager.__exit__(None, None, None)
        self._manager = self._forecasts = None
