"""The field's share of a GAN iteration: time and peak of every form, precision, and memory strategy.

The size is GRAF's own: 8 images of 32 x 32 rays with 64 points each. A step renders once for the
discriminator and once, with a backward pass, for the generator. There is no installable peer: the baseline is
GRAF's field as published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from pinchpoint.systems.common.bench.cases import (
    BenchCase,
    Contender,
    Contest,
    Run,
    Setup,
    Sizes,
    operations_floor,
)
from pinchpoint.systems.common.bench.workload_contest import probe_of, variant_contender
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.radiance import WORKLOAD
from pinchpoint.systems.radiance.model.config import FieldConfig

FIELD: dict[Sizes, str] = {"tiny": "tiny", "small": "small", "report": "graf"}
SAMPLES: dict[Sizes, str] = {"tiny": "2", "small": "16", "report": "64"}
CHECK_RAYS = 512
LOOSE = 5e-2  # of the precision of bf16 and TF32 in gradients through eight layers


def cases() -> tuple[BenchCase, ...]:
    return (
        BenchCase(
            "field",
            "the field's share of a GAN iteration: two renders and a backward pass",
            "The graf_ccsr memory guide promises 60 to 90 % less memory, a sum of the percentages of "
            "separate measures; checkpointing, which saves most, is not among them.",
            "rays",
            {"tiny": 16, "small": 512, "report": 8_192},
            build_field,
        ),
    )


def build_field(setup: Setup) -> Contest:
    settings = {"field": FIELD[setup.sizes], "samples": SAMPLES[setup.sizes]}
    size = min(CHECK_RAYS, setup.size)
    reference = cache(lambda: probe_of(WORKLOAD, setup, "eager", settings, size))

    def contender(variant: str, precision: str = "fp32", **options: Any) -> Contender:
        return variant_contender(
            WORKLOAD,
            setup,
            variant,
            name=f"{variant}, {precision}",
            settings={**settings, "precision": precision},
            reference=reference,
            check_size=size,
            tolerance=1e-5 if precision == "fp32" else LOOSE,
            **options,
        )

    contenders = [
        contender("eager", role="baseline", note="GRAF's field as published"),
        contender("folded", note="codes and directions as biases, merged layers: fewer operations"),
        contender("checkpoint", note="chunks of rays, rendered again in the backward pass"),
        contender("deferred", note="rendered without a graph, again in chunks in the backward pass"),
        contender("folded+checkpoint"),
    ]
    if setup.device == "cuda":
        contenders += [
            _with_tf32(contender("eager", note="products in TF32")),
            contender("eager", "bf16", note="autocast"),
            contender("folded", "bf16", note="autocast"),
            contender("folded+checkpoint", "bf16", note="autocast"),
        ]
    config = FieldConfig.preset(settings["field"])  # pyright: ignore[reportArgumentType]
    points = setup.size * int(settings["samples"])
    return Contest(
        contenders,
        settings,
        operations_floor(
            setup,
            operations(config, points, "folded"),
            precision="bf16",
            what="linear layers of the folded field in two forward passes and a backward pass",
        ),
        notes=(f"equal within {LOOSE:.0%} is the test for bf16 and TF32, whose rounding is that large",),
    )


def _with_tf32(contender: Contender) -> Contender:
    """Return a contender whose products are computed in TF32."""

    def inside(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with matmuls("tf32"):
                return function(*args)

        return run

    def make() -> Run:
        return inside(contender.make())

    assert contender.check is not None
    # Not compared: the probe computes in float64, which TF32 does not affect.
    return replace(contender, name="eager, tf32", make=make, check=None)


def operations(config: FieldConfig, points: int, form: str) -> int:
    """Return the multiplications and additions of the linear layers over the points in one step.

    The count covers two forward passes and, in the backward pass, the weights of every layer and the inputs
    of layers whose input is computed.
    """
    width, half, deep = config.width, config.features, config.depth - 1
    if form == "eager":  # one product per layer, however its input is assembled
        read = config.encoded_point + config.z_shape
        first, again = read * width, read * width
        view = (width + config.encoded_direction + config.z_app) * half
        rest = deep * width**2 + again + width + width**2 + view + half * 3
        return 2 * points * (3 * first + 4 * rest)
    entries = 2 * config.encoded_point * width
    rest = deep * width**2 + width * (half + 1) + half * 3
    return 2 * points * (3 * entries + 4 * rest)
