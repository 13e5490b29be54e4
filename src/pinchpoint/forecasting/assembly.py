"""A Forecast from what a run showed: peaks, parts, lines, and the cards it fits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pinchpoint.core.events import Observation
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.forecasting import allocator_settings
from pinchpoint.forecasting import replay as replaying
from pinchpoint.forecasting.cards import Card, cards

MARGIN = 0.04  # of the total: what fits must fit with this much to spare
_BLUR = 0.002  # of the peak: blocks are cut from other blocks when sizes change, which moves it a little


def margin_bytes(total_bytes: int) -> int:
    return int(MARGIN * total_bytes)


def of_observation(seen: Observation, *, card: Card, expandable: bool | None = None, **told: Any) -> Forecast:
    """told: the Forecast's own fields that no replay can know (target, mode, size, variant, ...)."""
    if expandable is None:
        expandable = allocator_settings.expandable_segments()
    found = replaying.replay(seen, expandable=expandable)
    parts = replaying.breakdown(seen, found)
    low = high = None
    if any(block.span for block in seen.blocks):
        low, high = _interval(seen, found.peak_allocated_bytes, expandable)
    forecast = Forecast(
        framework="torch",
        method="fake tensors",
        peak_allocated_bytes=found.peak_allocated_bytes,
        peak_reserved_bytes=found.peak_reserved_bytes,
        workspace_bytes=parts["workspace"],
        context_bytes=card.context_bytes,
        total_bytes=found.peak_reserved_bytes + card.context_bytes,
        breakdown=parts,
        lines=replaying.top_lines(seen, found),
        modules=replaying.module_shares(seen, found),
        timeline=found.timeline,
        fits={},
        margin_bytes=margin_bytes(found.peak_reserved_bytes + card.context_bytes),
        card=card.name,
        steps=seen.steps,
        notes=(*seen.notes, *allocator_settings.notes()),
        low_bytes=low,
        high_bytes=high,
        needs_bytes=0,
        **told,
    )
    spare = (forecast.high_bytes or forecast.peak_allocated_bytes) - forecast.peak_allocated_bytes
    needs = int((found.peak_reserved_bytes + spare) * (1 + MARGIN))
    return replace(forecast, needs_bytes=needs, fits=_fits(seen, forecast, card, expandable))


def _interval(seen: Observation, usual: int, expandable: bool) -> tuple[int, int] | tuple[None, None]:
    """The peak with the least and the most that libraries may take; none where that hardly matters."""
    low, high = (
        replaying.replay(seen, take=take, expandable=expandable).peak_allocated_bytes
        for take in ("least", "most")
    )
    if high - low < _BLUR * usual / 2:
        return None, None
    return min(low, usual) - int(_BLUR * usual), max(high, usual) + int(_BLUR * usual)


def with_count_interval(forecast: Forecast, dynamic: Any, card: Card) -> Forecast:
    """The forecast with an interval if counts were computed from the data at hand, else unchanged."""
    count, site = dynamic.largest
    return with_scatter(forecast, count, shown_path(site), card) if count else forecast


def with_scatter(forecast: Forecast, count: int, site: str, card: Card) -> Forecast:
    """Counts were exact for the data at hand; other data of the same kind scatters by three standard deviations.

    What does not follow the counts (weights, their gradients and states, workspaces) stays as it is.
    """
    fixed = sum(
        forecast.breakdown[part] for part in ("weights", "gradients", "optimizer", "inputs", "workspace")
    )
    reach = int(min(1.0, 3 / math.sqrt(count)) * (forecast.peak_allocated_bytes - fixed))
    note = f"counts at {site} depend on the data: worked out from the data at hand, with three standard deviations to either side"
    low = (forecast.low_bytes or forecast.peak_allocated_bytes) - reach
    return replace(raised(forecast, reach, card), low_bytes=low, notes=(*forecast.notes, note))


def raised(forecast: Forecast, reach: int, card: Card) -> Forecast:
    """The same with a high end `reach` bytes farther up, which must fit too."""
    needs = (forecast.needs_bytes or 0) + reach
    known = {**cards(), card.name: card}
    return replace(
        forecast,
        fits={
            name: yes and needs <= known[name].memory_bytes - known[name].context_bytes
            for name, yes in forecast.fits.items()
        },
        high_bytes=(forecast.high_bytes or forecast.peak_allocated_bytes) + reach,
        needs_bytes=needs,
    )


def _fits(seen: Observation, forecast: Forecast, card: Card, expandable: bool) -> dict[str, bool]:
    """Every known card and the one asked for. The slower exact replay only where the quick answer is no."""
    answers: dict[str, bool] = {}
    reserved = forecast.peak_reserved_bytes or 0
    take = "most" if forecast.high_bytes is not None else "usual"
    spare = (forecast.high_bytes or forecast.peak_allocated_bytes) - forecast.peak_allocated_bytes
    for other in {**cards(), card.name: card}.values():
        # Two cuBLAS handles, forward and backward, whose workspace differs by generation.
        mine, theirs = (
            allocator_settings.cublas_workspace_bytes(c.cublas_workspace_bytes) for c in (card, other)
        )
        other_reserved = reserved + spare - 2 * (mine - theirs)
        limit = other.memory_bytes - other.context_bytes
        room = int(limit / (1 + MARGIN))
        answers[other.name] = other_reserved <= room or (
            forecast.peak_allocated_bytes <= room
            and replaying.fits(seen, room, take=take, expandable=expandable)
        )
    return answers
