"""`check` of scripts: every planted fault is in the answer, the fixed twins are clean, failures are told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rules.test_planted import planted

import pinchpoint
from pinchpoint.checking import check as checking
from pinchpoint.checking.comparing import Failure
from pinchpoint.cli.main import run
from pinchpoint.core.errors import CannotFake
from pinchpoint.core.records import Check, Record, Trace, load

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in (EXAMPLES / "slow").glob("*.py"))


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch, samples: dict[str, Record]) -> Callable[..., None]:
    """Scripts are not run: their profile is this one, and their peak cannot be predicted."""
    trace = samples["trace"]
    assert isinstance(trace, Trace)

    def install(**values: Any) -> None:
        from dataclasses import replace

        result = replace(trace, events=(), problems=(), **values)
        monkeypatch.setattr(checking, "profile", lambda *args, **kwargs: result)

    def start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("A script was started.")

    monkeypatch.setattr(checking, "PausedScript", start)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise CannotFake("pinchpoint cannot simulate it.", hint="None.")

    monkeypatch.setattr(checking, "predict_peak", refuse)
    install()
    return install


def write(folder: Path, text: str, name: str = "train.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def missed(script: Path, result: Check) -> list[tuple[int, int, str]]:
    """The planted faults that an answer does not name at their statements."""
    answers = {(advice.line, advice.name) for advice in result.advice}
    faults = planted(script.read_text())
    return [
        fault for fault in faults if not any((n, fault[2]) in answers for n in range(fault[0], fault[1] + 1))
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_planted_fault_is_in_the_answer(name: str, no_runs: Any) -> None:
    script = EXAMPLES / "slow" / f"{name}.py"
    result = pinchpoint.check(str(script))
    assert planted(script.read_text())
    assert missed(script, result) == []
    assert result.notes == ("The peak could not be predicted: pinchpoint cannot simulate it.",)


@pytest.mark.parametrize("name", NAMES)
def test_the_fixed_twin_has_nothing_to_change(name: str, no_runs: Any, capsys: Any) -> None:
    assert run(["check", str(EXAMPLES / "fast" / f"{name}.py")]) == 0
    out = capsys.readouterr().out
    assert "Nothing worth changing was found. The scan of 1 file found nothing, and in 3" in out
    assert "backward 75%, forward 25%" in out


@pytest.mark.traces_lines
@pytest.mark.slow
def test_a_real_run_gives_the_faults_of_a_script_their_costs(capfd: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script, record = EXAMPLES / "slow" / "point_sampling.py", tmp_path / "check.json"
    assert run(["check", str(script), "--no-predict", "-o", str(record)]) == 1
    result = load(record)
    assert isinstance(result, Check)
    by_name: dict[str, list[Any]] = {}
    for advice in result.advice:
        by_name.setdefault(advice.name, []).append(advice)
    # Reading the values of every cell and collecting garbage take most of the time in this script.
    assert by_name["gc-in-loop"][0].cost_s > 0
    assert by_name["loop-over-samples"][0].share > 0.05
    assert max(advice.share or 0.0 for advice in by_name["sync-in-loop"]) > 0.01
    assert any("400 times per step" in text for each in by_name["sync-in-loop"] for text in each.evidence)
    assert by_name["cache-keyed-by-size"][0].seen == "ran"
    costs = [advice.cost_s or 0.0 for advice in result.advice]
    assert costs == sorted(costs, reverse=True)
    out = capfd.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith(("step", "mean")))
    assert "\x1b" not in out
    assert missed(script, result) == []


@pytest.mark.slow
def test_a_real_run_of_a_fixed_twin_finds_nothing_and_says_why(capfd: Any) -> None:
    pytest.importorskip("torch")
    assert run(["check", str(EXAMPLES / "fast" / "point_sampling.py"), "--no-predict"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert (
        "Nothing worth changing was found. The scan of 1 file found nothing, and in 4 steps there was" in out
    )
    assert "The steps spend their time on: " in out


def test_json_is_the_only_output_and_loads_again(tmp_path: Path, no_runs: Any, capsys: Any) -> None:
    script = write(tmp_path, "import torch\nx = torch.load('a.pt', weights_only=False)\n")
    assert run(["check", script, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "check"
    assert data["advice"][0]["name"] == "unsafe-load"
    assert data["advice"][0]["diff"].startswith("--- a/")


@pytest.mark.traces_lines
def test_what_was_learned_of_a_script_that_raises_is_shown(tmp_path: Path, capfd: Any) -> None:
    text = (
        "def unused():\n    import torch\n    torch.load('a', weights_only=False)\nraise ValueError('mine')\n"
    )
    record = tmp_path / "check.json"
    assert run(["check", write(tmp_path, text), "--no-predict", "-o", str(record)]) == 2
    out, err = capfd.readouterr()
    assert "PP543 unsafe-load" in out
    assert "the line did not run" in out
    assert "line 4, in <module>\n    raise ValueError" in err
    assert "train.py raised ValueError: mine" in err
    result = load(record)
    assert isinstance(result, Check)
    assert "ValueError: mine" in result.error


@pytest.mark.traces_lines
def test_findings_in_modules_are_left_out_if_their_lines_did_not_run(tmp_path: Path, capfd: Any) -> None:
    text = "def unused():\n    import torch\n    torch.load('a', weights_only=False)\n"
    write(tmp_path, text, "helper.py")
    assert run(["check", write(tmp_path, "import helper\n"), "--no-predict"]) == 0
    assert "1 finding in imported modules left out, because the lines did not run" in capfd.readouterr().err
    assert run(["check", write(tmp_path, text), "--no-predict"]) == 1  # the script itself
    assert "the line did not run" in capfd.readouterr().out


def test_a_script_that_ends_its_process_keeps_its_findings(tmp_path: Path, capfd: Any) -> None:
    text = "def unused():\n    import torch\n    torch.load('a', weights_only=False)\n"
    text += "import os\nos._exit(3)\n"
    assert run(["check", write(tmp_path, text), "--no-predict"]) == 2
    out, err = capfd.readouterr()
    assert "PP543 unsafe-load" in out
    assert "not seen in the run" in out
    assert "ended the process with code 3" in err


def test_a_script_that_hangs_is_stopped_by_the_time_limit(tmp_path: Path, capfd: Any) -> None:
    assert run(["check", write(tmp_path, "while True:\n    pass\n"), "--time-limit", "1"]) == 0
    assert "reached the time limit" in capfd.readouterr().err


def test_a_script_that_prints_its_help_has_an_answer_and_a_note(tmp_path: Path, capfd: Any) -> None:
    text = "import argparse\nargparse.ArgumentParser(description='mine').parse_args()\n"
    assert run(["check", write(tmp_path, text), "--", "--help"]) == 0
    out, err = capfd.readouterr()
    assert "mine" in out
    assert "exit code 0 before its first step" in err


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 2)])
def test_the_exit_code_of_a_script_says_whether_it_failed(
    code: int, expected: int, tmp_path: Path, capfd: Any
) -> None:
    script = write(tmp_path, f"import sys\nprint('mine')\nsys.exit({code})\n")
    assert run(["check", script]) == expected
    out, err = capfd.readouterr()
    assert out.startswith("mine\n")
    assert ("exited with 3" if code else "exit code 0 before its first step") in err


def test_a_script_may_start_workers_and_read_its_input(
    tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """import multiprocessing, os
