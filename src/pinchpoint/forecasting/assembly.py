"""Assembles a Forecast from an observed run: peaks, breakdown, source lines, and the cards that fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pinchpoint.backends.torch import versions
from pinchpoint.core.events import Observation, Span
from pinchpoint.core.files import shown_operation
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting import allocator_settings, attribution, later_steps
from pinchpoint.forecasting import replay as replaying
from pinchpoint.forecasting.cards import Card, cards

MARGIN = 0.04  # share of the total that must remain free for a step to count as fitting
_HALVINGS = 16  # of a gradient scaler's first scale, until it is 1
_CLOSE = 0.005  # how closely the fewest bytes with which a run completes are found
_BLUR = 0.002  # share of the peak by which it varies because blocks split differently when sizes change


def margin_bytes(total_bytes: int) -> int:
    return int(MARGIN * total_bytes)


def of_observation(
    observation: Observation,
    *,
    card: Card,
    expandable: bool | None = None,
    only_card: bool = False,
    find_least: bool = False,
    **fields: Any,
) -> Forecast:
    """Build a Forecast. fields: what a replay cannot know (target, mode, size, variant, ...).

    only_card: answer whether it fits for this card only. find_least: if it reserves more than the card has,
    find with how few bytes it completes, as the allocator frees what it has cached.
    """
    if expandable is None:
        expandable = allocator_settings.expandable_segments()
    result = replaying.replay(observation, expandable=expandable)
    longer = later_steps.with_later_steps(observation, expandable=expandable)
    reserved = replaying.peak_reserved_bytes(longer, expandable=expandable)
    parts = replaying.breakdown(observation, result)
    low = high = None
    reserved_high = reserved
    if any(block.span for block in observation.blocks):
        most = replaying.replay(observation, take="most", expandable=expandable)
        low, high = _interval(observation, result.peak_allocated_bytes, most.peak_allocated_bytes, expandable)
        if high is not None:
            # Large workspaces also leave larger gaps between blocks.
            spare = high - result.peak_allocated_bytes
            most_reserved = replaying.peak_reserved_bytes(longer, take="most", expandable=expandable)
            reserved_high = max(reserved + spare, most_reserved)
    search_bytes = search_reserved_bytes = None
    if observation.searches:
        room = card.memory_bytes - card.context_bytes
        search_bytes, search_reserved_bytes = replaying.peaks_with_searches(
            longer, room, expandable=expandable
        )
    forecast = Forecast(
        framework="torch",
        method="fake tensors",
        peak_allocated_bytes=result.peak_allocated_bytes,
        peak_reserved_bytes=reserved,
        workspace_bytes=parts["workspace"],
        context_bytes=card.context_bytes,
        total_bytes=reserved + card.context_bytes,
        breakdown=parts,
        lines=attribution.top_lines(observation, result),
        modules=attribution.module_shares(observation, result),
        timeline=result.timeline,
        fits={},
        margin_bytes=margin_bytes(reserved + card.context_bytes),
        card=card.name,
        steps=observation.steps,
        notes=(*observation.notes, *allocator_settings.notes(), *versions.notes()),
        seen=observation.seen,
        low_bytes=low,
        high_bytes=high,
        search_bytes=search_bytes,
        search_reserved_bytes=search_reserved_bytes,
        needs_bytes=0,
        **fields,
    )
    forecast = replace(
        forecast,
        needs_bytes=int(reserved_high * (1 + MARGIN)),
        fits=_fits(longer, forecast, reserved_high, card, expandable, only_card=only_card),
    )
    if find_least and reserved_high > _room_bytes(card):
        least = _completing_bytes(longer, forecast, reserved_high, card, expandable)
        forecast = replace(forecast, completes_bytes=int(least * (1 + MARGIN)))
    return with_reasons(forecast, observation.reasons)


def with_reasons(forecast: Forecast, reasons: Iterable[str]) -> Forecast:
    """The forecast with more reasons why its peak may be higher: no card is said to fit any more."""
    every = tuple(dict.fromkeys((*forecast.reasons, *reasons)))
    fits = {name: None if yes and every else yes for name, yes in forecast.fits.items()}
    return replace(forecast, reasons=every, fits=fits)


def fits_of_all(forecasts: Sequence[Forecast]) -> dict[str, bool | None]:
    """What every one of several forecasts of a script fits, by card; None if that is unknown."""
    fits: dict[str, bool | None] = {}
    for name in forecasts[0].fits:
        answers = [one.fits.get(name) for one in forecasts]
        fits[name] = False if False in answers else None if None in answers else True
    return fits


def completes_of_all(forecasts: Sequence[Forecast]) -> int | None:
    """The fewest bytes with which all of several forecasts of a script complete; None if that is unknown."""
    if all(one.completes_bytes is None for one in forecasts):
        return None
    return max(one.completes_bytes or one.needs_bytes or 0 for one in forecasts)


def of_one_card(forecast: Forecast, card: Card, line: str) -> Forecast:
    """The forecast of a script that catches the error of a full card, raised at this line."""
    reason = (
        f"the script runs out of memory at {line} and catches the error: the peak is that of {card.name}, "
        "and other cards have other peaks"
    )
    fits = {name: True if yes and name == card.name else None for name, yes in forecast.fits.items()}
    before = forecast.peak_reserved_bytes or 0
    reserved = min(
        before, card.usable_bytes
    )  # the allocator returns cached blocks before it raises the error
    total = forecast.total_bytes - before + reserved
    return replace(
        forecast,
        reasons=(*forecast.reasons, reason),
        fits=fits,
        peak_reserved_bytes=reserved,
        total_bytes=total,
    )


def _interval(
    observation: Observation, usual: int, high: int, expandable: bool
) -> tuple[int, int] | tuple[None, None]:
    """The peak if libraries use the least and the most memory; (None, None) if the two hardly differ."""
    low = replaying.replay(observation, take="least", expandable=expandable).peak_allocated_bytes
    if high - low < _BLUR * usual / 2:
        return None, None
    return min(low, usual) - int(_BLUR * usual), max(high, usual) + int(_BLUR * usual)


def with_count_interval(
    forecast: Forecast, dynamic: Any, card: Card, spread: float | None = None
) -> Forecast:
    """Add an interval to the forecast if its counts were computed from the available data."""
    count, site = dynamic.largest
    return with_scatter(forecast, count, shown_operation(site), card, spread) if count else forecast


def with_scatter(
    forecast: Forecast, count: int, site: str, card: Card, spread: float | None = None
) -> Forecast:
    """Add an interval of three standard deviations to the forecast, for other data of the same kind.

    The counts are exact for the available data. What does not depend on the counts (weights, gradients,
    optimizer states, workspaces) does not change. spread: share by which turns of a loop with different data
    deviate from their mean: three times as much is an estimate of the interval, if it is smaller.
    """
    fixed_bytes = sum(
        forecast.breakdown[part] for part in ("weights", "gradients", "optimizer", "inputs", "workspace")
    )
    share = min(1.0, 3 / math.sqrt(count), 3 * spread if spread else 1.0)
    reach = int(share * (forecast.peak_allocated_bytes - fixed_bytes))
    note = (
        f"counts at {site} depend on the data: they are those of the available data, "
        "and the interval allows for three standard deviations on either side"
    )
    low = (forecast.low_bytes or forecast.peak_allocated_bytes) - reach
    return replace(with_higher_end(forecast, reach, card), low_bytes=low, notes=(*forecast.notes, note))


def with_skipped_steps(forecast: Forecast, steps: int) -> Forecast:
    """Lower the low end of a run so short that a gradient scaler may skip all its steps.

    The scaler starts with a scale of 65,536 and halves it when a gradient overflows. Until an optimizer has
    taken a step, it has no states.
    """
    states = forecast.breakdown["optimizer"]
    if not states or steps > _HALVINGS:
        return forecast
    note = f"the gradient scaler may skip all {steps} steps, so the low end has no optimizer states"
    return replace(
        forecast,
        low_bytes=int((forecast.low_bytes or forecast.peak_allocated_bytes) * (1 - _BLUR)) - states,
        high_bytes=forecast.high_bytes or forecast.peak_allocated_bytes,
        notes=(*forecast.notes, note),
    )


def with_rank(forecast: Forecast, rank: int | None, world_size: int, nccl: Span, card: Card) -> Forecast:
    """Add the rank of a parallel job and NCCL's own buffers; a card must have room for the most of them."""
    all_cards = {**cards(), card.name: card}
    needs = (forecast.needs_bytes or 0) + nccl.most
    notes = forecast.notes
    if nccl.most:
        notes += (
            f"NCCL's buffers are a guess: {show_bytes(nccl.least)} to {show_bytes(nccl.most)}, "
            "and `fits` counts the most",
        )
    return replace(
        forecast,
        world_size=world_size,
        rank=rank,
        nccl_bytes=nccl.usual,
        nccl_high_bytes=nccl.most,
        completes_bytes=None,
        total_bytes=forecast.total_bytes + nccl.usual,
        notes=notes,
        fits={
            name: False if yes and needs > all_cards[name].usable_bytes else yes
            for name, yes in forecast.fits.items()
        },
    )


