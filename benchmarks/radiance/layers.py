"""The field's part of an iteration and a whole iteration, with the code of two source trees in turn.

    git worktree add ../before REVISION
    python benchmarks/radiance/layers.py --before ../before/src --revision REVISION \\
        -o benchmarks/results/radiance_layers_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Each tree runs in a process of its own; blocks
of runs take turns (A B B A), and the first run of a block is not timed. `launched_ms` and `replayed_ms` are
the step of `field.py` (folded bf16), launched kernel by kernel and replayed as one graph; `iteration_ms` is a
whole iteration of both players, waited for, and `iteration_in_a_row_ms` one of several that are not waited
for in between, as in training. Medians have 95 % intervals. `errors` are those of the field's gradients
beside float64: the largest of all parameters, and the median. `kernels_us` are the kernels of one replay
that take longest, and `iteration_kernels` those of one iteration. The record is written after every block.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import field as field_benchmark  # pyright: ignore[reportMissingImports]
import torch

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.studies.timing import ratio_interval, timing_of
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.radiance.model.field import Field
from pinchpoint.systems.radiance.rendering.rays import Camera, Rays
from pinchpoint.systems.radiance.rendering.render import Codes, Draws, draw, generator_for, render

WORK = ("launched", "replayed", "iteration")
WARMUP = 5  # runs: graphs are recorded at the fourth
LONGEST = {"replayed": 14, "iteration": 30}  # kernels of the record
Row = dict[str, Any]


class Worker:
    """The work of one tree, in its process."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.bench = args, field_benchmark.Bench(args, args.device)
        self.runs: dict[str, Callable[[], Any]] = {}

    def errors(self) -> dict[str, float]:
        return errors(self.args.device, self.args.preset, self.args.rays)

    def prepare(self, *, work: str) -> Row:
        """Compile, record, and return the seconds that this took."""
        start = time.perf_counter()
        if work == "iteration":
            stepper, numbers = self.bench.stepper(), count(1)

            def step() -> Any:
                with matmuls("bf16"):
                    return stepper.step(next(numbers))

            self.runs[work] = step
        else:
            make = self.bench.replay if work == "replayed" else self.bench.step
            self.runs[work] = make(field_benchmark.YARDSTICK)
        for _ in range(WARMUP):
            self.bench.wait(self.runs[work]())
        return {"seconds": time.perf_counter() - start}

    def time(self, *, work: str, runs: int) -> Row:
        """The seconds of each run, and the mean of as many that are not waited for in between."""
        run, wait, seconds = self.runs[work], self.bench.wait, []
        wait(run())
        for _ in range(runs):
            start = time.perf_counter()
            wait(run())
            seconds.append(time.perf_counter() - start)
        start, result = time.perf_counter(), None
        for _ in range(runs):
            result = run()
        wait(result)
        return {"seconds": seconds, "in_a_row_s": (time.perf_counter() - start) / runs}

    def profile(self, *, work: str) -> Row:
        """The kernels of one run: how many, their microseconds in all, and those that take longest."""
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            self.runs[work]()
            torch.cuda.synchronize()
        events = [event for event in trace.key_averages() if event.device_type.name == "CUDA"]
        events.sort(key=lambda event: -event.self_device_time_total)
        return {
            "count": sum(event.count for event in events),
            "total_us": sum(event.self_device_time_total for event in events),
            "longest_us": {
                f"{event.key[:80]}, {event.count}": event.self_device_time_total
                for event in events[: LONGEST[work]]
            },
        }


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


def errors(device: str, preset: str, rays: int) -> dict[str, float]:
    """Relative errors of the gradients in bf16: the largest of all parameters, and the median."""
    truth = gradients(device, preset, rays, "eager", torch.float64, "fp32")
    value = gradients(device, preset, rays, "folded", torch.float32, "bf16")
    off = [float((value[name] - true).norm() / true.norm()) for name, true in truth.items()]
    return {"largest": max(off), "median": median(off)}


