"""The GitHub Action and the pre-commit hooks: their shell steps run here, with a stand-in for predict."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from pinchpoint.cli.main import build

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
# Answers `python -m pinchpoint predict`: writes the summary, and exits with the number in the script name.
STAND_IN = """#!/bin/bash
printf '%s\\n' "$@" > "$(dirname "$0")/arguments"
code=0
while [ $# -gt 0 ]; do
  case $1 in
    --markdown) summary=$2; shift;;
    exits*) code=${1//[^0-9]/};;
  esac
  shift
done
if [ "$code" = 2 ]; then printf 'error: There is no file.\\n  hint: Name one.\\n' >&2; exit 2; fi
echo "### the summary of a script" > "$summary"
exit "$code"
"""


def value(text: str, inputs: dict[str, str]) -> str:
    """The value of an expression in the action; only those of inputs are known."""
    return re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: inputs[match[1]], text)


def run_step(name: str, folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    step = STEPS[name]
    defaults = {key: str(entry.get("default", "")) for key, entry in ACTION["inputs"].items()}
    defaults |= {"against": ""} | {key.replace("_", "-"): text for key, text in inputs.items()}
    variables = {key: value(text, defaults) for key, text in step["env"].items()}
    variables |= {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "page")}
    variables |= {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "HOME": str(folder)}
    # How GitHub runs `shell: bash`.
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


@pytest.fixture
def python(tmp_path: Path) -> str:
    path = tmp_path / "python"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    return str(path)


def outputs(folder: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())


def test_every_input_is_used_and_every_expression_is_an_input_or_of_github():
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    expressions = set(re.findall(r"\$\{\{ ([\w.-]+) \}\}", text))
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == set(ACTION["inputs"])
    known = {f"inputs.{name}" for name in ACTION["inputs"]} | {
        "github.action_path",
        "github.event.pull_request.base.sha",
        *(f"steps.predict.outputs.{name}" for name in ACTION["outputs"]),
    }
    assert expressions <= known
    # Text of a user inside of a script would be run by the shell.
    assert not [name for name, step in STEPS.items() if "${{" in step["run"]]
    assert all(step["shell"] == "bash" for step in STEPS.values())


def test_scripts_are_predicted_one_by_one_with_the_limits(tmp_path: Path, python: str):
    process = run_step(
        "Predict",
        tmp_path,
        python=python,
        scripts="\ntrain.py -- --batch 64 --name 'two words' '$HOME;'\n\n",
        card="rtx4090",
        against="abc",
        max_growth="5%",
    )
    assert process.returncode == 0, process.stderr
    arguments = (tmp_path / "arguments").read_text().splitlines()
    at = arguments.index("--markdown")
    assert arguments[:at] == ["-m", "pinchpoint", "predict"]
    options = ["--card", "rtx4090", "--against", "abc", "--max-growth", "5%"]
    words = ["train.py", "--", "--batch", "64", "--name", "two words", "$HOME;"]
    assert arguments[at + 2 :] == [*options, *words]
    assert (tmp_path / "page").read_text().count("the summary of a script") == 1
    assert outputs(tmp_path)["passed"] == "true"
    assert "the summary" in Path(outputs(tmp_path)["summary"]).read_text()


def test_outside_of_a_pull_request_nothing_is_compared(tmp_path: Path, python: str):
    assert run_step("Predict", tmp_path, python=python, scripts="train.py").returncode == 0
    arguments = (tmp_path / "arguments").read_text()
    assert "--against" not in arguments and "--max-growth" not in arguments and "--card" not in arguments


def test_a_script_beyond_a_limit_fails_the_job_after_the_others_ran(tmp_path: Path, python: str):
    process = run_step("Predict", tmp_path, python=python, scripts="exits1.py\nexits0.py")
    assert process.returncode == 1
    assert "::error title=pinchpoint::exits1.py exceeds a limit" in process.stdout
    assert (tmp_path / "page").read_text().count("the summary of a script") == 2
    assert outputs(tmp_path)["passed"] == "false"


def test_a_script_that_cannot_be_predicted_fails_the_job_and_says_why(tmp_path: Path, python: str):
    process = run_step("Predict", tmp_path, python=python, scripts="exits2.py")
    assert process.returncode == 2
    assert "::error title=pinchpoint::exits2.py cannot be predicted (exit code 2)" in process.stdout
    assert "error: There is no file.\n  hint: Name one." in (tmp_path / "page").read_text()


def test_the_base_is_fetched_if_it_is_not_there(tmp_path: Path):
    base, clone = tmp_path / "base", tmp_path / "clone"
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for command in (
        ["init", "-q", str(base)],
        *(["-C", str(base), *names, "commit", "-q", "--allow-empty", "-m", text] for text in ("one", "two")),
        ["-C", str(base), "config", "uploadpack.allowAnySHA1InWant", "true"],
        ["clone", "-q", "--depth=1", f"file://{base}", str(clone)],
    ):
        subprocess.run(["git", *command], check=True, capture_output=True)
    command = ["git", "-C", str(base), "rev-parse", "HEAD~1"]
    commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    known = ["git", "-C", str(clone), "cat-file", "-e", commit]
    assert subprocess.run(known, capture_output=True).returncode != 0
    process = run_step("Fetch the base", clone, against=commit)
    assert process.returncode == 0, process.stderr
    assert subprocess.run(known).returncode == 0


def test_the_hooks_run_commands_that_exist():
    application: Any = typer.main.get_command(build())
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert {hook["id"] for hook in hooks} == {"pinchpoint-scan", "pinchpoint-scan-fix", "pinchpoint-predict"}
    for hook in hooks:
        program, verb, *options = hook["entry"].split()
        assert program == "pinchpoint" and verb in application.commands
        flags = {flag for parameter in application.commands[verb].params for flag in parameter.opts}
        assert set(options) <= flags
        assert {"id", "name", "description", "entry", "language", "types_or"} <= set(hook)
