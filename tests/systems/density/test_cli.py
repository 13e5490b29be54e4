"""`pinchpoint density`: from a structure to a CHGCAR and its error, and two lines for every mistake."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.cli.main import run

POSCAR = """water
1.0
4.0 0.0 0.0
0.0 4.5 0.0
0.5 0.0 5.0
{species}
{counts}
Cartesian
{rows}
"""
ROWS = ("2.0 2.0 2.1173", "2.0 2.7572 1.5308", "2.0 1.2428 1.5308")
# A screw axis along the second vector: its half needs an even number of points.
SCREW = """screw
1.0
4.0 0.0 0.0
0.0 4.5 0.0
0.5 0.0 5.0
O H
2 2
Direct
0.1 0.2 0.3
-0.1 0.7 -0.3
0.3 0.1 0.2
-0.3 0.6 -0.2
"""
XYZ = "3\nwater\nO 0.0 0.0 0.1173\nH 0.0 0.7572 -0.4692\nH 0.0 -0.7572 -0.4692\n"


def poscar(path: Path, *, species: str = "O H", counts: str = "1 2", rows: tuple[str, ...] = ROWS) -> Path:
    path.write_text(POSCAR.format(species=species, counts=counts, rows="\n".join(rows)))
    return path


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with a spin output, never trained."""
    torch = pytest.importorskip("torch", reason="the density model is torch's")
    from pinchpoint.systems.density.model.config import DensityConfig
    from pinchpoint.systems.density.model.model import DensityModel
    from pinchpoint.systems.density.training.weights import FORMAT

    config = DensityConfig(
        ("H", "O"), mul=6, lmax=1, gaussians=4, hidden=8, head=8, cutoff_a=2.5, spin=True, prior=True
    )
    model = DensityModel(config)
    shape = torch.linspace(1, 0, model.prior.shape[1]) ** 4
    model.set_prior(torch.stack([shape, 6 * shape]))
    path = tmp_path_factory.mktemp("density") / "model.pt"
    torch.save(
        {"format": FORMAT, "config": config.to_json(), "weights": model.state_dict(), "about": "{}"}, path
    )
    return path


@pytest.fixture
def args(weights: Path, tmp_path: Path) -> list[Any]:
    """A prediction that works; options after it win."""
    return [
        "predict",
        poscar(tmp_path / "POSCAR"),
        "--weights",
        weights,
        "--grid",
        "8,10,12",
        "--device",
        "cpu",
    ]


