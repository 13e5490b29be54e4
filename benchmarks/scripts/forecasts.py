"""Forecasts of programs with the GPU hidden, each in a process of its own with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from programs import HERE, OFFLINE, Program

SOURCE = HERE.parents[1] / "src"
KEPT = (
    "mode",
    "method",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "workspace_bytes",
    "context_bytes",
    "total_bytes",
    "needs_bytes",
    "low_bytes",
    "high_bytes",
    "search_bytes",
    "search_reserved_bytes",
    "margin_bytes",
    "breakdown",
    "fits",
    "reasons",
    "seen",
    "notes",
    "took_s",
    "framework",
)


def environment() -> dict[str, str]:
    """The variables of a forecast: pinchpoint of this checkout, no GPU, no network, one thread."""
    paths = [str(SOURCE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    hidden = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths)), **OFFLINE, **hidden}


def run(
    command: list[str], *, env: dict[str, str], folder: str, timeout_s: float
) -> tuple[int | None, str, str]:
    """Return exit code, output and errors; the code is None if the time limit ended the process."""
    process = subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err
    return process.returncode, out, err


def shorten(value: Any) -> Any:
    """Replace the paths of installed packages and of this checkout in texts by relative ones."""
    if isinstance(value, list):
        return [shorten(item) for item in value]
    if isinstance(value, str):
        for folder in sorted({str(HERE.parents[1]), *filter(None, sys.path)}, key=len, reverse=True):
            value = value.replace(f"{folder}/", "")
    return value


def predict(program: Program, *, card: str, timeout_s: float) -> dict[str, Any]:
    """Forecast one program with the GPU hidden, through the command that users run."""
    command = [sys.executable, "-m", "pinchpoint", "predict", "--json"]
    command += ["--timeout", str(timeout_s), *program.options]
    if program.ranks is not None:
        command += ["--rank", str(program.ranks[0]), "--world-size", str(program.ranks[1])]
    if program.launcher:
        command += ["--", *program.launcher, str(program.path), *program.args]
    else:
        command += [str(program.path), "--", *program.args]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        code, out, err = run(command, env=environment(), folder=folder, timeout_s=timeout_s + 30)
    case: dict[str, Any] = {"seconds": round(time.perf_counter() - start, 2)}
    if code is None:
        return {**case, "status": "timeout", "reason": f"There was no answer within {timeout_s:.0f} s."}
    try:
        forecast = json.loads(out)
    except ValueError:
        lines = err.strip().splitlines()
        first = next((i for i, line in enumerate(lines) if line.startswith("error:")), max(0, len(lines) - 3))
        return {**case, "status": "refused", "code": code, "reason": shorten(" ".join(lines[first:]))[:800]}
    lines = [f"{Path(line['file']).name}:{line['line']} {line['bytes']}" for line in forecast["lines"][:3]]
    return {
        **case,
        "status": "ok",
        **{key: shorten(forecast.get(key)) for key in KEPT},
        "lines": lines,
        "card": card,
    }
