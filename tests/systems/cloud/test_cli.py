"""`pinchpoint cloud`: from a new dataset to scores, and an error with a hint for every mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.cli.main import run

MODEL = [
    part
    for key in (
        "cell=0.4",
        "widths=8,12",
        "blocks=1,1",
        "attention=0,1",
        "heads=2",
        "window=32",
        "features=8",
    )
    for part in ("--set", key)
]
TINY = [*MODEL, "--device", "cpu", "--points", "400"]


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="needs torch")
    folder = tmp_path_factory.mktemp("cloud") / "rooms"
    assert (
        run(
            [
                "cloud",
                "data",
                "-o",
                str(folder),
                "--train",
                "3",
                "--test",
                "1",
                "--points",
                "1k",
                "--jobs",
                "1",
            ]
        )
        == 0
    )
    return folder


@pytest.fixture(scope="module")
def trained(rooms: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloud") / "run"
    views = ["--views", "dense,log-uniform:0.2:1", "--consistency", "cos", "--set", "validation=1"]
    assert run(["cloud", "train", str(rooms), "-o", str(folder), "--steps", "3", *views, *TINY]) == 0
    return folder


def run_failing(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return the exit code, the error and the hint; lines of progress are left out."""
    capsys.readouterr()
    code = run(["cloud", *map(str, args)])
    output = capsys.readouterr()
    what, hint = [line for line in output.err.splitlines() if not line.startswith("[")]
    assert output.out == ""
    return code, what.removeprefix("error: "), hint.removeprefix("  hint: ")


def write_ply(path: Path, xyz: np.ndarray) -> Path:
    rows = "".join(f"{x} {y} {z} {number % 256}\n" for number, (x, y, z) in enumerate(xyz.tolist()))
    header = "ply\nformat ascii 1.0\nelement vertex {}\n{}property uchar red\nend_header\n"
    axes = "".join(f"property float {axis}\n" for axis in "xyz")
    path.write_text(header.format(len(xyz), axes) + rows, encoding="ascii")
    return path


