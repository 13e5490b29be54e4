"""The `pinchpoint operator` commands, from data to a mesh with its Cp, and two lines for every mistake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.console import progress_bar

MODEL = [
    part
    for key in ("lattice=4,2,2", "mlp=8", "channels=8", "width=16", "depth=1", "heads=2")
    for part in ("--set", key)
]
TINY = [*MODEL, "--device", "cpu", "--set", "validation=0"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="the operator is torch's")
    folder = tmp_path_factory.mktemp("operator") / "data"
    assert (
        run(
            [
                "operator",
                "data",
                "-o",
                str(folder),
                "--train",
                "3",
                "--test",
                "2",
                "--panels",
                "100",
                "--jobs",
                "1",
            ]
        )
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def run_folder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("operator") / "run"
    assert run(["operator", "train", str(data), "-o", str(folder), "--steps", "4", *TINY]) == 0
    return folder


def run_and_fail(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command that fails; return its exit code, error line and hint line, without any progress."""
    capsys.readouterr()
    code = run(["operator", *map(str, args)])
    captured = capsys.readouterr()
    what, hint = [line for line in captured.err.splitlines() if not line.startswith("[")]
    assert captured.out == ""
    return code, what.removeprefix("error: "), hint.removeprefix("  hint: ")


def test_help_of_the_group_and_of_its_commands_needs_no_torch() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "pages = ['operator', '--help'], *(['operator', name, '--help'] for name in sys.argv[1:])\n"
        "codes = [run(args) for args in pages]\n"
        "assert codes == [0] * 5, codes\nassert not {'torch', 'numpy', 'rich'} & set(sys.modules), 'imported'"
    )
    names = ["data", "train", "eval", "predict"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    help_text = done.stdout.partition("Commands:\n")[2].partition("Usage:")[0]
    assert [line.split()[0] for line in help_text.splitlines() if line.strip()] == names
    assert "..." not in help_text, "every command has one line of at most 80 columns"


def test_a_group_without_a_command_says_where_help_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["operator"]) == 2
    assert capsys.readouterr().err == "error: Missing command.\n  hint: See pinchpoint operator --help.\n"


