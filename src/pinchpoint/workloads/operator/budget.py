"""The largest chunk whose step is predicted to stay within a budget, before anything is trained.

The step is the trainer's own, run on fake tensors with the rows of the largest body's graph. On CUDA
the whole is counted: the allocator's reserve, the context and a margin. On a CPU it is the tensors of
the step and what this process is resident with already.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.records import Forecast
from pinchpoint.core.units import parse_bytes, show_bytes
from pinchpoint.flow.search import Sample as Trial
from pinchpoint.flow.search import largest_that_fits
from pinchpoint.memory.cards import card
from pinchpoint.memory.forecaster import Forecaster
from pinchpoint.workloads.operator import faked
from pinchpoint.workloads.operator.config import OperatorConfig
from pinchpoint.workloads.operator.graph import Graph
from pinchpoint.workloads.operator.precision import resident_bytes
from pinchpoint.workloads.operator.settings import Settings

LEAST = 256  # edges: a chunk below this is mostly overhead

NEAR = 0.1  # how near the largest chunk is wanted: a tenth more or less makes no difference to the time


@dataclass(frozen=True)
class Chosen:
    """What a budget allows. chunk: None where the step is not cut into chunks."""

    chunk: int | None
    predicted_bytes: int
    budget_bytes: int


def chunk_for(
    config: OperatorConfig, told: Settings, graph: Graph, *, budget: str | int, device: str, mode: Literal["train", "infer"],
    progress: Callable[[str], None] | None = None,
) -> Chosen:  # fmt: skip
    """The largest chunk for a step on this graph, or `DoesNotFit` with the numbers."""
    budget_bytes, name = _budget(budget)
    most = max(edges.count for edges in (*graph.encoder, *graph.decoder))
    here = 0 if device == "cuda" else resident_bytes()

    def need(forecast: Forecast) -> int:
        if device == "cuda":
            high = max(0, (forecast.high_bytes or 0) - forecast.peak_allocated_bytes)
            return forecast.total_bytes + high + forecast.margin_bytes
        return forecast.peak_allocated_bytes - forecast.workspace_bytes + here

    with _forecaster(config, told, graph, name) as forecaster:

        def predicted(chunk: int | None) -> Trial:
            if progress is not None:
                progress("all edges at once" if chunk is None else f"chunks of {chunk:,} edges")
            made = forecaster.predict(size=graph.edges, mode=mode, variant=told.memory, chunk=chunk)
            return Trial(chunk or most, need(made), made.peak_allocated_bytes)

        if told.memory == "eager":
            trial = predicted(None)
            if trial.need_bytes > budget_bytes:
                raise _too_small(trial, budget_bytes, device, mend="use --memory flat, which takes the edges in chunks")
            return Chosen(None, trial.need_bytes, budget_bytes)
        found = largest_that_fits(
            predicted, budget_bytes=budget_bytes, start=most, floor=min(most, LEAST), up_to=most, tolerance=NEAR
        )
    if found.fits is None:
        least = found.samples[0]
        mend = f"raise --budget by at least {show_bytes(least.need_bytes - budget_bytes)}, or choose a smaller model or lattice"
        raise _too_small(least, budget_bytes, device, mend=mend)
    return Chosen(found.fits.number, found.fits.need_bytes, budget_bytes)


def _budget(budget: str | int) -> tuple[int, str]:
    """The bytes, and the card whose workspace and context are modelled."""
    if isinstance(budget, int) or budget.strip()[:1].isdigit():
        wanted = parse_bytes(budget)
        return wanted, f"{wanted}B"
    named = card(budget)
    return named.memory_bytes, named.name


def _too_small(trial: Trial, budget_bytes: int, device: str, *, mend: str) -> DoesNotFit:
    what = "context and margin included" if device == "cuda" else "with what this process holds already"
    return DoesNotFit(
        f"a step needs {show_bytes(trial.need_bytes)} in chunks of {trial.number:,} edges, {what};"
        f" the budget is {show_bytes(budget_bytes)}",
        mend=mend,
    )


@contextmanager
def _forecaster(config: OperatorConfig, told: Settings, graph: Graph, name: str) -> Iterator[Forecaster]:
    """A worker that finds the description of the step in its environment."""
    with tempfile.TemporaryDirectory(prefix="pinchpoint-operator-") as folder:
        faked.describe(Path(folder), config, replace(told, chunk=None), graph)
        before = os.environ.get(faked.WHERE)
        os.environ[faked.WHERE] = folder
        try:
            with Forecaster("pinchpoint.workloads.operator.faked:STEP", card=name) as forecaster:
                yield forecaster
        finally:
            if before is None:
                del os.environ[faked.WHERE]
            else:
                os.environ[faked.WHERE] = before