def test_help_of_the_group_and_of_its_commands_needs_no_torch() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "pages = (['cloud', '--help'], *(['cloud', name, '--help'] for name in sys.argv[1:]))\n"
        "codes = [run(args) for args in pages]\n"
        "assert not any(codes), codes\nassert not {'torch', 'numpy', 'rich'} & set(sys.modules), 'imported'"
    )
    names = ["data", "train", "eval", "predict", "sample"]
    process = subprocess.run(
        [sys.executable, "-c", code, *names], capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    listed = process.stdout.partition("Commands:\n")[2].partition("Usage:")[0]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == names
    assert "..." not in listed, "every command is described in one line of 80 columns"


def test_data_summarises_the_dataset_and_makes_no_room_twice(
    rooms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in rooms.glob("*.npz")}
    assert (
        run(
            [
                "cloud",
                "data",
                "-o",
                str(rooms),
                "--train",
                "3",
                "--test",
                "1",
                "--points",
                "1k",
                "--jobs",
                "1",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "3 to train, 1 to test; 4 already existed" in out and "8 classes: floor" in out
    assert "pinchpoint cloud train " in out
    assert {path.name: path.stat().st_mtime_ns for path in rooms.glob("*.npz")} == before


def test_train_prints_loss_miou_memory_and_time_left_and_can_resume(
    rooms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["cloud", "train", str(rooms), "-o", str(tmp_path / "run")]
    assert run([*args, "--steps", "2", "--set", "validation=1", *TINY]) == 0
    output = capsys.readouterr()
    last = [line for line in output.err.splitlines() if "train: steps 2/2" in line][-1]
    assert "loss " in last and "mIoU " in last and "iB" in last
    assert "a step" in output.out and f"pinchpoint cloud eval {tmp_path / 'run'} {rooms}" in output.out
    assert run(["cloud", "train", "-o", str(tmp_path / "run"), "--resume", "--steps", "3"]) == 0
    assert "3 of 3" in capsys.readouterr().out


def test_eval_prints_the_table_it_writes(
    rooms: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "scores"
    args = [
        "cloud",
        "eval",
        str(trained),
        str(rooms),
        "-o",
        str(out),
        "--device",
        "cpu",
        "--densities",
        "1,0.1",
        "--no-plot",
    ]
    assert run(args) == 0
    out_text = capsys.readouterr().out
    record = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert [row["thinning"] for row in record["rows"]] == ["uniform", "uniform", "one-per-cell", "distance"]
    lines = {line.split("  ")[0]: line for line in out_text.splitlines()}
    assert f"{record['rows'][1]['miou']:.1%}" in lines["uniform 10%"]
    assert f"{record['majority']} everywhere" in out_text.splitlines()[0]
    assert (out / "scores.csv").is_file() and not (out / "scores.png").exists()


def test_predict_labels_a_scan_and_counts_its_classes(
    rooms: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pinchpoint.systems.cloud.files.formats import read_scene

    room, out = rooms / "room-900000.npz", tmp_path / "out.ply"
    assert run(["cloud", "predict", "packaged", str(room), "-o", str(out), "--device", "cpu"]) == 0
    output, labels = capsys.readouterr(), read_scene(out).labels
    assert labels is not None and f"{out}: 1,000 points, labelled in one piece" in output.out
    walls = int((labels == 2).sum())
    row = next(line.split() for line in output.out.splitlines() if line.split()[1:2] == ["wall"])
    assert row[:4] == ["2", "wall", f"{walls}", f"{walls / 1000:.1%}"]
    assert max(len(line) for line in output.out.splitlines() if str(tmp_path) not in line) <= 80


def test_sample_thins_a_file_and_prints_how_many_points_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pinchpoint.systems.cloud.files.formats import read_scene

    xyz = np.random.default_rng(0).uniform(size=(400, 3)).astype(np.float32)
    source, out = write_ply(tmp_path / "in.ply", xyz), tmp_path / "out.ply"
    args = ["cloud", "sample", str(source), "-o", str(out), "--cell", "0.5", "--device", "cpu"]
    assert run([*args, "--ratio", "0.3:0.7"]) == 0
    (out_text, err_text), kept = capsys.readouterr(), read_scene(out)
    assert f"{kept.points:,} of 400 points" in out_text and 0.3 * 400 - 8 <= kept.points <= 0.7 * 400 + 8
    assert "note:" not in err_text
    whole = {tuple(row) for row in xyz.round(4).tolist()}
    assert all(tuple(row) in whole for row in kept.xyz.round(4).tolist())
    assert run([*args, "--one-per-cell"]) == 0
    assert read_scene(out).points == 8 and "8 of 400 points" in capsys.readouterr().out
    assert run([*args, "--one-per-cell", "--ratio", "0.5"]) == 2
    assert "0.5 cannot be combined with one point per cell" in capsys.readouterr().err
    flat = [*args, "--one-per-cell", "--cell", "0.5,1,0.25"]
    assert run(flat) == 0
    assert read_scene(out).points == 8 and "8 of 0.5 x 1 x 0.25, 50.0 points" in capsys.readouterr().out
    assert run(["cloud", "sample", str(source), "-o", str(out), "--cell", "0.001", "--device", "cpu"]) == 0
    output = capsys.readouterr()
    assert "400 of 400 points" in output.out and "a larger --cell" in output.err, (
        "cells with one point each cannot be thinned"
    )


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["train", "{rooms}", "-o", "{trained}"], 2, "already holds a run"),
        (["train", "{trained}", "-o", "{new}"], 2, "is the folder of a run"),
        (["train", "{rooms}", "-o", "{new}", "--resume"], 2, "no run in"),
        (["train", "{rooms}", "-o", "{new}", "--views", "dense,thin"], 2, "'thin' is not a view"),
        (["train", "{rooms}", "-o", "{new}", "--views", "uniform:0.7:0.3"], 2, "range of ratios 0.7 to 0.3"),
        (
            ["train", "{rooms}", "-o", "{new}", "--consistency", "kl"],
            2,
            "--consistency kl cannot be used with the views",
        ),
        (["train", "{rooms}", "-o", "{new}", "--cell", "0"], 2, "--cell 0"),
        (["train", "{rooms}", "-o", "{new}", "--cell", "1e-9", "--device", "cpu"], 2, "cells"),
        (["train", "{rooms}", "-o", "{new}", "--set", "ignore=road"], 2, "'road' is not a whole number"),
        (["train", "{rooms}", "-o", "{new}", "--set", "ignore=255"], 2, "--set ignore cannot be used with"),
        (["train", "{rooms}", "-o", "{new}", "--set", "cells=3"], 2, "--set cells=3 is not a known setting"),
        (
            ["train", "{rooms}", "-o", "{new}", "--budget", "1MiB", "--device", "cpu"],
            1,
            "the budget is 1.00 MiB",
        ),
        (
            ["eval", "{trained}", "{rooms}", "-o", "{rooms}", "--device", "cpu"],
            2,
            "is the folder of a dataset",
        ),
        (["eval", "{trained}", "{rooms}", "-o", "{new}", "--densities", "much"], 2, "--densities much"),
        (["eval", "{trained}", "{rooms}", "-o", "{new}", "--densities", "1,2"], 2, "densities 1, 2"),
        (["data", "-o", "{trained}", "--train", "1", "--test", "1"], 2, "is the folder of a run"),
        (["data", "-o", "{new}", "--points", "few"], 2, "'few' is not a number of points"),
        (["sample", "{new}.ply", "-o", "{new}.out.ply"], 2, "does not exist"),
        (["sample", "{new}.ply", "-o", "{new}.out.ply", "--cell", "0.1,0.2"], 2, "cell size '0.1,0.2'"),
        (["sample", "{new}.ply", "-o", "{new}.out.ply", "--cell", "0.1,0.1,0"], 2, "above 0, or three"),
        (["eval", "{trained}", "{rooms}", "-o", "{new}", "--cell", "wide"], 2, "cell size 'wide'"),
        (["predict", "packaged", "{new}.laz", "-o", "{new}.out.laz"], 2, "does not exist"),
        (["predict", "{new}", "{room}", "-o", "{new}.ply"], 2, "no run in"),
        (["predict", "{trained}", "{room}", "-o", "{new}.txt"], 2, "Cannot write points"),
        (["predict", "{trained}", "{room}", "-o", "{room}"], 2, "is the input file"),
        (["predict", "{trained}", "{room}", "-o", "{new}.laz"], 2, "needs a scale"),
        (["predict", "{trained}", "{room}", "-o", "{new}.ply", "--chunk", "0"], 2, "size '0'"),
    ],
)
def test_a_mistake_prints_an_error_and_a_hint(
    args: list[str],
    code: int,
    message: str,
    rooms: Path,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [
        arg.format(rooms=rooms, trained=trained, new=tmp_path / "new", room=rooms / "room-900000.npz")
        for arg in args
    ]
    exit_code, what, hint = run_failing(arguments, capsys)
    assert (exit_code, message in what) == (code, True), what
    assert hint


@pytest.mark.parametrize(
    ("bad", "ratio", "cell", "message"),
    [
        ("nan 0 0 1\n", "0.5", "0.1", "NaN or infinite"),
        ("inf 0 0 1\n", "0.5", "0.1", "NaN or infinite"),
        ("", "0.5", "0.1", "has no points"),
        ("0 0 0 1\n", "1.5", "0.1", "The ratio '1.5'"),
        ("0 0 0 1\n", "0.7:0.3", "0.1", "The ratio '0.7:0.3'"),
        ("0 0 0 1\n", "0.5", "0", "The cell size is 0"),
        ("0 0 0 1\n900 0 0 1\n", "0.5", "1e-30", "Cells of size 1e-30"),
    ],
)
def test_an_invalid_cloud_prints_an_error_and_a_hint(
    bad: str, ratio: str, cell: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = bad.count("\n")
    axes = "".join(f"property float {axis}\n" for axis in "xyz")
    header = f"ply\nformat ascii 1.0\nelement vertex {count}\n{axes}property uchar red\nend_header\n"
    (tmp_path / "bad.ply").write_text(header + bad, encoding="ascii")
    args = [
        "sample",
        tmp_path / "bad.ply",
        "-o",
        tmp_path / "out.ply",
        "--ratio",
        ratio,
        "--cell",
        cell,
        "--device",
        "cpu",
    ]
    code, what, hint = run_failing(args, capsys)
    assert (code, message in what, bool(hint)) == (2, True, True), what
    assert not (tmp_path / "out.ply").exists()
