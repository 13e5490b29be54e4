"""Time and memory of the field's share of a GAN iteration, in every form and memory strategy.

    python benchmarks/radiance/field.py -o benchmarks/results/radiance_field_h200.json
    python benchmarks/radiance/field.py --device cpu --preset tiny --batch 2 --side 8 --samples 8 \\
        --repeats 3 -o small.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The step is the one that `train --budget`
predicts: a render without gradients, a render with gradients, and its backward pass, without an optimizer, in
chunks whose allocated bytes stay within --budget. Each row runs in turn with folded bf16 in one process, and
the clock waits for the device. Every kernel is launched separately and, on a GPU, the step is also replayed
as one graph, as in training. Medians and ratios have 95 % intervals. Peaks are allocated bytes of two steps,
measured in a separate process that renders every chunk, and predicted for --card. A whole iteration of both
players with super-resolution x2 follows, as in training. Bars are judged on a GPU at the full size. The
record is written after every row.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.core.targets import find
from pinchpoint.core.units import GIB, show_bytes, show_seconds
from pinchpoint.forecasting import gpu_measurement
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.studies.timing import interleave, measure, ratio_interval, timing_of
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.radiance.bench import operations
from pinchpoint.systems.radiance.data.images import Images
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.settings import PRESETS, Settings
from pinchpoint.systems.radiance.training.budget import build, chunk_for
from pinchpoint.systems.radiance.training.cuda_graphs import ReplayedTurn, new_pool
from pinchpoint.systems.radiance.training.training_step import Stepper

TARGET = "pinchpoint.systems.radiance.training.budget:STEP"
FULL = {"preset": "graf", "batch": 8, "side": 32, "samples": 64}
MOST_S, MOST_BYTES, SLOWER, OFF = 0.015, GIB, 1.35, 0.05  # the bars
DENSE = 989e12  # bf16 operations per second of an H200, per its data sheet
PEER_S = {
    "eager fp32": 0.0746,
    "eager tf32": 0.0336,
    "eager bf16": 0.0259,
}  # seconds of a plain field of that size on an H200
Row = dict[str, Any]
Step = Callable[[], Any]


@dataclass(frozen=True)
class Strategy:
    """One form, precision and memory strategy of the step."""

    form: str
    precision: str
    memory: str = "none"
    chunk: int | None = None

    @property
    def name(self) -> str:
        return f"{self.form} {self.precision}" + ("" if self.memory == "none" else f" {self.memory}")


YARDSTICK = Strategy("folded", "bf16")
STRATEGIES = (
    YARDSTICK,
    Strategy("eager", "fp32"),
    Strategy("eager", "tf32"),
    Strategy("eager", "bf16"),
    Strategy("folded", "fp32"),
    Strategy("folded", "tf32"),
    Strategy("folded", "bf16", "checkpoint"),
    Strategy("folded", "bf16", "deferred"),
)


class Bench:
    """The step at one size, on one device."""

    def __init__(self, args: argparse.Namespace, device: str) -> None:
        self.args, self.device, self.torch_backend = args, device, backend("torch")
        self.config = FieldConfig.preset(args.preset)
        self.rays = args.batch * args.side**2

    def wait(self, result: Any) -> None:
        self.torch_backend.wait(self.device, result)

    def strategies(self) -> list[tuple[Strategy, Row]]:
        """Return the strategies that this device supports, with their chunks and peaks."""
        strategies = [
            strategy for strategy in STRATEGIES if strategy.precision != "tf32" or self.device == "cuda"
        ]
        with ThreadPoolExecutor(min(len(strategies), max(2, (os.cpu_count() or 1) // 2))) as pool:
            return list(pool.map(self.peaks, strategies))

    def peaks(self, strategy: Strategy) -> tuple[Strategy, Row]:
        """Return a strategy with its chunk, and its predicted and measured peak.

        The peak is measured in a separate process, on a GPU only.
        """
        strategy = strategy if strategy.memory == "none" else replace(strategy, chunk=self.chunk(strategy))
        with Forecaster(
            TARGET, card=self.args.card, settings=self.build_settings(strategy, walked="some")
        ) as forecaster:
            forecast = forecaster.predict(
                size=self.rays, mode="train", variant=strategy.memory, chunk=strategy.chunk
            )
        predicted = forecast.peak_allocated_bytes
        if self.device != "cuda":
            return strategy, {"predicted_bytes": predicted, "measured_bytes": None, "predicted_off": None}
        full = replace(forecast, settings=self.build_settings(strategy, walked="all"))
        measurement = gpu_measurement.measure(
            find(TARGET), full, chunk=strategy.chunk, steps=2, seed=0, timeout_s=120.0
        )
        peak = measurement["allocated_bytes"]
        return strategy, {
            "predicted_bytes": predicted,
            "measured_bytes": peak,
            "predicted_off": predicted / peak - 1,
        }

    def chunk(self, strategy: Strategy) -> int | None:
        args = self.args
        return chunk_for(
            self.config,
            batch=args.batch,
            rays=args.side**2,
            samples=args.samples,
            budget=args.budget,
            device="cuda",
            form=strategy.form,  # pyright: ignore[reportArgumentType]
            memory=strategy.memory,  # pyright: ignore[reportArgumentType]
            precision=strategy.precision,  # pyright: ignore[reportArgumentType]
            counted="allocated",
        ).chunk

    def build_settings(self, strategy: Strategy, *, walked: str, drawn: str = "anew") -> dict[str, str]:
        return {
            "config": self.config.to_json(),
            "batch": str(self.args.batch),
            "samples": str(self.args.samples),
            "form": strategy.form,
            "precision": strategy.precision,
            "features": "no",
            "walked": walked,
            "drawn": drawn,
        }

    def step(self, strategy: Strategy, *, drawn: str = "anew") -> Step:
        settings = self.build_settings(strategy, walked="all", drawn=drawn)
        case = build(
            self.rays,
            device=self.device,
            mode="train",
            variant=strategy.memory,
            seed=0,
            settings=settings,
            chunk=strategy.chunk,
        )

        def run() -> Any:
            with matmuls(strategy.precision):
                return case.step()

        return run

    def replay(self, strategy: Strategy) -> Step:
        """Return the step as one graph.

        Its random numbers are drawn once, because a graph can only use the device's own generator.
        """
        step = self.step(strategy, drawn="once")
        return ReplayedTurn(lambda: (step(),), pool=new_pool())

    def yardsticks(self) -> tuple[Step, Step | None]:
        """Return the yardstick launched kernel by kernel and, on a GPU, replayed as a graph."""
        return self.step(YARDSTICK), self.replay(YARDSTICK) if self.device == "cuda" else None

    def row(self, strategy: Strategy, peak: Row, yardsticks: tuple[Step, Step | None]) -> Row:
        """Return the times of one strategy, and their ratios to the yardsticks."""
        launched, replay = yardsticks
        same = strategy == YARDSTICK
        times = self.timed(launched if same else self.step(strategy), launched)
        if replay is not None:
            times["replayed"] = self.timed(replay if same else self.replay(strategy), replay)
        return {"row": strategy.name, "chunk": strategy.chunk, **times, **peak}

    def timed(self, step: Step, yardstick: Step) -> Row:
        # Graphs are recorded at the fourth run.
        if step is yardstick:
            seconds = [
                measure(step, wait=self.wait, warmup=0, repeats=1).median_s
                for _ in range(5 + self.args.repeats)
            ][5:]
            over = (1.0, 1.0, 1.0)
        else:
            seconds, beside = interleave(step, yardstick, wait=self.wait, warmup=5, repeats=self.args.repeats)
            over = ratio_interval(seconds, beside)
        timing = timing_of(seconds)
        return {
            "seconds": timing.median_s,
            "low_s": timing.low_s,
            "high_s": timing.high_s,
            "runs": timing.runs,
            "over_folded_bf16": over,
        }

    def stepper(self) -> Stepper:
        """Return both players: super-resolution x2, images on the device, folded bf16."""
        args = self.args
        settings = replace(
            Settings(**PRESETS[args.preset]),
            batch=args.batch,
            samples=args.samples,
            size=64,
            superres=2,
            whole=0.5,
            precision="bf16",
            steps=15_000,
        )
        settings.check()
        pixels = torch.randint(
            256, (256, 128, 128, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
        )
        return Stepper(self.config, settings, Images("noise", pixels.to(self.device)), self.device)

    def iteration(self) -> Row:
        """Time one iteration of both players."""
        args, stepper = self.args, self.stepper()
        settings = stepper.settings
        numbers = iter(range(1, settings.steps))
        gc.collect()
        self.torch_backend.reset_peak(self.device)
        runs: dict[str, Callable[[], Any]] = {
            "whole": lambda: stepper.step(next(numbers)),
            "discriminators": lambda: stepper.discriminate(next(numbers)),
            "generator": lambda: stepper.generate(next(numbers)),
        }
        with matmuls("bf16"):
            # Turns are recorded as graphs at their fourth run, before timing starts.
            timings = {
                name: measure(run, wait=self.wait, warmup=5, repeats=args.repeats)
                for name, run in runs.items()
            }
        timing = timings["whole"]
        return {
            "size": settings.size,
            "superres": settings.superres,
            "patch": settings.patch,
            "seconds": timing.median_s,
            "low_s": timing.low_s,
            "high_s": timing.high_s,
            "runs": timing.runs,
            "steps_per_s": 1 / timing.median_s,
            "discriminators_s": timings["discriminators"].median_s,
            "generator_s": timings["generator"].median_s,
            "measured_bytes": self.torch_backend.peaks(self.device).allocated_bytes,
        }


def verdicts(rows: list[Row]) -> list[Row]:
    """Return each bar with its value and verdict.

    A bar is held or missed if the whole 95 % interval is on one side, and open otherwise.
    """
    by = {row["row"]: row for row in rows}
    plain, again = by[YARDSTICK.name], by[f"{YARDSTICK.name} checkpoint"]
    worst = max((row["predicted_off"] for row in rows), key=abs)
    exact = [
        (f"checkpoint's peak <= {show_bytes(MOST_BYTES)}", again["measured_bytes"], MOST_BYTES),
        (f"checkpoint's peak predicted within {OFF:.0%}", abs(again["predicted_off"]), OFF),
        (f"every peak predicted within {OFF:.0%}", abs(worst), OFF),
    ]
    return [
        _judge(
            f"folded bf16 <= {show_seconds(MOST_S)}",
            plain["seconds"],
            plain["low_s"],
            plain["high_s"],
            MOST_S,
        ),
        _judge(
            f"checkpoint <= {SLOWER} of folded bf16's time, replayed",
            *again["replayed"]["over_folded_bf16"],
            limit=SLOWER,
        ),
        _judge(
            f"checkpoint <= {SLOWER} of folded bf16's time, launched",
            *again["over_folded_bf16"],
            limit=SLOWER,
        ),
        *(_judge(bar, value, value, value, limit) for bar, value, limit in exact),
    ]


def _judge(bar: str, value: float, low: float, high: float, limit: float) -> Row:
    verdict = "held" if high <= limit else "missed" if low > limit else "open"
    return {"bar": bar, "found": value, "low": low, "high": high, "most": limit, "verdict": verdict}


def describe_row(row: Row) -> str:
    ratio, low, high = row["over_folded_bf16"]
    text = (
        f"{row['row']:22} {show_seconds(row['seconds']):>9}, {ratio:6.3f} [{low:.3f}, {high:.3f}] "
        "of folded bf16's; "
    )
    if "replayed" in row:
        ratio, low, high = row["replayed"]["over_folded_bf16"]
        text += f"replayed {show_seconds(row['replayed']['seconds'])}, {ratio:.3f} [{low:.3f}, {high:.3f}]; "
    text += "peak "
    if row["measured_bytes"] is not None:
        text += f"{show_bytes(row['measured_bytes'])}, predicted off by {row['predicted_off']:+.1%}"
    else:
        text += f"{show_bytes(row['predicted_bytes'])} predicted"
    return text + (f"; chunks of {row['chunk']:,} rays" if row["chunk"] else "")


def run(args: argparse.Namespace) -> Row:
    start, device = time.perf_counter(), resolve_device(args.device, backend("torch"))
    bench = Bench(args, device)
    operation_counts = {
        form: operations(bench.config, bench.rays * args.samples, form) for form in ("eager", "folded")
    }
    sizes = {name: getattr(args, name) for name in FULL}
    record: Row = {
        "what": "the field's part of an iteration, and a whole iteration",
        "commands": ["python " + " ".join(sys.argv)],
        "created": now(),
        "machine": describe(),
        "device": device,
        **sizes,
        "card": args.card,
        "budget": args.budget,
        "operations": operation_counts,
        "floor_s": operation_counts["folded"] / DENSE,
        "peer_s": PEER_S,
        "rows": [],
        "iteration": None,
        "verdicts": [],
        "took_s": None,
    }

    def write(**more: Any) -> None:
        record.update(more, took_s=time.perf_counter() - start)
        write_text(args.output, json.dumps(record, indent=1) + "\n")

    strategies = bench.strategies()
    print(
        f"peaks in {time.perf_counter() - start:.0f} s; floor {show_seconds(record['floor_s'])}", flush=True
    )
    yardsticks = bench.yardsticks()
    for strategy, peak in strategies:
        row = bench.row(strategy, peak, yardsticks)
        write(rows=[*record["rows"], row])
        print(describe_row(row), flush=True)
    del yardsticks
    iteration = bench.iteration()
    print(
        f"whole iteration {show_seconds(iteration['seconds'])}, {iteration['steps_per_s']:.1f} per second; "
        f"discriminators {show_seconds(iteration['discriminators_s'])}, "
        f"generator {show_seconds(iteration['generator_s'])}",
        flush=True,
    )
    full = device == "cuda" and sizes == FULL
    write(iteration=iteration, verdicts=verdicts(record["rows"]) if full else [])
    return record


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--preset", default=FULL["preset"], choices=tuple(PRESETS))
    parser.add_argument("--batch", type=int, default=FULL["batch"])
    parser.add_argument("--side", type=int, default=FULL["side"], help="Rays per side of an image.")
    parser.add_argument("--samples", type=int, default=FULL["samples"])
    parser.add_argument("--budget", default="1GiB", help="Allocated bytes of the strategies with chunks.")
    parser.add_argument("--card", default="h200", help="Card whose workspaces are predicted.")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_output(args.output)
        record = run(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for bar in record["verdicts"]:
        print(f"{bar['verdict']:7} {bar['bar']}: {bar['found']:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
