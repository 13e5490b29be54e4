"""`pinchpoint demo`: one line per stage, one table, one report; a failure of one system spares the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pinchpoint.cli import demo
from pinchpoint.cli.main import run
from pinchpoint.core.demo import Picture, Show
from pinchpoint.core.discovery import demo_modules, load_workload
from pinchpoint.core.errors import TargetFailed
from pinchpoint.core.records import Record
from pinchpoint.demo import processes, stages
from pinchpoint.demo.table import COLUMNS, Outcome

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000"
    "0500015ea1d4a80000000049454e44ae426082"
)
SYSTEMS = ["density", "cloud", "vmc", "radiance", "operator"]


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch, samples: dict[str, Record]) -> dict[str, Any]:
    """Run the stages in this process, with verbs that return at once and record their arguments.

    The value of "broken" is a system whose picture cannot be drawn.
    """
    requests: dict[str, Any] = {"predict": [], "study": [], "verify": [], "broken": ""}

    def predict(forecasts: Any, **options: Any) -> Record:
        requests["predict"].append(options["size"])
        return samples["forecast"]

    def study(target: str, *, output: Path, **options: Any) -> Record:
        requests["study"].append((target, options["on"], options["overwrite"]))
        output.mkdir(exist_ok=True)
        samples["study"].save(output / "study.json")
        return samples["study"]

    def verify(target: str, *, variant: str, **options: Any) -> Record:
        requests["verify"].append((target, variant))
        workload = load_workload(target)
        workload.variant(variant)  # these raise for an unknown name
        workload.resolve_settings(options["settings"])
        workload.check_mode(options["mode"])
        return samples["verdict"]

    def draw(name: str) -> Callable[..., Picture]:
        def write(output: Path, *, device: str, seed: int) -> Picture:
            if name == requests["broken"]:
                raise RuntimeError("no paint")
            path = output / f"{name}.png"
            path.write_bytes(PIXEL)
            return Picture(path, f"{name}: a picture", "Made here.")

        return write

    def run_systems(names: list[str], output: Path, *, on_message: Any, **options: Any) -> None:
        modules = {module.SHOW.workload: module for module in demo_modules()}
        for name in names:
            module: Any = SimpleNamespace(SHOW=modules[name].SHOW, draw=draw(name))
            for message in stages.run_stages(module, output, **options):
                on_message({"system": name, **message})

    monkeypatch.setattr(stages._SharedForecasts, "predict", predict)
    monkeypatch.setattr("pinchpoint.studies.study.study", study)
    monkeypatch.setattr("pinchpoint.verification.verify.verify", verify)
    monkeypatch.setattr("pinchpoint.demo.processes.run_systems", run_systems)
    monkeypatch.setattr(demo, "_installed", lambda package: True)
    return requests


def test_the_demo_verifies_and_draws_every_system_and_ends_with_a_table_and_a_report(
    verbs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    for _ in range(2):  # the second run replaces the results of the first
        assert run(["demo", "-o", str(output)]) == 0
    assert sorted(name for name, _ in verbs["verify"]) == sorted(SYSTEMS * 2)
    assert verbs["study"] == [("operator", "fake", True)] * 2 and verbs["predict"] == [500_000] * 2
    page = (output / "report.html").read_text(encoding="utf-8")
    for name in SYSTEMS:
        assert (output / f"{name}.png").exists() and f"{name}: a picture" in page
    assert page.count('class="picture"') == len(SYSTEMS)
    out, err = capsys.readouterr()
    lines = out[: len(out) // 2].splitlines()
    rows = [line.split(":")[0] for line in lines if line.startswith(tuple(SYSTEMS)) and "pass" in line]
    assert rows == SYSTEMS, "one row per system, in the order of the table"
    end = next(number for number, line in enumerate(lines) if line.startswith("Times are"))
    assert max(map(len, lines[:end])) <= 80
    assert lines[-1].endswith(f"open {output / 'report.html'}")
    stage_lines = err.splitlines()[: len(err.splitlines()) // 2]
    assert len(stage_lines) == 2 * len(SYSTEMS) + 2, "one line per stage"
    assert all(line.split()[-1] == "s" and len(line) <= 80 for line in stage_lines)


@pytest.mark.parametrize("words", [["--only", "vmc", "--only", "cloud"], ["--only", "cloud,vmc"]])
def test_only_shows_the_named_systems(words: list[str], verbs: dict[str, Any], tmp_path: Path) -> None:
    assert run(["demo", "-o", str(tmp_path), *words]) == 0
    assert {name for name, _ in verbs["verify"]} == {"cloud", "vmc"} and not verbs["study"]


def test_an_unknown_system_is_refused_with_the_names_before_any_work(
    verbs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", "-o", str(tmp_path / "out"), "--only", "vcm"]) == 2
    error = capsys.readouterr().err
    assert "no system named 'vcm'" in error and all(name in error for name in SYSTEMS)
    assert not (tmp_path / "out").exists()


def test_a_failed_verdict_makes_the_demo_exit_1(
    verbs: dict[str, Any], tmp_path: Path, samples: dict[str, Record]
) -> None:
    samples["verdict"] = dataclasses.replace(samples["verdict"], status="fail")  # type: ignore[type-var]
    assert run(["demo", "-o", str(tmp_path)]) == 1
    assert (tmp_path / "report.html").exists(), "the report is written all the same"


def test_a_stage_that_fails_is_named_and_loses_nothing_else(
    verbs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs["broken"] = "cloud"
    assert run(["demo", "-o", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "error: cloud failed in draw: RuntimeError: no paint" in error
    assert len(verbs["verify"]) == len(SYSTEMS) and (tmp_path / "vmc.png").exists()
    assert "cloud: a picture" not in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_system_whose_packages_are_missing_is_skipped_with_a_message(
    verbs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(demo, "_installed", lambda package: package == "torch")
    assert run(["demo", "-o", str(tmp_path)]) == 0
    assert {name for name, _ in verbs["verify"]} == {"cloud", "operator"}
    out, err = capsys.readouterr()
    assert "skipping vmc: jax, folx are not installed" in err and "skipping density: e3nn" in err
    assert [line.split()[0] for line in out.splitlines() if line.endswith("skipped")] == [
        "density:",
        "vmc:",
        "radiance:",
    ]
    monkeypatch.setattr(demo, "_installed", lambda package: False)
    assert run(["demo", "-o", str(tmp_path)]) == 3


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    verbs: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("taken", encoding="utf-8")
    assert run(["demo", "-o", str(tmp_path / "file" / "out")]) == 2
    assert "Cannot create the folder" in capsys.readouterr().err
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    assert run(["demo", "-o", str(tmp_path / "out")]) == 2
    assert verbs["verify"] == []


def test_ctrl_c_says_where_the_finished_results_are(
    verbs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pinchpoint.demo.processes.run_systems", stop)
    assert run(["demo", "-o", str(tmp_path)]) == 130
    assert f"stopped; what is finished is in {tmp_path}" in capsys.readouterr().err


def test_the_row_of_a_verdict_has_times_ratio_and_peaks(samples: dict[str, Any]) -> None:
    show = Show("a", ("torch",), 1, "a step", "a picture", "fast", 8)
    verdict = dataclasses.replace(
        samples["verdict"],
        baseline="slow",
        variant="fast",
        speedup=456.34,
        baseline_s=0.2368,
        variant_s=0.0005189,
        peak_before_bytes=205_258_752,
        peak_after_bytes=None,
    )
    row = dict(zip(COLUMNS, Outcome(show, verdict).row(), strict=True))
    assert row["system: what was done"] == "a: a step; slow -> fast" and row["verdict"] == "pass"
    assert (row["baseline"], row["tuned"], row["ratio"]) == ("237 ms", "519 us", "456x")
    assert (row["peak\nbefore"], row["peak\nafter"]) == ("196 MiB", "-")
    failed = Outcome(show)
    failed.errors.append(("verify", TargetFailed("No.", hint="Do.")))
    assert failed.row()[-1] == "failed" and not failed.passed


@pytest.fixture
def two_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Real processes of a program that stands in for the worker: the system "dead" kills its process."""
    program = tmp_path / "worker.py"
    program.write_text(
        "import json, os, sys\n"
        "for line in sys.stdin:\n"
        "    name = line.strip()\n"
        "    print(json.dumps({'system': name, 'stage': 'verify', 'what': 'x'}), flush=True)\n"
        "    if name == 'dead':\n"
        "        print('out of luck', file=sys.stderr, flush=True)\n"
        "        os.kill(os.getpid(), 9)\n"
        "    print(json.dumps({'system': name, 'done': True, 'pid': os.getpid()}), flush=True)\n",
        encoding="utf-8",
    )
    start = processes._Process.start

    def with_program(self: Any) -> None:
        self._command = [self._command[0], str(program)]
        start(self)

    monkeypatch.setattr(processes._Process, "start", with_program)
    messages: list[dict[str, Any]] = []
    return messages


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_process_that_dies_loses_only_its_own_system(
    at_once: int, two_systems: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "processes_for", lambda device: at_once)
    names = ["a", "dead", "b", "c"]
    processes.run_systems(names, tmp_path, seed=0, device="cpu", on_message=two_systems.append)
    done = {message["system"]: message for message in two_systems if message.get("done")}
    assert set(done) == set(names)
    assert "out of luck" in done["dead"]["error"]["what"]
    assert "error" not in done["b"] and "error" not in done["c"]
    if at_once == 1:
        assert done["b"]["pid"] == done["c"]["pid"] != done["a"]["pid"]


def test_every_system_has_a_demo_whose_import_needs_no_framework() -> None:
    modules: list[ModuleType] = demo_modules()
    assert sorted(module.SHOW.workload for module in modules) == sorted(SYSTEMS)
    assert all(callable(module.draw) for module in modules)
