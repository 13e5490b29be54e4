"""The search for the limit of each variant of a plan: its largest size, or its chunk for a given size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.core.errors import CannotFake, TargetFailed, TimedOut
from pinchpoint.core.workload import Workload
from pinchpoint.planning.fake_runs import CHUNKS, Script, Trials
from pinchpoint.planning.search import FLAT_REACH, RUNS, Sample, SearchResult, largest_that_fits
from pinchpoint.planning.variant_limits import Choice

FACTORY_START = 4096
SCRIPT_START = 8
SCRIPT_FLAT_REACH = 512  # in a smaller range, something else may peak: the prompt before a text is written
UNKNOWN = "unknown whether it fits"
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
    def axis(self) -> str:
        """What a size is called: the axis of a workload, or the varied argument of a script."""
        if self.workload is not None:
            return self.workload.axis
        return "size" if self.script is None else self.script.axis

    @property
    def start(self) -> int:
        if self.workload is not None:
            return self.workload.default_size
        return FACTORY_START if self.script is None else SCRIPT_START

    @property
    def flat_reach(self) -> int:
        return FLAT_REACH if self.script is None else SCRIPT_FLAT_REACH

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


@dataclass(frozen=True)
class Near:
    """About where the answer is, from a plan of something similar, and the slope there, in bytes per size."""

    size: int
    bytes_per_size: float


def choices_of(
    subject: Subject,
    variants: Sequence[str | None],
    trials: Trials,
    report: Callable[[Sequence[Choice]], None],
    *,
    size: int | None,
    multiple: int,
    up_to: int,
    near: Near | None = None,
) -> list[Choice]:
    """One choice per variant, in the order of the workload.

    Flat variants are tried last, at the best size of the others. report: called after each variant.
    near: where the search begins.
    """
    choices: dict[str | None, Choice] = {}
    for variant in sorted(variants, key=subject.is_flat):
        try:
            if size is not None:
                choices[variant] = _at_size(subject, variant, trials, size)
            else:
                best = max((c.trial.size for c in choices.values() if c.trial is not None), default=None)
                choices[variant] = _largest(
                    subject, variant, trials, best, multiple=multiple, up_to=up_to, near=near
                )
        except (TargetFailed, CannotFake, TimedOut) as error:
            # If another variant works, this one is only reported in a note; otherwise its error is raised.
            if len(variants) == 1:
                raise
            choices[variant] = Choice(variant, None, why=error.what, error=error)
        report([choices[one] for one in variants if one in choices])
    return [choices[variant] for variant in variants]


def _largest(
    subject: Subject,
    variant: str | None,
    trials: Trials,
    best: int | None,
    *,
    multiple: int,
    up_to: int,
    near: Near | None,
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
    start = max(1, (subject.start if near is None else near.size) // multiple)
    limit = max(1, up_to // multiple)
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
        flat_reach=subject.flat_reach,
        slope=None if near is None else near.bytes_per_size * multiple,
    )
    possible = _possible(
        search,
        sample,
        budget_bytes=trials.budget_bytes,
        up_to=limit,
        may_fall=False,
        flat_reach=subject.flat_reach,
        runs=RUNS,
    )
    unknown = None if possible is None else trials.of(size=possible * multiple, variant=variant)
    if search.fits is None:
        least = trials.of(size=multiple, variant=variant)
        why = "does not fit" if unknown is None else UNKNOWN
        return Choice(variant, None, search, why=why, least=least, possible=unknown)
    trial = trials.of(size=search.fits.number * multiple, variant=variant)
    return Choice(variant, trial, search, possible=unknown)


def _possible(
    search: SearchResult, sample: Callable[[int], Sample], *, runs: int, **limits: Any
) -> int | None:
    """The largest number that fits unless its peak is higher than predicted; None if all is known.

    The search has passed over such numbers, so it is continued with the runs that are left.
    """
    if all(one.known for one in search.samples):
        return None
    known = [replace(one, known=True) for one in search.samples]
    lenient = largest_that_fits(
        lambda number: replace(sample(number), known=True),
        start=known[0].number,
        known_samples=known,
        runs=max(0, runs - search.runs),
        **limits,
    )
    strict = search.fits.number if search.fits is not None else 0
    return lenient.fits.number if lenient.fits is not None and lenient.fits.number > strict else None


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
        why = {True: "", False: "does not fit", None: UNKNOWN}[trial.fits]
        possible = trial if trial.fits is None else None
        return Choice(variant, trial if trial.fits else None, why=why, least=trial, possible=possible)
    # A chunk of the whole size takes one iteration, the smallest takes thousands, so the floor is not tried.
    most = min(size, subject.chunk(variant) or size)
    limits = {
        "budget_bytes": trials.budget_bytes,
        "floor": min(most, max(1, size // CHUNKS)),
        "up_to": most,
        "prove_floor": False,
        "may_fall": True,
    }
    sample = trials.at_chunks(variant, size)
    search = largest_that_fits(sample, start=most, runs=RUNS - 1, **limits)
    possible = _possible(search, sample, runs=RUNS - 1, **limits)
    unknown = None if possible is None else trials.of(size=size, variant=variant, chunk=possible)
    number = search.fits.number if search.fits is not None else search.samples[0].number
    trial = trials.of(size=size, variant=variant, chunk=number)
    if search.fits is None:
        why = "does not fit" if unknown is None else UNKNOWN
        return Choice(variant, None, search, why=why, least=trial, possible=unknown, along="chunk")
    return Choice(variant, trial, search, possible=unknown, along="chunk")
