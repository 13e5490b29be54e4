"""`plan` predicts the largest size, or the chunk for a given size, and the variant that fit a budget.

Every size in the answer was itself predicted to fit, with at most 8 fake runs per variant. A table of cards
takes at most 8 more runs and marks the sizes that are interpolated. Nothing runs for real and no GPU is
needed. The margin covers what a step uses beyond its forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, CannotFake, DoesNotFit, TargetFailed, TimedOut
from pinchpoint.core.records import Plan
from pinchpoint.core.settings import Overrides
from pinchpoint.core.units import check_seconds, parse_bytes, parse_size, show_bytes
from pinchpoint.core.workload import Workload, settings_of
from pinchpoint.forecasting.cards import Card, card, select_cards
from pinchpoint.forecasting.forecaster import Forecasts, open_forecasts
from pinchpoint.planning import card_table
from pinchpoint.planning.fake_runs import CHUNKS, Progress, Script, Trials, check_vary
from pinchpoint.planning.search import RUNS, UP_TO, Sample, largest_that_fits
from pinchpoint.planning.variant_limits import Choice, best_of, notes_of, nothing_fits, row_of

FACTORY_START = 4096
SCRIPT_START = 8
FLAT = 0.01  # a peak is flat if it grows by less than this share while the size doubles


@dataclass(frozen=True)
class Subject:
    """What the plan is for: a workload, a plain factory (both fields None) or a script."""

    text: str
    workload: Workload | None = None
    script: Script | None = None

    @property
    def variants(self) -> tuple[str | None, ...]:
        return (None,) if self.workload is None else tuple(v.name for v in self.workload.variants)

    @property
    def start(self) -> int:
        if self.workload is not None:
            return self.workload.default_size
        return FACTORY_START if self.script is None else SCRIPT_START

    def is_flat(self, variant: str | None) -> bool:
        return self.workload is not None and self.workload.variant(variant).flat

    def chunk(self, variant: str | None) -> int | None:
        """The preferred chunk that a variant declares, if the workload supports chunks."""
        return (
            self.workload.variant(variant).chunk
            if self.workload is not None and self.workload.chunked
            else None
        )

    def held_bytes(self, variant: str | None) -> float:
        """The bytes per point that a flat variant declares it stores."""
        return 0.0 if self.workload is None else self.workload.variant(variant).held_bytes


def plan(
    target: str | Workload | Callable[..., Any],
    *,
    budget: str | int | None = None,
    mode: str | None = None,
    size: int | str | None = None,
    variant: str | None = None,
    cards: str | Sequence[str] | None = None,
    vary: str | None = None,
    args: Sequence[str] = (),
    multiple: int | str = 1,
    up_to: int | str = UP_TO,
    seed: int = 0,
    timeout_s: float = 300.0,
    settings: Overrides | None = None,
    forecaster: Forecasts | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Find what fits `budget` (bytes, "24GiB" or a card's name) or, with `cards`, each card ("all" or names).

    size: plan for this size only, and find its chunk if the workload supports chunks. vary: the argument of a
    script that is its size, such as "--batch-size {}". multiple: consider only multiples of this. up_to: the
    largest size to consider. settings: settings of a workload that declares some. Raises `DoesNotFit` if
    nothing fits.
    """
    table_cards = [] if cards is None else select_cards(cards)
    budget_bytes, model_card = _budget(budget, table_cards)
    size = None if size is None else parse_size(size)
    multiple, up_to = parse_size(multiple), parse_size(up_to)
    check_seconds("timeout", timeout_s)
    if multiple > up_to:
        raise BadInput(
            f"No multiple of {multiple:,} is at most {up_to:,}.", hint="Raise --up-to, or lower --multiple."
        )
    subject = _subject(target, vary, tuple(args))
    variants = _variants(subject, variant)
    setting_values = _settings(subject, settings)
    if subject.workload is not None:
        mode = mode or ("train" if "train" in subject.workload.modes else subject.workload.modes[0])
        subject.workload.check_mode(mode)
    if budget_bytes <= (context := card(model_card).context_bytes):
        raise DoesNotFit(
            f"The budget of {show_bytes(budget_bytes)} is below the CUDA context of {show_bytes(context)}.",
            hint="Give the whole memory of the card as --budget.",
        )
    options = {"card": model_card, "seed": seed, "timeout_s": timeout_s, "settings": setting_values}
    with open_forecasts(forecaster, target, **options) as forecasts:
        trials = Trials(forecasts, mode, budget_bytes, subject.script, progress)
        choices = _choices(subject, variants, trials, size=size, multiple=multiple, up_to=up_to)
        best = best_of(choices, size)
        trial = best.trial if best is not None else None
        if best is None or trial is None:
            raise nothing_fits(
                subject.text, choices, budget_bytes, arguments=subject.script and subject.script.arguments
            )
        along, most = best.along, up_to if best.along == "size" else subject.chunk(best.variant) or trial.size
        rows, card_notes = card_table.rows(
            table_cards, trials, trial, best.search, multiple=multiple, up_to=most, along=along
        )
    return Plan(
        target=subject.text,
        mode=trial.mode,
        budget_bytes=budget_bytes,
        size=trial.size,
        chunk=trial.chunk,
        variant=trial.variant,
        margin_bytes=trial.margin_bytes,
        peak_bytes=trial.total_bytes,
        tried=trials.rows(),
        choices=tuple(row_of(choice) for choice in choices),
        cards=rows,
        notes=tuple(notes_of(choices, multiple, up_to)) + card_notes,
        settings=setting_values,
    )


