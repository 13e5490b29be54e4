"""`pinchpoint bench` lists systems without importing them, times them, and shows one table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pinchpoint.cli import bench
from pinchpoint.cli.bench import benches
from pinchpoint.cli.main import run
from pinchpoint.systems.common.bench.records import Agreement, Bench, Comparison, Row

BASE = Row("slow", "baseline", seconds=2.0, seconds_low=1.9, seconds_high=2.1, runs=3)
ROWS = (
    BASE,
    Row(
        "quick",
        "variant",
        "ok",
        "",
        0.5,
        0.4,
        0.6,
        3,
        4.0,
        3.0,
        5.0,
        2**20,
        agreement=Agreement("values", 1e-7, True),
    ),
    Row(
        "late",
        "variant",
        "ok",
        "",
        4.0,
        4.0,
        4.0,
        3,
        0.5,
        0.5,
        0.5,
        agreement=Agreement("values", 0.1, False),
    ),
    Row("absent", "peer", "not installed", "absent is not installed."),
)


def record(system: str, failure: str = "") -> Bench:
    rows = () if failure else ROWS
    comparison = Comparison(
        "step", "a step", "a claim", "points", 1000, {}, rows, None, (), failure, 1.0, "command", {}, "today"
    )
    return Bench(system, "cpu", "tiny", (comparison,))


def test_every_system_with_a_bench_is_listed_without_importing_a_framework() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "assert run(['bench', '--list']) == 0 and run(['bench', '--help']) == 0\n"
        "assert not {'torch', 'jax', 'numpy'} & set(sys.modules), 'imported'"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    systems = {folder.parent.name for folder in Path("src/pinchpoint/systems").glob("*/bench.py")}
    assert set(benches()) == systems and len(systems) == 5
    assert all(name in process.stdout and line in process.stdout for name, line in benches().items())


def test_one_system_that_crashes_does_not_lose_the_others_and_one_table_is_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the systems are torch's")
    pytest.importorskip("jax", reason="and JAX's")
    started: list[str] = []

    def start(command: list[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        request = json.loads(command[-1])
        started.append(request["system"])
        if request["system"] == "density":
            return subprocess.CompletedProcess(command, -11)
        record(request["system"], "no such grid" if request["system"] == "vmc" else "").save(
            Path(request["folder"]) / f"{request['system']}.json"
        )
        return subprocess.CompletedProcess(command, int(request["system"] == "vmc"))

    monkeypatch.setattr(bench.subprocess, "run", start)
    assert run(["bench", "-o", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert started == ["cloud", "density", "operator", "radiance", "vmc"]
    assert "density ended with exit code 139; the others are complete." in err
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert set(lines) >= {"cloud", "operator", "radiance", "vmc"} and "failed: no such grid" in lines["vmc"]
    assert "4.00x [3.00, 5.00]" in out and "1.00 MiB" in out and "equal to 1.0e-07 (values)" in out
    assert "0.500x [0.500, 0.500] slower" in out and "NOT EQUAL to 1.0e-01 (values)" in out
    assert "not installed" in out


def test_a_system_is_timed_in_a_process_and_its_record_is_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="this system is torch's")
    args = ["bench", "radiance", "--sizes", "tiny", "--repeats", "1", "--device", "cpu", "-o", str(tmp_path)]
    assert run(args) == 0
    shown = capsys.readouterr().out
    stored = Bench.from_json((tmp_path / "radiance.json").read_text(encoding="utf-8"))
    assert "folded, fp32" in shown and "16 rays" in shown
    assert stored.comparisons[0].command.startswith("pinchpoint bench radiance --sizes tiny --device cpu ")


@pytest.mark.parametrize(
    ("args", "what", "hint"),
    [
        (["nothing"], "There is no system 'nothing' to time.", "Use one of: cloud"),
        (["operater"], "no system 'operater'", "Did you mean operator?"),
        (["operator", "--sizes", "huge"], "There are no sizes 'huge'", "tiny"),
        (["operator", "--repeats", "0"], "--repeats 0", "at least 1"),
        (["operator", "--limit-s", "0"], "--limit-s 0", "more than 0"),
    ],
)
def test_an_error_is_one_line_and_a_hint(
    args: list[str], what: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *args]) == 2
    error, advice = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert what in error and hint in advice
