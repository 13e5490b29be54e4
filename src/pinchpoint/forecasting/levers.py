"""Levers: changes that would make a step fit, predicted where possible and estimated otherwise."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pinchpoint.core import targets
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.ranks import Rank
from pinchpoint.core.records import Forecast, Lever
from pinchpoint.core.workload import Workload
from pinchpoint.forecasting.forecaster import Forecaster


def find(
    forecaster: Forecaster,
    forecast: Forecast,
    *,
    chunk: int | None,
    args: tuple[str, ...],
    rank: Rank | None = None,
) -> tuple[Lever, ...]:
    """Levers that save something, the best first. Each is evaluated alone: savings do not add up.

    rank: of the job that the forecast is for; the levers are those of the same process
    """
    if rank is not None and forecast.rank is not None:
        rank = replace(rank, rank=forecast.rank)
    levers = [
        _half(forecaster, forecast, chunk, args, rank),
        _checkpointing(forecast),
        _accumulation(forecaster, forecast, chunk),
        *_variants(forecaster, forecast),
    ]
    useful = [lever for lever in levers if lever is not None and lever.saves_bytes > 0]
    return tuple(sorted(useful, key=lambda lever: -lever.saves_bytes))


def _saving(forecast: Forecast, other: Forecast) -> int:
    return forecast.total_bytes - other.total_bytes


def _half(
    forecaster: Forecaster, forecast: Forecast, chunk: int | None, args: tuple[str, ...], rank: Rank | None
) -> Lever | None:
    """A fake run of the same step inside bf16 autocast."""
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
            rank=rank,
        )
    except PinchpointError:
        return None  # the step does not run in bf16
    return Lever(
        "bf16",
        _saving(forecast, other),
        "run the forward pass inside torch.autocast('cuda', torch.bfloat16); predicted",
    )


def _checkpointing(forecast: Forecast) -> Lever | None:
    """Store only the inputs of each child of the model; at most the largest child is recomputed at a time."""
    if forecast.mode != "train" or not forecast.modules:
        return None
    groups: dict[str, list[int]] = defaultdict(list)
    repeats: dict[str, int] = defaultdict(int)
    for module in forecast.modules:
        parts = str(module["name"]).split(".")
        repeated = parts.index("*") + 1 if "*" in parts else 0
        name = ".".join(parts[: max(3, repeated)])
        groups[name].append(int(module["bytes"]))
        repeats[name] = max(repeats[name], int(module["count"]) if repeated else 1)
    if sum(repeats.values()) < 3:
        return None
    share = forecast.breakdown["activations"] / max(sum(sum(sizes) for sizes in groups.values()), 1)
    totals = [
        sum(sizes) * min(share, 1.0) / repeats[name]
        for name, sizes in groups.items()
        for _ in range(repeats[name])
    ]
    savings = sum(totals) - max(totals) - sum(total / 4 for total in totals)
    return Lever(
        "checkpointing",
        max(int(savings), 0),
        "torch.utils.checkpoint around each block of the model; estimated",
    )


def _accumulation(forecaster: Forecaster, forecast: Forecast, chunk: int | None) -> Lever | None:
    """Process half the points per step, and accumulate gradients over two steps."""
    if forecast.mode != "train":
        return None
    if forecast.size is None:
        moving = sum(forecast.breakdown[part] for part in ("activations", "temporaries", "inputs"))
        return Lever(
            "accumulation", moving // 2, "half the batch, gradients accumulated over 2 steps; estimated"
        )
    if forecast.size < 2:
        return None
    try:
        other = forecaster.predict(
            size=forecast.size // 2, mode=forecast.mode, variant=forecast.variant, chunk=chunk
        )
    except PinchpointError:
        return None  # half the points cannot be built
    return Lever(
        "accumulation",
        _saving(forecast, other),
        "half the points per step, gradients accumulated over 2 steps; predicted",
    )


def _variants(forecaster: Forecaster, forecast: Forecast) -> list[Lever]:
    """The other variants of a workload as levers; a chunked variant is named `chunk`."""
    if forecast.variant is None or forecast.size is None:
        return []
    thing = targets.load(forecaster.target)
    if not isinstance(thing, Workload):
        return []
    levers = []
    for variant in thing.variants:
        if variant.name != forecast.variant:
            try:
                other = forecaster.predict(size=forecast.size, mode=forecast.mode, variant=variant.name)
            except PinchpointError:
                continue  # the variant cannot run this size
            name = "chunk" if "chunk" in variant.name else f"variant {variant.name}"
            levers.append(Lever(name, _saving(forecast, other), f"--variant {variant.name}; predicted"))
    return levers
