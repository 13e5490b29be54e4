"""Optional packages are imported late, and a command that misses one exits with 3 and a hint."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.contracts.source import Module, read_module

from pinchpoint.cli.main import run
from pinchpoint.core.errors import Missing

OPTIONAL = ("pyscf", "spglib", "ase", "e3nn", "pymatgen", "meshio", "folx", "ray", "submitit")
POSCAR = """water
1.0
5.0 0.0 0.0
0.0 5.0 0.0
0.0 0.0 5.0
O H
1 2
Cartesian
2.5 2.5 2.4
2.5 3.26 2.98
2.5 1.74 2.98
"""

FRAMEWORK_COMMANDS = {
    "torch": (
        "operator data -o out --train 1 --test 1",
        "operator train data -o out",
        "radiance data -o out --images 1",
        "radiance train data -o out",
        "cloud train data -o out",
        "density train data -o out",
        "bench operator",
    ),
    "jax": ("vmc train H2 -o out", "vmc eval run", "bench vmc"),
}


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes a package one that is not installed, also where it was imported before."""

    def hidden(package: str) -> None:
        class Refuse:
            def find_spec(self, name: str, path: object = None, target: object = None) -> None:
                if name.partition(".")[0] == package:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, "meta_path", [Refuse(), *sys.meta_path])

    return hidden


@pytest.fixture
def poscar(tmp_path: Path) -> str:
    pytest.importorskip("torch", reason="densities are torch's")
    (tmp_path / "POSCAR").write_text(POSCAR, encoding="utf-8")
    return str(tmp_path / "POSCAR")


def missed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command says where it misses a package."""
    assert run(list(arguments)) == 3
    output = capsys.readouterr().err
    assert "Traceback" not in output
    return " ".join(output.split())


def early_imports(module: Module) -> list[str]:
    """Optional packages that a module imports when it is imported itself."""
    return [name for name in module.early_imports if name.partition(".")[0] in OPTIONAL]


def test_optional_packages_are_imported_late(package: list[Module]) -> None:
    assert {module.place: names for module in package if (names := early_imports(module))} == {}


def test_an_early_import_is_seen() -> None:
    module = read_module("import ase.io\ndef f():\n    import e3nn\nif True:\n    from spglib import x\n")
    assert early_imports(module) == ["ase.io", "spglib"]


@pytest.mark.parametrize("framework", FRAMEWORK_COMMANDS)
def test_commands_without_their_framework_say_how_to_install_it(framework: str, tmp_path: Path) -> None:
    # A new process: here, modules that import the framework may have been imported before.
    code = (
        "import sys\n"
        f"sys.modules[{framework!r}] = None\n"
        "from pinchpoint.cli.main import run\n"
        f"for command in {FRAMEWORK_COMMANDS[framework]!r}:\n"
        "    print(run(command.split()), command, file=sys.stderr)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    commands = FRAMEWORK_COMMANDS[framework]
    assert [line for line in process.stderr.splitlines() if line[0].isdigit()] == [f"3 {c}" for c in commands]
    assert process.stderr.count(f"The package {framework!r} is not installed.") == len(commands)
    assert process.stderr.count(f"pip install 'pinchpoint[{framework}]'") == len(commands)


def test_densities_without_pyscf_are_missed(hide, tmp_path: Path, capsys) -> None:
    hide("pyscf")
    output = missed(capsys, "density", "data", "-o", str(tmp_path / "data"), "--preset", "tiny")
    assert "PySCF, which is not installed" in output and "pip install 'pinchpoint[pyscf]'" in output


def test_symmetry_without_spglib_is_missed(hide, poscar: str, tmp_path: Path, capsys) -> None:
    hide("spglib")
    output = missed(capsys, "density", "predict", poscar, "-o", str(tmp_path / "CHGCAR"), "--symmetry")
    assert "needs spglib, which is not installed" in output and "leave --symmetry out" in output
    assert not (tmp_path / "CHGCAR").exists()


@pytest.mark.parametrize("suffix", ["xyz", "cif"])
def test_structures_without_ase_are_missed_and_a_poscar_is_read(
    hide, suffix: str, poscar: str, tmp_path: Path, capsys
) -> None:
    hide("ase")
    (tmp_path / f"water.{suffix}").write_text(
        "3\n\nO 0 0 0\nH 0 0.76 0.58\nH 0 -0.76 0.58\n", encoding="utf-8"
    )
    output = str(tmp_path / "CHGCAR")
    text = missed(capsys, "density", "predict", str(tmp_path / f"water.{suffix}"), "-o", output)
    assert (
        f"ASE is needed for .{suffix} files, but it is not installed" in text and "Or give a POSCAR" in text
    )
    assert run(["density", "predict", poscar, "-o", output, "--grid", "4,4,4", "--device", "cpu"]) == 0


def test_the_slow_forms_without_e3nn_are_missed(hide, poscar: str, tmp_path: Path, capsys) -> None:
    hide("e3nn")
    small = ("--grid", "4,4,4", "--device", "cpu")
    commands = (
        ("density", "predict", poscar, "-o", str(tmp_path / "CHGCAR"), "--form", "full", *small),
        (
            "verify",
            "density",
            "--variant",
            "scalar",
            "--size",
            "64",
            "--set",
            "mul=2",
            "--set",
            "lmax=0",
            "--device",
            "cpu",
        ),
    )
    for command in commands:
        output = missed(capsys, *command)
        assert "e3nn" in output and "pip install" in output, command


def test_conversions_without_their_package_are_missed(hide) -> None:
    import numpy as np

    from pinchpoint.systems.density.files.structures import to_ase, to_pymatgen
    from pinchpoint.systems.density.grid.structure import Structure

    crystal = Structure(np.eye(3) * 3.0, ("H",), np.zeros((1, 3)))
    for package, convert in (("ase", to_ase), ("pymatgen", to_pymatgen)):
        hide(package)
        with pytest.raises(Missing, match=f"(?i){package}") as caught:
            convert(crystal)
        assert "pip install" in caught.value.hint