def _budget(budget: str | int | None, cards: Sequence[Card]) -> tuple[int, str]:
    """The bytes of the budget, and the card whose context and workspace are modelled."""
    if budget is None:
        if not cards:
            raise BadInput(
                "A plan needs a budget or cards.",
                hint="Give --budget 24GiB (or the name of a card), or --cards all.",
            )
        largest = max(cards, key=lambda c: c.memory_bytes)
        return largest.memory_bytes, largest.name
    if isinstance(budget, int) or budget.strip()[:1].isdigit():
        number = parse_bytes(budget, or_card=True)
        return number, f"{number}B"
    budget_card = card(budget)
    return budget_card.memory_bytes, budget_card.name


def _subject(target: str | Workload | Callable[..., Any], vary: str | None, args: tuple[str, ...]) -> Subject:
    if isinstance(target, str):
        resolved_target = targets.find(target)
        if resolved_target.kind == "script":
            return Subject(resolved_target.text, script=Script(check_vary(vary), args))
        thing = targets.load(resolved_target)
        text = resolved_target.text
    else:
        thing = target
        text = target.name if isinstance(target, Workload) else getattr(target, "__name__", repr(target))
    if vary is not None or args:
        raise BadInput(
            f"{text} is not a script, so it takes neither --vary nor arguments after --.",
            hint="Leave them out; plan varies its size by itself.",
        )
    return Subject(text, thing if isinstance(thing, Workload) else None)


def _variants(subject: Subject, variant: str | None) -> tuple[str | None, ...]:
    if variant is None:
        return subject.variants
    if subject.workload is None:
        kind = "a script" if subject.script else "a plain factory"
        raise BadInput(
            f"{subject.text} is {kind} and has no variants.",
            hint="Leave --variant out, or turn it into a Workload.",
        )
    return (subject.workload.variant(variant).name,)


def _settings(subject: Subject, overrides: Overrides | None) -> dict[str, str]:
    if subject.script is not None and overrides:
        raise BadInput(
            f"{subject.text} is a script and has no settings.", hint="Pass its own arguments after --."
        )
    return settings_of(subject.workload, overrides, text=subject.text)


def _choices(
    subject: Subject,
    variants: Sequence[str | None],
    trials: Trials,
    *,
    size: int | None,
    multiple: int,
    up_to: int,
) -> list[Choice]:
    """One choice per variant, in the order of the workload.

    Flat variants are tried last, at the best size of the others.
    """
    choices: dict[str | None, Choice] = {}
    for variant in sorted(variants, key=subject.is_flat):
        try:
            if size is not None:
                choices[variant] = _at_size(subject, variant, trials, size)
            else:
                best = max((c.trial.size for c in choices.values() if c.trial is not None), default=None)
                choices[variant] = _largest(subject, variant, trials, best, multiple=multiple, up_to=up_to)
        except (TargetFailed, CannotFake, TimedOut) as error:
            # If another variant works, this one is only reported in a note; otherwise its error is raised.
            if len(variants) == 1:
                raise
            choices[variant] = Choice(variant, None, why=error.what, error=error)
    return [choices[variant] for variant in variants]