def with_larger_batches(forecast: Forecast, beyond: float, card: Card) -> Forecast:
    """Raise the high end for batches that may be larger than those that were run, by the share `beyond`.

    What depends on the batch is assumed to grow with its square, as attention does in the worst case.
    """
    fixed_bytes = sum(forecast.breakdown[part] for part in ("weights", "gradients", "optimizer", "workspace"))
    reach = int(((1 + beyond) ** 2 - 1) * (forecast.peak_allocated_bytes - fixed_bytes))
    low = forecast.low_bytes or forecast.peak_allocated_bytes
    return replace(with_higher_end(forecast, reach, card), low_bytes=low)


def with_higher_end(forecast: Forecast, reach: int, card: Card) -> Forecast:
    """Raise the high end of the forecast by `reach` bytes; a card must then fit these bytes as well."""
    needs = (forecast.needs_bytes or 0) + reach
    all_cards = {**cards(), card.name: card}
    return replace(
        forecast,
        fits={
            name: yes if needs <= all_cards[name].usable_bytes else False
            for name, yes in forecast.fits.items()
        },
        high_bytes=(forecast.high_bytes or forecast.peak_allocated_bytes) + reach,
        needs_bytes=needs,
        completes_bytes=None,
    )


def _room_bytes(card: Card) -> int:
    return int(card.usable_bytes / (1 + MARGIN))


