"""The fake runs of a plan: what each one needs, and whether it fits the budget.

A trial fits if its forecast says that it fits a card with the bytes of the budget, which is the answer of
`predict`: true, false, or unknown with reasons.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pinchpoint.core.errors import BadInput, PinchpointError, TargetFailed
from pinchpoint.core.ranks import Rank
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import show_size
from pinchpoint.forecasting.assembly import MARGIN
from pinchpoint.forecasting.cards import card
from pinchpoint.forecasting.forecaster import Forecasts
from pinchpoint.forecasting.predict import worst_rank
from pinchpoint.planning.search import Sample

Progress = Callable[[str], None]

_FIXED_PARTS = ("weights", "gradients", "optimizer", "workspace")
CHUNKS = 1024  # the most chunks in one fake run, which processes each of them


@dataclass(frozen=True)
class Script:
    """A script whose size is an argument. vary: that argument, with `{}` for the number."""

    vary: str
    args: tuple[str, ...] = ()

    def arguments(self, size: int) -> tuple[str, ...]:
        return (*self.args, *(part.replace("{}", str(size)) for part in shlex.split(self.vary)))

    @property
    def axis(self) -> str:
        """What its size is called: `batch size` for `--batch-size {}`."""
        parts = shlex.split(self.vary)
        at = next(i for i, part in enumerate(parts) if "{}" in part)
        name = parts[at].partition("{}")[0] or (parts[at - 1] if at else "")
        return " ".join(re.findall(r"[0-9A-Za-z]+", name)) or "size"


def check_vary(vary: str | None) -> str:
    """Check the argument to vary and return it."""
    if vary is None:
        raise BadInput(
            "A script has no size of its own, so plan needs an argument to vary.",
            hint="Name the argument to vary: --vary '--batch-size {}'.",
        )
    try:
        parts = shlex.split(vary)
    except ValueError as error:
        raise BadInput(
            f"--vary {vary!r} cannot be split into arguments: {error}.", hint="Close its quotes."
        ) from error
    if not any("{}" in part for part in parts):
        raise BadInput(
            f"--vary {vary!r} has no placeholder for the number.",
            hint="Put {} where the number belongs: --vary '--batch-size {}'.",
        )
    return vary


@dataclass(frozen=True)
class Trial:
    """One fake run. `total_bytes` is the high end where counts depend on the data.

    need_bytes: memory with which it counts as fitting. frees: whether that holds only because the allocator
    frees what it has cached. fits: the answer of the forecast for the budget, None if it is unknown.
    fits_cards: its answers for other cards, by name.
    """

    size: int
    chunk: int | None
    variant: str | None
    mode: str
    total_bytes: int
    need_bytes: int
    margin_bytes: int
    live_bytes: int
    context_bytes: int
    fits: bool | None
    frees: bool = False
    fits_cards: dict[str, bool | None] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    rank: int | None = None  # of a parallel job: the process that was run, or that needs most
    fixed_bytes: int = 0  # context, weights, gradients and optimizer state, which do not shrink with the size

    def sample(self, number: int, budget_bytes: int, answer: bool | None) -> Sample:
        """This run as a sample of `number`, with a need that agrees with the answer for these bytes."""
        need = self.need_bytes
        need = max(need, budget_bytes + 1) if answer is False else min(need, budget_bytes)
        return Sample(number, need, self.live_bytes, self.fixed_bytes, answer is not None)


@dataclass
class Trials:
    """Makes fake runs and keeps a history of them, in order.

    rank: runs the script as this process of a parallel job. all_ranks: runs every process that may differ,
    and takes the one that needs most.
    """

    forecasts: Forecasts
    mode: str | None
    budget_bytes: int
    script: Script | None = None
    progress: Progress | None = None
    rank: Rank | None = None
    all_ranks: bool = False
    history: list[Trial] = field(default_factory=list)

    def run(self, *, size: int, variant: str | None, chunk: int | None = None) -> Trial:
        at = self._name(size, variant, chunk)
        if self.progress is not None:
            job = "" if self.rank is None else f" as one of {self.rank.world_size} processes"
            self.progress(f"fake run {len(self.history) + 1}{job}: {at}")
        try:
            if self.script is None:
                forecast = self.forecasts.predict(size=size, mode=self.mode, variant=variant, chunk=chunk)
            else:
                forecast = self._of_script(self.script.arguments(size))
        except PinchpointError as error:
            sizes = " If it accepts only some sizes, select them with --multiple and --up-to."
            hint = error.hint + (sizes if isinstance(error, TargetFailed) else "")
            raise type(error)(f"Predicting {at} failed: {error.what}", hint=hint) from error
        trial = _trial(forecast, size, variant, chunk, self.budget_bytes)
        self.history.append(trial)
        return trial

    def _of_script(self, args: tuple[str, ...]) -> Forecast:
        if self.rank is None:
            return self.forecasts.predict(mode=self.mode, args=args)
        forecast = self.forecasts.predict(mode=self.mode, args=args, rank=self.rank)
        if not self.all_ranks:
            return forecast
        return worst_rank(self.forecasts, forecast, self.rank, args=args, mode=self.mode)

    def _name(self, size: int, variant: str | None, chunk: int | None) -> str:
        if self.script is not None:
            return " ".join(self.script.arguments(size))
        chunk_text = "" if chunk is None else f" chunk {show_size(chunk)}"
        return (
            f"{variant} size {show_size(size)}{chunk_text}"
            if variant
            else f"size {show_size(size)}{chunk_text}"
        )

    def at_sizes(
        self, variant: str | None, *, multiple: int = 1, chunk: int | None = None
    ) -> Callable[[int], Sample]:
        """Return a function that samples a size, given in units of `multiple`."""
        return lambda number: self._sample(
            number, self.run(size=number * multiple, variant=variant, chunk=chunk)
        )

    def at_chunks(self, variant: str | None, size: int) -> Callable[[int], Sample]:
        return lambda number: self._sample(number, self.run(size=size, variant=variant, chunk=number))

    def _sample(self, number: int, trial: Trial) -> Sample:
        return trial.sample(number, self.budget_bytes, trial.fits)

    def of(self, *, size: int, variant: str | None, chunk: int | None = None) -> Trial:
        """The earlier run with this size, variant and chunk."""
        return next(
            t for t in reversed(self.history) if (t.size, t.variant, t.chunk) == (size, variant, chunk)
        )

    def rows(self) -> tuple[dict[str, Any], ...]:
        return tuple(
            {
                "size": t.size,
                "variant": t.variant,
                "chunk": t.chunk,
                "total_bytes": t.total_bytes,
                "margin_bytes": t.margin_bytes,
                "fits": t.fits,
                **({} if self.rank is None else {"world_size": self.rank.world_size, "rank": t.rank}),
            }
            for t in self.history
        )

    def reasons(self) -> tuple[str, ...]:
        """Why it is unknown whether some runs fit."""
        return tuple(dict.fromkeys(reason for t in self.history if t.fits is None for reason in t.reasons))


def show_trial(trial: Trial, axis: str) -> str:
    """`size 4.096k in chunks of 512`; axis: what the size is called."""
    return f"{axis} {show_size(trial.size)}" + (
        f" in chunks of {show_size(trial.chunk)}" if trial.chunk is not None else ""
    )


def _trial(forecast: Forecast, size: int, variant: str | None, chunk: int | None, budget_bytes: int) -> Trial:
    total = _high_total(forecast)
    context = forecast.context_bytes
    if forecast.card in forecast.fits:  # its answer counts the high end of the card's context
        context += _context_reach(forecast.card)
    context += forecast.nccl_high_bytes or 0
    need = total + forecast.margin_bytes if forecast.needs_bytes is None else forecast.needs_bytes + context
    frees = forecast.completes_bytes is not None and need > budget_bytes
    if forecast.completes_bytes is not None:
        need = min(need, forecast.completes_bytes + context)
        total = min(total, int(forecast.completes_bytes / (1 + MARGIN)) + context)
    within = need <= budget_bytes
    return Trial(
        size=size,
        chunk=chunk,
        variant=variant,
        mode=forecast.mode,
        total_bytes=total,
        need_bytes=need,
        margin_bytes=max(0, min(forecast.margin_bytes, need - total)),
        live_bytes=forecast.peak_allocated_bytes,
        context_bytes=context,
        fits=forecast.fits.get(forecast.card, None if within and forecast.reasons else within),
        frees=frees,
        fits_cards=forecast.fits,
        reasons=forecast.reasons,
        rank=forecast.rank,
        fixed_bytes=forecast.context_bytes + sum(forecast.breakdown.get(part, 0) for part in _FIXED_PARTS),
    )


def _context_reach(name: str) -> int:
    """How far the high end of a card's context is above the usual one; 0 if it is not known here."""
    try:
        chosen = card(name)
    except BadInput:
        return 0
    return chosen.context_high_bytes - chosen.context_bytes


def _high_total(forecast: Forecast) -> int:
    """The total at the high end. `high_bytes` is an allocated peak, so its excess is added to the total."""
    if forecast.high_bytes is None:
        return forecast.total_bytes
    return forecast.total_bytes + max(0, forecast.high_bytes - forecast.peak_allocated_bytes)