def _largest(
    subject: Subject, variant: str | None, trials: Trials, best: int | None, *, multiple: int, up_to: int
) -> Choice:
    if (chunk := subject.chunk(variant)) is not None:
        start, limit = max(1, (best or 64 * subject.start) // multiple), max(1, up_to // multiple)
        sample, floor = (
            trials.at_sizes(variant, multiple=multiple, chunk=chunk),
            min(limit, -(-chunk // multiple)),
        )
        search = largest_that_fits(
            sample, budget_bytes=trials.budget_bytes, start=start, floor=floor, up_to=limit
        )
        if search.fits is not None:
            return Choice(
                variant, trials.of(size=search.fits.number * multiple, variant=variant, chunk=chunk), search
            )
        # A single chunk of this size exceeds the budget: find the largest that fits.
    if subject.is_flat(variant) and subject.workload is not None and subject.workload.chunked:
        target_size = 4 * best if best is not None else 64 * subject.start
        return _flat_in_chunks(
            subject, variant, trials, max(multiple, min(target_size, up_to) // multiple * multiple)
        )
    sample = trials.at_sizes(variant, multiple=multiple)
    start, limit = max(1, subject.start // multiple), max(1, up_to // multiple)
    samples: list[Sample] = []
    if subject.is_flat(variant) and best is not None and best // multiple >= 16:
        # A flat variant may loop over its points. Two sizes show that it is flat; larger ones take longer.
        samples = [sample(best // multiple // 16)]
        try:
            samples.append(sample(best // multiple))
        except TimedOut:
            limit = samples[0].number
    search = largest_that_fits(
        sample,
        budget_bytes=trials.budget_bytes,
        start=start,
        up_to=limit,
        known_samples=samples,
        runs=RUNS - len(samples),
    )
    if search.fits is None:
        return Choice(
            variant, None, search, why="does not fit", least=trials.of(size=multiple, variant=variant)
        )
    return Choice(variant, trials.of(size=search.fits.number * multiple, variant=variant), search)


def _flat_in_chunks(subject: Subject, variant: str | None, trials: Trials, size: int) -> Choice:
    """Plan a flat variant, which fits any size: try a large size, and check that half of it needs as much."""
    choice = _at_size(subject, variant, trials, size)
    if choice.trial is None or choice.trial.chunk is None or choice.trial.chunk > size // 2:
        return choice
    half = trials.run(size=size // 2, variant=variant, chunk=choice.trial.chunk)
    growth = abs(choice.trial.live_bytes - half.live_bytes)
    if growth <= FLAT * half.live_bytes:
        return replace(choice, remark="flat")
    stored_bytes = subject.held_bytes(variant) * (size - size // 2)
    return replace(choice, remark="held" if growth <= stored_bytes else "not flat")


def _at_size(subject: Subject, variant: str | None, trials: Trials, size: int) -> Choice:
    if subject.workload is None or not subject.workload.chunked:
        trial = trials.run(size=size, variant=variant)
        fits = trial.need_bytes <= trials.budget_bytes
        return Choice(variant, trial if fits else None, why="" if fits else "does not fit", least=trial)
    # A chunk of the whole size takes one iteration, the smallest takes thousands, so the floor is not tried.
    most = min(size, subject.chunk(variant) or size)
    search = largest_that_fits(
        trials.at_chunks(variant, size),
        budget_bytes=trials.budget_bytes,
        start=most,
        floor=min(most, max(1, size // CHUNKS)),
        up_to=most,
        prove_floor=False,
        runs=RUNS - 1,
        may_fall=True,
    )
    number = search.fits.number if search.fits is not None else search.samples[0].number
    trial = trials.of(size=size, variant=variant, chunk=number)
    if search.fits is None:
        return Choice(variant, None, search, why="does not fit", least=trial, along="chunk")
    return Choice(variant, trial, search, along="chunk")
