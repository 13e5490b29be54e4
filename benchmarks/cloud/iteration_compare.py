"""Whole training iterations of `cloud` at a million points: an earlier commit, this one, and a dense gather.

    git archive EARLIER src | tar -x -C before
    python benchmarks/cloud/iteration_compare.py rooms-1m --before before/src --device cuda
    -o benchmarks/results/cloud_iteration_compare_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. If the folder does not exist, the rooms are
made. Each contender has a process of its own, and blocks of five steps run in turn, so that drift affects all
alike. A step is that of a training run: its points are read, copied and drawn ahead of time, on a GPU on a
stream of their own; all contenders see the same points, without augmentation. `now` is what a run of this
commit does by default, which is to record steps on a GPU and replay them; its first steps, in which sizes are
recorded, are not timed. `eager` is the same without recorded steps. The dense gather is `eager` with
convolutions in plain torch: rows[neighbours] @ weight, with the gradient of torch's own indexing; it is so
slow that it has fewer blocks, of one step each, after those of the others. The record has the median seconds
of a step with their interval, the speed-ups, the peak of the tensors, which does not contain the memory of
recorded steps (`recorded_bytes`), and the kernels that a profiler found in three steps of `now`. The loss of
the first step shows that all contenders compute the same. `draws` are single draws from a million points:
waited for one by one, queued, and their parts on the host. The record is written after every draw and every
turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

RECIPES: dict[str, dict[str, Any]] = {
    "recommended": {},
    "three views, consistency": {"views": ["dense", "uniform:0.3:0.7", "one-per-cell"], "consistency": "kl"},
}
BLOCK = 5  # steps that are timed together
WARMUP = 1  # blocks
# Steps of `now` before those that are timed: draws of the recommended recipe have ten sizes.
FIRST = {"recommended": 60, "three views, consistency": 5}
SLOW = "dense gather"
SLOW_BLOCKS = {"recommended": 2, "three views, consistency": 1}  # of one step, without a block to warm up
KERNELS = 12  # rows of the profile
DRAWN = ("before", "now")  # whose draws are timed


class Worker:
    """The steps of one contender with every recipe, in its own process."""

    def __init__(self, args: argparse.Namespace, contender: str) -> None:
        self.args, self.contender = args, contender
        self.steps: dict[str, Callable[[int], Any]] = {}
        self.steppers: dict[str, Any] = {}
        self.held_bytes = dict.fromkeys(RECIPES, 0)  # between steps

    def answer(self, what: str, recipe: str, **options: int) -> dict[str, Any]:
        with _dense_gather() if self.contender == SLOW else nullcontext():
            return getattr(self, what)(recipe, **options)

    def prepare(self, recipe: str) -> dict[str, Any]:
        """Build the model of a recipe, take its first steps, and return the loss of the very first."""
        before_bytes = self._allocated_bytes()
        self._prepare(recipe)
        loss = float(self.steps[recipe](1)[0])
        if self.contender != SLOW:
            self._run(recipe, 2, (FIRST[recipe] if self.contender == "now" else BLOCK) - 1)
        self.held_bytes[recipe] = self._allocated_bytes() - before_bytes
        return {"first_loss": loss}

    def _prepare(self, recipe: str) -> None:
        from pinchpoint.systems.cloud.data.batches import Supply, step_scenes
        from pinchpoint.systems.cloud.data.prefetch import Prefetcher, PreparedStep, SideStream, receive
        from pinchpoint.systems.cloud.data.sources import open_source
        from pinchpoint.systems.cloud.model.config import CloudConfig
        from pinchpoint.systems.cloud.settings import Settings
        from pinchpoint.systems.cloud.training.training_step import Stepper

        args = self.args
        source = open_source(args.data)
        config = CloudConfig.preset(
            args.preset, in_features=len(source.features), classes=len(source.classes)
        )
        settings = Settings(
            points=args.points,
            scenes=1,
            steps=10**6,
            precision=args.precision,
            augment=False,
            model=json.loads(config.to_json()),
            classes=list(source.classes),
            features=list(source.features),
            **RECIPES[recipe],
        )
        if self.contender != "before":
            settings = self._with_recorded_steps(config, settings)
        stepper = self.steppers[recipe] = Stepper(config, settings, args.device)
        side_stream = SideStream() if args.device == "cuda" else None
        supply, names = Supply(source), source.names("train")

        def make(number: int) -> PreparedStep:
            scenes = step_scenes(supply, names, settings, step=number, rank=0)

            def draw() -> tuple[Any, Any]:
                return _draw(stepper, scenes, number, args.device)

            return PreparedStep(*draw()) if side_stream is None else side_stream.prepare(draw)

        # Earlier commits do not bound how far the host is ahead of the device.
        bound = {"side_stream": side_stream} if hasattr(SideStream, "mark_queued_work") else {}
        prefetcher = Prefetcher(make, last=10**9, **bound)

        self.steps[recipe] = lambda number: stepper.step_on(*receive(prefetcher.get(number)), number=number)

    def _with_recorded_steps(self, config: Any, settings: Any) -> Any:
        """The settings with the choice that a run makes by default, or with eager steps."""
        from pinchpoint.systems.cloud.training.recorded_steps import may_record

        can_record = may_record(config, settings, device=self.args.device, processes=1)
        return replace(settings, record_steps=can_record and self.contender == "now")

    def run(self, recipe: str, *, first: int, steps: int) -> dict[str, Any]:
        """Time a block of steps; `peak_bytes` is their peak, without what the other recipe holds."""
        import torch

        has_peak = self.args.device == "cuda"
        self._wait()
        other_bytes = self._allocated_bytes() - self.held_bytes[recipe]
        if has_peak:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        self._run(recipe, first, steps)
        self._wait()
        seconds = (time.perf_counter() - start) / steps
        peak_bytes = torch.cuda.max_memory_allocated() - other_bytes if has_peak else None
        recorded = {
            name: getattr(self.steppers[recipe], name, None) for name in ("recorded_sizes", "recorded_bytes")
        }
        return {"seconds": seconds, "peak_bytes": peak_bytes, **recorded}

    def profile(self, recipe: str, *, first: int) -> dict[str, Any]:
        """Return the kernels with the most time on the device, and totals per step."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if self.args.device != "cuda":
            return {"kernels": []}
        steps = 3
        self._wait()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            self._run(recipe, first, steps)
            torch.cuda.synchronize()
        averages = profiler.key_averages()
        events = [
            (event.key, event.self_device_time_total / 1e6 / steps, event.count / steps)
            for event in averages
            if str(event.device_type).endswith("CUDA")
        ]
        calls = [
            (event.key, event.self_cpu_time_total / 1e6 / steps, event.count / steps)
            for event in averages
            if str(event.device_type).endswith("CPU")
        ]
        row = ("name", "seconds_a_step", "count_a_step")
        return {
            "device_s": sum(seconds for _, seconds, _ in events),
            "kernels_a_step": sum(count for *_, count in events),
            "kernels": [dict(zip(row, event, strict=True)) for event in _largest(events)],
            "host_calls": [dict(zip(row, call, strict=True)) for call in _largest(calls)],
        }

    def draw(self, _: str) -> dict[str, Any]:
        """Return the seconds of draws from a million points in 50,000 cells: waited for, and queued."""
        import torch

        from pinchpoint.kit.segments import hashing
        from pinchpoint.systems.cloud.workload import drawer, problem_of

        points = self.args.points
        problem = problem_of(points, max(1, points // 20), device=self.args.device)
        one = drawer("exact", seed=0)
        counts = problem.draws_per_cell

        def time_each(run: Callable[[int], Any], repeats: int, *, waits: bool) -> float:
            for number in range(20):
                run(number)
            self._wait()
            seconds, start = [], time.perf_counter()
            for number in range(repeats):
                begin = time.perf_counter()
                run(number)
                if waits:
                    self._wait()
                    seconds.append(time.perf_counter() - begin)
            if waits:
                return sorted(seconds)[len(seconds) // 2]
            self._wait()
            return (time.perf_counter() - start) / repeats

        return {
            "waited_s": time_each(lambda number: one(problem, number), 300, waits=True),
            "queued_s": time_each(lambda number: one(problem, number), 300, waits=False),
            "wait_alone_s": time_each(lambda number: None, 300, waits=True),
            "words_s": time_each(lambda number: hashing.words(seed=0, step=number), 300, waits=False),
            "sums_s": time_each(lambda _: counts.cumsum(0, dtype=torch.int32), 300, waits=False),
            "buffer_s": time_each(
                lambda _: torch.empty(points, dtype=torch.int32, device=counts.device), 300, waits=False
            ),
        }

    def _run(self, recipe: str, first: int, steps: int) -> None:
        for number in range(first, first + steps):
            self.steps[recipe](number)

    def _allocated_bytes(self) -> int:
        import torch

        self._wait()
        return torch.cuda.memory_allocated() if self.args.device == "cuda" else 0

    def _wait(self) -> None:
        from pinchpoint.backends.torch.measurement import wait

        wait(self.args.device)


def _draw(stepper: Any, scenes: Any, number: int, device: str) -> tuple[Any, Any]:
    from pinchpoint.systems.cloud.model.views import Batch

    batch = Batch.from_scenes(scenes, device=device)
    return batch, stepper.draw(batch, number=number)


def _largest(rows: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    return [(name[:120], *rest) for name, *rest in sorted(rows, key=lambda row: -row[1])[:KERNELS]]  # pyright: ignore[reportReturnType]


@contextmanager
def _dense_gather() -> Iterator[None]:
    """Replace the convolutions by plain torch."""
    import torch

    from pinchpoint.systems.cloud.model.convolution import Conv3

    def forward(self: Any, values: Any, level: Any) -> Any:
        kind = values.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else values.dtype
        rows = torch.cat([values.to(dtype), values.new_zeros(1, values.shape[1], dtype=dtype)])
        return rows[level.neighbours.long()].reshape(len(values), -1) @ self.weight.to(dtype)

    own = Conv3.forward
    Conv3.forward = forward  # ty: ignore[invalid-assignment]
    try:
        yield
    finally:
        Conv3.forward = own  # ty: ignore[invalid-assignment]


class Contender:
    """A way to take steps, in a process of its own. source: the folder of an earlier commit."""

    def __init__(self, args: argparse.Namespace, name: str, source: Path | None = None) -> None:
        path = [] if source is None else [str(source.resolve())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])}
        command = [sys.executable, __file__, *args.own, "--worker", name]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def ask(self, what: str, recipe: str, **options: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([what, recipe, options]) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"A worker ended with {self.process.wait()}.")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(args: argparse.Namespace) -> None:
    worker = Worker(args, args.worker)
    for line in sys.stdin:
        what, recipe, options = json.loads(line)
        print(json.dumps(worker.answer(what, recipe, **options)), flush=True)
    os._exit(0)  # a prefetched step may still be under way


def compare(args: argparse.Namespace, write: Callable[[dict[str, Any]], None]) -> None:
    """Time all contenders in turn. write: called with all results so far, after each of them."""
    earlier = {} if args.before is None else {"before": Contender(args, "before", args.before)}
    own = {name: Contender(args, name) for name in ("now", "eager", SLOW)}
    contenders: dict[str, Contender] = earlier | own

    def prepare(name: str) -> dict[str, dict[str, Any]]:
        """Compile everything and take the first steps of every recipe; returns their results."""
        if name in DRAWN:
            contenders[name].ask("draw", "")
        results = {}
        for recipe in RECIPES:
            results[recipe] = contenders[name].ask("prepare", recipe)
            print(f"{recipe}, {name}: ready", flush=True)
        return results

    with ThreadPoolExecutor(len(contenders)) as pool:
        first_steps = dict(zip(contenders, pool.map(prepare, contenders), strict=True))
    print("all are ready", flush=True)
    while args.wait_for is not None and not args.wait_for.exists():
        time.sleep(0.1)
    draws: list[dict[str, Any]] = []
    for _ in range(3):
        for name in contenders:
            if name in DRAWN:
                draws.append({"contender": name, **contenders[name].ask("draw", "")})
                print(f"draw, {name}: {1e6 * draws[-1]['waited_s']:.1f} us waited for", flush=True)
                write({"rows": [], "draws": draws})
    blocks: dict[str, dict[str, list[dict[str, Any]]]] = {
        recipe: {name: [] for name in contenders} for recipe in RECIPES
    }
    profiles: dict[str, dict[str, Any]] = {}

    def write_rows() -> None:
        rows: list[dict[str, Any]] = []
        for recipe, timed in blocks.items():
            own_first_steps = {name: first_steps[name][recipe] for name in contenders}
            rows += rows_of(recipe, timed, own_first_steps, profiles.get(recipe, {}))
        write({"rows": rows, "draws": draws})

    def run(name: str, recipe: str, turn: int) -> None:
        steps = 1 if name == SLOW else BLOCK
        result = contenders[name].ask("run", recipe, first=_first_of(recipe, turn), steps=steps)
        print(f"{recipe}, {name}: {1e3 * result['seconds']:.1f} ms per step", flush=True)
        if turn >= WARMUP:
            blocks[recipe][name].append(result)

    fast = [name for name in contenders if name != SLOW]
    for recipe in RECIPES:
        for turn in range(WARMUP + args.blocks):
            # The order alternates, so that no contender always follows the same other one.
            for name in fast if turn % 2 else reversed(fast):
                run(name, recipe, turn)
            if turn >= WARMUP:
                write_rows()
    for turn in range(max(SLOW_BLOCKS.values())):
        for recipe in RECIPES:
            if turn < SLOW_BLOCKS[recipe]:
                run(SLOW, recipe, WARMUP + turn)
                write_rows()
    for recipe in RECIPES:
        first = _first_of(recipe, WARMUP + args.blocks)
        profiles[recipe] = contenders["now"].ask("profile", recipe, first=first)
        write_rows()
    for contender in contenders.values():
        contender.close()


def _first_of(recipe: str, turn: int) -> int:
    """The number of the first step of a block."""
    return FIRST[recipe] + BLOCK * turn + 1


def rows_of(
    recipe: str,
    blocks: dict[str, list[dict[str, Any]]],
    first_steps: dict[str, dict[str, Any]],
    profile: dict[str, Any],
) -> list[dict[str, Any]]:
    """The rows of a recipe. blocks: the results of each contender so far; profile: of `now`."""
    from pinchpoint.studies.timing import ratio_interval, timing_of

    rows = []
    now = [one["seconds"] for one in blocks["now"]]
    for name, timed in blocks.items():
        if not timed:
            continue
        seconds = [one["seconds"] for one in timed]
        timing = timing_of(seconds)
        speedup, low, high = ratio_interval(seconds, now)
        peaks = [one["peak_bytes"] for one in timed if one["peak_bytes"] is not None]
        recorded = {key: timed[-1].get(key) for key in ("recorded_sizes", "recorded_bytes")}
        rows.append(
            {
                "recipe": recipe,
                "contender": name,
                "step_s": timing.median_s,
                "step_low_s": timing.low_s,
                "step_high_s": timing.high_s,
                "blocks": timing.runs,
                "steps_a_block": 1 if name == SLOW else BLOCK,
                "times_as_long_as_now": speedup,
                "times_low": low,
                "times_high": high,
                **first_steps[name],
                "peak_bytes": max(peaks, default=None),
                **recorded,
                "kernels": [],
                **(profile if name == "now" else {}),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="Folder of rooms; made if it does not exist.")
    parser.add_argument("--points", type=int, default=1_000_000, help="Points per room.")
    parser.add_argument("--blocks", type=int, default=7, help=f"Blocks of {BLOCK} steps to time, at least 1.")
    parser.add_argument("--before", type=Path, help="Folder src of an earlier commit.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--preset", default="base", help="Preset of the model.")
    parser.add_argument("-o", "--output", type=Path, help="File of the record.")
    parser.add_argument("--wait-for", type=Path, help="Start to time when this file exists.")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        serve(args)
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.core.machine import describe
    from pinchpoint.core.records import now, script_command
    from pinchpoint.systems.cloud.data.dataset import make_dataset

    if args.output is None:
        parser.error("Name a file for the record: -o FILE.")
    check_output(args.output)
    args.own = sys.argv[1:]
    if not args.data.exists():
        make_dataset(args.data, train=2, test=1, points=args.points, jobs=3)
    about = {
        "what": "a whole training iteration: an earlier commit, this one, eager steps and a dense gather",
        "command": script_command(),
        "created": now(),
        "machine": describe(),
        **{name: getattr(args, name) for name in ("points", "precision", "preset", "device")},
    }
    record: dict[str, Any] = {}

    def write(result: dict[str, Any]) -> None:
        record.update(about, **result)
        write_text(args.output, json.dumps(record, indent=1) + "\n")

    compare(args, write)
    for row in record["draws"]:
        parts = ", ".join(f"{name[:-2]} {1e6 * row[name]:.1f}" for name in row if name.endswith("_s"))
        print(f"draw, {row['contender']}, us: {parts}")
    for row in record["rows"]:
        peak = "" if row["peak_bytes"] is None else f", peak {row['peak_bytes'] / 2**30:.2f} GiB"
        print(
            f"{row['recipe']}, {row['contender']}: {1e3 * row['step_s']:.1f} ms"
            f" [{1e3 * row['step_low_s']:.1f}, {1e3 * row['step_high_s']:.1f}],"
            f" {row['times_as_long_as_now']:.2f} times now, first loss {row['first_loss']:.6f}{peak}"
        )
        if row["kernels"]:
            print(f"   device {1e3 * row['device_s']:.2f} ms in {row['kernels_a_step']:.0f} kernels")
            for kernel in row["kernels"] + row["host_calls"]:
                print(
                    f"   {1e3 * kernel['seconds_a_step']:8.3f} ms {kernel['count_a_step']:7.1f}"
                    f"  {kernel['name'][:90]}"
                )


if __name__ == "__main__":
    main()
