"""Structures: from files and other libraries, and back."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pinchpoint.core.discovery import builtin_names
from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.density.files.chgcar import write_chgcar
from pinchpoint.systems.density.files.formats import write_volume
from pinchpoint.systems.density.files.poscar import poscar_text
from pinchpoint.systems.density.files.structures import (
    as_structure,
    from_ase,
    from_pymatgen,
    read_structure,
    to_ase,
    to_pymatgen,
)
from pinchpoint.systems.density.grid.elements import SYMBOLS
from pinchpoint.systems.density.grid.structure import Structure, check_structure, close_pair

CUBIC = np.eye(3) * 4.0
WATER = "3\nwater\nO 0.0 0.0 0.1\nH 0.0 0.76 -0.48\nH 0.0 -0.76 -0.48\n"


def slow_closest(structure: Structure) -> float:
    shifts = np.array([[i, j, k] for i in (-1, 0, 1) for j in (-1, 0, 1) for k in (-1, 0, 1)])
    best = np.inf
    for i in range(len(structure.species)):
        for j in range(i):
            gap = structure.positions[i] - structure.positions[j]
            gap = gap - np.floor(gap) + shifts
            best = min(best, float(np.linalg.norm(gap @ structure.lattice, axis=1).min()))
    return best


def test_the_table_of_elements_is_whole() -> None:
    assert len(SYMBOLS) == 118 == len(set(SYMBOLS))
    assert [SYMBOLS.index(symbol) + 1 for symbol in ("H", "O", "Si", "Fe", "Hf", "Og")] == [
        1,
        8,
        14,
        26,
        72,
        118,
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_closest_pair_is_found_across_the_cell_borders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lattice = np.diag([6.0, 5.0, 7.0]) + rng.normal(size=(3, 3))
    structure = Structure(lattice, ("H",) * 40, rng.normal(size=(40, 3)) * 2)
    closest = slow_closest(structure)
    assert close_pair(structure, closest * 0.999) is None
    found = close_pair(structure, closest * 1.001)
    assert found is not None and found[2] == pytest.approx(closest)


def test_a_pair_in_one_plane_is_found_among_many() -> None:
    side = (
        np.stack(np.meshgrid(np.arange(8), np.arange(8), [0.0], indexing="ij"), axis=-1).reshape(-1, 3)[
            :, ::-1
        ]
        / 8
    )
    structure = Structure(
        np.eye(3) * 20, ("H",) * 65, np.concatenate([side, side[:1] + np.array([0.0, 0.999, 0.0])])
    )
    with pytest.raises(BadInput, match=r"Atoms 1 and 65 are 0\.020 angstrom apart"):
        check_structure(structure)


@pytest.mark.parametrize(
    ("structure", "what"),
    [
        (Structure(np.zeros((3, 3)), ("H",), np.zeros((1, 3))), "volume of 0"),
        (
            Structure(np.array([[1.0, 0, 0], [0, 1, 0], [1, 1, 1e-9]]), ("H",), np.zeros((1, 3))),
            "volume of 1e-09",
        ),
        (Structure(CUBIC * np.nan, ("H",), np.zeros((1, 3))), "not finite"),
        (Structure(CUBIC, (), np.zeros((0, 3))), "no atoms"),
        (Structure(CUBIC, ("H", "D"), np.zeros((2, 3))), "unknown species 'D'"),
        (Structure(CUBIC, ("H", "O"), np.zeros((1, 3))), r"shape \(1, 3\)"),
        (Structure(CUBIC, ("H",), np.full((1, 3), np.inf)), "NaN or infinite"),
        (Structure(CUBIC, ("H", "O"), np.array([[0, 0, 0.0], [1, 0.999, 0]])), "0.004 angstrom apart"),
    ],
)
def test_a_structure_that_cannot_be_is_refused(structure: Structure, what: str) -> None:
    with pytest.raises(BadInput, match=what):
        check_structure(structure)


def test_every_file_of_a_structure_gives_the_same(draw, tmp_path) -> None:
    volume = draw(0)
    (tmp_path / "POSCAR").write_text(poscar_text(volume.structure, "x"))
    paths = [
        tmp_path / "POSCAR",
        write_chgcar(tmp_path / "CHGCAR.gz", volume),
        write_volume(tmp_path / "a.npz", volume),
    ]
    for path in paths:
        read = read_structure(path)
        assert (
            read.lattice.tobytes() == volume.lattice.tobytes()
            and read.positions.tobytes() == volume.positions.tobytes()
        )
        assert read.species == volume.species


def test_ase_takes_and_gives_structures(draw) -> None:
    pytest.importorskip("ase", reason="ASE is not installed")
    structure = draw(1).structure
    atoms = to_ase(structure)
    np.testing.assert_allclose(atoms.get_positions(), structure.cartesian)
    for back in (from_ase(atoms), as_structure(atoms)):
        np.testing.assert_allclose(back.positions, structure.positions, atol=1e-14)
        np.testing.assert_array_equal(back.lattice, structure.lattice)
        assert back.species == structure.species


def test_pymatgen_takes_and_gives_structures(draw) -> None:
    core = pytest.importorskip("pymatgen.core", reason="pymatgen is not installed")
    structure = draw(1).structure
    theirs = to_pymatgen(structure)
    np.testing.assert_allclose(theirs.cart_coords, structure.cartesian)
    back = as_structure(theirs)
    np.testing.assert_allclose(back.positions, structure.positions)
    assert back.species == structure.species
    charged = core.Structure(CUBIC, ["Hf4+", "O2-"], [[0, 0, 0], [0.5, 0.5, 0.5]])
    assert from_pymatgen(charged).species == ("Hf", "O")
    mixed = core.Structure(CUBIC, [{"Hf": 0.5, "Zr": 0.5}], [[0, 0, 0]])
    with pytest.raises(BadInput, match="Site 1 is occupied by"):
        from_pymatgen(mixed)


def test_a_molecule_of_pymatgen_is_put_into_a_box() -> None:
    core = pytest.importorskip("pymatgen.core", reason="pymatgen is not installed")
    theirs = core.Molecule(["O", "H", "H"], [[0.0, 0.0, 0.1], [0.0, 0.76, -0.48], [0.0, -0.76, -0.48]])
    made = as_structure(theirs, padding_a=4.0)
    assert made.species == ("O", "H", "H")
    np.testing.assert_allclose(np.diag(made.lattice), [8.0, 9.52, 8.58])
    np.testing.assert_allclose(made.cartesian, theirs.cart_coords + np.array([4.0, 4.76, 4.48]))
    with pytest.raises(BadInput, match="no cell"):
        as_structure(theirs)


def test_objects_are_taken_by_what_they_offer() -> None:
    atoms = SimpleNamespace(
        cell=CUBIC, get_positions=lambda: np.array([[1.0, 2.0, 3.0]]), get_chemical_symbols=lambda: ["O"]
    )
    np.testing.assert_allclose(as_structure(atoms).positions, [[0.25, 0.5, 0.75]])
    with pytest.raises(BadInput, match="An object of type dict is not a structure"):
        as_structure({})


def test_cif_and_xyz_are_read_by_ase(tmp_path) -> None:
    ase_io = pytest.importorskip("ase.io", reason="ASE is not installed")
    rock = Structure(np.eye(3) * 4.2, ("Mg", "O"), np.array([[0, 0, 0.0], [0.5, 0.5, 0.5]]))
    for name in ("a.cif", "a.xyz"):
        ase_io.write(str(tmp_path / name), to_ase(rock))
        read = read_structure(tmp_path / name)
        assert read.species == ("Mg", "O")
        np.testing.assert_allclose(read.cartesian, rock.cartesian, atol=1e-6)
    assert read_structure((tmp_path / "a.cif").rename(tmp_path / "POSCAR_rock.cif")).species == ("Mg", "O")
    (tmp_path / "POSCAR.rock").write_text(poscar_text(rock, ""))
    assert read_structure(tmp_path / "POSCAR.rock").species == ("Mg", "O")
    (tmp_path / "water.xyz").write_text(WATER)
    with pytest.raises(BadInput, match="no cell"):
        read_structure(tmp_path / "water.xyz")
    boxed = read_structure(tmp_path / "water.xyz", padding_a=4.0)
    np.testing.assert_allclose(np.diag(boxed.lattice), [8.0, 9.52, 8.58])
    np.testing.assert_allclose(boxed.cartesian.min(axis=0), 4.0)
    (tmp_path / "two.xyz").write_text(WATER + WATER)
    with pytest.raises(BadInput, match="contains 2 structures") as caught:
        read_structure(tmp_path / "two.xyz", padding_a=4.0)
    assert "index=':'" in caught.value.hint
    (tmp_path / "nan.xyz").write_text(WATER.replace("0.76", "nan"))
    with pytest.raises(BadInput, match="The position of atom 2 is NaN"):
        read_structure(tmp_path / "nan.xyz", padding_a=4.0)
    (tmp_path / "blank.xyz").write_text("\n\n")
    with pytest.raises(BadInput, match="contains no structure"):
        read_structure(tmp_path / "blank.xyz", padding_a=4.0)
    with pytest.raises(BadInput, match="is a folder"):
        read_structure(tmp_path)
    (tmp_path / "bad.cif").write_text("nothing")
    with pytest.raises(BadInput, match="cannot be read"):
        read_structure(tmp_path / "bad.cif")
    with pytest.raises(BadInput, match="no file"):
        read_structure(tmp_path / "absent.cif")


def test_without_ase_the_error_says_what_to_install(tmp_path, monkeypatch) -> None:
    (tmp_path / "water.xyz").write_text(WATER)
    for name in ("ase", "ase.io"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Missing) as caught:
        read_structure(tmp_path / "water.xyz")
    assert "pinchpoint[density]" in caught.value.hint
    with pytest.raises(Missing):
        to_ase(Structure(CUBIC, ("O",), np.zeros((1, 3))))


def test_listing_workloads_passes_over_one_that_is_not_ready() -> None:
    assert {"field", "orbital", "operator"} <= set(builtin_names())


@pytest.mark.parametrize(
    "vector", ["5 0 1e308", "5 0 -1e200", "1e-300 0 0", "1000000000000000 0 0", "-1e7 1e7 0"]
)
def test_a_cell_of_absurd_size_is_refused_at_once(tmp_path, vector: str) -> None:
    (tmp_path / "POSCAR").write_text(f"Si\n1.0\n{vector}\n0 5 0\n0 0 5\nSi\n1\nDirect\n0 0 0\n")
    with pytest.raises(BadInput, match="lattice vector"):
        read_structure(tmp_path / "POSCAR")


@pytest.mark.parametrize(
    "text",
    [
        WATER.replace("3\n", "4294967295\n", 1),
        WATER.replace("3\n", "1" + "0" * 400 + "\n", 1),
        WATER + WATER.replace("3\n", "1000000000\n", 1),
        WATER.replace("water", "Properties=species:S:1:pos:R:999999999999999999", 1),
    ],
)
def test_an_xyz_file_that_claims_more_than_it_has_is_refused_at_once(tmp_path, text: str) -> None:
    pytest.importorskip("ase", reason="xyz files need ASE")
    (tmp_path / "a.xyz").write_text(text)
    with pytest.raises(BadInput, match="claims more atoms or columns than the file has"):
        read_structure(tmp_path / "a.xyz", padding_a=3.0)


def test_an_atomic_number_that_no_element_has_is_refused(tmp_path) -> None:
    io = pytest.importorskip("ase.io", reason="the file is ASE's own")
    atoms = pytest.importorskip("ase").Atoms("Si", cell=[5, 5, 5])
    atoms.numbers[:] = 1000
    io.write(tmp_path / "a.traj", atoms)
    with pytest.raises(BadInput, match=r"a\.traj cannot be used"):
        read_structure(tmp_path / "a.traj")
