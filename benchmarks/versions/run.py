"""The same forecasts and tests with every supported version of torch, outside CI.

    python benchmarks/versions/run.py --environments FOLDER
    python benchmarks/versions/run.py --environments FOLDER --only 2.6,2.15
    python benchmarks/versions/run.py --environments FOLDER --pip-option=--index-url=INDEX_OF_CPU_BUILDS

Each version has a virtual environment FOLDER/VERSION, which is made once: torch, what pinchpoint needs, and
pytest. In it, `forecasts.py` predicts the steps of `cases.py`, and pytest runs the tests that depend most on
torch. The record results/torch_versions.json has the forecasts and the outcome of the tests per version;
versions that are not run again keep their entry. Exits with 1 if a forecast or a test failed. An environment
takes 0.6 GB with a CPU build and several GB with a CUDA build; no GPU is needed or used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from table import page

from pinchpoint.core import machine
from pinchpoint.core.records import now

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "benchmarks" / "results" / "torch_versions.json"
VERSIONS = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
NEEDS = ("matplotlib>=3.8", "numpy>=1.26", "plotly>=6", "rich>=13.7", "typer>=0.15", "pytest>=8.3")
TESTS = (
    "tests/backends/torch/test_compat.py",
    "tests/backends/torch/test_versions.py",
    "tests/backends/torch/fake/test_library.py",
)


def environment(folder: Path, version: str, pip_options: list[str]) -> Path:
    """The Python of a version's environment, which is created if it does not exist."""
    python = folder / version / "bin" / "python"
    if not python.exists():
        venv.create(folder / version, with_pip=True)
        wanted = [f"torch=={version}", *NEEDS]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *pip_options, *wanted], check=True)
    return python


def run_in(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    hidden = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [python, *arguments], cwd=ROOT, env={**os.environ, **hidden}, capture_output=True, text=True
    )


def entry(python: Path) -> dict[str, Any]:
    """What the record holds of one version."""
    forecasts = run_in(python, "benchmarks/versions/forecasts.py")
    tests = run_in(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", "-W", "ignore", *TESTS)
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", tests.stdout)}
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", tests.stdout, re.MULTILINE)
    if forecasts.returncode:
        return {"error": forecasts.stderr[-2000:], "tests": counts, "failures": failures}
    return {**json.loads(forecasts.stdout), "tests": counts, "failures": failures}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--environments", type=Path, required=True, help="Folder of the environments.")
    parser.add_argument("--only", default="", help="Versions to run, such as 2.6,2.15. Default: all.")
    parser.add_argument("--pip-option", action="append", default=[], help="Option of pip install.")
    options = parser.parse_args()
    only = options.only.split(",") if options.only else []
    old = json.loads(RECORD.read_text(encoding="utf-8"))["versions"] if RECORD.exists() else {}
    entries: dict[str, Any] = dict(old)
    for version in VERSIONS:
        if only and not any(version == one or version.startswith(f"{one}.") for one in only):
            continue
        print(f"torch {version}", file=sys.stderr)
        python = environment(options.environments.resolve(), version, options.pip_option)
        entries[version] = entry(python)
        record = {
            "command": shlex.join(["python", "benchmarks/versions/run.py", "--environments", "FOLDER"]),
            "created": now(),
            "machine": machine.describe(),
            "tests": list(TESTS),
            "versions": {one: entries[one] for one in VERSIONS if one in entries},
        }
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        RECORD.with_suffix(".md").write_text(page(record), encoding="utf-8")
    print(RECORD.with_suffix(".md").read_text(encoding="utf-8"))
    return int(any(has_failed(one) for one in entries.values()))


def has_failed(one: dict[str, Any]) -> bool:
    forecasts = [answer for cards in one.get("cases", {}).values() for answer in cards.values()]
    return "error" in one or bool(one["failures"]) or any("error" in answer for answer in forecasts)


if __name__ == "__main__":
    sys.exit(main())