def double(x):
    return 2 * x
if __name__ == "__main__":
    word = input()
    if os.fork() == 0:
        raise SystemExit("from a child")
    os.wait()
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(method, pool.map(double, [1, 2]), word)
"""
    (tmp_path / "input.txt").write_text("word\n")
    kept = os.dup(0)
    with (tmp_path / "input.txt").open() as file:
        os.dup2(file.fileno(), 0)
    try:
        assert run(["check", write(tmp_path, text)]) == 0
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    out, err = capfd.readouterr()
    assert out.startswith("fork [2, 4] word\nspawn [2, 4] word\n")
    assert out.count("scanned") == 1
    assert "from a child" in err


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("train.py", "def :\n", "has a syntax error in line 1"),
        ("train.py", "a\0b", "train.py"),
        ("train.py", "\x7fELF\x02\x01", "has a syntax error in line 1"),
        ("train.txt", "hello", "There is no target"),
    ],
)
def test_what_is_not_python_is_refused(name: str, text: str, says: str, tmp_path: Path, capsys: Any) -> None:
    assert run(["check", write(tmp_path, text, name)]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("args", [["--steps", "1"], ["--time-limit", "-1"]])
def test_options_out_of_range_are_refused(args: list[str], tmp_path: Path, capsys: Any) -> None:
    assert run(["check", write(tmp_path, "x = 1\n"), *args]) == 2
    assert "hint:" in capsys.readouterr().err


def test_a_script_of_many_lines_is_checked(tmp_path: Path, no_runs: Any) -> None:
    text = (
        "import torch\n"
        + "x = torch.zeros(3)\n" * 2_000
        + "x = 1\n" * 48_000
        + "torch.load('a', weights_only=False)\n"
    )
    result = pinchpoint.check(write(tmp_path, text), predict=False)
    assert [(advice.name, advice.line) for advice in result.advice] == [("unsafe-load", 50_002)]


def test_apply_keeps_only_what_is_left_to_change(tmp_path: Path, no_runs: Any, capsys: Any) -> None:
    text = """import torch
def train(model, data, optimizer):
    total = 0.0
    for x in data:
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        total += loss
    return total
