"""`pinchpoint vmc`: from a name to an energy with its error bar, and two lines for every mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.cli.main import run
from pinchpoint.systems.common.overrides import parse_overrides
from pinchpoint.systems.vmc import cli
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.optimization.driver import EnergyReport, ProgramDriver
from pinchpoint.systems.vmc.optimization.programs import Programs
from pinchpoint.systems.vmc.quick_stop import QuickStop
from pinchpoint.systems.vmc.settings import RunOptions, Settings
from pinchpoint.systems.vmc.training.runs import read_run

NAMES = ["train", "eval", "scan", "orbitals"]
TINY = [
    "--device",
    "cpu",
    "--walkers",
    "8",
    "--set",
    "moves=2",
    "--set",
    "burn=2",
    "--set",
    "adam_steps=10",
    "--set",
    "method=hessian",
    "--set",
    "one=4",
    "--set",
    "two=2",
    "--set",
    "layers=1",
    "--set",
    "determinants=1",
]


@pytest.fixture(autouse=True)
def _programs(tiny: dict[str, Any], kept_programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wave function of the tests, and their folder of compiled programs instead of the user's."""
    from pinchpoint.systems.vmc.optimization import compile_cache

    monkeypatch.setattr(compile_cache, "use_compile_cache", lambda: kept_programs)


