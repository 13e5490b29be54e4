"""Cube and npz files, and which format a name stands for."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import BOHR_A
from pinchpoint.systems.density.files.cube import read_cube, write_cube
from pinchpoint.systems.density.files.formats import (
    check_volume_output,
    kind_of,
    read_npz,
    read_volume,
    warnings_of,
    write_npz,
    write_volume,
)
from pinchpoint.systems.density.files.volume import Volume, check_volume, grid_points

# 2 x 2 x 3 points, steps of 2, 3 and 4 bohr along skewed axes, the corner at (1, 1, 1).
CUBE = """by hand
density
    2    1.0    1.0    1.0
    2    2.0    0.0    0.0
    2    0.0    3.0    0.0
    3    0.0    1.0    4.0
    1    1.0    1.0    1.0    1.0
    8    8.0    3.0    1.0    1.0
 1.0 2.0 3.0
 4.0 5.0 6.0
 7.0 8.0 9.0
 1.0E+01 1.1E+01 1.2E+01
"""


def test_a_cube_by_hand_is_read_z_fastest_in_bohr_with_its_origin_as_the_corner(tmp_path) -> None:
    (tmp_path / "a.cube").write_text(CUBE)
    volume = read_cube(tmp_path / "a.cube")
    assert volume.species == ("H", "O") and volume.grid == (2, 2, 3) and volume.comment == "by hand"
    np.testing.assert_allclose(volume.lattice, np.array([[4, 0, 0], [0, 6, 0], [0, 3, 12]]) * BOHR_A)
    np.testing.assert_allclose(volume.positions, [[0, 0, 0], [0.5, 0, 0]], atol=1e-15)
    np.testing.assert_allclose(volume.total.reshape(-1), np.arange(1, 13) / BOHR_A**3)
    assert volume.electrons == pytest.approx(6.5 * 4 * 6 * 12)


def test_negative_counts_of_a_cube_mean_angstrom(tmp_path) -> None:
    text = (
        CUBE.replace("\n    2    2.0", "\n   -2    2.0")
        .replace("\n    2    0.0", "\n   -2    0.0")
        .replace("\n    3    0", "\n   -3    0")
    )
    (tmp_path / "a.cube").write_text(text)
    np.testing.assert_allclose(read_cube(tmp_path / "a.cube").lattice, [[4, 0, 0], [0, 6, 0], [0, 3, 12]])


@pytest.mark.parametrize("name", ["a.cube", "a.cub.gz"])
def test_a_cube_gives_back_what_was_written(draw, tmp_path, name: str) -> None:
    volume = draw(1, (3, 4, 7))
    back = read_volume(write_volume(tmp_path / name, volume))
    np.testing.assert_allclose(back.total, volume.total, rtol=5.2e-11, atol=0)
    np.testing.assert_allclose(back.lattice, volume.lattice, rtol=1e-14)
    np.testing.assert_allclose(back.positions, volume.positions, atol=1e-14)
    assert back.species == volume.species and back.electrons == pytest.approx(volume.electrons, rel=1e-10)
    once = (tmp_path / name).read_bytes()
    again = read_cube(write_cube(tmp_path / "b.cube", back))
    np.testing.assert_allclose(again.total, back.total, rtol=1e-15)
    assert once


def test_the_spin_density_has_a_cube_of_its_own(draw, tmp_path) -> None:
    volume = draw(2, spin=True)
    np.testing.assert_allclose(
        read_cube(write_cube(tmp_path / "s.cube", volume, part="spin")).total, volume.spin, rtol=1e-10
    )
    with pytest.raises(BadInput, match="no spin"):
        write_cube(tmp_path / "s.cube", draw(2), part="spin")


@pytest.mark.parametrize("program", ["ase", "pymatgen"])
def test_other_programs_read_our_cube_the_same_way(draw, tmp_path, program: str) -> None:
    volume = draw(4, (4, 5, 6))
    path = write_cube(tmp_path / "a.cube", volume)
    if program == "ase":
        cube = pytest.importorskip("ase.io.cube", reason="ASE is not installed")
        with path.open() as file:
            theirs = cube.read_cube(file)
        np.testing.assert_allclose(theirs["data"], volume.total * BOHR_A**3, rtol=1e-10)
        np.testing.assert_allclose(theirs["atoms"].cell[:], volume.lattice, rtol=1e-8)
        np.testing.assert_allclose(theirs["atoms"].get_positions(), volume.structure.cartesian, rtol=1e-8)
    else:
        outputs = pytest.importorskip("pymatgen.io.vasp.outputs", reason="pymatgen is not installed")
        theirs = outputs.VolumetricData.from_cube(str(path))
        np.testing.assert_allclose(theirs.data["total"], volume.total * BOHR_A**3, rtol=1e-10)
        np.testing.assert_allclose(theirs.structure.frac_coords, volume.positions, atol=1e-7)


def test_we_read_the_cube_of_ase(draw, tmp_path) -> None:
    cube = pytest.importorskip("ase.io.cube", reason="ASE is not installed")
    atoms = pytest.importorskip("ase").Atoms
    volume = draw(4, (4, 5, 6))
    with (tmp_path / "a.cube").open("w") as file:
        held = atoms(list(volume.species), scaled_positions=volume.positions, cell=volume.lattice)
        cube.write_cube(file, held, data=volume.total * BOHR_A**3)
    back = read_cube(tmp_path / "a.cube")
    np.testing.assert_allclose(back.total, volume.total, rtol=2e-5)  # it prints six digits
    np.testing.assert_allclose(back.lattice, volume.lattice, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("    2    1.0    1.0    1.0\n", "   -2    1.0    1.0    1.0\n", "orbitals"),
        ("    2    1.0    1.0    1.0\n", "    2    1.0    1.0    1.0   2\n", "several values"),
        ("    2    1.0    1.0    1.0\n", "    0    1.0    1.0    1.0\n", "12 numbers|22 numbers|no atoms"),
        ("    2    2.0", "    1    2.0", "A grid of 1 x 2 x 3"),
        ("    2    2.0", "    0    2.0", "A grid of 0 x 2 x 3"),
        ("    0.0    1.0    4.0", "    2.0    3.0    0.0", "volume of 0"),
        ("    8    8.0", "  200    8.0", "atomic number 200"),
        ("    8    8.0    3.0", "    8    8.0    1.0", "Atoms 1 and 2 are 0.000 angstrom apart"),
        (" 1.1E+01", " nan", "line 12 cannot be read: 'nan' is not a number"),
        (" 1.1E+01", " ****", "line 12 cannot be read: '[*]+' stands for a number that was too large"),
        (" 1.2E+01\n", "\n", "there are 11 numbers, but 12 are expected"),
        ("    0.0    3.0    0.0", "    0.0    3.0", "expected a count of points and a step"),
        ("    2    2.0", "    2    1e308", "1e.308 angstrom|angstrom"),
        ("    2    2.0", "    2    1e-300", "the shortest one of"),
        ("    2    2.0", "    1000000000000000    2.0", "angstrom|12 numbers"),
        (CUBE[20:], "", "expected the number of atoms and the origin"),
    ],
)
def test_a_broken_cube_is_refused(tmp_path, old: str, new: str, what: str) -> None:
    assert old in CUBE
    (tmp_path / "a.cube").write_text(CUBE.replace(old, new, 1))
    with pytest.raises(BadInput, match=what):
        read_cube(tmp_path / "a.cube")


def test_npz_keeps_every_bit(draw, tmp_path) -> None:
    volume = draw(3, spin=True)
    aug = "augmentation occupancies 1 1\n 0.1E+00\naugmentation occupancies 2 1\n 0.1E+00\n"
    aug += "augmentation occupancies 3 1\n 0.1E+00\naugmentation occupancies 4 1\n 0.1E+00\n"
    volume = Volume(volume.structure, volume.total, volume.spin, aug, "", "kept")
    back = read_npz(write_npz(tmp_path / "a.npz", volume))
    assert back.spin is not None and volume.spin is not None
    for mine, theirs in (
        (volume.total, back.total),
        (volume.spin, back.spin),
        (volume.lattice, back.lattice),
    ):
        assert mine.tobytes() == theirs.tobytes()
    assert back.positions.tobytes() == volume.positions.tobytes() and back.species == volume.species
    assert (back.augmentation, back.spin_augmentation, back.comment) == (aug, "", "kept")
    assert read_npz(write_npz(tmp_path / "b.npz", draw(3))).spin is None


def test_a_broken_npz_is_refused(draw, tmp_path) -> None:
    volume = draw(0)
    path = write_npz(tmp_path / "a.npz", volume)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(BadInput, match="cannot be read"):
        read_npz(path)
    np.savez(tmp_path / "b.npz", lattice=volume.lattice, total=volume.total)
    with pytest.raises(BadInput, match="has no species, positions"):
        read_npz(tmp_path / "b.npz")
    held = {"lattice": volume.lattice, "positions": volume.positions, "total": volume.total}
    np.savez(tmp_path / "c.npz", species=np.array(["Hf", "Hf", "Q", "O"]), **held)
    with pytest.raises(BadInput, match="unknown species 'Q'"):
        read_npz(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", species=np.array(volume.species), **held | {"total": np.array(["x"])})
    with pytest.raises(BadInput, match="cannot be read"):
        read_npz(tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", species=np.array([object()]), **held)
    with pytest.raises(BadInput, match="cannot be read"):
        read_npz(tmp_path / "e.npz")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("CHGCAR", "chgcar"),
        ("CHGCAR.gz", "chgcar"),
        ("CHG", "chgcar"),
        ("AECCAR0", "chgcar"),
        ("CHGCAR_sum", "chgcar"),
        ("out.vasp", "chgcar"),
        ("a.cube", "cube"),
        ("a.CUB.gz", "cube"),
        ("a.npz", "npz"),
        ("CHGCAR.cube", "cube"),
    ],
)
def test_a_name_stands_for_a_format(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_outputs_are_refused_before_the_work(tmp_path) -> None:
    with pytest.raises(BadInput, match="cannot be determined"):
        check_volume_output(tmp_path / "density.txt")
    with pytest.raises(BadInput, match=r"\.foo of 'CHGCAR\.foo' is not a format") as unknown:
        check_volume_output(tmp_path / "CHGCAR.foo")
    assert "CHGCAR_foo" in unknown.value.hint
    assert check_volume_output(tmp_path / "CHGCAR_300.5") == tmp_path / "CHGCAR_300.5"
    with pytest.raises(BadInput, match="Cannot write"):
        check_volume_output(tmp_path / "none" / "CHGCAR")
    assert check_volume_output(tmp_path / "CHGCAR") == tmp_path / "CHGCAR"
    assert not (tmp_path / "CHGCAR").exists()


def test_what_a_format_leaves_out_is_said(draw) -> None:
    assert "ICHARG" in warnings_of(draw(0), "CHGCAR")[0]
    assert warnings_of(draw(0), "a.cube") == () and warnings_of(draw(0, spin=True), "a.npz") == ()
    assert "the spin density" in warnings_of(draw(0, spin=True), "a.cube")[0]


def test_grid_points_sit_at_i_over_n_in_the_order_of_the_density(draw) -> None:
    volume = draw(0, (2, 3, 4))
    points = grid_points(volume.grid)
    for at in ((0, 0, 0), (1, 0, 3), (1, 2, 2)):
        row = int(np.ravel_multi_index(at, volume.grid))
        np.testing.assert_array_equal(points[row], np.array(at) / [2, 3, 4])
        assert volume.total.reshape(-1)[row] == volume.total[at]
    assert check_volume(volume) is volume


@pytest.mark.parametrize("name", ["CHGCAR", "CHGCAR.gz", "a.cube", "a.npz"])
def test_a_damaged_file_is_refused_or_read_but_never_breaks_the_reader(draw, tmp_path, name: str) -> None:
    rng = np.random.default_rng(7)
    path = write_volume(tmp_path / name, draw(0, (3, 2, 4), spin=True))
    whole = path.read_bytes()
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        at = int(rng.integers(len(data)))
        match int(rng.integers(3)):
            case 0:
                data[at] = int(rng.choice(list(b" -+.E0123456789*nD\n\xff")))
            case 1:
                del data[at : at + int(rng.integers(1, 40))]
            case _:
                data[at:at] = data[: int(rng.integers(1, 30))]
        path.write_bytes(data)
        try:
            read_volume(path)
        except BadInput:
            refused += 1
    assert refused > 50
