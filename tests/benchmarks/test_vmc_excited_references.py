"""Reference energies of excited states: FCI against PySCF, Gaussians against closed forms, and limits."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyscf", reason="integrals are made with PySCF")
torch = pytest.importorskip("torch", reason="the Gaussians are optimised with torch")

from pyscf import ao2mo, fci, gto, scf  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "vmc"
RECORD = FOLDER.parent / "results" / "vmc_excited_references_cpu.json"


@pytest.fixture
def references() -> ModuleType:
    return importlib.import_module("excited_references")


@pytest.fixture
def gaussians() -> ModuleType:
    return importlib.import_module("gaussians")


def fci_of_pyscf(positions: str, basis: Any, electrons: tuple[int, int]) -> float:
    """Return the lowest energy with these electrons up and down, without symmetry."""
    molecule = gto.M(atom=positions, unit="Bohr", basis=basis, verbose=0)
    field = scf.RHF(molecule).run()
    c = field.mo_coeff
    assert c is not None
    solver = fci.direct_spin1.FCI()
    solver.conv_tol = 1e-11
    one, two = c.T @ field.get_hcore() @ c, ao2mo.full(molecule, c)
    energy, _ = solver.kernel(one, two, c.shape[1], electrons)
    return energy + molecule.energy_nuc()


@pytest.mark.parametrize("shell", ["s", "d"])  # the first leaves the representation A2 without orbitals
def test_both_states_of_lithium_hydride_have_the_energies_of_pyscf(
    references: ModuleType, shell: str
) -> None:
    extra = {"s": [0, [0.05, 1.0]], "d": [2, [0.3, 1.0]]}[shell]
    basis = {"Li": [*gto.basis.load("sto-3g", "Li"), extra], "H": "6-31g"}
    for name, electrons in (("LiH X 1Sigma+", (2, 2)), ("LiH a 3Sigma+", (3, 1))):
        row = references.energies(references.STATES[name], basis)
        expected = fci_of_pyscf("Li 0 0 0; H 0 0 3.015", basis, electrons)
        assert row["fci_ha"] == pytest.approx(expected, abs=1e-8)
        assert row["mean_field_ha"] > row["fci_ha"] + 1e-4


def test_both_states_of_hydrogen_have_the_energies_of_pyscf(references: ModuleType) -> None:
    for name, electrons in (("H2 X 1Sigma_g+", (1, 1)), ("H2 b 3Sigma_u+", (2, 0))):
        row = references.energies(references.STATES[name], "cc-pvdz")
        expected = fci_of_pyscf("H 0 0 0; H 0 0 1.4", "cc-pvdz", electrons)
        assert row["fci_ha"] == pytest.approx(expected, abs=1e-9)


def test_a_vector_times_the_hamiltonian_keeps_its_spin(references: ModuleType) -> None:
    molecule = gto.M(atom="Li 0 0 0; H 0 0 3", unit="Bohr", basis="6-31g", symmetry="C2v", verbose=0)
    basis = references.orbitals(molecule, {"A1": (2, 2)})
    singlets, triplets = (references.FourElectrons(basis, spin) for spin in (1, -1))
    vector = singlets.project(np.random.default_rng(0).normal(size=len(singlets.diagonal())))
    assert np.linalg.norm(triplets.project(vector)) < 1e-12 < np.linalg.norm(vector)
    assert np.linalg.norm(triplets.project(singlets.apply(vector))) < 1e-10


def test_functions_without_correlation_have_the_integrals_of_pyscf(gaussians: ModuleType) -> None:
    """exp(-a (r1 - s)^2 - b (r2 - t)^2) is a product of two s functions with centres on the axis."""
    functions = np.array([[0.7, 1.3, 0, -0.5, 0.9], [0.4, 2.1, 0, 0.0, 0.7], [1.1, 0.3, 0, -0.7, 0.2]])
    centres = np.concatenate([functions[:, 3], functions[:, 4]])
    exponents = np.concatenate([functions[:, 0], functions[:, 1]])
    molecule = gto.M(
        atom=[(f"ghost-H{i}", (0, 0, z)) for i, z in enumerate(centres)],
        basis={f"ghost-H{i}": [[0, [a, 1.0]]] for i, a in enumerate(exponents)},
        unit="Bohr",
        verbose=0,
    )
    norm = (2 * exponents / math.pi) ** 0.75  # PySCF's functions are normalised
    overlap, one = molecule.intor("int1e_ovlp"), molecule.intor("int1e_kin")
    for proton in (-0.7, 0.7):
        with molecule.with_rinv_origin((0, 0, proton)):
            one = one - molecule.intor("int1e_rinv")
    repulsion = molecule.intor("int2e")
    raw = torch.from_numpy(functions)
    ours = [matrix.numpy() for matrix in gaussians.elements(raw[:, None], raw[None], 1.4)]
    for i in range(3):
        for j in range(3):
            a, b, c, d = i, j, i + 3, j + 3  # first and second electron of both functions
            scale = norm[a] * norm[b] * norm[c] * norm[d]
            s = overlap[a, b] * overlap[c, d]
            h = one[a, b] * overlap[c, d] + overlap[a, b] * one[c, d] + repulsion[a, b, c, d] + s / 1.4
            assert ours[0][i, j] == pytest.approx(s / scale, rel=1e-10)
            assert ours[1][i, j] == pytest.approx(h / scale, rel=1e-9)


def test_few_gaussians_bind_the_hydrogen_molecule_from_above(
    gaussians: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gaussians, "STEPS", 60)
    exact = -1.17447571  # Sims and Hagstrom 2006
    few, more = gaussians.lowest(1.4, exchange=1, inversion=1, counts=(4, 8), rounds=1)
    assert exact < more.energy_ha < few.energy_ha < exact + 0.02
    assert more.energy_ha < exact + 0.006
    assert few.functions.shape == (4, 5) and more.functions.shape == (8, 5)


def test_a_ridge_keeps_dependent_gaussians_from_lowering_the_energy(gaussians: ModuleType) -> None:
    functions = np.array([[0.0, -0.5, -2.0, -0.7, 0.7], [0.0, -0.5, -2.0, -0.7, 0.7 + 1e-9]])
    signs = torch.ones(4, dtype=torch.float64)
    energies = []
    for part in (functions[:1], functions):
        overlap, energy = (m.numpy() for m in gaussians.matrices(torch.from_numpy(part), signs, 1.4))
        energies.append(gaussians.solve(overlap, energy)[0])
    assert energies[0] == pytest.approx(energies[1], abs=1e-6) and energies[0] < 0


def rows(field_ha: float, field: float, correlation_ha: float, correlation: float) -> dict[str, Any]:
    """Return energies that approach their limits by the laws of the extrapolation, with these factors."""
    result = {}
    for zeta in (2, 3, 4):
        mean_field_ha = field_ha + field * (zeta + 1) * math.exp(-9 * math.sqrt(zeta))
        fci_ha = mean_field_ha + correlation_ha + correlation / zeta**3
        result[str(zeta)] = {"mean_field_ha": mean_field_ha, "fci_ha": fci_ha}
    return result


def test_energies_that_follow_the_laws_are_extrapolated_exactly(references: ModuleType) -> None:
    ground, excited = rows(-8.0, 900.0, -0.08, 0.3), rows(-7.9, 700.0, -0.05, 0.2)
    result = references.difference_limit(ground, excited, 4, -8.08)
    assert result["difference_ha"] == pytest.approx(0.13, abs=1e-12)
    assert result["energy_ha"] == pytest.approx(-7.95, abs=1e-12)
    assert result["ground_error_ha"] == pytest.approx(0, abs=1e-12)
    others = result["other_ways_ha"]
    assert others["smaller basis sets"] == pytest.approx(0.13, abs=1e-12)
    assert others["scaled by the ground state"] == pytest.approx(0.13, abs=1e-12)
    # The correlation part of the difference is 0.03 - 0.1 / L^3; solved by hand for a + b (L + 1/2)^-4.
    low, high = 0.03 - 0.1 / 27, 0.03 - 0.1 / 64
    slope = (low - high) / (3.5**-4 - 4.5**-4)
    assert others["(L + 1/2)^-4"] == pytest.approx(0.1 + high - slope * 4.5**-4, abs=1e-12)
    # A ground state whose step beyond the largest basis is twice as long doubles that of the difference.
    step = 0.13 - result["difference_largest_basis_ha"]
    exact = -8.08 - (ground["4"]["fci_ha"] + 8.08)
    other = references.difference_limit(ground, excited, 4, exact)["other_ways_ha"]
    assert other["scaled by the ground state"] == pytest.approx(0.13 + step, abs=1e-12)


def test_the_error_of_hydrogen_counts_for_lithium_hydride(references: ModuleType) -> None:
    ground, excited = rows(-8.0, 900.0, -0.08, 0.3), rows(-7.9, 700.0, -0.05, 0.2)
    names = [*references.GROUNDS.values(), *references.GROUNDS]
    record: dict[str, Any] = {"fci": {name: ground if " X " in name else excited for name in names}}
    hydrogen, hydride = references.GROUNDS
    record["gaussians"] = {hydrogen: {"25": {"bound_ha": -1.05}, "50": {"bound_ha": -1.06}}}
    references.summarise(record)
    assert record["limits"][hydrogen] == {"energy_ha": -1.06, "uncertainty_ha": pytest.approx(0.01)}
    # The difference of both molecules is 0.13; that of hydrogen should be the exact 1.17447571 - 1.06.
    energy = references.STATES["LiH X 1Sigma+"].exact_ha + 0.13
    error = pytest.approx(0.13 - (1.17447571 - 1.06), abs=1e-9)
    assert record["limits"][hydride] == {"energy_ha": pytest.approx(energy), "uncertainty_ha": error}


def test_energies_in_the_record_are_not_computed_again(
    references: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def energies(state: Any, basis: Any) -> dict[str, Any]:
        calls.append(basis)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return {"mean_field_ha": -1.0 - 0.1 * len(calls), "fci_ha": -1.5 - 0.1 * len(calls)}

    output = tmp_path / "record.json"
    monkeypatch.setattr(references, "energies", energies)
    monkeypatch.setattr(sys, "argv", ["references.py", "--parts", "fci", "-o", str(output)])
    with pytest.raises(KeyboardInterrupt):
        references.main()
    references.main()
    tasks = sum(len(references.BASES[state.molecule]) for state in references.STATES.values())
    assert len(calls) == tasks + 1  # the interrupted one was repeated
    record = json.loads(output.read_text(encoding="utf-8"))
    assert {name: set(energies) for name, energies in record["fci"].items()} == {
        name: set(map(str, references.BASES[state.molecule])) for name, state in references.STATES.items()
    }
    assert {name: set(rows) for name, rows in record["differences"].items()} == {
        "H2 b 3Sigma_u+": {"4", "5"},
        "LiH a 3Sigma+": {"3", "4"},
    }
    assert len(record["commands"]) == 1


def test_the_limits_of_the_record_follow_from_its_energies(references: ModuleType) -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    limits = record["limits"]
    references.summarise(record)
    assert limits.keys() == record["limits"].keys() == references.GROUNDS.keys()
    for name, values in limits.items():
        assert record["limits"][name] == pytest.approx(values, abs=1e-12)
    for methods, key in (("fci", "fci_ha"), ("gaussians", "bound_ha")):
        for name, energies in record[methods].items():
            exact = references.STATES[name].exact_ha
            if exact is not None:
                assert min(row[key] for row in energies.values()) > exact
    # Both upper bounds of the second state of hydrogen are below -0.784150 of Kolos and Wolniewicz 1965.
    assert record["fci"]["H2 b 3Sigma_u+"]["5"]["fci_ha"] < -0.784150
    assert limits["H2 b 3Sigma_u+"]["energy_ha"] < -0.784150


@pytest.mark.slow
def test_a_bound_below_the_earlier_energy_holds_with_thirty_digits(gaussians: ModuleType) -> None:
    """The energy of any wave function is an upper bound, also of one with rounded coefficients.

    50 functions suffice; the time grows with the square of their number.
    """
    mp = pytest.importorskip("mpmath", reason="computes with thirty digits")
    record, signs = json.loads(RECORD.read_text(encoding="utf-8")), (1, -1, -1, 1)
    row = record["gaussians"]["H2 b 3Sigma_u+"]["50"]
    raw = torch.tensor(row["functions"], dtype=torch.float64)
    matrices = gaussians.matrices(raw, torch.tensor(signs, dtype=torch.float64), 1.4)
    _, vector = gaussians.solve(*(matrix.numpy() for matrix in matrices))
    images = [(0, 1, 1), (1, 0, 1), (0, 1, -1), (1, 0, -1)]
    with mp.workdps(30):
        functions = [
            ([mp.exp(x) for x in each[:3]], [mp.mpf(x) for x in each[3:]]) for each in row["functions"]
        ]

        def coulomb(distance: Any, width: Any) -> Any:
            z = distance / mp.sqrt(width)
            return (mp.erf(z) / z if abs(z) > 1e-15 else 2 / mp.sqrt(mp.pi)) / mp.sqrt(width)

        def element(left: Any, right: Any, first: int, second: int, inversion: int) -> tuple[Any, Any]:
            (a, b, c), (s, t) = left
            e, f, g = right[0][first], right[0][second], right[0][2]
            u, v = inversion * right[1][first], inversion * right[1][second]
            left_matrix = mp.matrix([[a + c, -c], [-c, b + c]])
            right_matrix = mp.matrix([[e + g, -g], [-g, f + g]])
            total = left_matrix + right_matrix
            determinant = total[0, 0] * total[1, 1] - total[0, 1] ** 2
            inverse = mp.matrix([[total[1, 1], -total[0, 1]], [-total[0, 1], total[0, 0]]]) / determinant
            here, there = mp.matrix([s, t]), mp.matrix([u, v])
            mean = inverse * (left_matrix * here + right_matrix * there)
            exponent = (left_matrix * here).T * (here - mean) + (right_matrix * there).T * (there - mean)
            overlap = (mp.pi**2 / determinant) ** 1.5 * mp.exp(-exponent[0])
            product = left_matrix * right_matrix
            trace = sum((product * inverse)[k, k] for k in range(2))
            energy = 3 * trace + 2 * ((mean - here).T * product * (mean - there))[0] + 1 / mp.mpf("1.4")
            energy += coulomb(mean[0] - mean[1], inverse[0, 0] + inverse[1, 1] - 2 * inverse[0, 1])
            for k in range(2):
                for proton in (mp.mpf("-0.7"), mp.mpf("0.7")):
                    energy -= coulomb(mean[k] - proton, inverse[k, k])
            return overlap, overlap * energy

        table, norms = {}, []
        for i, left in enumerate(functions):
            for j, right in enumerate(functions[: i + 1]):
                parts = [element(left, right, *image) for image in images]
                if i == j:  # functions are normalised before they get their symmetry
                    norms.append(mp.sqrt(parts[0][0]))
                table[i, j] = [sum(x * part[k] for x, part in zip(signs, parts, strict=True)) for k in (0, 1)]
        scaled = [mp.mpf(float(x)) / own for x, own in zip(vector, norms, strict=True)]
        norm, energy = (
            sum((2 - (i == j)) * scaled[i] * scaled[j] * both[k] for (i, j), both in table.items())
            for k in (0, 1)
        )
        assert float(energy / norm) == pytest.approx(row["bound_ha"], abs=1e-9)
        assert energy / norm < -0.784150  # Kolos and Wolniewicz 1965
