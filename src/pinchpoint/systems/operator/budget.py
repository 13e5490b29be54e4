"""The largest chunk whose step is predicted to stay within a budget, before anything is trained.

The step is the trainer's own, run on fake tensors with the rows of the largest body's graph. On CUDA
the whole is counted: the allocator's reserve, the context and a margin. On a CPU it is the tensors of
the step and what this process is resident with already; what the allocator keeps beyond is not known.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.planning.search import Sample as Trial
from pinchpoint.planning.search import largest_that_fits
from pinchpoint.systems.common.budgets import Chosen, budget_of
from pinchpoint.systems.common.precision import resident_bytes
from pinchpoint.systems.operator import budget_step
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.settings import Settings

LEAST = 256  # edges: a chunk below this is mostly overhead
NEAR = 0.1  # how near the largest chunk is wanted: a tenth more or less makes no difference to the time
Mode = Literal["train", "infer"]
Peaks = Callable[
    [int | None], tuple[int, int]
]  # from a chunk to the bytes it needs in all, and those of its tensors


def chunk_for(
    config: OperatorConfig,
    told: Settings,
    graph: Graph,
    *,
    budget: str | int,
    device: str,
    mode: Mode,
    progress: Callable[[str], None] | None = None,
) -> Chosen:
    """The largest chunk for a step on this graph, or `DoesNotFit` with the numbers."""
    within = budget_of(budget)
    budget_bytes = within.memory_bytes
    most = max(edges.count for edges in (*graph.encoder, *graph.decoder))
    with tempfile.TemporaryDirectory(prefix="pinchpoint-operator-") as folder:
        budget_step.describe(Path(folder), config, replace(told, chunk=None), graph)
        found = (
            _on_cpu(Path(folder), told, mode)
            if device == "cpu"
            else _on_card(folder, told, graph, mode, within.name)
        )
        with found as peaks:

            def predicted(chunk: int | None) -> Trial:
                if progress is not None:
                    progress("all edges at once" if chunk is None else f"chunks of {chunk:,} edges")
                return Trial(chunk or most, *peaks(chunk))

            if told.memory == "eager":
                trial = predicted(None)
                if trial.need_bytes > budget_bytes:
                    raise _too_small(
                        trial, budget_bytes, device, hint="use --memory flat, which takes the edges in chunks"
                    )
                return Chosen(None, trial.need_bytes, budget_bytes)
            floor = min(most, LEAST)
            best = largest_that_fits(
                predicted, budget_bytes=budget_bytes, start=most, floor=floor, up_to=most, tolerance=NEAR
            )
    if best.fits is None:
        least = best.samples[0]
        other = "choose a smaller model or lattice" if mode == "train" else "give a coarser mesh"
        hint = f"raise --budget by at least {show_bytes(least.need_bytes - budget_bytes)}, or {other}"
        raise _too_small(least, budget_bytes, device, hint=hint)
    return Chosen(best.fits.number, best.fits.need_bytes, budget_bytes)


def _too_small(trial: Trial, budget_bytes: int, device: str, *, hint: str) -> DoesNotFit:
    what = "context and margin included" if device == "cuda" else "with what this process holds already"
    return DoesNotFit(
        f"a step needs {show_bytes(trial.need_bytes)} in chunks of {trial.number:,} edges, {what};"
        f" the budget is {show_bytes(budget_bytes)}",
        hint=hint,
    )


@contextmanager
def _on_cpu(folder: Path, told: Settings, mode: Mode) -> Iterator[Peaks]:
    """Fake tensors on the CPU, every one of them counted."""

    def peaks(chunk: int | None) -> tuple[int, int]:
        def steps() -> None:
            with compat.fake_mode():
                case = budget_step.described(folder, device="cpu", mode=mode, memory=told.memory, chunk=chunk)
                case.step()
                case.step()  # the optimizer's state is there from the first step on

        live = measurement.account(steps) or 0
        # Read after the steps: what they import stays resident while training.
        return resident_bytes() + live, live

    yield peaks


@contextmanager
def _on_card(folder: str, told: Settings, graph: Graph, mode: Mode, name: str) -> Iterator[Peaks]:
    """A forecaster, whose worker finds the description of the step in its environment."""
    before = os.environ.get(budget_step.WHERE)
    os.environ[budget_step.WHERE] = folder
    try:
        with Forecaster("pinchpoint.systems.operator.budget_step:STEP", card=name) as forecaster:

            def peaks(chunk: int | None) -> tuple[int, int]:
                made = forecaster.predict(size=graph.edges, mode=mode, variant=told.memory, chunk=chunk)
                high = max(0, (made.high_bytes or 0) - made.peak_allocated_bytes)
                return made.total_bytes + high + made.margin_bytes, made.peak_allocated_bytes

            yield peaks
    finally:
        if before is None:
            del os.environ[budget_step.WHERE]
        else:
            os.environ[budget_step.WHERE] = before
