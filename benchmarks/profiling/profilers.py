"""The ways to run a program that overhead.py compares: their commands, and what each of them recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# torch.profiler with its default settings, on the whole run.
_UNDER_TORCH = """
import json, runpy, sys
from torch.profiler import profile
where, sys.argv = sys.argv[1], sys.argv[2:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
with profile() as profiler:
    runpy.run_path(sys.argv[0], run_name="__main__")
json.dump(len(profiler.profiler.kineto_results.events()), open(where, "w"))
"""
_TRACEML = "import sys; from traceml_ai.launcher.cli import main; sys.exit(main())"


@dataclass(frozen=True)
class Way:
    """How to run a program in a folder of its own, and what was recorded afterwards."""

    command: list[str]
    recorded: Callable[[], str]


def ways(program: Path, options: list[str], folder: Path) -> dict[str, Way]:
    """By name; `plain` and `plain again` are the same. Scalene and TraceML are left out if not installed."""
    python, script = sys.executable, str(program)
    result = {
        "plain": Way([python, script, *options], lambda: ""),
        "plain again": Way([python, script, *options], lambda: ""),
    }
    for name, light in (("profile --light", ["--light"]), ("profile", [])):
        record = folder / f"{name.replace(' ', '')}.json"
        command = [python, "-m", "pinchpoint", "profile", script, *light, "-o", str(record), "--", *options]
        result[name] = Way(command, lambda record=record: _of_pinchpoint(record))
    count = folder / "torch.json"
    result["torch.profiler"] = Way(
        [python, "-c", _UNDER_TORCH, str(count), script, *options],
        lambda: f"{_read(count):,} events",
    )
    if find_spec("scalene"):
        for name, less in (("Scalene --cpu-only", ["--cpu-only"]), ("Scalene", [])):
            lines = folder / f"scalene{len(less)}.json"
            command = [python, "-m", "scalene", "run", *less, "-o", str(lines), script, "---", *options]
            result[name] = Way(command, lambda lines=lines: _of_scalene(lines))
    if find_spec("traceml_ai"):
        changed = _with_traceml(program, folder / "changed")
        for number, (name, path) in enumerate({"TraceML": script, "TraceML with calls": changed}.items()):
            ports = ["--aggregator-port", str(29765 + number), "--master-port", str(29500 + number)]
            logs = ["--logs-dir", str(folder / "traceml"), "--run-name", f"run{number}"]
            command = [python, "-c", _TRACEML, "run", path, *ports, *logs, "--args", *options]
            summary = folder / "traceml" / f"run{number}" / "final_summary.json"
            result[name] = Way(command, lambda summary=summary: _of_traceml(summary))
    return result


def versions() -> dict[str, str]:
    numbers = {}
    for name in ("scalene", "traceml-ai"):
        try:
            numbers[name] = version(name)
        except PackageNotFoundError:
            continue
    return numbers


def _with_traceml(program: Path, folder: Path) -> str:
    """A copy of a program with the calls that TraceML asks for in a loop of plain PyTorch."""
    folder.mkdir()
    text = program.read_text(encoding="utf-8")
    step, start = "        loss = train_step(x, y)\n", "    torch.manual_seed(0)\n"
    assert text.count(step) == text.count(start) == 1, program
    text = text.replace(start, f'    traceml.init(mode="auto")\n{start}')
    text = text.replace(step, f"        with traceml.trace_step(model):\n    {step}")
    text = text.replace("import argparse\n", "import argparse\n\nimport traceml_ai as traceml\n", 1)
    (folder / program.name).write_text(text, encoding="utf-8")
    turns = program.with_name("turns.py")
    (folder / turns.name).write_text(turns.read_text(encoding="utf-8"), encoding="utf-8")
    return str(folder / program.name)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _of_pinchpoint(path: Path) -> str:
    trace = _read(path)
    phases = len(trace["phases"])
    return f"{trace['steps']:,} steps, {phases} phases, {len(trace['events'])} lines with events"


def _of_scalene(path: Path) -> str:
    files = _read(path).get("files", {})
    lines = [line for file in files.values() for line in file["lines"]]
    used = [line for line in lines if line["n_cpu_percent_c"] + line["n_cpu_percent_python"] > 0]
    return f"{len(used):,} lines with CPU time"


def _of_traceml(path: Path) -> str:
    summary = _read(path)
    window = summary["analysis_window"]
    first, last = window.get("start_step"), window.get("end_step")
    steps = 0 if last is None else last - (first or 0) + 1
    return f"{steps:,} steps, {summary['duration_s']:.0f} s of system metrics"
