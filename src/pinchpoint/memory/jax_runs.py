"""A Forecast of a JAX target: built with abstract arguments where the workload allows, then analysed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pinchpoint.core.discover import failed
from pinchpoint.core.errors import BadInput, Missing, PinchpointError
from pinchpoint.core.records import Forecast
from pinchpoint.core.workload import Workload
from pinchpoint.memory.assemble import margin_bytes
from pinchpoint.memory.cards import cards

if TYPE_CHECKING:
    from pinchpoint.memory.runs import Prepared


def predict(prepared: Prepared, request: dict[str, Any]) -> Forecast:
    observe_made = load_observer()
    try:
        found, processed = observe_made(lambda: _make(prepared, request), card=prepared.card)
    except PinchpointError:
        raise
    except Exception as error:
        raise failed(prepared.target.text, error, "tracing") from error
    thing, mode = prepared.thing, request.get("mode")
    if not isinstance(thing, Workload) and mode is not None and mode != found.mode:
        raise BadInput(
            f"the step of {prepared.target.text} is one of {found.mode}", mend=f"leave --mode out, or ask for --mode {found.mode}"
        )
    # JAX takes most of the card at start whatever it needs; reserved bytes are no property of the step.
    total = found.peak_bytes + prepared.card.context_bytes
    margin = margin_bytes(total)
    highest = (found.high_bytes or found.peak_bytes) + margin
    return Forecast(
        target=prepared.target.text,
        framework="jax",
        method=found.method,
        mode=(mode or thing.modes[0]) if isinstance(thing, Workload) else found.mode,
        size=request["size"],
        variant=thing.variant(request.get("variant")).name if isinstance(thing, Workload) else None,
        peak_allocated_bytes=found.peak_bytes,
        peak_reserved_bytes=None,
        workspace_bytes=found.breakdown["workspace"],
        context_bytes=prepared.card.context_bytes,
        total_bytes=total,
        breakdown=found.breakdown,
        lines=found.lines,
        modules=(),
        timeline=found.timeline,
        fits={
            card.name: highest + card.context_bytes <= card.memory_bytes
            for card in {**cards(), prepared.card.name: prepared.card}.values()
        },
        margin_bytes=margin,
        card=prepared.card.name,
        steps=1,
        processed=processed,
        low_bytes=found.peak_bytes if found.high_bytes else None,
        high_bytes=found.high_bytes,
        notes=found.notes,
    )


def load_observer() -> Any:
    """JAX's side of the prediction, or an error that says how to install it."""
    try:
        from pinchpoint.backends.jax.observe import observe_made
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise Missing("jax is not installed", mend="pip install 'pinchpoint[jax]'") from error
    return observe_made


def _make(prepared: Prepared, request: dict[str, Any]) -> Any:
    """The workload's case, or what the factory returns: a step, or (jitted function, arguments)."""
    thing, size = prepared.thing, request["size"]
    if isinstance(thing, Workload):
        return thing.case(
            size, device="cuda", mode=request.get("mode") or thing.modes[0], variant=request.get("variant"),
            seed=request.get("seed", 0), chunk=request.get("chunk"),
        )  # fmt: skip
    made = thing(size, "cuda")
    step = made[0] if isinstance(made, tuple) and len(made) == 2 else made
    if not callable(step):
        text = prepared.target.text
        raise BadInput(
            f"{text} returned {type(step).__name__}, not a step", mend="return a step, or (jitted function, arguments)"
        )
    return made