def _completing_bytes(
    observation: Observation, forecast: Forecast, reserved_high: int, card: Card, expandable: bool
) -> int:
    """About the fewest bytes with which the run completes: it did with these."""
    take = _take(forecast)
    low, high = forecast.high_bytes or forecast.peak_allocated_bytes, reserved_high
    room = _room_bytes(card)
    if low < room:
        low, high = (low, room) if forecast.fits[card.name] else (room, high)
    while high > low * (1 + _CLOSE):
        middle = math.isqrt(low * high)
        if replaying.fits(observation, middle, take=take, expandable=expandable):
            high = middle
        else:
            low = middle
    return high


def _take(forecast: Forecast) -> replaying.Take:
    return "most" if forecast.high_bytes is not None else "usual"


def _fits(
    observation: Observation,
    forecast: Forecast,
    reserved_high: int,
    card: Card,
    expandable: bool,
    *,
    only_card: bool,
) -> dict[str, bool | None]:
    """Whether the step fits each known card and the requested one.

    The slower exact replay runs only for cards that the quick comparison rejects: the larger ones first,
    because what fails with more memory is taken to fail with less.
    """
    answers: dict[str, bool | None] = {}
    take = _take(forecast)
    replays: dict[int, bool] = {}

    def completes(room: int) -> bool:
        if any(room <= other and not yes for other, yes in replays.items()):
            return False
        if room not in replays:
            replays[room] = replaying.fits(observation, room, take=take, expandable=expandable)
        return replays[room]

    every = {card.name: card} if only_card else {**cards(), card.name: card}
    for other in sorted(every.values(), key=_room_bytes, reverse=True):
        # There are two cuBLAS handles, forward and backward, whose workspace depends on the GPU generation.
        mine, theirs = (
            allocator_settings.cublas_workspace_bytes(c.cublas_workspace_bytes) for c in (card, other)
        )
        other_reserved = reserved_high - 2 * (mine - theirs)
        room = _room_bytes(other)
        answers[other.name] = other_reserved <= room or (
            forecast.peak_allocated_bytes <= room and completes(room)
        )
    return {name: answers[name] for name in every}
