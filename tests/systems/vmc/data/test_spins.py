"""The spin of molecules for which none is set, and the reason that is printed for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pinchpoint.core.errors import BadInput, Missing, NotConverged
from pinchpoint.systems.vmc.data.spins import ground_state
from pinchpoint.systems.vmc.data.system import System, system_of

OXYGEN = "2\n\nO 0 0 0\nO 0 0 1.2075\n"
METHYLENE = "3\n\nC 0 0 0\nH 0 0.995 0.415\nH 0 -0.995 0.415\n"
HYDROXYL = "2\n\nO 0 0 0\nH 0 0 1.03\n"


@pytest.fixture
def xyz(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "molecule.xyz"
        path.write_text(text)
        return path

    return write


def table(**energies: float) -> Callable[[System], float]:
    """Energies by spin, as `s0=-1.0`; a spin that is not there does not converge."""

    def energy_of(system: System) -> float:
        if f"s{system.spin}" not in energies:
            raise NotConverged("Hartree-Fock did not converge.", hint="Try another spin.")
        return energies[f"s{system.spin}"]

    return energy_of


@pytest.mark.parametrize("text", [OXYGEN, METHYLENE], ids=["O2", "CH2"])
def test_oxygen_and_methylene_from_files_are_triplets_without_pyscf_too(
    xyz: Callable[[str], Path], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyscf", None)
    state = ground_state(xyz(text))
    assert state.system.spin == 2 and "known" in state.why
    assert system_of(xyz(text)).spin == 2


@pytest.mark.parametrize(("text", "charge"), [(METHYLENE, 0), (HYDROXYL, 1)], ids=["CH2", "OH+"])
def test_hartree_fock_finds_triplets_of_molecules_that_are_triplets(
    xyz: Callable[[str], Path], text: str, charge: int
) -> None:
    pytest.importorskip("pyscf")
    from pinchpoint.systems.vmc.data.hartree_fock import energy_by_hartree_fock

    singlet, triplet = (
        energy_by_hartree_fock(system_of(xyz(text), spin=spin, charge=charge)) for spin in (0, 2)
    )
    assert triplet < singlet - 0.02
    state = ground_state(xyz(HYDROXYL), charge=1, energy_of=table(s0=singlet, s2=triplet, s4=triplet + 0.3))
    assert state.system.spin == 2


def test_a_stretched_singlet_may_have_other_orbitals_for_each_spin() -> None:
    pytest.importorskip("pyscf")
    from pinchpoint.systems.vmc.data.hartree_fock import energy_by_hartree_fock

    # Two hydrogen atoms, whose energy is -1 Ha; restricted orbitals would give about -0.75 Ha.
    energy = energy_by_hartree_fock(system_of("H2", bond=12.0))
    assert energy == pytest.approx(2 * energy_by_hartree_fock(system_of("H")), abs=1e-4)


def test_the_lowest_energy_decides_and_close_spins_are_named(xyz: Callable[[str], Path]) -> None:
    path = xyz(HYDROXYL)
    state = ground_state(path, charge=1, energy_of=table(s0=-75.0, s2=-75.02, s4=-74.7))
    assert (state.system.up, state.system.down) == (5, 3)
    assert state.text() == (
        "5 up, 3 down (triplet): the lowest by Hartree-Fock (singlet +20 mHa, quintet +320 mHa); "
        "that is close, so compare with --spin 0"
    )


def test_a_higher_spin_needs_a_margin_because_hartree_fock_favours_it(xyz: Callable[[str], Path]) -> None:
    path = xyz(HYDROXYL)
    state = ground_state(path, charge=1, energy_of=table(s0=-75.0, s2=-75.004))
    assert state.system.spin == 0 and "--spin 2" in state.why


def test_a_spin_that_does_not_converge_is_left_out_and_named(xyz: Callable[[str], Path]) -> None:
    path = xyz(HYDROXYL)
    one = ground_state(path, charge=1, energy_of=table(s2=-75.0, s4=-74.7))
    assert one.system.spin == 2
    assert one.why == (
        "the lowest by Hartree-Fock (quintet +300 mHa); the singlet did not converge, compare with --spin 0"
    )
    two = ground_state(path, charge=1, energy_of=table(s2=-75.0))
    assert two.why.endswith(
        "; the singlet and the quintet did not converge, compare with --spin 0 or --spin 4"
    )
    none = ground_state(path, charge=1, energy_of=table())
    assert none.why == "a guess, because Hartree-Fock did not converge; set --spin"


def test_an_element_that_the_basis_lacks_is_not_called_a_failure_to_converge(
    xyz: Callable[[str], Path],
) -> None:
    def refuse(system: System) -> float:
        if system.spin == 2:
            return -75.0
        raise BadInput("The basis b has 3 functions,\ntoo few.", hint="Use a larger one.")

    def refuse_all(system: System) -> float:
        raise BadInput("PySCF has no basis 'b' for OH: O is not in it.", hint="Use another one.")

    path = xyz(HYDROXYL)
    assert ground_state(path, charge=1, energy_of=refuse_all).why == (
        "a guess, because PySCF has no basis 'b' for OH: O is not in it; set --spin"
    )
    assert "the singlet was not compared, because the basis b has 3 functions" in (
        ground_state(path, charge=1, energy_of=refuse).why
    )


def test_without_pyscf_the_spin_is_called_a_guess(xyz: Callable[[str], Path]) -> None:
    def missing(system: System) -> float:
        raise Missing("PySCF is not installed.", hint="Install it.")

    state = ground_state(xyz(HYDROXYL), charge=1, energy_of=missing)
    assert state.system.spin == 0 and "a guess, because PySCF is not installed" in state.why


def test_named_molecules_atoms_and_spins_that_are_set_need_no_hartree_fock() -> None:
    def refuse(system: System) -> float:
        raise AssertionError(system)

    assert ground_state("O2", energy_of=refuse).text() == "9 up, 7 down (triplet): known for this molecule"
    assert (
        ground_state("Fe", charge=2, energy_of=refuse).text() == "14 up, 10 down (quintet): by Hund's rules"
    )
    assert ground_state("N2", spin=2, charge=0, energy_of=refuse).why == "as set"
    assert ground_state("H2", charge=1, energy_of=refuse).system.spin == 1
