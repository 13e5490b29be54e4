"""What would make a step fit: each lever tried by prediction where it can be, estimated where it cannot."""

from __future__ import annotations

from collections import defaultdict

from pinchpoint.core import targets
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.records import Forecast, Lever
from pinchpoint.core.workload import Workload
from pinchpoint.forecasting.forecaster import Forecaster


def find(
    forecaster: Forecaster, forecast: Forecast, *, chunk: int | None, args: tuple[str, ...]
) -> tuple[Lever, ...]:
    """Levers that save something, most first. Each is alone: savings do not add up."""
    found = [
        _half(forecaster, forecast, chunk, args),
        _checkpointing(forecast),
        _accumulation(forecaster, forecast, chunk),
        *_variants(forecaster, forecast),
    ]
    useful = [lever for lever in found if lever is not None and lever.saves_bytes > 0]
    return tuple(sorted(useful, key=lambda lever: -lever.saves_bytes))


def _saving(forecast: Forecast, other: Forecast) -> int:
    return forecast.total_bytes - other.total_bytes


def _half(
    forecaster: Forecaster, forecast: Forecast, chunk: int | None, args: tuple[str, ...]
) -> Lever | None:
    """The same step inside bf16 autocast, faked."""
    if forecast.framework != "torch":
        return None
    try:
        other = forecaster.predict(
            size=forecast.size,
            mode=forecast.mode if forecast.size else None,
            variant=forecast.variant,
            chunk=chunk,
            half=True,
            args=args,
        )
    except PinchpointError:
        return None  # the step does not run in bf16, so it is no lever
    return Lever(
        "bf16",
        _saving(forecast, other),
        "run the forward pass inside torch.autocast('cuda', torch.bfloat16); predicted",
    )


def _checkpointing(forecast: Forecast) -> Lever | None:
    """Keep only what enters each child of the model; the largest child is recomputed at a time."""
    if forecast.mode != "train" or not forecast.modules:
        return None
    groups: dict[str, list[int]] = defaultdict(list)
    for module in forecast.modules:
        groups[".".join(str(module["name"]).split(".")[:3])].append(int(module["bytes"]))
    if len(groups) < 3:
        return None
    share = forecast.breakdown["activations"] / max(sum(sum(sizes) for sizes in groups.values()), 1)
    totals = [sum(sizes) * min(share, 1.0) for sizes in groups.values()]
    saved = sum(totals) - max(totals) - sum(total / 4 for total in totals)
    return Lever(
        "checkpointing",
        max(int(saved), 0),
        "torch.utils.checkpoint around each block of the model; estimated",
    )


def _accumulation(forecaster: Forecaster, forecast: Forecast, chunk: int | None) -> Lever | None:
    """Half the points a step, twice as many steps before the optimizer's."""
    if forecast.mode != "train":
        return None
    if forecast.size is None:
        moving = sum(forecast.breakdown[part] for part in ("activations", "temporaries", "inputs"))
        return Lever("accumulation", moving // 2, "half the batch, gradients accumulated over two; estimated")
    if forecast.size < 2:
        return None
    try:
        other = forecaster.predict(
            size=forecast.size // 2, mode=forecast.mode, variant=forecast.variant, chunk=chunk
        )
    except PinchpointError:
        return None  # half the points cannot be built, so it is no lever
    return Lever(
        "accumulation",
        _saving(forecast, other),
        "half the points a step, gradients accumulated over two; predicted",
    )


def _variants(forecaster: Forecaster, forecast: Forecast) -> list[Lever]:
    """A workload's own other variants; the chunked ones are the chunk lever."""
    if forecast.variant is None or forecast.size is None:
        return []
    thing = targets.load(forecaster.target)
    if not isinstance(thing, Workload):
        return []
    found = []
    for variant in thing.variants:
        if variant.name != forecast.variant:
            try:
                other = forecaster.predict(size=forecast.size, mode=forecast.mode, variant=variant.name)
            except PinchpointError:
                continue  # a variant that cannot take this size is no lever
            name = "chunk" if "chunk" in variant.name else f"variant {variant.name}"
            found.append(Lever(name, _saving(forecast, other), f"--variant {variant.name}; predicted"))
    return found
