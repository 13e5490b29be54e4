"""The largest chunk whose step is predicted to stay within a budget, before training starts.

The step is the trainer's own, run on fake tensors with the rows of the largest body's graph. On CUDA
everything is counted: the memory the allocator reserves, the context and a margin. On a CPU it is the tensors
of the step and the resident memory of this process; what the allocator keeps in addition is not known.
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
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.planning.search import Sample as Trial
from pinchpoint.planning.search import largest_that_fits
from pinchpoint.systems.common.budgets import (
    BudgetChoice,
    as_installed,
    budget_of,
    cpu_bytes,
    does_not_fit,
    forecast_bytes,
)
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training import budget_step

MIN_CHUNK = 256  # edges: a smaller chunk is mostly overhead
TOLERANCE = 0.1  # of the largest chunk: a tenth more or less makes no difference to the time
Mode = Literal["train", "infer"]
# From a chunk to the bytes it needs in all, and those of its tensors.
Peaks = Callable[[int | None], tuple[int, int]]


def chunk_for(
    config: OperatorConfig,
    settings: Settings,
    graph: Graph,
    *,
    budget: str | int,
    device: str,
    mode: Mode,
    progress: Callable[[str], None] | None = None,
) -> BudgetChoice:
    """The largest chunk for a step on this graph. Raises `DoesNotFit` if none fits."""
    within = budget_of(budget)
    budget_bytes = within.memory_bytes
    most = max(edges.count for edges in (*graph.encoder, *graph.decoder))
    with tempfile.TemporaryDirectory(prefix="pinchpoint-operator-") as folder:
        budget_step.describe(Path(folder), config, replace(settings, chunk=None), graph)
        predictor = (
            _on_cpu(Path(folder), settings, mode)
            if device == "cpu"
            else _on_card(folder, settings, graph, mode, as_installed(within).name)
        )
        with predictor as peaks:

            def try_chunk(chunk: int | None) -> Trial:
                if progress is not None:
                    progress("all edges at once" if chunk is None else f"chunks of {chunk:,} edges")
                return Trial(chunk or most, *peaks(chunk))

            if settings.memory == "eager":
                trial = try_chunk(None)
                if trial.need_bytes > budget_bytes:
                    raise does_not_fit(
                        trial.need_bytes,
                        budget_bytes,
                        how=_how(trial, device),
                        hint="Use --memory flat, which processes the edges in chunks.",
                    )
                return BudgetChoice(None, trial.need_bytes, budget_bytes, trial.live_bytes)
            floor = min(most, MIN_CHUNK)
            best = largest_that_fits(
                try_chunk, budget_bytes=budget_bytes, start=most, floor=floor, up_to=most, tolerance=TOLERANCE
            )
    if best.fits is None:
        least = best.samples[0]
        other = "choose a smaller model or lattice" if mode == "train" else "give a coarser mesh"
        raise does_not_fit(least.need_bytes, budget_bytes, how=_how(least, device), otherwise=other)
    return BudgetChoice(best.fits.number, best.fits.need_bytes, budget_bytes, best.fits.live_bytes)


def _how(trial: Trial, device: str) -> str:
    included = "context and margin" if device == "cuda" else "the memory this process already uses"
    return f" in chunks of {trial.number:,} edges, including {included}"


@contextmanager
def _on_cpu(folder: Path, settings: Settings, mode: Mode) -> Iterator[Peaks]:
    """Peaks from fake tensors on the CPU, all of which are counted."""

    def peaks(chunk: int | None) -> tuple[int, int]:
        def steps() -> None:
            with compat.fake_mode():
                case = budget_step.load_case(
                    folder, device="cpu", mode=mode, memory=settings.memory, chunk=chunk
                )
                case.step()
                case.step()  # the optimizer's state exists from the first step on

        live = measurement.account(steps) or 0
        # Read after the steps: modules that they import stay resident during training.
        return cpu_bytes(live, resident_bytes()), live

    yield peaks


@contextmanager
def _on_card(folder: str, settings: Settings, graph: Graph, mode: Mode, name: str) -> Iterator[Peaks]:
    """Peaks from a forecaster; an environment variable tells its worker where the step is described."""
    before = os.environ.get(budget_step.WHERE)
    os.environ[budget_step.WHERE] = folder
    try:
        with Forecaster("pinchpoint.systems.operator.training.budget_step:STEP", card=name) as forecaster:

            def peaks(chunk: int | None) -> tuple[int, int]:
                forecast = forecaster.predict(
                    size=graph.edges, mode=mode, variant=settings.memory, chunk=chunk
                )
                return forecast_bytes(forecast), forecast.peak_allocated_bytes

            yield peaks
    finally:
        if before is None:
            del os.environ[budget_step.WHERE]
        else:
            os.environ[budget_step.WHERE] = before
