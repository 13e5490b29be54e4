"""Baselines: the same script at another revision, from its own files, and what a pull request may not do."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pinchpoint.checking.baseline import Baseline, check_baseline, checkout, find_baseline, judge
from pinchpoint.cli.main import run
from pinchpoint.core.errors import BadInput, PinchpointError, TargetFailed
from pinchpoint.core.records import Forecast


def git(folder: Path, *arguments: str) -> None:
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    subprocess.run(["git", "-C", str(folder), *names, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch) -> Path:
    """A repository with two commits of a script and its package; the current folder is inside it."""
    root = tmp_path / "repository"
    (root / "jobs").mkdir(parents=True)
    (root / "src" / "wide").mkdir(parents=True)
    git(root, "init", "-q", "-b", "main")
    (root / ".gitignore").write_text("data/\n")
    for width in (1, 2):
        (root / "jobs" / "train.py").write_text(f"print({width})\n")
        (root / "src" / "wide" / "__init__.py").write_text(f"WIDTH = {width}\n")
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", f"width {width}")
    (root / "data").mkdir()
    (root / "data" / "points.txt").write_text("some data")
    (root / "jobs" / "train.py").write_text("print(3)\n")  # not committed
    monkeypatch.chdir(root / "jobs")
    monkeypatch.syspath_prepend(str(root / "src"))
    return root


def test_a_checkout_has_the_files_of_the_revision_and_links_to_data(repository: Path):
    with checkout("HEAD~1") as folder:
        assert Path.cwd() == folder / "jobs"
        assert Path("train.py").read_text() == "print(1)\n"
        assert Path("../data/points.txt").read_text() == "some data"
        # What is imported from the repository's folders comes from the same revision.
        assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(folder / "src")
        code = "import wide; print(wide.WIDTH)"
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        assert printed == "1\n"
    assert not folder.exists()
    assert Path.cwd() == repository / "jobs"


def test_a_checkout_changes_nothing_in_the_repository(repository: Path, monkeypatch):
    def state() -> str:
        command = ["git", "status", "--porcelain", "--ignored"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    monkeypatch.setenv("PYTHONPATH", "/mine")
    before = state()
    with pytest.raises(KeyboardInterrupt), checkout("main"):
        raise KeyboardInterrupt
    assert state() == before
    assert os.environ["PYTHONPATH"] == "/mine"
    assert (repository / "jobs" / "train.py").read_text() == "print(3)\n"


@pytest.mark.usefixtures("repository")
def test_a_revision_that_does_not_exist_is_refused():
    with pytest.raises(BadInput, match="no git revision 'nowhere'"):
        find_baseline("nowhere", lambda: pytest.fail("predicted"))
    with pytest.raises(BadInput, match="no git revision '--exec=x'"):
        find_baseline("--exec=x", lambda: pytest.fail("predicted"))


def test_outside_of_a_repository_there_are_no_revisions(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(BadInput, match="not a git repository"):
        find_baseline("main", lambda: pytest.fail("predicted"))


@pytest.mark.usefixtures("repository")
def test_a_revision_that_cannot_be_predicted_is_noted_and_the_card_is_still_checked(samples):
    def fail() -> Forecast:
        raise TargetFailed("train.py raised an error.", hint="Fix it.")

    baseline = find_baseline("HEAD~1", fail)
    assert baseline.forecast is None
    forecast = replace(samples["forecast"], fits={"h200": None})
    judgement = judge(forecast, baseline, max_growth=0.05, card="h200")
    assert judgement.failures == ("It is unknown whether it fits h200.",)
    assert judgement.notes == ("there is no comparison with HEAD~1: train.py raised an error.",)
    markdown = judgement.to_markdown()
    assert markdown.startswith("### ❌ mine.py:step\\_of: 1,000 B allocated at the peak")
    assert "there is no comparison with HEAD\\~1" in markdown


def test_growth_beyond_the_limit_fails_and_leads_the_summary(samples):
    before = samples["forecast"]
    after = replace(before, peak_allocated_bytes=1100, total_bytes=2648)
    judgement = judge(after, Baseline("main", before), max_growth=0.05, card="h200")
    assert len(judgement.failures) == 1 and "10.0 %, which is more than 5.0 %" in judgement.failures[0]
    assert "❌" in judgement.to_markdown().splitlines()[0]
    assert judge(after, Baseline("main", before), max_growth=0.2, card="h200").failures == ()
    assert "✅" in judge(after, None, max_growth=None, card=None).to_markdown()


@pytest.fixture
def predicts(monkeypatch, samples):
    """Makes `predict` return a forecast whose peak is 1,000 times the number that the script prints."""

    def predict(target, **options):
        peak = int(Path(target).read_text().strip("print()\n")) * 1000
        return replace(samples["forecast"], target=target, peak_allocated_bytes=peak)

    monkeypatch.setattr("pinchpoint.forecasting.predict.predict", predict)


@pytest.mark.usefixtures("repository", "predicts")
def test_the_command_compares_with_a_revision_or_a_record(tmp_path: Path, capsys):
    summary = tmp_path / "summary.md"
    command = ["predict", "train.py", "--markdown", str(summary)]
    assert run([*command, "--against", "HEAD", "--max-growth", "60%"]) == 0
    assert run([*command, "--against", "HEAD~1", "--max-growth", "60%"]) == 1
    assert "grows by 200 %, which is more than 60.0 %" in capsys.readouterr().out
    assert "1,000 B" in summary.read_text() and "2.93 KiB" in summary.read_text()
    assert run(["predict", "train.py", "-o", str(tmp_path / "now.json")]) == 0
    assert run([*command, "--against", str(tmp_path / "now.json"), "--max-growth", "0"]) == 0


@pytest.mark.usefixtures("repository", "predicts")
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("train.py --max-growth 5%", "--max-growth needs --against"),
        ("train.py --against HEAD --max-growth much", "not a percentage"),
        ("/home/me/train.py --against HEAD", "is an absolute path"),
        ("train.py --against none.json", "none.json"),
    ],
)
def test_bad_options_are_refused(options, says, capsys):
    assert run(["predict", *options.split()]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("source", ["no-such-revision", "no-such-record.json"])
def test_a_baseline_that_is_not_there_is_refused_before_anything_is_predicted(source: str) -> None:
    with pytest.raises(PinchpointError, match="no-such"):
        check_baseline("train.py", source)
