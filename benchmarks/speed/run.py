"""What a forecast of a script costs: CPU seconds of imports, building the model, observed steps, and replay.

    PYTHONPATH=src python benchmarks/speed/run.py -o speed.json        # no GPU; needs transformers and peft

Each case runs in a process of its own, on one thread, with the GPU hidden. CPU seconds (user and system) do
not depend on what else the machine does; a script that is run several times (see `branches`) counts in full.
`imports` is every import of the script, `model` is everything else before the first call of a module on the
device, `steps` is what follows, and `replay` is the model of the allocator and the assembly of the answer.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import importlib
import json
import os
import resource
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = HERE.parent / "results" / "speed_cpu.json"
AGENTS = HERE.parent / "scripts" / "agents"
PARTS = ("imports", "model", "steps", "replay")
# The bars are seconds after imports on two idle cores; cases without one are shown for comparison.
CASES: dict[str, tuple[Path, float | None]] = {
    "gpt2_trainer": (HERE / "cases" / "gpt2_trainer.py", 5.0),
    "gpt2_medium_checkpointing": (HERE / "cases" / "gpt2_medium_checkpointing.py", 15.0),
    "llama_1b_checkpointing": (HERE / "cases" / "llama_1b_checkpointing.py", 15.0),
    "llama_lora": (HERE / "cases" / "llama_lora.py", 15.0),
    "dqn": (AGENTS / "dqn.py", None),
    "ppo": (AGENTS / "ppo.py", None),
    "adder": (HERE / "cases" / "adder.py", None),
}


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Clock:
    """CPU seconds of each part of one run; imports are subtracted from the part that they happen in."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.part = "model"
        self._last_s = cpu_s()
        self._depth = 0

    def begin(self, part: str) -> None:
        now_s = cpu_s()
        self.seconds[self.part] += now_s - self._last_s
        self.part, self._last_s = part, now_s

    def importing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The import function, whose outermost calls count as imports."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return original(*args, **kwargs)
            before = self.part
            self._depth += 1
            self.begin("imports")
            try:
                return original(*args, **kwargs)
            finally:
                self.begin(before)
                self._depth -= 1

        return call


def measure(path: Path) -> dict[str, Any]:
    """Forecast one script in this process, as the worker does, and return the seconds of each part."""
    from pinchpoint.core import targets
    from pinchpoint.forecasting import assembly
    from pinchpoint.forecasting.worker_process import script_forecast, worker
    from pinchpoint.forecasting.worker_process.target_loading import load_target

    target = targets.find(str(path))
    scratch = tempfile.mkdtemp()
    times = Path(scratch) / "times.jsonl"
    file = os.open(times, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.ExitStack() as stack:
        loaded = load_target({"target": asdict(target), "card": "h200", "scratch": scratch}, stack)
        observer = loaded.observer

        def timed(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            clock = Clock()
            builtins.__import__ = clock.importing(builtins.__import__)
            importlib.import_module = clock.importing(importlib.import_module)
            assemble, count_call = assembly.of_observation, observer.progress.count_call
            enter = observer.ledger.enter_phase

            def assembling(*args: Any, **kwargs: Any) -> Any:
                clock.begin("replay")
                return assemble(*args, **kwargs)

            def calling(*args: Any, **kwargs: Any) -> Any:
                if clock.part == "model":
                    clock.begin("steps")
                return count_call(*args, **kwargs)

            def entering(phase: Any) -> Any:
                if clock.part == "model":
                    clock.begin("steps")
                return enter(phase)

            assembly.of_observation, observer.progress.count_call = assembling, calling
            observer.ledger.enter_phase = entering
            answer = work()
            clock.begin("replay")
            os.write(file, json.dumps({**clock.seconds, "operations": observer.operations}).encode() + b"\n")
            return answer

        end_s = 1e9
        request = {
            "steps": 2,
            "args": [],
            "packages": [],
            "seed": 0,
            "timeout_s": 900.0,
            "mode": None,
            "half": False,
            "rank": None,
        }
        fork = partial(worker.in_fork, end_s=end_s)
        forecast = script_forecast.predict(loaded, request, lambda work: fork(partial(timed, work)))
    runs = [json.loads(line) for line in times.read_text().splitlines()]
    return {
        "seconds": {part: round(sum(run[part] for run in runs), 2) for part in PARTS},
        "runs": len(runs),
        "operations": sum(run["operations"] for run in runs),
        "peak_allocated_bytes": forecast.peak_allocated_bytes,
    }


def in_process(path: Path) -> dict[str, Any]:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    reply = subprocess.run(
        [sys.executable, __file__, "--measure", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, **hidden},
        check=False,
    )
    if reply.returncode:
        return {"error": reply.stderr.strip()[-400:]}
    return json.loads(reply.stdout.splitlines()[-1])


def table_lines(cases: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| script | imports | model | steps | replay | after imports | bar | operations |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, case in cases.items():
        if "error" in case:
            lines.append(f"| {name} | {case['error'].splitlines()[-1]} | | | | | | |")
            continue
        cells = [f"{case['seconds'][part]:.1f}" for part in PARTS]
        cells.append(f"{case['after_imports_s']:.1f}")
        cells.append("" if case["bar_s"] is None else f"{case['bar_s']:.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} | {case['operations']:,} |")
    return lines


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=RECORD)
    parser.add_argument("--only", help="Measure the cases of this comma-separated list; keep the others.")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return 0
    from pinchpoint.core import machine
    from pinchpoint.core.files import write_text
    from pinchpoint.core.records import now

    old = json.loads(args.output.read_text(encoding="utf-8"))["cases"] if args.output.exists() else {}
    wanted = args.only.split(",") if args.only else list(CASES)
    cases = {name: old[name] for name in CASES if name in old and name not in wanted}
    for name in wanted:
        path, bar_s = CASES[name]
        case = in_process(path)
        if "error" not in case:
            case["after_imports_s"] = round(sum(case["seconds"][p] for p in PARTS if p != "imports"), 2)
        cases[name] = {**case, "bar_s": bar_s}
        print(json.dumps({name: cases[name]}), file=sys.stderr, flush=True)
    cases = {name: cases[name] for name in CASES if name in cases}
    record = {
        "kind": "speed",
        "schema": 1,
        "target": "benchmarks/speed",
        "created": now(),
        "machine": machine.describe(),
        "command": shlex.join(["python", *sys.argv]),
        "unit": "CPU seconds (user and system) on one thread",
        "cases": cases,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print("\n".join(table_lines(cases)))
    missed = [
        n for n, c in cases.items() if "error" in c or (c["bar_s"] and c["after_imports_s"] > c["bar_s"])
    ]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
