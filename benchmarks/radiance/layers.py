"""The field's part of an iteration and a whole iteration, with and without the kernels of whole layers.

    python benchmarks/radiance/layers.py -o benchmarks/results/radiance_layers_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The step is that of `field.py` (folded bf16),
before and after in turn in one process, launched kernel by kernel and replayed as one graph. Errors are those
of gradients beside float64: the largest of all parameters, and the median. Times of kernels are those of one
replay. Without a Hopper card both ways are the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import field as field_benchmark  # pyright: ignore[reportMissingImports]
import torch

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.studies.timing import interleave
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering import render as render_module
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, draw, generator_for, render

WAYS = ("before", "after")


@contextmanager
def single_products(way: str) -> Iterator[None]:
    """Without the kernels of whole layers, if the way is `before`."""
    runs_fused = render_module.runs_fused
    if way == "before":
        render_module.runs_fused = lambda *_: False
    try:
        yield
    finally:
        render_module.runs_fused = runs_fused


def in_way(way: str, run: Callable[[], Any]) -> Callable[[], Any]:
    def call() -> Any:
        with single_products(way):
            return run()

    return call


def milliseconds(seconds: list[float]) -> dict[str, float]:
    return {"median": 1e3 * median(seconds), "low": 1e3 * min(seconds), "high": 1e3 * max(seconds)}


def gradients(
    device: str, preset: str, rays: int, form: Any, dtype: torch.dtype, precision: Any
) -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    config = FieldConfig.preset(preset)
    field = Field(config).to(device, dtype)
    poses, places = torch.rand(2, 2, generator=random), 2 * torch.rand(rays, 2, generator=random) - 1
    images = Camera().rays(poses[0], poses[1] / 2, places)
    codes = (torch.randn(2, size, generator=random) for size in (config.z_shape, config.z_app))
    draws = draw(2, rays, 8, noise=1.0, generator=generator_for(0, 0, "layers"))
    assert draws.noise is not None
    output = render(
        field,
        Rays(images.origins.to(device, dtype), images.directions.to(device, dtype), images.near, images.far),
        Codes(*(code.to(device, dtype) for code in codes)),
        Draws(draws.offsets.to(device, dtype), draws.noise.to(device, dtype)),
        form=form,
        precision=precision,
    )
    output.rgb.square().sum().backward()
    return {name: value.grad for name, value in field.named_parameters() if value.grad is not None}


def errors(device: str, preset: str, rays: int) -> dict[str, dict[str, float]]:
    """Relative errors of the gradients in bf16: the largest of all parameters, and the median."""
    truth, result = gradients(device, preset, rays, "eager", torch.float64, "fp32"), {}
    for way in WAYS:
        with single_products(way):
            value = gradients(device, preset, rays, "folded", torch.float32, "bf16")
        off = [float((value[name] - true).norm() / true.norm()) for name, true in truth.items()]
        result[way] = {"largest": max(off), "median": median(off)}
    return result


def profile_kernels(run: Callable[[], Any]) -> dict[str, tuple[int, float]]:
    """How often each kernel of one run runs, and its microseconds in all, by name, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    events = [event for event in trace.key_averages() if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: -event.self_device_time_total)
    return {event.key: (event.count, event.self_device_time_total) for event in events}


def kernels(run: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of the kernels of one run that take longest, by name."""
    return {name[:80]: time_us for name, (_, time_us) in list(profile_kernels(run).items())[:12]}


def iteration_kernels(bench: Any) -> dict[str, float]:
    """Number of kernels of a whole iteration, and their microseconds in all."""
    stepper, numbers = bench.stepper(), iter(range(1, 100))
    with matmuls("bf16"):
        for _ in range(5):  # turns are recorded as graphs at their fourth run
            stepper.step(next(numbers))
        every = profile_kernels(lambda: stepper.step(next(numbers))).values()
    return {"count": sum(count for count, _ in every), "total_us": sum(time_us for _, time_us in every)}


def measure(args: argparse.Namespace, device: str) -> dict[str, Any]:
    bench = field_benchmark.Bench(args, device)
    result: dict[str, Any] = {"errors": errors(device, args.preset, args.rays)}
    steps = [in_way(way, bench.step(field_benchmark.YARDSTICK)) for way in WAYS]
    times = interleave(*steps, wait=bench.wait, warmup=5, repeats=args.repeats)
    result["launched_ms"] = dict(zip(WAYS, map(milliseconds, times), strict=True))
    if device == "cuda":
        replays = [in_way(way, bench.replay(field_benchmark.YARDSTICK)) for way in WAYS]
        times = interleave(*replays, wait=bench.wait, warmup=5, repeats=args.repeats)
        result["replayed_ms"] = dict(zip(WAYS, map(milliseconds, times), strict=True))
        result["kernels_us"] = {way: kernels(run) for way, run in zip(WAYS, replays, strict=True)}
        del replays
    if args.iteration:
        result["iteration_ms"] = {}
        for way in WAYS:
            with single_products(way):
                row = bench.iteration()
            names = {"median": "seconds", "low": "low_s", "high": "high_s"}
            result["iteration_ms"][way] = {name: 1e3 * row[key] for name, key in names.items()}
        if device == "cuda":
            result["iteration_kernels"] = iteration_kernels(bench)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for name, value in field_benchmark.FULL.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--rays", type=int, default=256, help="Rays of the images whose gradients count.")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--iteration", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_output(args.output)
        result = measure(args, args.device)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    record = {
        "what": "a folded field with and without kernels of whole layers",
        "commands": ["python " + " ".join(sys.argv)],
        "created": now(),
        "machine": describe(),
        **{name: getattr(args, name) for name in field_benchmark.FULL},
        **result,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
