"""The largest chunk of rays whose training step is predicted to stay within a budget, before training starts.

The step is the field's share of a GAN iteration on fake tensors: a render without gradients for the
discriminator, a render with gradients, and its backward pass. On CUDA the prediction counts everything: the
allocator's reserve, the context and a margin; with counted="allocated" only tensors and workspaces. On a CPU
it counts the tensors and the resident memory of this process. `beside_bytes` counts what training holds
beside the field.
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
from pinchpoint.core.errors import BadInput
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Case, Mode, Variant, Workload
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.planning.search import Sample
from pinchpoint.systems.common.budgets import (
    BudgetChoice,
    as_installed,
    budget_of,
    cpu_bytes,
    does_not_fit,
    forecast_bytes,
    uncertain_bytes,
)
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.evaluate import IMAGES_PER_BATCH
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
    RenderOutput,
    draw,
    render,
)
from pinchpoint.systems.radiance.rendering.strategies import Memory, wider
from pinchpoint.systems.radiance.settings import Settings
from pinchpoint.systems.radiance.training.training_step import Stepper, uses_graphs

LEAST = 64  # rays: smaller chunks are mostly overhead
WALKED = 3  # chunks that are rendered: their peak is that of all of them
# Largest growth of a CPU process beyond its tensors, in trials from 0.4 to 0.8 GiB.
LIBRARIES = 64 << 20
# Most turns that are recorded with inputs of their own.
_TURNS = 3
Counted = Literal["total", "allocated"]
Peak = Callable[[int | None], int]  # from a chunk (None: all rays at once) to bytes
# From a chunk to the bytes it needs in all, and those of its tensors.
Peaks = Callable[[int | None], tuple[int, int]]


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
) -> BudgetChoice:
    """The largest chunk of the batch x rays rays of a step, or `DoesNotFit` with the numbers.

    beside: bytes of everything else that coexists with such a chunk: the discriminator, the optimizers,
    images. BudgetChoice.chunk is None if all rays fit at once, which is also the only way to train with
    memory none.
    """
    for name, value in (("batch", batch), ("rays", rays), ("samples", samples)):
        if value < 1:
            raise BadInput(
                f"`{name}` is {value}, but it must be at least 1.", hint=f"Give {name} a value of at least 1."
            )
    within = budget_of(budget)
    budget_bytes, most = within.memory_bytes, batch * rays
    settings = {
        "config": config.to_json(),
        "batch": str(batch),
        "samples": str(samples),
        "form": form,
        "precision": precision,
        "features": "yes" if features else "no",
    }
    predictor = (
        _on_cpu(settings, most, memory, mode)
        if device == "cpu"
        else _on_card(settings, most, memory, mode, as_installed(within).name, counted)
    )
    with predictor as peaks:

        def sample_for(parts: int) -> Sample:
            chunk = None if parts == 1 else batch * -(-rays // parts)
            if progress is not None:
                progress("all rays at once" if chunk is None else f"chunks of {chunk:,} rays")
            need, live = peaks(chunk)
            more = 0 if beside is None else beside(chunk)
            return Sample(chunk or most, need + more, live + more)

        parts, best = _fewest(
            sample_for, budget_bytes, 1 if memory == "none" and mode == "train" else _most_parts(batch, rays)
        )
    if best.need_bytes <= budget_bytes:
        return BudgetChoice(None if parts == 1 else best.number, best.need_bytes, budget_bytes)
    hint = ""
    if memory == "none" and mode == "train":
        hint = "Use --set memory=checkpoint, which holds one chunk of rays at a time."
    raise does_not_fit(
        best.need_bytes,
        budget_bytes,
        how=f" in chunks of {best.number:,} rays",
        otherwise="lower --samples, the points per ray",
        hint=hint,
    )


def _most_parts(batch: int, rays: int) -> int:
    return max(1, min(rays, batch * rays // LEAST))


def _fewest(sample: Callable[[int], Sample], budget_bytes: int, most: int) -> tuple[int, Sample]:
    """The fewest chunks that fit, or the largest number with what it needs. Chunks are even, so only their
    number matters.
    """
    samples = {1: sample(1)}
    while True:
        fails = max((parts for parts, one in samples.items() if one.need_bytes > budget_bytes), default=0)
        fits = min((parts for parts in samples if parts > fails), default=None)
        if fits is not None and fits - fails == 1:
            return fits, samples[fits]
        if fails == most:
            return most, samples[most]
        guess = _guess([samples[parts] for parts in sorted(samples)], samples[1].number, budget_bytes)
        # One chunk fewer than what fits is tried before the answer is accepted.
        guess = min(max(guess, fails + 1), most if fits is None else fits - 1)
        samples[guess] = sample(guess)


def _guess(samples: list[Sample], whole: int, budget_bytes: int) -> int:
    """Number of chunks by the line through the two smallest samples; by proportion if there is only one."""
    if len(samples) == 1:
        return -(-2 * samples[0].need_bytes // budget_bytes)
    large, small = samples[-2:]
    slope = (large.need_bytes - small.need_bytes) / max(large.number - small.number, 1)
    room = budget_bytes - small.need_bytes + slope * small.number
    return whole if room <= 0 or slope <= 0 else math.ceil(slope * whole / room)


@contextmanager
def _on_cpu(settings: dict[str, str], size: int, memory: Memory, mode: Mode) -> Iterator[Peaks]:
    """Predict on a CPU: count every fake tensor."""

    def peaks(chunk: int | None) -> tuple[int, int]:
        def steps() -> None:
            with compat.fake_mode():
                case = build(
                    size, device="cpu", mode=mode, variant=memory, seed=0, chunk=chunk, settings=settings
                )
                case.step()
                case.step()  # gradients exist from the first step on

        live = measurement.account(steps) or 0
        # Read after the steps: what they import stays resident during training.
        return cpu_bytes(live, resident_bytes()), live

    yield peaks


@contextmanager
def _on_card(
    settings: dict[str, str], size: int, memory: Memory, mode: Mode, card: str, counted: Counted
) -> Iterator[Peaks]:
    with Forecaster(
        "pinchpoint.systems.radiance.training.budget:STEP", card=card, settings=settings
    ) as forecaster:

        def peaks(chunk: int | None) -> tuple[int, int]:
            forecast = forecaster.predict(size=size, mode=mode, variant=memory, chunk=chunk)
            allocated = forecast.peak_allocated_bytes
            if counted == "total":
                return forecast_bytes(forecast), allocated
            return allocated + uncertain_bytes(forecast), allocated

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
    """The field's share of an iteration over `size` rays in all; `settings` as `chunk_for` builds them.

    Of many chunks three are rendered, beside as much memory as the pixels of all of them take; with
    walked=all every chunk is rendered, as in training.
    """
    config = FieldConfig.from_json(settings["config"])
    batch, samples = int(settings["batch"]), int(settings["samples"])
    field = Field(config, seed=seed)
    if device != "cpu":  # fake parameters cannot be moved to the device they are on
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
    # Numbers per pixel: in its chunk, in the joined image, and in its gradient.
    pixel = 3 * (5 + config.features * options["features"])
    generator = torch.Generator(device).manual_seed(seed)

    def draw_inputs() -> tuple[Rays, Codes, Draws]:
        places = torch.empty(batch, size // batch, 2, device=device).uniform_(-1, 1, generator=generator)
        rays = Camera().rays(*draw_poses(batch, v_range=(0.0, 0.5), generator=generator), places)
        codes = Codes(*(torch.randn(batch, wide, device=device) for wide in (config.z_shape, config.z_app)))
        return rays, codes, draw(batch, size // batch, samples, noise=1.0, generator=generator)

    inputs = draw_inputs() if settings.get("drawn") == "once" else None

    def image(at_once: int | None = chunk) -> tuple[list[Tensor], Tensor]:
        """What the loss reads, and as much memory as the pixels of the chunks that are not rendered."""
        rays, codes, draws = inputs or draw_inputs()
        part = slice(batch), slice(walked)
        part_draws = Draws(draws.offsets[part], None if draws.noise is None else draws.noise[part])
        output = render(field, rays.part(*part), codes, part_draws, chunk=at_once, **options)
        read = [output.rgb] if output.features is None else [output.rgb, output.features]
        return read, torch.empty(batch, size // batch - walked, pixel, device=device)

    def train() -> Tensor:
        field.zero_grad()
        with torch.no_grad():
            image(wider(chunk, settings["form"]))
        read, _rest = image()
        loss = torch.stack([values.square().mean() for values in read]).sum()
        loss.backward()
        return loss.detach()

    return Case(step=train if mode == "train" else torch.no_grad()(image), processed=batch * (size // batch))


def beside_bytes(
    config: FieldConfig, settings: Settings, images: Images, device: str
) -> Callable[[int | None], int]:
    """A function from the chunk to bytes: both players and what they compute, and on a GPU the images.

    CUDA graphs keep their memory: sheets and distances during training, and a turn recorded later than
    another, need memory beside it. These and the field peak at different times, so the sum is never too low.
    """
    total = _of_steps(config, settings, images) + (images.pixels.numel() if device == "cuda" else LIBRARIES)
    if settings.label_weight:  # the labels of all images as numbers, and as rows of ones and zeros
        total += len(images) * (8 + 4 + 4 * (len(config.classes) + settings.view_sectors))
    if settings.ranks == 1 and not uses_graphs(settings, device):
        return lambda chunk: total
    with _fake():
        stepper = _stepper(config, settings, images)
        real_bytes, request_bytes = (
            _bytes(stepper.real(1).tensors()),
            _bytes(stepper.request(1, "to count").tensors()),
        )
        weights = _bytes(stepper.critics.parameters())
    total += (settings.ranks - 1) * request_bytes  # drawn for all processes, then released
    if not uses_graphs(settings, device):
        return lambda chunk: total
    total += (_TURNS + 1) * (real_bytes + request_bytes)  # and those of the next step, drawn ahead
    if settings.r1 and settings.r1_every > 1:  # turns with and without a penalty have gradients of their own
        total += weights + _of_turn(config, settings, images)
    if settings.eval_images:
        blank = torch.zeros(
            IMAGES_PER_BATCH, 3, settings.size * settings.superres, settings.size * settings.superres
        )
        total += measurement.account(lambda: open_extractor(device="cpu")(blank)) or 0
    return lambda chunk: total + _of_pictures(config, replace(settings, chunk=chunk))


def _of_steps(config: FieldConfig, settings: Settings, images: Images) -> int:
    def steps() -> None:
        with _fake():
            stepper = _stepper(config, settings, images)
            # Both steps have a penalty, the second one optimizer state too. Step 1 would check gradients, and
            # there are none.
            for number in (1 + settings.r1_every, 1 + 2 * settings.r1_every):
                stepper.step(number)

    state = 8 if settings.optimizer == "adam" else 4  # bytes of optimizer state per weight
    # State and gradient of the field itself: the steps counted above give it none.
    field = (4 + state) * config.parameters
    return (measurement.account(steps) or 0) + field


def _of_turn(config: FieldConfig, settings: Settings, images: Images) -> int:
    """Bytes of the discriminators' turn with a penalty."""

    def turn() -> None:
        with _fake():
            _stepper(config, settings, images).discriminate(1)

    return measurement.account(turn) or 0