def serve(worker: Worker) -> None:
    for line in sys.stdin:
        what, options = json.loads(line)
        print(json.dumps(getattr(worker, what)(**options)), flush=True)


class Contender:
    """The process of one tree."""

    def __init__(self, tree: Path) -> None:
        paths = [str(tree.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    def ask(self, what: str, **options: Any) -> Row:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, options]) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"The process of a tree ended with {self.process.wait()}.")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(
    contenders: dict[str, Any], work: list[str], *, blocks: int, runs: int, write: Callable[[Row], None]
) -> None:
    """Time all work in turn. write: called with what is new, after every block."""
    write({"errors": _ask_all(contenders, "errors")})
    for one in work:
        _ask_all(contenders, "prepare", work=one)
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        in_a_row: dict[str, list[float]] = {name: [] for name in contenders}
        for block in range(blocks):
            # The order alternates, so that no tree always follows the other one.
            for name in contenders if block % 2 == 0 else reversed(contenders):
                answer = contenders[name].ask("time", work=one, runs=runs)
                seconds[name] += answer["seconds"]
                in_a_row[name].append(answer["in_a_row_s"])
            write({f"{one}_ms": milliseconds(seconds)})
            if one == "iteration":
                write({"iteration_in_a_row_ms": milliseconds(in_a_row)})


def _ask_all(contenders: dict[str, Any], what: str, **options: Any) -> dict[str, Row]:
    """The answers of all trees, at the same time."""
    with ThreadPoolExecutor(len(contenders)) as pool:
        answers = pool.map(lambda one: one.ask(what, **options), contenders.values())
        return dict(zip(contenders, answers, strict=True))


def milliseconds(seconds: dict[str, list[float]]) -> Row:
    """The times of each tree, and how many times as fast the second one is as the first."""
    rows: Row = {}
    for name, each in seconds.items():
        timing = timing_of(each)
        rows[name] = {
            "median": 1e3 * timing.median_s,
            "low": 1e3 * timing.low_s,
            "high": 1e3 * timing.high_s,
            "runs": timing.runs,
        }
    return {**rows, "speedup": ratio_interval(*seconds.values())}


def profile_all(contenders: dict[str, Any], write: Callable[[Row], None]) -> None:
    for name, work in (("kernels_us", "replayed"), ("iteration_kernels", "iteration")):
        rows = {tree: contender.ask("profile", work=work) for tree, contender in contenders.items()}
        write({name: {tree: row["longest_us"] for tree, row in rows.items()} if work == "replayed" else rows})


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="The src of the tree to compare with.")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[2] / "src")
    parser.add_argument("--revision", default="", help="The revision of the tree to compare with.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    for name, value in field_benchmark.FULL.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--rays", type=int, default=256, help="Rays of the images whose gradients count.")
    parser.add_argument("--blocks", type=int, default=6, help="Blocks of runs for each tree.")
    parser.add_argument("--runs", type=int, default=8, help="Runs per block.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(Worker(args))
        return 0
    try:
        check_output(args.output)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    # The folders of the trees differ between machines and say nothing; the revision does.
    record: Row = {
        "what": "a folded field and a whole iteration with the code of two source trees in turn",
        "commands": [
            f"python benchmarks/radiance/layers.py --before SRC --revision {args.revision} -o RECORD"
        ],
        "before": args.revision,
        "created": now(),
        "machine": describe(),
        **{name: getattr(args, name) for name in field_benchmark.FULL},
    }

    def write(new: Row) -> None:
        record.update(new)
        write_text(args.output, json.dumps(record, indent=1) + "\n")
        for name, row in new.items():
            print(name, json.dumps(row)[:400], flush=True)

    contenders = {"before": Contender(args.before), "after": Contender(args.after)}
    work = [one for one in WORK if one != "replayed" or args.device == "cuda"]
    compare(contenders, work, blocks=args.blocks, runs=args.runs, write=write)
    if args.device == "cuda":
        profile_all(contenders, write)
    for contender in contenders.values():
        contender.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