def failed(args: list[Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, the message and the hint, without the progress before them."""
    capsys.readouterr()
    code = run(["vmc", *map(str, args)])
    seen = capsys.readouterr()
    what, hint = [line for line in seen.err.splitlines() if not line.startswith(("[", "electrons: "))]
    assert seen.out == ""
    return code, what.removeprefix("error: "), hint.removeprefix("  hint: ")


def test_help_of_the_group_and_of_its_commands_needs_no_framework() -> None:
    code = (
        "import sys\nfrom pinchpoint.cli.main import run\n"
        "commands = [['vmc', '--help'], *(['vmc', name, '--help'] for name in sys.argv[1:])]\n"
        "codes = [run(args) for args in commands]\nassert not any(codes), codes\n"
        "assert not {'torch', 'jax', 'numpy', 'rich'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run([sys.executable, "-c", code, *NAMES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = done.stdout.partition("Commands:\n")[2].partition("Usage:")[0]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == NAMES
    assert "..." not in listed, "every command is told in one line of 80 columns"
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(("told", "taken"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "3"}, "3")])
def test_lapack_is_told_to_take_one_thread_before_it_is_loaded_and_a_users_number_is_kept(
    told: dict[str, str], taken: str, tmp_path: Path
) -> None:
    code = (
        "import os, sys\nfrom pinchpoint.systems.vmc.cli import start_jax\nstart_jax()\n"
        "assert 'scipy.linalg' not in sys.modules\n"
        "import jax\njax.numpy.linalg.cholesky(jax.numpy.eye(3)).block_until_ready()\n"
        "assert 'scipy.linalg' in sys.modules, 'JAX uses another LAPACK'\n"
        "print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    others = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    told = {**others, "XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", **told}
    done = subprocess.run([sys.executable, "-c", code], env=told, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{taken}\n"), done.stderr


def test_an_energy_with_its_error_bar_comes_of_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, record = tmp_path / "run", tmp_path / "eval.json"
    assert run(["vmc", "train", "H", "-o", str(folder), "--steps", "40", *TINY]) == 0
    seen = capsys.readouterr()
    lines = seen.err.splitlines()
    assert any(
        "vmc:  40/40" in line and "±" in line and " var " in line and " acc " in line for line in lines
    )
    assert max(map(len, lines)) <= 80
    assert "electrons: 1 up, 0 down (doublet): by Hund's rules" in lines
    assert "electrons  1 up, 0 down (doublet): by Hund's rules" in seen.out
    assert "reference  -0.500000 Ha" in seen.out and "next" in seen.out
    assert run(["vmc", "eval", str(folder), "-o", str(record), "--samples", "20", "--device", "cpu"]) == 0
    seen = capsys.readouterr()
    found = json.loads(record.read_text())
    assert "1 up, 0 down (doublet)\n" in seen.out and (found["up"], found["down"]) == (1, 0)
    assert {"energy_ha", "error_ha", "variance", "acceptance", "rhat"} <= set(found)
    assert f"energy     {found['energy_ha']:.6f} +- {found['error_ha']:.6f} Ha" in seen.out.replace(
        "energy       ", "energy     "
    )
    assert run(["vmc", "train", "H", "-o", str(folder), "--resume", "--steps", "50", "--device", "cpu"]) == 0
    assert json.loads((folder / "record.json").read_text())["step"] == 50


def report_of(done: int, total: int, *values: float) -> EnergyReport:
    names = ("energy_ha", "error_ha", "variance", "acceptance", "step_s")
    return EnergyReport("train", done, total, **dict(zip(names, values, strict=False)))


def test_a_line_of_progress_fits_80_columns_for_a_long_run_of_a_large_molecule() -> None:
    report = report_of(9_950, 10_000, -109.54231, 0.00123, 0.0123, 0.523, 0.0306)
    assert cli._numbers(report) == "-109.542±0.001 var 1e-2 acc 52% 31ms"
    assert len("[1234.5 s] vmc:  9,950/10,000  " + cli._numbers(report) + ", 0:02 left") <= 80
    small = report_of(100, 1000, -1.17447, 0.00012, 0.0012, 0.52, 0.0081)
    assert cli._numbers(small) == "-1.1745±0.0001 var 1e-3 acc 52% 8.1ms"
    assert cli._numbers(report_of(10, 1000, -1.17447)) == "-1.1745"


def test_ctrl_c_stops_with_a_checkpoint_and_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = cli._show

    def stopping(tell: Any, report: EnergyReport, **options: Any) -> None:
        shown(tell, report, **options)
        if report.stage == "train" and report.done == 10:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(cli, "_show", stopping)
    assert run(["vmc", "train", "H", "-o", str(tmp_path / "run"), "--steps", "40", *TINY]) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said in (
        f"stopped at step {at} of 40 with a checkpoint; continue with --resume" for at in (10, 20)
    )


@pytest.mark.parametrize("command", [["train", "H"], ["scan", "H2", "--bond", "1.4,1.6"]])
def test_a_stop_while_the_first_program_runs_waits_for_its_checkpoint(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = QuickStop()
    armed: dict[str, bool] = {}
    compile_programs, start_program = Programs.start, ProgramDriver.start

    def compiling(self: Programs, *args: Any) -> None:
        armed.setdefault("compiling", stop.is_armed)  # a program that is needed later is looked up here too
        compile_programs(self, *args)

    def starting(self: ProgramDriver, step: int, seconds: float) -> int:
        programs = self.programs

        def launch(*program: Any) -> Any:
            armed["running"] = stop.is_armed
            os.kill(os.getpid(), signal.SIGTERM)
            return programs(*program)

        self.programs = launch
        return start_program(self, step, seconds)

    monkeypatch.setattr(cli, "QuickStop", lambda: stop)
    monkeypatch.setattr(Programs, "start", compiling)
    monkeypatch.setattr(ProgramDriver, "start", starting)
    options = ["-o", str(tmp_path / "out"), "--steps", "20", "--optimizer", "adam", *TINY]
    assert run(["vmc", *command, *options]) == 143
    assert armed == {"compiling": True, "running": False}
    folder = tmp_path / "out" / ("" if command[0] == "train" else "bond-1.4000")
    assert read_run(folder).checkpoints.last_step() == 10


@pytest.mark.parametrize(
    ("args", "code", "what", "hint"),
    [
        (["Xx"], 2, "There is no element or molecule 'Xx'", "Name an element from H to Kr"),
        (["h2"], 2, "There is no element or molecule 'h2'", "Write H2: upper and lower case matter"),
        (
            ["H2", "--spin", "1"],
            2,
            "A spin (up minus down) of 1 is impossible with the 2 electrons of H2.",
            "Use one of these spins: 0, 2.",
        ),
        (
            ["H2", "--charge", "2"],
            2,
            "A charge of +2 leaves 0 of the 2 electrons of H2.",
            "Use a charge of at most +1.",
        ),
        (
            ["H2", "--walkers", "0"],
            2,
            "--walkers 0 is out of range",
            "Give --walkers a value that is at least 1.",
        ),
        (["H2", "--bond", "0"], 2, "A bond of 0 bohr", "Use a finite length of at least 0.1 bohr"),
        (["H2", "--net", "huge"], 2, "There is no network 'huge'", "Use one of: small, "),
        (
            ["H2", "--optimizer", "sgd"],
            2,
            "The optimizer 'sgd' is unknown.",
            "Use one of: adam, spring, adam+spring.",
        ),
        (
            ["H2", "--set", "depth=3"],
            2,
            "--set depth=3 is not a known setting.",
            "Did you mean width? Use one of: pretrain, ",
        ),
        (
            ["H2", "--set", "walkers=3"],
            2,
            "--set walkers=3 is not possible, because walkers has an option of its own.",
            "Write --walkers 3.",
        ),
        (
            ["H2", "--set", "layers=x"],
            2,
            "--set layers=x is not valid: 'x' is not a whole number.",
            "Give a whole number",
        ),
        (["H2", "--budget", "9"], 2, "'9' is not a number of bytes", "Give a number with a unit"),
        (["H", "--budget", "2KiB", *TINY], 1, "This process already uses ", "Raise --budget well above "),
        (["H2", "--resume"], 2, "There is no run in ", "Leave out --resume to start one"),
        ([], 2, "There is no molecule to train.", "Name one, such as H2, LiH or file.xyz, or resume"),
        (
            ["H2", "--walkers", "9", "--chunk", "2"],
            2,
            "9 walkers do not divide into chunks of 2",
            "Use a chunk of 1",
        ),
    ],
)
def test_bad_input_is_two_lines_with_the_hint_and_leaves_no_run(
    args: list[str], code: int, what: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = failed(["train", *args, "-o", tmp_path / "run"], capsys)
    assert found[0] == code and found[1].startswith(what) and found[2].startswith(hint)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("3\n\nH 0 0 0\nH 0 0 1\n", "has 2 atoms, but its first line says 3", "Write 2 on its first line"),
        (
            "2\n\nH 0 0 0\nH 0 0 0.01\n",
            "Nuclei 1 (H) and 2 (H) of mine are only 0.0189 bohr apart",
            "Move them at least 0.1 bohr apart",
        ),
        (
            "2\n\nH 0 0 0\nQq 0 0 1\n",
            "line 4: 'Qq' is not an element",
            "Give the symbols of elements from H to Kr",
        ),
    ],
)
def test_an_xyz_file_that_is_no_molecule_is_refused(
    text: str, what: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.xyz").write_text(text)
    code, said, cure = failed(["train", tmp_path / "mine.xyz", "-o", tmp_path / "run"], capsys)
    assert code == 2 and what in said and cure.startswith(hint)
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_here_is_missed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinchpoint.backends.jax import measurement

    monkeypatch.setattr(measurement, "has_cuda", lambda: False)
    code, what, hint = failed(["train", "H2", "--device", "cuda", "-o", tmp_path / "run"], capsys)
    assert (code, what) == (3, "No CUDA device is available on this machine.") and hint.startswith(
        "Use --device cpu"
    )


def test_a_run_of_another_molecule_or_network_is_not_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert run(["vmc", "train", "H", "-o", str(folder), "--steps", "10", *TINY]) == 0
    code, what, _ = failed(["train", "He", "-o", folder, "--resume"], capsys)
    assert (code, what) == (2, f"The run in {folder} is of H, not of He.")
    code, what, _ = failed(["train", "H", "-o", folder, "--resume", "--net", "ferminet"], capsys)
    assert code == 2 and what.startswith(f"The run in {folder} has another network: one (was 4, is 256)")
    code, what, hint = failed(["train", "H", "-o", folder], capsys)
    assert (code, what, hint) == (
        2,
        f"{folder} already holds a run.",
        "Continue it with --resume, or choose another -o.",
    )
    code, what, _ = failed(["eval", tmp_path / "nothing", "-o", tmp_path / "eval.json"], capsys)
    assert code == 2 and what.startswith(f"There is no run in {tmp_path / 'nothing'}")
    code, what, _ = failed(["scan", "H2", "--bond", "1:2", "-o", tmp_path / "scan"], capsys)
    assert (code, what) == (2, "'1:2' is not a list of bond lengths.")


def test_settings_of_the_network_and_of_the_training_are_told_apart_by_name() -> None:
    texts = ["layers=3", "clip=8", "full=false", "adam_steps=5", "kind=psiformer", "sampler=langevin"]
    overrides = parse_overrides(texts, training=(RunOptions, Settings), model=NetConfig)
    assert overrides.model == {"layers": 3, "full": False, "kind": "psiformer"}
    assert overrides.training == {"clip": 8.0, "adam_steps": 5, "kind": "langevin"}