"""
    script = write(tmp_path, text)
    no_runs(step_is="backward pass")
    assert run(["check", script, "--apply", "--pairs", "1"]) == 1
    out, err = capsys.readouterr()
    assert "1 pair of runs" in out
    assert "Whole runs of the script were compared, because it takes no optimizer steps" in " ".join(
        err.split()
    )
    assert "total += loss.detach()" in Path(script).read_text()
    assert "set_to_none=False" in Path(script).read_text()
    assert "fixed: PP301 graph-kept at " in out
    assert "gradients-set-to-zero" in out
    assert "too few pairs: 1 pairs prove nothing" in out


def test_an_interrupted_comparison_says_that_the_fixes_are_made(
    tmp_path: Path, no_runs: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import torch\ntotal = 0.0\nfor x in torch.rand(9, requires_grad=True):\n"
    text += "    loss = x.sum()\n    loss.backward()\n    total += loss\n"
    script = write(tmp_path, text)

    def interrupt(files: Any, compare_with: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checking, "apply_fixes", interrupt)
    record = tmp_path / "check.json"
    assert run(["check", script, "--apply", "-o", str(record)]) == 130
    assert "check.json; the safe fixes may be in the files" in capsys.readouterr().err
    result = load(record)
    assert isinstance(result, Check)
    assert [advice.name for advice in result.advice] == ["graph-kept"]


def test_a_script_is_compared_with_another_one(
    tmp_path: Path, no_runs: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path, "import torch\nwait = 2\n")
    after = write(tmp_path, "import torch\nwait = 1\n", "train_fixed.py")
    started: list[str] = []

    class Script:
        def __init__(self, target: str, *, args: Any, sources: Any, output_to_stderr: bool) -> None:
            assert (list(args), sources) == (["--epochs", "3"], None)
            self.step_s = 0.2 if target == before else 0.1
            started.append(target)

        def wait_until_ready(self, limit_s: float) -> bool:
            return True

        def run_block(self, *, warmup: int, steps: int, limit_s: float) -> float:
            return steps * self.step_s

        def end(self) -> Any:
            return checking.profile(before)

    no_runs(ended="stopped", step_is="optimizer step", framework="torch")
    monkeypatch.setattr(checking, "PausedScript", Script)
    record = tmp_path / "check.json"
    assert run(["check", before, "--against", after, "-o", str(record), "--", "--epochs", "3"]) == 0
    assert started == [before, after, before, after]
    out = capsys.readouterr().out
    assert "200.00 ms before, 100.00 ms after: speed-up 2.00 [2.00 to 2.00]" in out
    assert "10 pairs of blocks of 5 steps, 2 starts of each version" in out
    assert "faster: The 95 % interval" in out
    result = load(record)
    assert isinstance(result, Check) and result.gain is not None
    assert (result.gain.against, result.gain.files, result.gain.fixed) == (after, (after,), 0)
    assert "-wait = 2\n+wait = 1\n" in result.gain.diff
    assert Path(before).read_text() == "import torch\nwait = 2\n"


def test_a_script_that_fails_only_when_compared_is_an_error(
    tmp_path: Path, no_runs: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, record = write(tmp_path, "x = 1\n"), tmp_path / "check.json"
    failure = Failure("ValueError: mine", 1)
    monkeypatch.setattr(checking, "compare", lambda *args, **kwargs: failure)
    other = write(tmp_path, "x = 2\n", "fixed.py")
    assert run(["check", script, "--against", other, "-o", str(record)]) == 2
    assert "fixed.py failed when it was compared: ValueError: mine" in " ".join(
        capsys.readouterr().err.split()
    )
    assert isinstance(load(record), Check)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--against", "missing.py"], "missing.py"),
        (["--against", "wrong.py"], "has a syntax error in line 1"),
        (["--against", "train.py", "--apply"], "--apply and --against were given together"),
        (["--against", "train.py", "--pairs", "0"], "--pairs is 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    args: list[str], says: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "raise SystemExit('it ran')\n")
    write(tmp_path, "def :\n", "wrong.py")
    assert run(["check", "train.py", *args]) == 2
    err = " ".join(capsys.readouterr().err.split())
    assert says in err
    assert "hint:" in err
    assert "it ran" not in err


def test_nothing_is_fixed_in_a_script_that_fails(tmp_path: Path, no_runs: Any, capsys: Any) -> None:
    no_runs(error="ValueError: mine", exit_code=1, ended="raised")
    text = "import torch\ndef f(x, device):\n    return torch.ones(3).to(device)\n"
    script = write(tmp_path, text)
    assert run(["check", script, "--apply"]) == 2
    assert Path(script).read_text() == text
    assert "Nothing was fixed" in capsys.readouterr().err


def test_texts_in_place_of_files_are_run_also_for_imported_modules(tmp_path: Path, capfd: Any) -> None:
    script = write(tmp_path, "import helper\nprint('new', helper.VALUE)\n")
    helper = write(tmp_path, "VALUE = 'new'\n", "helper.py")
    sources = {script: "import helper\nprint('old', helper.VALUE)\n", helper: "VALUE = 'old'\n"}
    pinchpoint.profile(script, sources=sources)
    pinchpoint.profile(script)
    pinchpoint.profile(script, sources=sources)
    assert capfd.readouterr().out.split("\n")[:3] == ["old old", "new new", "old old"]
