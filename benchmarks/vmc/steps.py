"""Time of a training step with the code of several source trees, in turn: N2, and H2 at the report's size.

    git worktree add ../before REVISION
    python benchmarks/vmc/steps.py --before ../before/src -o benchmarks/results/vmc_steps_h200.json

Each tree runs in a process of its own, which compiles its step and then waits; they take turns (A B A B), so
that only one uses the GPU. `--also NAME=SRC` adds further trees. A tree whose step does not compile or run is
left out, with the reason in the record; so is one that has not compiled after `--patience` seconds. N2: one
step of Adam at a time, 1,024 walkers, 10 moves, the network ferminet, float32. H2: 200 steps in one program,
128 walkers, 10 moves, the network report; the time is that of one step. `--warm` only compiles, into the
cache of programs.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "n2": {"system": "N2", "net": "ferminet", "walkers": 1024, "steps": 1, "rounds": 15, "calls": 4},
    "h2": {"system": "H2", "net": "report", "walkers": 128, "steps": 200, "rounds": 15, "calls": 1},
}
MOVES = 10
Row = dict[str, Any]


class Ended(Exception):
    """The process of a tree ended before its result, or was ended because it took too long."""


class Worker:
    """A process with the code of one tree, its step compiled."""

    def __init__(self, case: str, tree: Path, device: str) -> None:
        paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", case, "--device", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.about: Row = {}
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the step is compiled; the process is ended if it takes more seconds."""
        self.about = self._read(seconds)

    def seconds(self) -> float:
        """Return the time of one step, the mean of a few calls."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)

    def _read(self, seconds: float | None = None) -> Row:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.process.kill()
            self.process.wait()
            raise Ended("The process of a tree had not compiled its step in time.") from None
        if line is None:
            raise Ended(f"The process of a tree ended with {self.process.wait()}.")
        return json.loads(line)


def work(case: str, device: str) -> None:
    """Compile the step of a case, and time it as often as a line is read."""
    import jax

    from pinchpoint.systems.vmc.data.system import system_of
    from pinchpoint.systems.vmc.model.config import NetConfig
    from pinchpoint.systems.vmc.model.wavefunction import wave_function
    from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache
    from pinchpoint.systems.vmc.optimization.training_step import begin, make_step, make_steps
    from pinchpoint.systems.vmc.settings import Settings

    about = CASES[case]
    use_compile_cache()
    with jax.default_device(jax.devices(device)[0]):
        system = system_of(about["system"])
        wave = wave_function(system, NetConfig.preset(about["net"]))
        settings = Settings.preset(
            about["net"],
            electrons=system.electrons,
            walkers=about["walkers"],
            moves=MOVES,
            optimizer="adam",
            burn=0,
            method="forward",
        )
        state = begin(wave, settings)
        count = about["steps"]
        step: Any = make_step(wave, settings) if count == 1 else make_steps(wave, settings, count)
        start = time.perf_counter()
        program = step.lower(state).compile()
        compile_s = time.perf_counter() - start
        about_program = {
            "compile_s": compile_s,
            "temp_bytes": program.memory_analysis().temp_size_in_bytes,
            "device": jax.devices(device)[0].device_kind,
        }
        print(json.dumps(about_program), flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            for _ in range(about["calls"]):
                state, stats = program(state)
                jax.block_until_ready(stats)
            seconds = (time.perf_counter() - start) / about["calls"] / count
            print(json.dumps({"seconds": seconds}), flush=True)


def start(case: str, trees: dict[str, Path], device: str) -> dict[str, Worker]:
    """Start a process for each tree; all compile at the same time."""
    return {name: Worker(case, tree, device) for name, tree in trees.items()}


def wait(case: str, workers: dict[str, Worker], until: float | None = None) -> dict[str, str]:
    """Wait until all have compiled; returns why some did not. until: on the monotonic clock."""
    failures: dict[str, str] = {}
    for name, worker in workers.items():
        try:
            worker.wait(None if until is None else max(0.0, until - time.monotonic()))
        except Ended as error:
            failures[name] = str(error)
            print(f"{case} {name}: {error}", flush=True)
    return failures


def compare(case: str, workers: dict[str, Worker], failures: dict[str, str], *, warm: bool) -> Row | None:
    """Return the times of all trees in one case; None if their programs are only compiled."""
    from pinchpoint.core.units import show_seconds
    from pinchpoint.studies.timing import ratio_interval, timing_of

    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(0 if warm else 2 + CASES[case]["rounds"]):
        for name in [name for name in workers if name not in failures]:
            try:
                taken = workers[name].seconds()
            except (Ended, BrokenPipeError) as error:
                failures[name] = str(error)
                print(f"{case} {name}: {error}", flush=True)
                continue
            if turn >= 2:
                seconds[name].append(taken)
    for name in [name for name in workers if name not in failures]:
        workers[name].close()
    if warm:
        print(case, {name: worker.about for name, worker in workers.items()}, flush=True)
        return None
    row: Row = {"case": case, **CASES[case], "moves": MOVES, "trees": {}}
    if failures:
        row["failures"] = failures
    for name, times in seconds.items():
        if name in failures:
            continue
        timing = timing_of(times)
        row["trees"][name] = {
            "seconds": timing.median_s,
            "low_s": timing.low_s,
            "high_s": timing.high_s,
            "runs": timing.runs,
            **workers[name].about,
        }
        print(f"{case} {name:8} {show_seconds(timing.median_s):>9} per step", flush=True)
    for name in row["trees"] if "before" in row["trees"] else ():
        if name != "before":
            ratio = row[f"before_over_{name}"] = ratio_interval(seconds["before"], seconds[name])
            print(f"{case} before / {name} {ratio[0]:.3f}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="The src of the tree to compare with.")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[2] / "src")
    parser.add_argument("--revision", default="", help="The revision of the tree to compare with.")
    parser.add_argument(
        "--also", metavar="NAME=SRC", action="append", default=[], help="A further tree; repeatable."
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--warm", action="store_true", help="Only compile.")
    parser.add_argument("--patience", type=float, help="Seconds for all trees to compile.")
    parser.add_argument("--worker", choices=list(CASES), help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    if args.worker:
        work(args.worker, args.device)
        return 0
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.core.machine import describe
    from pinchpoint.core.records import now

    if args.output is None and not args.warm:
        parser.error("name a file with -o")
    output = None if args.output is None else check_output(args.output)
    trees = {name: tree for name, tree in (("before", args.before), ("after", args.after)) if tree}
    for also in args.also:
        name, _, tree = also.partition("=")
        if not name or name in trees or not Path(tree).is_dir():
            parser.error(f"--also {also}: give a new name and a folder, NAME=SRC")
        trees[name] = Path(tree)
    # The folders of the trees differ between machines and say nothing; their names and the revision do.
    further = "".join(f" --also {name}=SRC" for name in list(trees) if name not in ("before", "after"))
    command = f"python benchmarks/vmc/steps.py --before SRC{further} --cases {' '.join(args.cases)} -o RECORD"
    record: Row = {"command": command, "before": args.revision, "created": now(), "machine": describe()}
    record["cases"] = []
    # All processes compile at once; none is timed before the last one waits.
    until = None if args.patience is None else time.monotonic() + args.patience
    workers = {case: start(case, trees, args.device) for case in args.cases}
    failures = {case: wait(case, workers[case], until) for case in args.cases}
    for case in args.cases:
        row = compare(case, workers[case], failures[case], warm=args.warm)
        if row is not None and output is not None:
            record["cases"].append(row)
            kinds = [tree["device"] for tree in row["trees"].values()]
            record["machine"]["gpu"] = kinds[0] if kinds and args.device == "cuda" else None
            write_text(output, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
