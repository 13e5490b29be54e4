"""The most rays at one time whose step is predicted to stay within a budget, before anything is trained.

The step is the field's part of a GAN's iteration: a render without gradients for the discriminator, one with, and its backward
pass, on fake tensors. On CUDA the whole is counted: the allocator's reserve, the context and a margin, or with
counted="allocated" the tensors and workspaces alone. On a CPU it is the tensors and what this process is resident with.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
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
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.evaluate import TOGETHER
from pinchpoint.systems.radiance.metrics.features import open_extractor
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.model.objective import Generator, Request, whole_images
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays, draw_poses
from pinchpoint.systems.radiance.rendering.render import (
    Codes,
    Draws,
    Form,
    Precision,
    Rendered,
    draw,
    render,
)
from pinchpoint.systems.radiance.rendering.strategies import Memory, wider
from pinchpoint.systems.radiance.settings import Settings
from pinchpoint.systems.radiance.training_step import Stepper, replays

LEAST = 64  # rays: a chunk below this is mostly overhead
WALKED = 3  # parts that are walked through: the peak of one is that of any
# Bytes that a CPU process grew by beyond its tensors, at most, in trials from 0.4 to 0.8 GiB.
LIBRARIES = 64 << 20
# Turns that are recorded with inputs of their own, at most.
_TURNS = 3
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
        hint = "use --set memory=checkpoint, which holds one chunk of rays at a time"
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


def beside_bytes(
    config: FieldConfig, told: Settings, images: Images, device: str
) -> Callable[[int | None], int]:
    """Bytes by the rays that pass at one time: both players and what they compute, on a GPU the images too.

    Graphs keep their memory to themselves: sheets and distances on the way, and a turn that is recorded later than another, have
    theirs beside it. All of that and the field have their peaks at other times, so that the sum is never too little.
    """
    counted = _of_steps(config, told, images) + (images.pixels.numel() if device == "cuda" else LIBRARIES)
    if told.ranks == 1 and not replays(told, device):
        return lambda chunk: counted
    with _fake():
        stepper = _stepper(config, told, images)
        shown, asked = _bytes(stepper.real(1).tensors()), _bytes(stepper.request(1, "to count").tensors())
        weights = _bytes(stepper.critics.parameters())
    counted += (told.ranks - 1) * asked  # drawn for all processes, then let go
    if not replays(told, device):
        return lambda chunk: counted
    counted += _TURNS * (shown + asked)
    if told.r1 and told.r1_every > 1:  # a turn with and one without a penalty, each with gradients of its own
        counted += weights + _of_turn(config, told, images)
    if told.eval_images:
        blank = torch.zeros(TOGETHER, 3, told.size * told.superres, told.size * told.superres)
        counted += measurement.account(lambda: open_extractor(device="cpu")(blank)) or 0
    return lambda chunk: counted + _of_pictures(config, replace(told, chunk=chunk))


def _of_steps(config: FieldConfig, told: Settings, images: Images) -> int:
    def steps() -> None:
        with _fake():
            stepper = _stepper(config, told, images)
            # Both have a penalty, the second an optimizer's state too. Step 1 looks at gradients, of which there are none.
            for number in (1 + told.r1_every, 1 + 2 * told.r1_every):
                stepper.step(number)

    state = 8 if told.optimizer == "adam" else 4  # bytes that the optimizer holds of a weight
    field = (
        4 + state
    ) * config.parameters  # of its own, and its gradient's: the steps that were counted gave it none
    return (measurement.account(steps) or 0) + field


def _of_turn(config: FieldConfig, told: Settings, images: Images) -> int:
    """Of the discriminators' turn with a penalty."""

    def turn() -> None:
        with _fake():
            _stepper(config, told, images).discriminate(1)

    return measurement.account(turn) or 0


def _of_pictures(config: FieldConfig, told: Settings) -> int:
    """Of whole images as sheets and distances make them: one after another, some of them held."""

    def pictures() -> None:
        with _fake():
            generator = Generator(config, told).requires_grad_(False)
            codes = Codes(*(torch.zeros(2, wide) for wide in (config.z_shape, config.z_app)))
            whole_images(generator, codes, torch.zeros(2), torch.zeros(2))

    # (3 + 3 f^2 + 2) numbers of a pixel: both sizes, depth and cover; twice where they are joined.
    held = 2 * TOGETHER * 4 * told.size**2 * (5 + 3 * told.superres**2)
    return (measurement.account(pictures) or 0) + held


def _stepper(config: FieldConfig, told: Settings, images: Images) -> Stepper:
    """On fake tensors, with pixels that come from nowhere."""
    # A scaler of fp16 would read its scale, which is not there; bf16 has the same bytes.
    tried = replace(told, precision="bf16" if told.precision == "fp16" else told.precision, noise_until=1.0)
    held = Images(images.source, torch.zeros(1, *images.pixels.shape[1:], dtype=images.pixels.dtype))

    def blank(asked: Request, **_: Any) -> Rendered:
        images, rays = asked.places.shape[:2]
        rgb, depth, acc = (torch.zeros(images, rays, *more, requires_grad=True) for more in ((3,), (), ()))
        features = (
            torch.zeros(images, rays, config.features, requires_grad=True) if told.superres > 1 else None
        )
        return Rendered(rgb, depth, acc, features)

    stepper = Stepper(config, tried, held, "cpu")
    stepper.generator.rendered = blank
    return stepper


@contextmanager
def _fake() -> Iterator[None]:
    with compat.fake_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copies of fake weights ask for their address
        yield


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


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
