"""A Forecast of a JAX target, which is built with abstract arguments where possible and then analysed."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.records import Forecast
from pinchpoint.core.targets import explain_failure
from pinchpoint.core.workload import BuiltStep, Workload, build, settings_of
from pinchpoint.forecasting.assembly import margin_bytes
from pinchpoint.forecasting.cards import Card, cards
from pinchpoint.forecasting.worker_process.target_loading import LoadedTarget, load_jax_observer

_SHARES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")


def predict(loaded_target: LoadedTarget, request: dict[str, Any]) -> Forecast:
    observe_factory = load_jax_observer()
    try:
        analysis, processed = observe_factory(lambda: _make(loaded_target, request), card=loaded_target.card)
    except PinchpointError:
        raise
    except Exception as error:
        raise explain_failure(loaded_target.target.text, error, "tracing") from error
    thing, mode = loaded_target.thing, request.get("mode")
    if not isinstance(thing, Workload) and mode is not None and mode != analysis.mode:
        raise BadInput(
            f"The step of {loaded_target.target.text} is in mode {analysis.mode}, not in mode {mode}.",
            hint=f"Leave --mode out, or use --mode {analysis.mode}.",
        )
    # JAX reserves most of the card at start-up, so the reserved bytes do not depend on the step.
    total = analysis.peak_bytes + loaded_target.card.context_bytes
    margin, share = margin_bytes(total), memory_share()
    highest = analysis.high_bytes + margin
    return Forecast(
        target=loaded_target.target.text,
        framework="jax",
        method=analysis.method,
        mode=(mode or thing.modes[0]) if isinstance(thing, Workload) else analysis.mode,
        size=request["size"],
        variant=thing.variant(request.get("variant")).name if isinstance(thing, Workload) else None,
        peak_allocated_bytes=analysis.peak_bytes,
        peak_reserved_bytes=None,
        workspace_bytes=analysis.breakdown["workspace"],
        context_bytes=loaded_target.card.context_bytes,
        total_bytes=total,
        breakdown=analysis.breakdown,
        lines=analysis.lines,
        modules=(),
        timeline=analysis.timeline,
        fits={
            card.name: highest <= room_bytes(card, share)
            for card in {**cards(), loaded_target.card.name: loaded_target.card}.values()
        },
        margin_bytes=margin,
        needs_bytes=max(highest, int(highest / share) - loaded_target.card.context_bytes),
        card=loaded_target.card.name,
        steps=1,
        processed=processed,
        settings=settings_of(thing, request.get("settings"), text=loaded_target.target.text),
        low_bytes=analysis.low_bytes,
        high_bytes=analysis.high_bytes,
        notes=(
            *analysis.notes,
            share_note(share),
        ),
    )


def room_bytes(card: Card, share: float) -> int:
    """What JAX's allocator has on a card."""
    return min(card.usable_bytes, int(share * card.memory_bytes))


def share_note(share: float) -> str:
    return f"`fits` compares with the {share:.0%} of a card that JAX reserves; {_SHARES[0]}=0.95 raises it"


def memory_share() -> float:
    """The share of a card's memory that JAX's allocator reserves."""
    for name in _SHARES:
        with contextlib.suppress(ValueError):
            return min(float(os.environ.get(name, "")), 1.0)
    return 0.75


def _make(loaded_target: LoadedTarget, request: dict[str, Any]) -> BuiltStep:
    return build(
        loaded_target.thing,
        request["size"],
        text=loaded_target.target.text,
        device="cuda",
        mode=request.get("mode"),
        variant=request.get("variant"),
        seed=request.get("seed", 0),
        chunk=request.get("chunk"),
        settings=request.get("settings"),
    )
