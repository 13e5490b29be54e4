"""The progress bar of a run: what it says of a run that was stopped."""

from __future__ import annotations

import pytest

from pinchpoint.systems.common.training.progress import show_progress
from pinchpoint.systems.common.training.training_loop import Report

NEW = "Stopped before the first step; nothing was written."


def show_run(stop: BaseException, *reports: Report, resume: bool = False) -> None:
    """Show the reports of a run that then raises `stop`."""
    with show_progress(resume=resume) as watch:
        for report in reports:
            watch(report)
        raise stop


def output_after(
    capsys: pytest.CaptureFixture[str], stop: BaseException, *reports: Report, resume: bool = False
) -> str:
    """Return what is printed if a run makes these reports and then raises `stop`."""
    with pytest.raises(type(stop)):
        show_run(stop, *reports, resume=resume)
    captured = capsys.readouterr()
    return " ".join((captured.out + captured.err).split())


def test_sigterm_before_the_first_step_says_that_nothing_was_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert NEW in output_after(capsys, SystemExit(143), Report("data", 1, 2))


def test_sigterm_before_a_resumed_step_says_how_to_continue(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_after(capsys, SystemExit(143), Report("data", 1, 2), resume=True)
    assert "Stopped before the next step; continue with --resume." in text and NEW not in text


@pytest.mark.parametrize("code", [0, 1, 70])
def test_an_exit_that_is_no_signal_says_nothing(capsys: pytest.CaptureFixture[str], code: int) -> None:
    assert "topped" not in output_after(capsys, SystemExit(code))


def test_processes_after_the_first_say_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "topped" not in output_after(capsys, SystemExit(143))


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_a_run_that_said_where_it_stopped_says_it_once(
    capsys: pytest.CaptureFixture[str], stop: BaseException, code: int
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        show_run(stop, Report("stopped", 500, 1000))
    assert exit_info.value.code == code
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert text.count("topped") == 1 and "at step 500 of 1,000 with a checkpoint" in text


def test_a_finished_run_says_so_and_how_to_train_longer(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(resume=True) as watch:
        watch(Report("finished", 1000, 1000))
    captured = capsys.readouterr()
    assert "already finished at step 1,000; add --steps N to train longer" in captured.out + captured.err
