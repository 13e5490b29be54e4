"""The table of cards: the largest size for each card, from the fake runs of one plan.

Every run answers for all known cards, as `predict` does. For a size in between, the need of the runs is
interpolated, with the context of the card; the workspace remains that of the modelled card. The runs of the
plan form a curve, and a few more runs are added where they reduce the uncertainty most. Each answer says
whether its size was itself predicted or is interpolated between two runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pinchpoint.core.errors import PinchpointError
from pinchpoint.forecasting.cards import Card
from pinchpoint.planning import need_curve
from pinchpoint.planning.fake_runs import CHUNKS, Trial, Trials
from pinchpoint.planning.search import RUNS, Sample

_NOTE = (
    "cards: the runs of the chosen variant are used for every card, with the context of that card;"
    f" an interpolated {{}} lies between two runs, reduced by {need_curve.RESERVE:.0%}"
)
Row = dict[str, Any]


class CardTable:
    """The largest size per card for the variant of `trial`; with along="chunk", its largest chunk.

    up_to: the largest size or chunk to consider. axis: what a size is called. fixed: only the size of `trial`
    is considered.
    """

    def __init__(
        self,
        table_cards: Sequence[Card],
        trials: Trials,
        trial: Trial,
        *,
        multiple: int,
        up_to: int,
        along: Literal["size", "chunk"],
        axis: str,
        fixed: bool = False,
    ) -> None:
        self.cards = table_cards
        self.trials = trials
        self.trial = trial
        self.multiple = 1 if fixed else multiple
        self.along: Literal["size", "chunk"] = along
        self.axis = axis if along == "size" else "chunk"
        if fixed:
            self.floor = self.limit = trial.size
        elif along == "size":
            self.floor, self.limit = 1, max(1, up_to // multiple)
        else:
            self.limit = min(up_to, trial.size)
            self.floor = min(self.limit, max(1, trial.size // CHUNKS))
        self.error: PinchpointError | None = None

    def refine(self, on_run: Callable[[], None]) -> None:
        """Make at most 8 more runs where the answers are most uncertain. on_run: called after each one."""
        runs = self._runs()
        samples = {number: _plain(number, run) for number, run in runs.items()}

        def sample(number: int) -> Sample:
            if self.along == "size":
                run = self.trials.run(
                    size=number * self.multiple, variant=self.trial.variant, chunk=self.trial.chunk
                )
            else:
                run = self.trials.run(size=self.trial.size, variant=self.trial.variant, chunk=number)
            on_run()
            return _plain(number, run)

        budgets = [self._budget(card) for card in self.cards]
        self.error = need_curve.refine(
            samples, sample, budgets, floor=self.floor, up_to=self.limit, runs=RUNS
        )

    def rows(self) -> tuple[Row, ...]:
        """One row per card. `size` is None where no size is known to fit."""
        runs = self._runs()
        return tuple(
            {
                "card": card.name,
                "budget_bytes": card.memory_bytes,
                "variant": self.trial.variant,
                **self._answer(card, runs),
            }
            for card in self.cards
        )

    def notes(self) -> tuple[str, ...]:
        if not self.cards:
            return ()
        if self.error is None:
            return (_NOTE.format(self.axis),)
        return (
            _NOTE.format(self.axis),
            f"cards: {self.error.what} Larger cards show the largest {self.axis} that was predicted.",
        )

    def _budget(self, card: Card) -> int:
        """The budget that a card would have with the context of the modelled card."""
        return card.usable_bytes + self.trial.context_bytes

    def _runs(self) -> dict[int, Trial]:
        """The runs of this variant by number of chunks, or of sizes in units of `multiple`."""
        runs = [run for run in self.trials.history if run.variant == self.trial.variant]
        if self.along == "chunk":
            return {run.chunk: run for run in runs if run.size == self.trial.size and run.chunk is not None}
        same = (run for run in runs if run.chunk == self.trial.chunk and run.size % self.multiple == 0)
        return {run.size // self.multiple: run for run in same}

    def _answer(self, card: Card, runs: dict[int, Trial]) -> Row:
        budget = self._budget(card)
        samples = []
        for number, run in runs.items():
            within = run.need_bytes <= budget
            answer = run.fits_cards.get(card.name, None if within and run.reasons else within)
            samples.append(run.sample(number, budget, answer))
        reading = need_curve.read(samples, budget, floor=self.floor, up_to=self.limit)
        if all(sample.known for sample in samples):
            if reading.number is None:
                return {"size": None, "chunk": None, "how": "predicted" if reading.sampled else "unknown"}
            return self._place(reading.number) | {"how": "predicted" if reading.sampled else "interpolated"}
        fitting = [sample.number for sample in samples if sample.fits(budget)]
        largest = max(fitting, default=None)
        row = {"size": None, "chunk": None} if largest is None else self._place(largest)
        possible = None if reading.number is None else self._place(reading.number)["size"]
        return row | {"how": "unknown" if largest is None else "predicted", "possible_size": possible}

    def _place(self, number: int) -> Row:
        if self.along == "size":
            return {"size": number * self.multiple, "chunk": self.trial.chunk}
        return {"size": self.trial.size, "chunk": number}


def _plain(number: int, run: Trial) -> Sample:
    return Sample(number, run.need_bytes, run.live_bytes, run.fixed_bytes)
