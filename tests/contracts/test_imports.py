"""Importing and listing are quick and need no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pinchpoint
from pinchpoint.core.records import Record

HEAVY = ("torch", "jax", "jaxlib", "numpy", "scipy", "matplotlib", "plotly", "pandas", "e3nn", "rich")
REFUSE_FRAMEWORKS = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "jax", "jaxlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def python(code: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def loaded_after(code: str) -> set[str]:
    quiet = "with contextlib.redirect_stdout(io.StringIO()):"
    out = python(f"import contextlib, io, sys\n{quiet}\n {code}\nprint(*sys.modules)")
    return {name.partition(".")[0] for name in out.split()} & set(HEAVY)


def test_importing_pinchpoint_loads_nothing_heavy() -> None:
    assert (
        loaded_after("import pinchpoint; dir(pinchpoint); pinchpoint.Workload, pinchpoint.Forecast") == set()
    )


def test_the_help_of_the_command_line_loads_nothing_heavy() -> None:
    assert loaded_after("from pinchpoint.cli.main import run; run(['--help'])") == set()


def test_the_help_of_every_verb_loads_nothing_heavy() -> None:
    code = "from pinchpoint.cli.main import run, find_verbs; [run([verb, '--help']) for verb in find_verbs()]"
    assert loaded_after(code) == set()


def test_building_the_command_line_takes_little_more_cpu_time_than_importing_typer() -> None:
    code = """
from time import process_time
start = process_time()
import typer
middle = process_time()
import pinchpoint.cli.main as main
main.build()
print((process_time() - middle) / (middle - start))
"""
    # A ratio of CPU times does not depend on the load. The best of a few runs: the first may write bytecode.
    assert min(float(python(code)) for _ in range(3)) < 1


def test_listing_workloads_needs_no_framework() -> None:
    out = python(
        REFUSE_FRAMEWORKS
        + "from pinchpoint.cli.main import run; sys.exit(run(['list', 'workloads', '--json']))"
    )
    assert {w["framework"] for w in json.loads(out)} == {"torch", "jax"}


def test_listing_cards_needs_no_framework() -> None:
    out = python(
        REFUSE_FRAMEWORKS + "from pinchpoint.cli.main import run; sys.exit(run(['list', 'cards', '--json']))"
    )
    assert "h200" in {card["name"] for card in json.loads(out)}


def test_a_report_needs_no_framework(tmp_path: Path, samples: dict[str, Record]) -> None:
    paths = [str(record.save(tmp_path / f"{kind}.json")) for kind, record in samples.items()]
    page = tmp_path / "report.html"
    args = ["report", *paths, "-o", str(page)]
    python(REFUSE_FRAMEWORKS + f"from pinchpoint.cli.main import run; sys.exit(run({args!r}))")
    assert "<html" in page.read_text(encoding="utf-8")[:200]


def test_every_public_name_resolves_to_what_type_checkers_see() -> None:
    for name in pinchpoint.__all__:
        assert getattr(pinchpoint, name) is not None, name
    assert set(pinchpoint._HOMES) | {"__version__"} == set(pinchpoint.__all__)
