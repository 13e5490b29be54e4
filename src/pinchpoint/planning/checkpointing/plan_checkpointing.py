"""`plan_checkpointing` finds the modules to recompute so that a script fits a budget at the least extra time.

One fake run records what every module saves for the backward pass and how long its operations take on the
card. A search chooses modules by these numbers; each choice is then predicted as the very run with these
modules recomputed, and the limit of the search is corrected until the cheapest choice that fits is found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, CannotFake, DoesNotFit, PinchpointError, TargetFailed
from pinchpoint.core.records import Checkpointing, Forecast
from pinchpoint.core.units import check_seconds, show_bytes
from pinchpoint.forecasting.cards import Card, budget_card
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.planning.checkpointing.instructions import groups_of, split_root, ways_to_switch_on
from pinchpoint.planning.checkpointing.module_choice import (
    Candidate,
    Profile,
    choose,
    choose_smallest,
    read_profile,
)

RUNS = 8  # fake runs with modules recomputed
_CLOSE = 0.004  # share of the peak; limits of the search that are closer than this are the same
_LEAST_SHARE = 0.0005  # of the peak, that a module must free to be considered


class RecomputingForecasts(Protocol):
    """Predicts one script with modules recomputed, as `Forecaster` does; see `Forecaster.predict`."""

    def predict(
        self, *, args: tuple[str, ...] = (), recompute: Mapping[str, bool] | None = None
    ) -> Forecast: ...


def plan_checkpointing(
    target: str,
    *,
    budget: str | int,
    args: Sequence[str] = (),
    seed: int = 0,
    timeout_s: float = 300.0,
    allow_network: bool = False,
    forecaster: RecomputingForecasts | None = None,
    progress: Callable[[str], None] | None = None,
) -> Checkpointing:
    """Choose the modules of a script that torch.utils.checkpoint should recompute to fit `budget`.

    budget: bytes, "24GiB" or the name of a card; times are those of that card, or of the H200 for bytes.
    allow_network: as in `predict`.
    Raises `DoesNotFit` if the script does not fit even with everything recomputed that helps.
    """
    card = budget_card(budget)
    check_seconds("timeout", timeout_s)
    script = targets.find(target)
    _check_target(script)
    if card.usable_bytes <= 0:
        raise DoesNotFit(
            f"The budget of {show_bytes(card.memory_bytes)} is below the CUDA context of "
            f"{show_bytes(card.context_high_bytes)}.",
            hint="Give the whole memory of the card as --budget.",
        )
    opened: AbstractContextManager[RecomputingForecasts] = (
        Forecaster(target, card=card.name, seed=seed, timeout_s=timeout_s, allow_network=allow_network)
        if forecaster is None
        else nullcontext(forecaster)
    )
    with opened as forecasts:
        return _Planner(forecasts, card, script.text, tuple(args), progress).plan()


def _check_target(script: targets.Target) -> None:
    if script.kind != "script":
        raise BadInput(
            f"--checkpointing cannot be used for {script.text}, because it is not a script.",
            hint="Give the path of a training script.",
        )
    if targets.likely_framework(script) == "jax":
        raise BadInput(
            f"{script.text} is a JAX script, for which pinchpoint does not support --checkpointing yet.",
            hint="Wrap blocks in jax.checkpoint by hand, and compare the peaks with `pinchpoint predict`.",
        )


@dataclass(frozen=True)
class _Trial:
    """A fake run with modules recomputed."""

    chosen: frozenset[int]
    forecast: Forecast
    fits: bool | None
    is_within: bool  # whether it fits, or would unless the peak is higher for a reason
    extra_s: float


class _Planner:
    def __init__(
        self,
        forecasts: RecomputingForecasts,
        card: Card,
        text: str,
        args: tuple[str, ...],
        progress: Callable[[str], None] | None,
    ) -> None:
        self.forecasts, self.card, self.text, self.args = forecasts, card, text, args
        self.progress = progress or (lambda _: None)
        self.trials: dict[frozenset[int], _Trial] = {}
        self.refused: dict[str, str] = {}
        self.classes: set[str] = set()  # of modules that cannot be recomputed

    def plan(self) -> Checkpointing:
        self.progress("fake run 1: the script as it is")
        self.base = self.forecasts.predict(args=self.args, recompute={})
        self.seen: dict[str, Any] = self.base.seen.get("recomputation", {})
        if self.base.mode != "train":
            raise BadInput(
                f"{self.text} does not train, so nothing is saved for a backward pass.",
                hint="Lower its batch size: pinchpoint plan SCRIPT --budget 24GiB --vary '--batch-size {}'.",
            )
        self.step_s = max(self.seen.get("device_s", 0.0), self.seen.get("host_s", 0.0))
        unchanged = self._trial(frozenset(), self.base)
        if unchanged.is_within:
            return self._result(unchanged)
        self.profile = self._profile()
        if not self.profile.candidates:
            raise BadInput(
                f"{self.text} needs {show_bytes(self.base.total_bytes)}, and has no module whose activations "
                "can be recomputed.",
                hint="torch.utils.checkpoint works on calls of nn.Module objects inside the model; "
                "code under torch.compile is not considered yet.",
            )
        best = self._search()
        if best is None:
            raise self._nothing_fits()
        return self._result(best)

    def _profile(self) -> Profile:
        self.refused.update(self.seen.get("refused", {}))
        least = int(_LEAST_SHARE * self.base.peak_allocated_bytes)
        return read_profile(self.seen, least_bytes=least, without=self.classes)

    def _search(self) -> _Trial | None:
        """The cheapest trial that fits. The limit of the search is corrected by what was predicted."""
        peak = self.profile.peak()
        low, high = None, peak  # a choice for the limit `low` fits, and one for `high` does not
        limit = self._corrected(self.base, peak)
        best: _Trial | None = None
        while len(self.trials) <= RUNS:
            chosen = choose(self.profile, limit)
            is_smallest = chosen is None
            if chosen is None:
                if best is not None:
                    break
                chosen = choose_smallest(self.profile)
                limit = self.profile.peak(chosen)
            trial = self.trials.get(chosen) or self._predict(chosen)
            if trial is None:  # some modules cannot be recomputed; the others are searched again
                return self._search() if self.profile.candidates else None
            if trial.is_within:
                if best is None or self._seconds(trial) < self._seconds(best):
                    best = trial
                low = limit
                target = limit + self.card.usable_bytes - (trial.forecast.needs_bytes or 0)
            elif is_smallest:
                break
            else:
                high = limit
                target = self._corrected(trial.forecast, self.profile.peak(chosen))
            limit = _between(low, high, target, least=int(_CLOSE * peak))
            if limit is None:
                break
        return best

    def _seconds(self, trial: _Trial) -> float:
        return self.profile.seconds(trial.chosen)

    def _corrected(self, forecast: Forecast, estimate: int) -> int:
        """The limit for the search, if the need exceeds the estimated peak as it does in this forecast."""
        return int(self.card.usable_bytes * estimate / max(forecast.needs_bytes or 0, 1))

    def _predict(self, chosen: frozenset[int]) -> _Trial | None:
        candidates = [self.profile.candidates[at] for at in sorted(chosen)]
        names = {candidate.name: candidate.keeps_products for candidate in candidates}
        self.progress(f"fake run {len(self.trials) + 1}: {len(names)} modules recomputed")
        try:
            forecast = self.forecasts.predict(args=self.args, recompute=names)
        except (TargetFailed, CannotFake) as error:
            self._refuse(chosen, error)
            return None
        return self._trial(chosen, forecast)

    def _refuse(self, chosen: frozenset[int], error: PinchpointError) -> None:
        """Leave out the classes of modules with which the script fails if they are recomputed."""
        by_class: dict[str, dict[str, bool]] = {}
        for at in sorted(chosen):
            candidate = self.profile.candidates[at]
            by_class.setdefault(candidate.class_name, {})[candidate.name] = candidate.keeps_products
        for class_name, names in by_class.items():
            fault: PinchpointError | None = error
            if len(by_class) > 1:
                try:
                    self.forecasts.predict(args=self.args, recompute=names)
                    fault = None
                except (TargetFailed, CannotFake) as own:
                    fault = own
            if fault is not None:
                self.classes.add(class_name)
                self.refused.update(dict.fromkeys(names, f"recomputing it fails: {fault.what}"))
        if not self.classes & by_class.keys():  # each alone works, but not together
            raise error
        self.profile = self._profile()
        self.trials = {key: trial for key, trial in self.trials.items() if not key}

    def _trial(self, chosen: frozenset[int], forecast: Forecast) -> _Trial:
        needs = forecast.needs_bytes or forecast.total_bytes
        fits = forecast.fits.get(self.card.name, needs <= self.card.usable_bytes)
        extra_s = self.profile.seconds(chosen) if chosen else 0.0
        trial = _Trial(chosen, forecast, fits, fits is not False, extra_s)
        self.trials[chosen] = trial
        return trial

    def _nothing_fits(self) -> DoesNotFit:
        smallest = min(self.trials.values(), key=lambda trial: trial.forecast.needs_bytes or math.inf)
        needs = (smallest.forecast.needs_bytes or 0) + self.card.context_high_bytes
        return DoesNotFit(
            f"{self.text} does not fit {show_bytes(self.card.memory_bytes)}, whichever modules are "
            f"recomputed: the smallest predicted peak is {show_bytes(smallest.forecast.total_bytes)}, with "
            f"{len(smallest.chosen)} modules recomputed; it is {show_bytes(self.base.total_bytes)} without.",
            hint=f"Give a budget of at least {show_bytes(needs)}, or lower the batch size.",
        )

    def _result(self, best: _Trial) -> Checkpointing:
        forecast = best.forecast
        every = () if not best.chosen else self.profile.candidates
        chosen = [every[at] for at in sorted(best.chosen)]
        return Checkpointing(
            target=self.text,
            budget_bytes=self.card.memory_bytes,
            card=self.card.name,
            modules=tuple(split_root(candidate.name)[1] for candidate in chosen),
            keeping_products=tuple(split_root(c.name)[1] for c in chosen if c.keeps_products),
            groups=groups_of(chosen),
            fits=best.fits,
            peak_bytes=forecast.total_bytes,
            peak_allocated_bytes=forecast.peak_allocated_bytes,
            before_bytes=self.base.total_bytes,
            margin_bytes=forecast.margin_bytes,
            step_s=self.step_s,
            extra_s=best.extra_s,
            how=ways_to_switch_on(chosen, every, self.seen.get("roots", {})),
            low_bytes=forecast.low_bytes,
            high_bytes=forecast.high_bytes,
            tried=tuple(
                {
                    "modules": len(trial.chosen),
                    "total_bytes": trial.forecast.total_bytes,
                    "extra_s": trial.extra_s,
                    "fits": trial.fits,
                }
                for trial in self.trials.values()
            ),
            refused=self.refused,
            reasons=forecast.reasons,
            notes=(*self._notes(chosen), *forecast.notes),
        )

    def _notes(self, chosen: Sequence[Candidate]) -> list[str]:
        if not chosen:
            return ["the script fits as it is: nothing needs to be recomputed"]
        notes = [
            "times are estimated from FLOPs and bytes of every operation, at a guessed share of the card's "
            "best speed; they compare modules well, but a whole step may take half or twice as long"
        ]
        if any(candidate.has_batch_norm for candidate in chosen):
            notes.append(
                "batch norm in a recomputed module updates its running statistics twice per step; "
                "to keep them as they are, take the square root of 1 - momentum"
            )
        return notes


def _between(low: int | None, high: int, target: int, *, least: int) -> int | None:
    """The next limit to try: the target, if it is well between the two; None if they are close."""
    if low is None:
        return max(min(target, high - least), 0)
    if high - low < 2 * least:
        return None
    space = max(least, (high - low) // 6)
    return min(max(target, low + space), high - space)
