"""`pinchpoint bench` lists systems without importing them, times one, and saves its record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pinchpoint.cli.bench import benches
from pinchpoint.cli.main import run

SMALL = {
    "cloud": ["--points", "2k", "--cells", "100", "--loop-cells", "10"],
    "density": ["--grid", "6,6,6", "--mul", "5", "--forms", "scalar"],
    "operator": ["--size", "500", "--variants", "eager,flat", "--set", "mlp=8"],
    "radiance": ["--size", "16", "--variants", "eager,folded", "--set", "samples=2"],
}


def test_every_system_with_a_bench_is_listed_without_importing_a_framework() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "assert run(['bench', '--help']) == 0\n"
        "assert not {'torch', 'jax', 'numpy', 'rich'} & set(sys.modules), 'imported'"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    listed = process.stdout.partition("Commands:\n")[2]
    systems = {folder.parent.name for folder in Path("src/pinchpoint/systems").glob("*/bench.py")}
    assert set(benches()) == systems == {line.split()[0] for line in listed.splitlines() if line[2:3].strip()}


def test_without_a_system_the_systems_that_can_be_timed_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["bench"]) == 0
    out = capsys.readouterr().out
    assert all(name in out and line in out for name, line in benches().items())


@pytest.mark.parametrize("system", SMALL)
def test_a_system_is_timed_and_its_record_is_saved(
    system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="these systems are torch's")
    out = tmp_path / "bench.json"
    args = ["bench", system, *SMALL[system], "--repeats", "2", "--device", "cpu", "-o", str(out)]
    assert run(args) == 0
    shown, record = capsys.readouterr().out, json.loads(out.read_text(encoding="utf-8"))
    assert str(out) in shown and record["device"] == "cpu" and record["machine"]
    if record["kind"] == "variant-bench":
        base, other = record["variants"]
        assert base["speedup"] is None and other["speedup"] > 0 and base["peak_bytes"] > 0
        assert other["runs"] == 2 and f"{other['speedup']:.2f}x" in shown


@pytest.mark.parametrize(
    ("args", "what", "hint"),
    [
        (["nothing"], "No such command 'nothing'", "pinchpoint bench --help"),
        (["operator", "--variants", "eager,flatt"], "no variant 'flatt' of operator", "Did you mean flat?"),
        (["operator", "--variants", "flat,flat"], "A variant is listed twice", "once"),
        (["operator", "--repeats", "0"], "--repeats 0 is out of range", "at least 1"),
        (["operator", "--set", "colour=3"], "operator has no setting 'colour'", "Use one of: part"),
        (["cloud", "--cells", "0"], "'0' is not a whole number above 0", "1000"),
        (["density", "--forms", "scalar,other", "--device", "cpu"], "other", "original, full, plain, scalar"),
        (["density", "-o", "no/where/bench.json"], "Cannot write", ""),
    ],
)
def test_an_error_is_one_line_and_a_hint(
    args: list[str], what: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="these systems are torch's")
    assert run(["bench", *args]) == 2
    error, advice = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert what in error and hint in advice
