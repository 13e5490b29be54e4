"""The most rays at one time whose step is predicted to stay within a budget, before anything is trained.

The step is the field's part of a GAN's iteration: a render without gradients for the discriminator, one with, and its backward
pass, on fake tensors. On CUDA the whole is counted: the allocator's reserve, the context and a margin, or with
counted="allocated" the tensors and workspaces alone. On a CPU it is the tensors and what this process is resident with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from pinchpoint.backends.torch import compat, measurement
from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.core.settings import Setting
from pinchpoint.core.units import show_bytes
from pinchpoint.core.workload import Case, Mode, Variant, Workload
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.planning.search import Sample
from pinchpoint.systems.common.budgets import Chosen, budget_of
from pinchpoint.systems.common.precision import resident_bytes
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays, draw_poses
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, Form, Precision, draw, render
from pinchpoint.systems.radiance.rendering.strategies import Memory, wider

LEAST = 64  # rays: a chunk below this is mostly overhead
WALKED = 3  # parts that are walked through: the peak of one is that of any
Counted = Literal["total", "allocated"]
Peak = Callable[[int | None], int]  # from a chunk, None where all rays go through at once, to bytes
Peaks = Callable[
    [int | None], tuple[int, int]
]  # from a chunk to the bytes it needs in all, and those of its tensors


def chunk_for(
    config: FieldConfig,
    *,
    batch: int,
    rays: int,
    samples: int,
    budget: str | int,
    device: str,
    form: Form = "folded",
    memory: Memory = "checkpoint",
    precision: Precision = "fp32",
    mode: Mode = "train",
    features: bool = False,
    beside: Peak | None = None,
    counted: Counted = "total",
    progress: Callable[[str], None] | None = None,
) -> Chosen:
    """The largest chunk of the batch x rays rays of a step, or `DoesNotFit` with the numbers.

    beside: bytes of what else lies there with such a chunk: the discriminator, the optimizers, images. Chosen.chunk is
    None where all rays go through at once, which also is the only way to train with memory none.
    """
    for name, value in (("batch", batch), ("rays", rays), ("samples", samples)):
        if value < 1:
            raise BadInput(f"{name} = {value}", hint=f"give {name} of at least 1")
    within = budget_of(budget)
    budget_bytes, most = within.memory_bytes, batch * rays
    told = {
        "config": config.to_json(),
        "batch": str(batch),
        "samples": str(samples),
        "form": form,
        "precision": precision,
        "features": "yes" if features else "no",
    }
    found = (
        _on_cpu(told, most, memory, mode)
        if device == "cpu"
        else _on_card(told, most, memory, mode, within.name, counted)
    )
    with found as peaks:

        def predicted(parts: int) -> Sample:
            chunk = None if parts == 1 else batch * -(-rays // parts)
            if progress is not None:
                progress("all rays at once" if chunk is None else f"chunks of {chunk:,} rays")
            need, live = peaks(chunk)
            more = 0 if beside is None else beside(chunk)
            return Sample(chunk or most, need + more, live + more)

        parts, best = _fewest(
            predicted, budget_bytes, 1 if memory == "none" and mode == "train" else _most_parts(batch, rays)
        )
    if best.need_bytes <= budget_bytes:
        return Chosen(None if parts == 1 else best.number, best.need_bytes, budget_bytes)
    hint = f"raise --budget by at least {show_bytes(best.need_bytes - budget_bytes)}, or take fewer samples a ray"
    if memory == "none" and mode == "train":
        hint = "use --memory checkpoint, which holds one chunk of rays at a time"
    raise _too_small(best, budget_bytes, hint=hint)


def _most_parts(batch: int, rays: int) -> int:
    return max(1, min(rays, batch * rays // LEAST))


def _fewest(sample: Callable[[int], Sample], budget_bytes: int, most: int) -> tuple[int, Sample]:
    """The fewest parts that fit, or the most with what they need: parts are even, so that only their number matters."""
    seen = {1: sample(1)}
    while True:
        fails = max((parts for parts, one in seen.items() if one.need_bytes > budget_bytes), default=0)
        fits = min((parts for parts in seen if parts > fails), default=None)
        if fits is not None and fits - fails == 1:
            return fits, seen[fits]
        if fails == most:
            return most, seen[most]
        guess = _guess([seen[parts] for parts in sorted(seen)], seen[1].number, budget_bytes)
        # One less than what fits is tried before it is believed.
        guess = min(max(guess, fails + 1), most if fits is None else fits - 1)
        seen[guess] = sample(guess)


def _guess(seen: list[Sample], whole: int, budget_bytes: int) -> int:
    """Parts by the line through the two smallest chunks seen; by proportion where there is one."""
    if len(seen) == 1:
        return -(-2 * seen[0].need_bytes // budget_bytes)
    large, small = seen[-2:]
    slope = (large.need_bytes - small.need_bytes) / max(large.number - small.number, 1)
    room = budget_bytes - small.need_bytes + slope * small.number
    return whole if room <= 0 or slope <= 0 else math.ceil(slope * whole / room)


def _too_small(least: Sample, budget_bytes: int, *, hint: str) -> DoesNotFit:
    need = f"a step needs {show_bytes(least.need_bytes)} in chunks of {least.number:,} rays"
    return DoesNotFit(
        f"{need}; the budget is {show_bytes(budget_bytes)}", hint=hint, need_bytes=least.need_bytes
    )


@contextmanager
def _on_cpu(told: dict[str, str], size: int, memory: Memory, mode: Mode) -> Iterator[Peaks]:
    """Fake tensors on the CPU, every one of them counted."""

    def peaks(chunk: int | None) -> tuple[int, int]:
        def steps() -> None:
            with compat.fake_mode():
                case = build(
                    size, device="cpu", mode=mode, variant=memory, seed=0, chunk=chunk, settings=told
                )
                case.step()
                case.step()  # gradients are there from the first step on

        live = measurement.account(steps) or 0
        # Read after the steps: what they import stays resident while training.
        return resident_bytes() + live, live

    yield peaks


@contextmanager
def _on_card(
    told: dict[str, str], size: int, memory: Memory, mode: Mode, card: str, counted: Counted
) -> Iterator[Peaks]:
    with Forecaster("pinchpoint.systems.radiance.budget:STEP", card=card, settings=told) as forecaster:

        def peaks(chunk: int | None) -> tuple[int, int]:
            made = forecaster.predict(size=size, mode=mode, variant=memory, chunk=chunk)
            high = max(0, (made.high_bytes or 0) - made.peak_allocated_bytes)
            total = made.total_bytes + made.margin_bytes if counted == "total" else made.peak_allocated_bytes
            return total + high, made.peak_allocated_bytes

        yield peaks


def build(
    size: int,
    *,
    device: str,
    mode: str,
    variant: str,
    seed: int,
    settings: dict[str, str],
    chunk: int | None = None,
) -> Case:
    """The field's part of an iteration over `size` rays in all; `settings` as `chunk_for` tells them.

    Of many chunks three are rendered, beside what the pixels of all would take; with walked=all every one, as in training.
    """
    config = FieldConfig.from_json(settings["config"])
    batch, samples = int(settings["batch"]), int(settings["samples"])
    field = Field(config, seed=seed)
    if device != "cpu":  # fake parameters cannot be moved to where they are
        field = field.to(device)
    options: dict[str, Any] = {
        "form": settings["form"],
        "precision": settings["precision"],
        "memory": variant,
    }
    options["features"] = settings["features"] == "yes"
    walked = size // batch
    if chunk is not None and settings.get("walked", "some") == "some":
        walked = min(walked, WALKED * max(1, chunk // batch))
    pixel = 3 * (
        5 + config.features * options["features"]
    )  # numbers of one: in its part, joined, and its gradient
    generator = torch.Generator(device).manual_seed(seed)

    def drawn() -> tuple[Rays, Codes, Draws]:
        places = torch.empty(batch, size // batch, 2, device=device).uniform_(-1, 1, generator=generator)
        rays = Camera().rays(*draw_poses(batch, v_range=(0.0, 0.5), generator=generator), places)
        codes = Codes(*(torch.randn(batch, wide, device=device) for wide in (config.z_shape, config.z_app)))
        return rays, codes, draw(batch, size // batch, samples, noise=1.0, generator=generator)

    held = drawn() if settings.get("drawn") == "once" else None

    def image(at_once: int | None = chunk) -> tuple[list[Tensor], Tensor]:
        """What the loss reads, and as much room as the pixels of chunks that are not walked through would take."""
        rays, codes, draws = held or drawn()
        part = slice(batch), slice(walked)
        seen = Draws(draws.offsets[part], None if draws.noise is None else draws.noise[part])
        made = render(field, rays.part(*part), codes, seen, chunk=at_once, **options)
        read = [made.rgb] if made.features is None else [made.rgb, made.features]
        return read, torch.empty(batch, size // batch - walked, pixel, device=device)

    def train() -> Tensor:
        field.zero_grad()
        with torch.no_grad():
            image(wider(chunk, settings["form"]))
        read, _rest = image()
        loss = torch.stack([made.square().mean() for made in read]).sum()
        loss.backward()
        return loss.detach()

    return Case(step=train if mode == "train" else torch.no_grad()(image), processed=batch * (size // batch))


STEP = Workload(
    name="radiance-field-step",
    axis="rays",
    framework="torch",
    build="pinchpoint.systems.radiance.budget:build",
    variants=(Variant("none"), Variant("checkpoint"), Variant("deferred")),
    about="the field's part of one iteration",
    chunked=True,
    settings=(
        Setting("config", FieldConfig().to_json()),
        Setting("batch", "8", pattern="[1-9][0-9]*"),
        Setting("samples", "64", pattern="[1-9][0-9]*"),
        Setting("form", "folded", choices=("eager", "folded")),
        Setting("precision", "fp32", choices=("fp32", "tf32", "bf16", "fp16")),
        Setting("features", "no", choices=("no", "yes")),
        Setting(
            "drawn", "anew", "random numbers: anew at every step, or once for all", choices=("anew", "once")
        ),
        Setting(
            "walked",
            "some",
            "of the chunks: three, whose peak is that of all, or all",
            choices=("some", "all"),
        ),
    ),
)