def failed(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, the line of what and the line of hint; progress before them aside."""
    capsys.readouterr()
    code = run(["density", *map(str, args)])
    seen = capsys.readouterr()
    what, hint = [line for line in seen.err.splitlines() if not line.startswith("[")]
    assert seen.out == ""
    return code, what.removeprefix("error: "), hint.removeprefix("  hint: ")


def done(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    capsys.readouterr()
    assert run(["density", *map(str, args)]) == 0
    seen = capsys.readouterr()
    return seen.out, seen.err


def test_help_of_the_group_and_of_its_commands_needs_no_torch() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\nfrom pinchpoint.systems.density.cli import app\n"
        "names = [command.name for command in app.registered_commands]\n"
        "codes = [run(args) for args in (['density', '--help'], *(['density', name, '--help'] for name in "
        "names))]\n"
        "assert set(codes) == {0} and {'predict', 'eval'} <= set(names), (codes, names)\n"
        "assert not {'torch', 'numpy', 'rich', 'matplotlib'} & set(sys.modules), 'imported'"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    listed = made.stdout.partition("Commands:\n")[2].partition("Usage:")[0]
    assert "..." not in listed, "every command is told in one line of 80 columns"


@pytest.mark.parametrize("name", ["CHGCAR", "rho.cube", "rho.npz"])
def test_a_structure_becomes_a_density_with_its_count_time_and_warnings(
    name: str, args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pinchpoint.systems.density.files.formats import read_volume

    out, err = done([*args, "-o", tmp_path / name, "--electrons", "8"], capsys)
    volume = read_volume(tmp_path / name)
    assert volume.grid == (8, 10, 12) and volume.electrons == pytest.approx(8, rel=1e-9)
    assert (
        "by the model, 8 in the neutral atoms (O 6, H 1); scaled by" in out
        and "8 x 10 x 12, 960 probes" in out
    )
    for part in ("atoms", "probes", "file"):
        assert part in next(line for line in out.splitlines() if line.startswith("time"))
    assert ("no augmentation occupancies" in err) == (name == "CHGCAR")
    assert ("only the total density" in err) == (name == "rho.cube")
    assert "probes" in err, "progress was shown"


def test_a_molecule_is_put_into_a_box_on_a_smooth_grid(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ase", reason="xyz files are read by ASE")
    from pinchpoint.systems.density.files.formats import read_volume

    (tmp_path / "water.xyz").write_text(XYZ)
    weights = args[args.index("--weights") + 1]
    out, _ = done(
        [
            "predict",
            tmp_path / "water.xyz",
            "-o",
            tmp_path / "a.npz",
            "--weights",
            weights,
            "--spacing",
            "0.5",
            "--padding",
            "3",
            "--device",
            "cpu",
            "--chunk",
            "1k",
        ],
        capsys,
    )
    volume = read_volume(tmp_path / "a.npz")
    np.testing.assert_allclose(np.diag(volume.lattice), [6.0, 7.5144, 6.5865], atol=1e-6)
    assert volume.grid == (12, 16, 14) and f"{12 * 16 * 14:,} probes in chunks of 1,000" in out


def test_symmetry_budget_and_forms_lead_to_the_same_density(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("spglib", reason="space groups are spglib's")
    (tmp_path / "POSCAR").write_text(SCREW)
    done([*args, "-o", tmp_path / "plain.npz"], capsys)
    for options in (["--symmetry"], ["--budget", "64MiB"], ["--form", "full"]):
        out, _ = done([*args, "-o", tmp_path / "other.npz", *options], capsys)
        assert ("distinct points" in out) == ("--symmetry" in options)
        assert ("peak" in out) == ("--budget" in options)
        out, _ = done(["eval", tmp_path / "other.npz", tmp_path / "plain.npz"], capsys)
        assert (
            float(next(line for line in out.splitlines() if line.startswith("NMAE ")).split()[1].rstrip("%"))
            < 1e-3
        )


def test_eval_measures_draws_and_records(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done([*args, "-o", tmp_path / "CHGCAR"], capsys)
    done([*args, "-o", tmp_path / "CHGCAR_scaled", "--electrons", "8"], capsys)
    out, _ = done(
        [
            "eval",
            tmp_path / "CHGCAR_scaled",
            tmp_path / "CHGCAR",
            "-o",
            tmp_path / "out",
            "--at",
            "0.5,0.5,0",
        ],
        capsys,
    )
    record = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    scale = 8 / record["electrons_reference"]
    assert record["nmae"] == pytest.approx(abs(scale - 1), rel=1e-6) and f"{record['nmae']:.3%}" in out
    assert record["slices_at"] == [0.5, 0.5, 0.0] and (tmp_path / "out" / "slices.png").stat().st_size > 1_000


@pytest.mark.parametrize(
    ("made", "said", "hint"),
    [
        ({"counts": "0 0", "rows": ()}, "no atoms", "at least one"),
        ({"rows": (ROWS[0], ROWS[1], "2.0 2.7572 1.5309")}, "2 and 3 are 0.000 angstrom apart", "Remove one"),
        ({"species": "O Xx"}, "unknown species 'Xx'", "symbols of elements"),
        ({"species": "Hf O"}, "not trained on Hf; it knows H, O", "train"),
        ({"rows": (*ROWS[:2], "2.0 nan 1.0")}, "atom 3 is NaN", "finite"),
        ({"rows": ROWS[:2]}, "position 3 of 3", ""),
    ],
)
def test_a_structure_that_has_no_density_is_refused(
    made: dict[str, Any],
    said: str,
    hint: str,
    args: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    poscar(tmp_path / "POSCAR", **made)
    code, what, cure = failed([*args, "-o", tmp_path / "CHGCAR"], capsys)
    assert code == 2 and said in what and hint in cure
    assert not (tmp_path / "CHGCAR").exists()


def test_a_cell_without_volume_and_a_file_that_is_not_there_are_refused(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = (tmp_path / "POSCAR").read_text().replace("0.5 0.0 5.0", "8.0 0.0 0.0")
    (tmp_path / "POSCAR").write_text(flat)
    code, what, hint = failed([*args, "-o", tmp_path / "CHGCAR"], capsys)
    assert code == 2 and "volume of 0" in what and "plane" in hint
    (tmp_path / "POSCAR").unlink()
    code, what, hint = failed([*args, "-o", tmp_path / "CHGCAR"], capsys)
    assert code == 2 and "There is no file" in what and hint


def test_an_empty_molecule_is_refused(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ase", reason="xyz files are read by ASE")
    (tmp_path / "none.xyz").write_text("0\nnothing\n")
    code, what, hint = failed(
        ["predict", tmp_path / "none.xyz", *args[2:], "-o", tmp_path / "CHGCAR"], capsys
    )
    assert code == 2 and what and hint


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (["--grid", "0,8,8"], "grid of 0 x 8 x 8", "at least 2"),
        (["--grid", "8,1,8"], "grid of 8 x 1 x 8", "at least 2"),
        (["--grid", "8,8"], "'8,8' is not a grid", "80,80,80"),
        (["--budget=-3GiB"], "'-3GiB' is not a number of bytes", "24GiB"),
        (["--grid", "9999999"], "of main memory", "coarser"),
        (["--spacing", "0.2"], "A grid and a spacing were both given", "Leave one"),
        (["--electrons", "0"], "0 electrons", "above 0"),
        (["--chunk", "some"], "not a number of points", "512k"),
        (["--budget", "lots"], "There is no card", ""),
        (["--weights", "/nowhere.pt"], "Weights cannot be read", "run"),
        (["--form", "other"], "no form", "scalar"),
        (["--symmetry", "--grid", "9,9,9"], "does not map a grid of 9 x 9 x 9", "--grid"),
    ],
)
def test_options_that_cannot_work_are_refused(
    options: list[str],
    said: str,
    hint: str,
    args: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "--symmetry" in options:
        pytest.importorskip("spglib", reason="space groups are spglib's")
        (tmp_path / "POSCAR").write_text(SCREW)
    code, what, cure = failed([*args, *options, "-o", tmp_path / "CHGCAR"], capsys)
    assert code == 2 and said in what and hint in cure
    assert not (tmp_path / "CHGCAR").exists()


def test_outputs_that_cannot_be_written_are_refused_before_the_work(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("the work was begun")

    monkeypatch.setattr("pinchpoint.systems.density.training.weights.load_weights", never)
    old = tmp_path / "CHGCAR"
    old.write_text("mine")
    old.chmod(0o444)
    allowed = os.access
    # Root may write everything; the system says no to everyone else by itself.
    monkeypatch.setattr(
        os, "access", lambda path, mode: (Path(path), mode) != (old, os.W_OK) and allowed(path, mode)
    )
    code, what, hint = failed([*args, "-o", old], capsys)
    assert code == 2 and "read-only" in what and "-o" in hint
    assert old.read_text() == "mine"
    for output, said in (
        (tmp_path, "it is a folder"),
        (tmp_path / "no" / "CHGCAR", "Cannot write"),
        (tmp_path / "density.txt", "cannot be determined"),
    ):
        code, what, hint = failed([*args, "-o", output], capsys)
        assert code == 2 and said in what and hint


def test_a_full_disk_leaves_the_old_file(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "CHGCAR"
    old.write_text("mine")

    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pinchpoint.core.files.os.replace", full)
    code, what, hint = failed([*args, "-o", old], capsys)
    assert code == 2 and "No space left" in what and "Free some space" in hint
    assert old.read_text() == "mine" and sorted(path.name for path in tmp_path.iterdir()) == [
        "CHGCAR",
        "POSCAR",
    ]


def test_a_budget_too_small_says_what_is_needed(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, what, hint = failed([*args, "-o", tmp_path / "CHGCAR", "--budget", "4KiB"], capsys)
    assert code == 1 and "features of 3 atoms and the radial functions take" in what and "--budget" in hint


def test_damaged_densities_are_refused_by_eval(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "CHGCAR"
    done([*args, "-o", whole], capsys)
    text = whole.read_text()
    head = text.index("8   10   12")
    number = text[head:].split()[7]
    block = "augmentation occupancies   1  4\n  0.1 0.2 0.3 0.4\n"
    end = text.index("    8   10   12", head + 20)  # the spin density follows
    cases = {
        "cut": (text[: len(text) // 3], "there are 622 numbers, but 960 are expected"),
        "shorter": (text[: head + 500], "ends before the last of 960"),
        "nan": (text.replace(number, "NaN".rjust(len(number)), 1), "CHGCAR_nan"),
        "few": (text[:end] + block + text[end:], "augmentation occupancies for 1 of 3 atoms"),
        "short": (
            text[:end] + block.replace(" 0.4", "") + text[end:],
            "4 numbers are expected, but there are 3",
        ),
    }
    for name, (damaged, said) in cases.items():
        path = tmp_path / f"CHGCAR_{name}"
        path.write_text(damaged)
        for order in ([path, whole], [whole, path]):
            code, what, hint = failed(["eval", *order], capsys)
            assert code == 2 and said in what and hint, name
    code, what, hint = failed(["eval", whole, tmp_path / "POSCAR"], capsys)
    assert code == 2 and hint
    out = tmp_path / "file"
    out.write_text("")
    code, what, hint = failed(["eval", whole, whole, "-o", out], capsys)
    assert code == 2 and "folder" in what and hint


def test_densities_on_other_grids_and_cells_are_refused_by_eval(
    args: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done([*args, "-o", tmp_path / "a.npz"], capsys)
    done([*args, "-o", tmp_path / "b.npz", "--grid", "8,8,8"], capsys)
    code, what, hint = failed(["eval", tmp_path / "b.npz", tmp_path / "a.npz"], capsys)
    assert code == 2 and "8 x 8 x 8" in what and "--grid 8,10,12" in hint
    (tmp_path / "POSCAR").write_text((tmp_path / "POSCAR").read_text().replace("4.0 0.0 0.0", "4.1 0.0 0.0"))
    done([*args, "-o", tmp_path / "c.npz"], capsys)
    code, what, hint = failed(["eval", tmp_path / "c.npz", tmp_path / "a.npz"], capsys)
    assert code == 2 and "cells differ" in what and "density predict" in hint
    code, what, hint = failed(["eval", tmp_path / "a.npz", tmp_path / "a.npz", "--at", "middle"], capsys)
    assert code == 2 and "not a point" in what and "0.5,0.5,0.5" in hint


def test_a_grid_that_is_none_is_refused_before_the_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "assert run(['density', 'predict', 'POSCAR', '-o', 'CHGCAR', '--grid', 'abc']) == 2\n"
        "assert run(['density', 'predict', 'POSCAR', '-o', 'CHGCAR', '--chunk', 'abc']) == 2\n"
        "assert 'torch' not in sys.modules, 'imported'"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert made.returncode == 0 and "'abc' is not a grid" in made.stderr, made.stderr


def test_what_the_packaged_model_never_saw_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ase", reason="xyz files are read by ASE")
    (tmp_path / "H2.xyz").write_text("2\nH2\nH 0 0 0\nH 0.45 0 0\n")
    out, err = done(
        ["predict", tmp_path / "H2.xyz", "-o", tmp_path / "a.npz", "--spacing", "0.25", "--device", "cpu"],
        capsys,
    )
    assert "by the model, 2 in the neutral atoms" in out
    assert "note: H-H at 0.45 angstrom: the closest in the training data is" in err
    (tmp_path / "water.xyz").write_text(XYZ)
    out, err = done(
        ["predict", tmp_path / "water.xyz", "-o", tmp_path / "a.npz", "--spacing", "0.2", "--device", "cpu"],
        capsys,
    )
    assert "note" not in err
