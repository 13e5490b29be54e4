"""`pinchpoint density data|train|score`: from nothing to a scored model, and two lines for every mistake."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.systems.density.training.training_step import Stepper

MODEL = [
    part
    for key in ("mul=8", "lmax=1", "gaussians=6", "hidden=8", "head=8", "train_knots=32")
    for part in ("--set", key)
]
TINY = [*MODEL, "--device", "cpu", "--molecules", "2", "--probes", "16"]


@pytest.fixture(scope="module")
def trained(density_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("density") / "run"
    assert (
        run(
            [
                "density",
                "train",
                str(density_data),
                "-o",
                str(folder),
                "--steps",
                "3",
                "--set",
                "validation=1",
                *TINY,
            ]
        )
        == 0
    )
    return folder


def failed(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, the line of what and the line of hint; progress before them aside."""
    capsys.readouterr()
    code = run(["density", *map(str, args)])
    seen = capsys.readouterr()
    what, hint = [line for line in seen.err.splitlines() if not line.startswith("[")]
    return code, what.removeprefix("error: "), hint.removeprefix("  hint: ")


def test_a_trained_run_is_scored_beside_superposed_atoms(
    density_data: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "scores.json"
    args = [str(trained), str(density_data), "--split", "heldout", "--device", "cpu", "-o", str(record)]
    assert run(["density", "score", *args]) == 0
    shown = capsys.readouterr().out
    made = json.loads(record.read_text(encoding="utf-8"))
    assert [sample["molecule"] for sample in made["samples"]] == ["methanol"]
    assert f"{made['nmae']:.3%} mean" in shown and "superposed atoms" in shown
    assert run(["density", "score", "packaged", *args[1:-2]]) == 0


def test_a_run_that_ended_is_trained_longer(
    density_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(["density", "train", str(density_data), "-o", str(folder), "--steps", "2", *TINY]) == 0
    assert run(["density", "train", "-o", str(folder), "--resume", "--steps", "4"]) == 0
    out = capsys.readouterr().out
    assert "4 of 4" in out and "pinchpoint density score " in out
    assert len((folder / "log.csv").read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["train", "{nowhere}", "-o", "{run}"], 2, "holds no dataset"),
        (["train", "{data}", "-o", "{run}", "--resume"], 2, "no run in"),
        (["train", "{data}", "-o", "{trained}", *TINY], 2, "already holds a run"),
        (["train", "{data}", "-o", "{data}", *TINY], 2, "is the folder of a dataset"),
        (["data", "-o", "{trained}", "--preset", "tiny"], 2, "is the folder of a run"),
        (["train", "{trained}", "-o", "{run}"], 2, "is the folder of a run"),
        (["data", "-o", "{run}", "--test", "0.2"], 2, "--test is only for files of your own"),
        (["data", "-o", "{run}", "--from", "{nowhere}", "--tests", "2"], 2, "--tests is only for molecules"),
        (["data", "-o", "{run}", "--from", "{nowhere}/CHGCAR"], 2, "There is no file"),
        (["data", "-o", "{trained}", "--from", "{nowhere}/CHGCAR"], 2, "is the folder of a run"),
        (["train", "{data}", "-o", "{run}", "--probes", "0"], 2, "--probes 0"),
        (["train", "{data}", "-o", "{run}", "--preset", "huge"], 2, "There is no preset"),
        (["train", "{data}", "-o", "{run}", "--set", "colour=3"], 2, "--set colour=3"),
        (
            ["train", "{data}", "-o", "{run}", "--precision", "tf32", "--device", "cpu"],
            2,
            "tf32 is not available on cpu",
        ),
        (["train", "{data}", "-o", "{run}", "--budget", "1MiB", *TINY], 1, "the budget is 1.00 MiB"),
        (["train", "{data}", "-o", "{trained}", "--resume", "--lr", "0.5"], 2, "lr (was 0.01, is 0.5)"),
        (["score", "{nowhere}", "{data}", "--device", "cpu"], 2, "Weights cannot be read"),
        (["score", "{trained}", "{data}", "--split", "all", "--device", "cpu"], 2, "no split"),
        (["data", "-o", "{run}", "--preset", "huge"], 2, "There is no preset"),
        (["data", "-o", "{run}", "--molecules", "unobtainium"], 2, "no molecule"),
    ],
)
def test_every_mistake_is_two_lines_and_leaves_no_run(
    args: list[str],
    code: int,
    says: str,
    density_data: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {
        "nowhere": tmp_path / "nowhere",
        "run": tmp_path / "new",
        "data": density_data,
        "trained": trained,
    }
    got, what, hint = failed([arg.format(**places) for arg in args], capsys)
    assert (got, hint != "") == (code, True)
    assert says in what
    assert not (tmp_path / "new" / "config.json").exists()


def test_a_stopped_command_leaves_a_checkpoint_and_its_exit_code(
    density_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    log = folder / "log.csv"
    take_step = Stepper.step

    def step(self: Stepper, batch: Any, *, number: int) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return take_step(self, batch, number=number)

    monkeypatch.setattr(Stepper, "step", step)
    assert run(["density", "train", str(density_data), "-o", str(folder), "--steps", "100000", *TINY]) == 143
    err = capsys.readouterr().err
    assert "step 2" in err and "--resume" in err
    steps = [
        entry["step"]
        for entry in json.loads((folder / "checkpoints" / "index.json").read_text(encoding="utf-8"))
    ]
    assert len(log.read_text(encoding="utf-8").splitlines()) - 1 == max(steps) >= 2


def test_data_that_is_there_is_not_made_again(density_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in density_data.glob("*.npz")}
    args = ["data", "-o", str(density_data), "--preset", "tiny", "--geometries", "4"]
    assert run(["density", *args, "--spacing", "0.6"]) == 0
    out = capsys.readouterr().out
    assert "8 train, 2 test, 1 heldout; 11 already existed" in out and "pinchpoint density train " in out
    assert {path.name: path.stat().st_mtime_ns for path in density_data.glob("*.npz")} == before
    code, what, _ = failed(args, capsys)
    assert (code, "made with spacing_a=0.6" in what) == (2, True)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--oxides", "--molecules", "water"], "--molecules is only for molecules."),
        (["--oxides", "--from", "CHGCAR"], "--oxides cannot be combined with --from."),
        (["--oxides", "--test", "0.2"], "--test is only for files of your own."),
        (["--potentials", "table"], "--potentials is only for oxides that are computed here."),
        (["--device", "cpu"], "--device is only for oxides that are computed here."),
        (["--oxides", "--device", "tpu"], "The device 'tpu' cannot create data."),
    ],
)
def test_options_that_oxides_do_not_have_are_refused(
    options: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, error, hint = failed(["data", "-o", tmp_path / "new", *options], capsys)
    assert (code, error) == (2, what) and hint.endswith(".") and not (tmp_path / "new").exists()
