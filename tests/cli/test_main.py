"""The frame of the command line: two-line errors, documented exit codes, only verbs that exist."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest
import typer

import pinchpoint
from pinchpoint.cli import main
from pinchpoint.cli.verb_group import Verb
from pinchpoint.core.errors import BadInput, DoesNotFit, Missing, PinchpointError


def verb_that(does) -> Verb:
    """A verb whose command runs a given function."""
    module = ModuleType("try_it", "Try something.")
    module.command = does  # type: ignore[attr-defined]
    return Verb(lambda: module, "Try something.")


@pytest.fixture
def try_verb(monkeypatch: pytest.MonkeyPatch):
    def install(does) -> None:
        verbs = {"try": verb_that(does), "other": verb_that(lambda: None)}
        monkeypatch.setattr(main, "find_verbs", lambda: verbs)

    return install


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"pinchpoint {pinchpoint.__version__}\n"


def test_the_installed_script_and_the_module_run_the_same_command_line() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pinchpoint", "--version"], capture_output=True, text=True, check=True
    )
    assert process.stdout == f"pinchpoint {pinchpoint.__version__}\n"


def test_help_lists_exactly_the_verbs_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:\n")[2]
    names = {line.split()[0] for line in listed.splitlines() if line.startswith("  ") and line[2] != " "}
    assert names == set(main.find_verbs())
    assert {"list", "demo", "check"} <= names


def test_helper_modules_are_not_verbs() -> None:
    assert not {"main", "verb_group", "completion"} & set(main.find_verbs())


@pytest.mark.parametrize("verb", main.find_verbs())
def test_every_verb_has_help_that_starts_with_what_it_does(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([verb, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"Usage: pinchpoint {verb}")
    assert lines[2].strip()


@pytest.mark.parametrize(
    ("kind", "code"), [(BadInput, 2), (Missing, 3), (DoesNotFit, 1), (PinchpointError, 2)]
)
def test_an_error_is_one_line_and_one_line_with_a_hint(kind, code, try_verb, capsys) -> None:
    def fail() -> None:
        raise kind("no such thing", hint="make one")

    try_verb(fail)
    assert main.run(["try"]) == code
    records_seen = capsys.readouterr()
    assert records_seen.err == "error: no such thing\n  hint: make one\n"
    assert records_seen.out == ""


@pytest.mark.parametrize("args", [["--debug", "try"], ["try", "--debug"], ["try", "7", "--debug"]])
def test_debug_shows_the_traceback_wherever_it_is_on_the_command_line(args, try_verb, capsys) -> None:
    def fail(number: int = typer.Argument(3)) -> None:
        raise BadInput("no such thing", hint="make one")

    try_verb(fail)
    assert main.run(args) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no such thing\n  hint: make one\n")


def test_debug_after_two_dashes_belongs_to_the_script(try_verb, capsys) -> None:
    records_seen: list[str] = []

    def take(script: str, args: list[str] = typer.Argument(None)) -> None:
        records_seen.extend(args)
        raise BadInput("stop", hint="go")

    try_verb(take)
    assert main.run(["try", "train.py", "--", "--debug", "--lr", "3"]) == 2
    assert records_seen == ["--debug", "--lr", "3"]
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_of_ours_is_reported_as_a_bug(try_verb, capsys) -> None:
    def fail() -> None:
        raise KeyError("a\nb")

    try_verb(fail)
    assert main.run(["try"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("error: This is a bug in pinchpoint: KeyError")
    assert len(err.splitlines()) == 2
    assert "Traceback" not in err
    assert main.run(["try", "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err


def test_control_c_exits_130_and_prints_stopped_once(try_verb, capsys) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    try_verb(stop)
    assert main.run(["try"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_a_message_of_a_verb_about_ctrl_c_is_not_repeated(try_verb, capsys) -> None:
    def leave() -> None:
        raise SystemExit(130)

    try_verb(leave)
    assert main.run(["try"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("does", "code"), [(lambda: None, 0), (lambda: 1, 1), (lambda: 0, 0)])
def test_the_return_value_of_a_verb_is_the_exit_code(does, code, try_verb) -> None:
    try_verb(does)
    assert main.run(["try"]) == code


def test_a_verb_may_also_raise_its_exit_code(try_verb) -> None:
    def leave() -> None:
        raise typer.Exit(1)

    try_verb(leave)
    assert main.run(["try"]) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["nope"], "nope"),
        (["--nope"], "--nope"),
        (["list"], "workloads|cards|rules"),
        (["list", "cards", "--nope"], "--nope"),
        (["demo", "--seed", "x"], "--seed"),
    ],
)
def test_bad_usage_exits_2_with_a_hint(
    args: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(args) == 2
    what, hint = capsys.readouterr().err.splitlines()
    assert what.startswith("error: ")
    assert says in what
    assert hint.startswith("  hint: ") and "See pinchpoint" in hint


@pytest.mark.parametrize(
    ("args", "what", "hint"),
    [
        (["vmc", "eval", "run", "--steps", "2"], "There is no option --steps.", "Did you mean --samples or "),
        (["list"], "The argument workloads|cards|rules is missing.", "Give workloads, cards or rules. See "),
        (["cloud", "data"], "The option -o / --output is missing.", "See pinchpoint cloud data --help."),
        (
            ["plan", "field", "--budget", "6XB"],
            "'6XB' is not a number of bytes.",
            "Give a number with a unit",
        ),
    ],
)
def test_bad_usage_is_a_sentence_with_what_to_write_instead(args, what, hint, capsys) -> None:
    assert main.run(args) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"error: {what}"
    assert second.startswith(f"  hint: {hint}")
    assert "--help or" not in second and "--help," not in second
    assert ("name of a card" in second) == ("--budget" in args)


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "Commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shell", "says"),
    [
        ("bash", "complete -o default -F _pinchpoint_completion pinchpoint"),
        ("zsh", "#compdef pinchpoint"),
        ("fish", "complete --command pinchpoint"),
    ],
)
def test_completion_is_shown_for_the_common_shells(shell, says, monkeypatch, capsys) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell)
    assert main.run(["--show-completion"]) == 0
    assert says in capsys.readouterr().out


def complete(monkeypatch, capsys, line: str) -> list[str]:
    """What bash offers for the last word of the line."""
    monkeypatch.setenv("_PINCHPOINT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    main.run([])
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("pinchpoint pr", ["predict", "profile"]),
        ("pinchpoint cloud tr", ["train"]),
        ("pinchpoint study --en", ["--engine", "--engine-option"]),
        ("pinchpoint predict fie", ["field"]),
        ("pinchpoint study den", ["density"]),
        ("pinchpoint predict train.py --card h2", ["h200"]),
        ("pinchpoint plan train.py --request ku", ["kubernetes"]),
        ("pinchpoint study field --engine s", ["slurm"]),
    ],
)
def test_verbs_options_workloads_and_cards_are_completed(line, offers, monkeypatch, capsys) -> None:
    assert complete(monkeypatch, capsys, line) == offers
