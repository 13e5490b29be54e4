"""Forecasts that outlive a time limit: the process that makes them is started when first wanted, and again if it died."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self

from pinchpoint.core.errors import TargetFailed, TimedOut
from pinchpoint.core.records import Forecast
from pinchpoint.core.settings import Overrides


class Forecasts(Protocol):
    """Predicts one target at many sizes. `memory.forecaster.Forecaster` is one."""

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
        settings: Overrides | None = None,
    ) -> Forecast: ...


class Reopening:
    """A `Forecasts` made of others: a run that hangs or takes its process with it costs one point, not the rest."""

    def __init__(self, make: Callable[[], AbstractContextManager[Forecasts]]) -> None:
        self._make = make
        self._manager: AbstractContextManager[Forecasts] | None = None
        self._open: Forecasts | None = None

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
        if self._open is None:
            self._manager = self._make()
            self._open = self._manager.__enter__()
        try:
            return self._open.predict(size=size, mode=mode, variant=variant, chunk=chunk, settings=settings)
        except (TimedOut, TargetFailed):
            self._close()
            raise

    def _close(self) -> None:
        if self._manager is not None:
            self._manager.__exit__(None, None, None)
        self._manager = self._open = None