def _of_pictures(config: FieldConfig, settings: Settings) -> int:
    """Bytes of whole images as sheets and distances generate them: one after another, some of them held."""

    def pictures() -> None:
        with _fake():
            generator = Generator(config, settings).requires_grad_(False)
            codes = Codes(*(torch.zeros(2, wide) for wide in (config.z_shape, config.z_app)))
            whole_images(generator, codes, torch.zeros(2), torch.zeros(2))

    # (3 + 3 f^2 + 2) numbers per pixel: both sizes, depth and cover; twice while they are joined.
    images_bytes = 2 * IMAGES_PER_BATCH * 4 * settings.size**2 * (5 + 3 * settings.superres**2)
    return (measurement.account(pictures) or 0) + images_bytes


def _stepper(config: FieldConfig, settings: Settings, images: Images) -> Stepper:
    """A stepper on fake tensors, with pixels that nothing computes."""
    # The fp16 scaler would read its scale, which a fake tensor does not have; bf16 takes the same bytes.
    step_settings = replace(
        settings, precision="bf16" if settings.precision == "fp16" else settings.precision, noise_until=1.0
    )
    pixels = Images(
        images.source,
        torch.zeros(1, *images.pixels.shape[1:], dtype=images.pixels.dtype),
        classes=images.classes,
        labels=torch.zeros(1, dtype=torch.int64),
        turns=torch.zeros(1),
    )

    def blank(request: Request, **_: Any) -> RenderOutput:
        images, rays = request.places.shape[:2]
        rgb, depth, acc = (torch.zeros(images, rays, *more, requires_grad=True) for more in ((3,), (), ()))
        features = (
            torch.zeros(images, rays, config.features, requires_grad=True) if settings.superres > 1 else None
        )
        return RenderOutput(rgb, depth, acc, features)

    stepper = Stepper(config, step_settings, pixels, "cpu")
    stepper.generator.render_rays = blank
    return stepper


@contextmanager
def _fake() -> Iterator[None]:
    with compat.fake_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # copying fake weights asks for their address
        yield


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


STEP = Workload(
    name="radiance-field-step",
    axis="rays",
    framework="torch",
    build="pinchpoint.systems.radiance.training.budget:build",
    variants=(Variant("none"), Variant("checkpoint"), Variant("deferred")),
    about="the field's share of one GAN iteration",
    chunked=True,
    settings=(
        Setting("config", FieldConfig().to_json()),
        Setting("batch", "8", pattern="[1-9][0-9]*"),
        Setting("samples", "64", pattern="[1-9][0-9]*"),
        Setting("form", "folded", choices=("eager", "folded")),
        Setting("precision", "fp32", choices=("fp32", "tf32", "bf16", "fp16")),
        Setting("features", "no", choices=("no", "yes")),
        Setting(
            "drawn",
            "anew",
            "when random numbers are drawn: anew at every step, or once",
            choices=("anew", "once"),
        ),
        Setting(
            "walked",
            "some",
            "chunks that are rendered: some (three, whose peak is that of all) or all",
            choices=("some", "all"),
        ),
    ),
)