def test_data_prints_a_summary_and_creates_nothing_twice(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in data.glob("*.npz")}
    assert (
        run(
            [
                "operator",
                "data",
                "-o",
                str(data),
                "--train",
                "3",
                "--test",
                "2",
                "--panels",
                "100",
                "--jobs",
                "1",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "3 for training, 2 for testing; 5 already existed" in out
    assert "pinchpoint operator train " in out
    assert {path.name: path.stat().st_mtime_ns for path in data.glob("*.npz")} == before


def test_train_eval_and_predict_give_a_mesh_with_its_cp(
    data: Path, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pinchpoint.systems.operator.data.dataset import open_dataset
    from pinchpoint.systems.operator.files.meshes import write_fields

    out = tmp_path / "out"
    assert (
        run(
            [
                "operator",
                "eval",
                str(run_folder),
                str(data),
                "-o",
                str(out),
                "--device",
                "cpu",
                "--no-pictures",
            ]
        )
        == 0
    )
    captured = capsys.readouterr().out
    evaluation = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert f"relative L1       {evaluation['l1']['median']:.2%}" in captured
    assert "mean field" in captured
    dataset = open_dataset(data)
    mesh = write_fields(tmp_path / "car.vtp", dataset.body(dataset.names("test")[0]).mesh, {})
    assert (
        run(
            [
                "operator",
                "predict",
                str(run_folder),
                str(mesh),
                "-o",
                str(tmp_path / "cp.vtp"),
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert b'Name="Cp"' in (tmp_path / "cp.vtp").read_bytes()
    assert "Cp and Normals on" in capsys.readouterr().out


def test_a_folder_with_a_run_is_not_overwritten(
    data: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, what, hint = run_and_fail(["train", data, "-o", run_folder, "--steps", "4", *TINY], capsys)
    assert (code, what) == (2, f"{run_folder} already holds a run.")
    assert hint == "Continue it with --resume, or choose another -o."


def test_other_folders_and_files_are_refused_for_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, what, hint = run_and_fail(["train", data, "-o", data, *TINY], capsys)
    assert (code, "it holds index.json" in what, "-o" in hint) == (2, True, True)
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    code, what, _ = run_and_fail(["train", data, "-o", tmp_path / "taken", *TINY], capsys)
    assert code == 2 and "Cannot create the folder" in what


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["eval", "{trained}", "{data}", "-o", "{data}"], "is the folder of a dataset"),
        (["eval", "{trained}", "{data}", "-o", "{trained}"], "is the folder of a run"),
        (
            ["data", "-o", "{trained}", "--train", "1", "--test", "1", "--panels", "100"],
            "is the folder of a run",
        ),
        (["train", "{trained}", "-o", "{new}"], "is the folder of a run"),
    ],
)
def test_data_runs_and_evaluations_need_separate_folders(
    args: list[str],
    says: str,
    data: Path,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"data": data, "trained": run_folder, "new": tmp_path / "new"}
    before = {path: sorted(path.iterdir()) for path in (data, run_folder)}
    code, what, hint = run_and_fail([arg.format(**places) for arg in args], capsys)
    assert code == 2 and says in what
    assert "data -o" not in hint, "this would mix the two"
    assert before == {path: sorted(path.iterdir()) for path in (data, run_folder)}


def test_a_smaller_dataset_in_the_folder_of_a_larger_one_says_what_is_excluded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make = ["operator", "data", "-o", str(tmp_path / "set"), "--panels", "0.1k", "--test", "1", "--jobs", "1"]
    assert run([*make, "--train", "2"]) == 0
    assert "more bodies" not in capsys.readouterr().err
    assert run([*make, "--train", "0"]) == 0
    error_output = capsys.readouterr().err
    assert "contains 2 more bodies" in error_output
    assert "no training bodies" in error_output


def test_an_evaluation_removes_earlier_pictures_and_notes_too_few_bodies(
    data: Path,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def picture(path: Path, *args: object, **options: object) -> Path:
        path.write_bytes(b"drawn elsewhere")
        return path

    monkeypatch.setattr("pinchpoint.systems.operator.evaluate.picture", picture)
    out = tmp_path / "out"
    measure = ["operator", "eval", str(run_folder), str(data), "-o", str(out), "--device", "cpu"]
    assert run(measure) == 0
    assert (out / "best.png").exists()
    (out / "mine.png").write_bytes(b"mine")
    capsys.readouterr()
    assert run([*measure, "--no-pictures"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["errors.csv", "evaluation.json", "mine.png"]
    captured = capsys.readouterr()
    evaluation = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert "too few for a 95 % interval" in captured.err
    larger = "times smaller" if evaluation["factor"] >= 1 else "times larger"
    assert larger in next(line for line in captured.out.splitlines() if line.startswith("against the mean"))


def test_a_model_worse_than_the_mean_is_reported_as_such() -> None:
    from types import SimpleNamespace
    from typing import cast

    from pinchpoint.systems.operator.cli import _errors

    def verdict(factor: float) -> str:
        return _errors(
            cast("Any", SimpleNamespace(factor=factor, summary=lambda: [("run", "r"), ("last", "")]))
        )[-1][1]

    assert verdict(0.5) == "relative L1 is 2.00 times larger"
    assert verdict(3.0) == "relative L1 is 3.00 times smaller"


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("data", "the same command makes the others"),
        ("eval", "no evaluation was written"),
        ("predict", "nothing was written"),
    ],
)
def test_ctrl_c_says_what_remains(
    verb: str,
    says: str,
    data: Path,
    run_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    where = {"data": "data.dataset.make_dataset", "eval": "evaluate.evaluate", "predict": "predict.predict"}[
        verb
    ]
    monkeypatch.setattr(f"pinchpoint.systems.operator.{where}", stop)
    arguments = {"data": [], "eval": [str(run_folder), str(data)], "predict": [str(run_folder), "car.stl"]}[
        verb
    ]
    assert run(["operator", verb, *arguments, "-o", str(tmp_path / "out")]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("stopped; ") and line.endswith(says)


def test_a_run_is_resumed_without_naming_its_data_and_with_moved_data(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here, new_folder, folder = tmp_path / "data", tmp_path / "moved", str(tmp_path / "run")
    shutil.copytree(data, here)
    assert run(["operator", "train", str(here), "-o", folder, "--steps", "1", *TINY]) == 0
    assert run(["operator", "train", "-o", folder, "--resume", "--steps", "2"]) == 0
    here.rename(new_folder)
    code, what, hint = run_and_fail(["train", "-o", folder, "--resume", "--steps", "3"], capsys)
    assert (code, f"there is no folder {here}" in what, "DATA" in hint) == (2, True, True)
    assert run(["operator", "train", str(new_folder), "-o", folder, "--resume", "--steps", "3"]) == 0
    assert run(["operator", "train", "-o", folder, "--resume", "--steps", "4"]) == 0
    out = capsys.readouterr().out
    assert "4 of 4" in out and "pinchpoint operator eval " in out
    assert json.loads((tmp_path / "run" / "config.json").read_text())["data_path"] == str(new_folder)


def test_resuming_with_another_configuration_names_what_differs(
    data: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, what, hint = run_and_fail(
        ["train", data, "-o", run_folder, "--resume", "--lr", "0.5", "--set", "mlp=16"], capsys
    )
    assert code == 2
    assert what.endswith("other settings: lr (was 0.002, is 0.5); mlp (was [8], is [16]).")
    assert "Leave these options out" in hint


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["train", "{nowhere}", "-o", "{run}"], 2, "holds no dataset"),
        (["train", "{data}", "-o", "{run}", "--resume"], 2, "no run in"),
        (["train", "{data}", "-o", "{run}", "--steps", "0"], 2, "--steps 0"),
        (["train", "{data}", "-o", "{run}", "--preset", "huge"], 2, "preset 'huge' does not exist"),
        (["train", "{data}", "-o", "{run}", "--set", "colour=3"], 2, "--set colour=3"),
        (
            ["train", "{data}", "-o", "{run}", "--precision", "tf32", "--device", "cpu"],
            2,
            "tf32 is not available on cpu",
        ),
        (["train", "{data}", "-o", "{run}", "--set", "validation=3"], 2, "would be held back"),
        (["train", "{data}", "-o", "{run}", "--set", "radii=0.001", "--device", "cpu"], 2, "have no token"),
        (
            ["train", "{data}", "-o", "{run}", "--budget", "1MiB", "--device", "cpu", *MODEL],
            1,
            "the budget is 1.00 MiB",
        ),
        (["train", "{data}", "-o", "{run}", "--budget", "much", "--device", "cpu", *MODEL], 2, "much"),
        (["eval", "{nowhere}", "{data}", "-o", "{run}", "--device", "cpu"], 2, "no run in"),
        (
            ["predict", "{trained}", "{nowhere}.stl", "-o", "{run}.vtp", "--device", "cpu"],
            2,
            "does not exist",
        ),
        (
            ["predict", "{trained}", "car.step", "-o", "{run}.vtp", "--device", "cpu"],
            2,
            "file type is not supported",
        ),
        (
            ["predict", "{trained}", "car.stl", "-o", "{run}.png", "--device", "cpu"],
            2,
            "Fields cannot be written",
        ),
        (["data", "-o", "{run}", "--kind", "chaos"], 2, "kind of data 'chaos' does not exist"),
        (["data", "-o", "{data}", "--panels", "200"], 2, "made with panels=100"),
    ],
)
def test_every_mistake_prints_two_lines_and_leaves_no_run(
    args: list[str],
    code: int,
    says: str,
    data: Path,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"nowhere": tmp_path / "nowhere", "run": tmp_path / "new", "data": data, "trained": run_folder}
    got, what, hint = run_and_fail([arg.format(**places) for arg in args], capsys)
    assert (got, hint != "") == (code, True)
    assert says in what
    assert not (tmp_path / "new" / "config.json").exists()


def test_a_damaged_checkpoint_and_a_damaged_body_are_named(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert (
        run(
            [
                "operator",
                "train",
                str(data),
                "-o",
                str(folder),
                "--steps",
                "2",
                "--set",
                "checkpoint_every=1",
                *TINY,
            ]
        )
        == 0
    )
    (folder / "checkpoints" / "step-00000002.pt").write_bytes(b"nothing")
    code, what, _ = run_and_fail(["train", data, "-o", folder, "--resume"], capsys)
    assert code == 2
    assert "is damaged; the last good one is step-00000001.pt" in what
    copy = tmp_path / "data"
    copy.mkdir()
    for path in data.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "body-000001.npz").write_bytes(b"nothing")
    code, what, hint = run_and_fail(["train", copy, "-o", tmp_path / "new", *TINY], capsys)
    assert code == 2
    assert "body-000001.npz is damaged" in what and "operator data" in hint


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_command_leaves_a_checkpoint_and_its_exit_code(
    data: Path,
    tmp_path: Path,
    number: int,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from pinchpoint.systems.operator.training.training_step import Stepper

    folder, take_step = tmp_path / "run", Stepper.step

    def step(self: Any, bodies: Any, **options: Any) -> Any:
        if options["number"] == 3:
            os.kill(os.getpid(), number)
        return take_step(self, bodies, **options)

    monkeypatch.setattr(Stepper, "step", step)
    assert run(["operator", "train", str(data), "-o", str(folder), "--steps", "100", *TINY]) == code
    err = capsys.readouterr().err
    assert "stopped at step" in err and "--resume" in err
    steps = [
        entry["step"]
        for entry in json.loads((folder / "checkpoints" / "index.json").read_text(encoding="utf-8"))
    ]
    log = (folder / "log.csv").read_text(encoding="utf-8")
    assert 3 <= len(log.splitlines()) - 1 == max(steps) < 100


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-:--"), (5.2, "0:05"), (65, "1:05"), (7325, "2:02:05")]
)
def test_time_left_reads_as_a_clock(seconds: float | None, text: str) -> None:
    assert progress_bar.show_left(seconds) == text
