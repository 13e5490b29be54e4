"""CHGCAR files: read as written by hand, written as VASP does, and every kind of broken file refused."""

from __future__ import annotations

import errno
import gzip
import os

import numpy as np
import pytest

from pinchpoint.core import files
from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files import file_io
from pinchpoint.systems.density.files.augmentation import read_augmentation
from pinchpoint.systems.density.files.chgcar import chgcar_bytes, chgcar_of, read_chgcar, write_chgcar
from pinchpoint.systems.density.files.volume import Volume, missing_augmentation
from pinchpoint.systems.density.grid.structure import Structure

# 2 x 3 x 2 points in a cell of 8 cubic angstrom, numbers 1 to 12 with x fastest: the density is number / 8.
HEADER = """made by hand
   1.00000000000000
     2.000000    0.000000    0.000000
     0.000000    2.000000    0.000000
     0.000000    0.000000    2.000000
   Hf   O
     1     1
Direct
  0.000000  0.000000  0.000000
  0.500000  0.500000  0.250000

"""
GRID = """    2    3    2
 0.10000000000E+01 0.20000000000E+01 0.30000000000E+01 0.40000000000E+01 0.50000000000E+01
 0.60000000000E+01 0.70000000000E+01 0.80000000000E+01 0.90000000000E+01 0.10000000000E+02
 0.11000000000E+02 0.12000000000E+02
"""
SPIN = """    2    3    2
 -.10000000000E+01 0.00000000000E+00 -.30000000000E-02 0.40000000000E+01 0.50000000000E+01
 0.60000000000E+01 0.70000000000E+01 0.80000000000E+01 0.90000000000E+01 0.10000000000E+02
 0.11000000000E+02 -.12000000000E+02
"""
AUGMENTATION = """augmentation occupancies   1   6
  0.1234567E+00 -0.2345678E-01  0.0000000E+00  0.1000000E+01  0.3000000E-05
  0.4000000E+00
augmentation occupancies   2   2
  0.5000000E+00  0.6000000E+00
"""
PER_ATOM = "  0.100000000000E+01  0.200000000000E+01\n"


def of(text: str) -> Volume:
    return chgcar_of(text.encode(), name="CHGCAR")


def refused(text: str) -> str:
    with pytest.raises(BadInput) as caught:
        of(text)
    assert caught.value.hint
    return caught.value.what


def test_a_file_by_hand_is_read_x_fastest_and_over_the_cell_volume() -> None:
    volume = of(HEADER + GRID)
    assert volume.grid == (2, 3, 2) and volume.species == ("Hf", "O") and volume.comment == "made by hand"
    for x in range(2):
        for y in range(3):
            for z in range(2):
                assert volume.total[x, y, z] == (1 + x + 2 * y + 6 * z) / 8
    assert volume.electrons == pytest.approx(6.5)  # the mean of 1 to 12
    assert volume.spin is None and volume.augmentation == "" and volume.moment == 0
    assert volume.total.flags.c_contiguous


@pytest.mark.parametrize("between", ["", PER_ATOM])
@pytest.mark.parametrize("last", ["", PER_ATOM])
def test_spin_and_augmentation_are_read_and_written_again_letter_for_letter(between: str, last: str) -> None:
    text = GRID + AUGMENTATION + between + SPIN + AUGMENTATION + last
    volume = of(HEADER + text)
    assert volume.spin is not None
    assert (
        volume.spin[0, 0, 0] == -1 / 8
        and volume.spin[1, 2, 1] == -12 / 8
        and volume.spin[0, 1, 0] == -0.003 / 8
    )
    assert volume.augmentation == AUGMENTATION + between and volume.spin_augmentation == AUGMENTATION + last
    occupancies = read_augmentation(volume.augmentation, atoms=2, name="it")
    assert [part.tolist() for part in occupancies] == [[0.1234567, -0.02345678, 0, 1, 3e-6, 0.4], [0.5, 0.6]]
    assert chgcar_bytes(volume).decode().partition("\n\n")[2] == text
    assert missing_augmentation(volume) is None


def test_an_imaginary_part_of_the_augmentation_is_passed_through() -> None:
    imaginary = AUGMENTATION.replace("occupancies", "occupancies (imaginary part)")
    volume = of(HEADER + GRID + AUGMENTATION + imaginary)
    assert volume.augmentation == AUGMENTATION + imaginary
    assert len(read_augmentation(volume.augmentation, atoms=2, name="it")) == 2


def test_line_endings_of_windows_and_ten_short_numbers_a_line_give_the_same_density() -> None:
    text = HEADER + GRID + AUGMENTATION + PER_ATOM + SPIN + AUGMENTATION
    plain, windows = of(text), of(text.replace("\n", "\r\n"))
    assert plain.spin is not None and windows.spin is not None
    assert windows.total.tobytes() == plain.total.tobytes() and windows.spin.tobytes() == plain.spin.tobytes()
    short = "".join(f" {n:11.5g}" + ("\n" if n in (10, 12) else "") for n in range(1, 13))
    assert of(HEADER + "    2    3    2\n" + short).total.tobytes() == plain.total.tobytes()


def test_the_user_is_told_what_vasp_will_miss() -> None:
    assert "ICHARG" in str(missing_augmentation(of(HEADER + GRID)))
    assert "spin" in str(missing_augmentation(of(HEADER + GRID + AUGMENTATION + SPIN)))
    assert missing_augmentation(of(HEADER + GRID + AUGMENTATION)) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("grid", [(5, 4, 6), (2, 2, 2), (3, 7, 11), (20, 18, 16)])
def test_what_is_written_is_read_back_bit_for_bit(draw, seed: int, grid: tuple[int, int, int]) -> None:
    volume = draw(seed, grid, spin=seed > 0)
    rng = np.random.default_rng(seed)
    if seed == 2:
        values = rng.choice([-1.0, 1.0], grid) * rng.random(grid) * 10.0 ** rng.integers(-300, 30, grid)
        values[0, 0] = 0.0
        values[1, 1] = -0.0
        volume = Volume(volume.structure, values, volume.spin)
    first = chgcar_of(chgcar_bytes(volume), name="it")
    again = chgcar_bytes(first)
    second = chgcar_of(again, name="it")
    assert chgcar_bytes(second) == again
    np.testing.assert_array_equal(first.lattice, volume.lattice)
    np.testing.assert_array_equal(first.positions, volume.positions)
    for mine, once, twice in (
        (volume.total, first.total, second.total),
        (volume.spin, first.spin, second.spin),
    ):
        if mine is not None and once is not None and twice is not None:
            np.testing.assert_allclose(once, mine, rtol=5.1e-11, atol=0)  # half a unit of the 11th digit
            assert once.tobytes() == twice.tobytes()
            assert (np.signbit(once) == np.signbit(mine)).all()


def test_the_file_looks_as_vasp_writes_it(draw) -> None:
    lines = chgcar_bytes(draw(0, (4, 4, 4))).decode().splitlines()
    assert (
        lines[0] == "drawn 0"
        and lines[5].split() == ["Hf", "O", "Hf"]
        and lines[6].split() == ["2", "1", "1"]
    )
    assert (
        lines[13] == "    4    4    4"
        and {len(line) for line in lines[14:26]} == {90}
        and len(lines[26]) == 4 * 18
    )


def test_a_header_keeps_numbers_that_16_decimals_would_lose() -> None:
    lattice = np.array([[4 / 3, 6.1e-17, 0], [0, 2 / 3, 1e-5 / 7], [0, 0, 12.1]])
    volume = Volume(Structure(lattice, ("H",), np.array([[1 / 700, -1e-9, 1.25]])), np.ones((2, 2, 2)))
    read = chgcar_of(chgcar_bytes(volume), name="it")
    assert (
        read.lattice.tobytes() == lattice.tobytes() and read.positions.tobytes() == volume.positions.tobytes()
    )


def test_cartesian_coordinates_selective_dynamics_and_scales_give_the_same_structure() -> None:
    plain = of(HEADER + GRID)
    cartesian = HEADER.replace("Direct", "Selective dynamics\nCartesian").replace(
        "0.500000  0.500000  0.250000", "1.0 1.0 0.5 T F T"
    )
    doubled = (
        cartesian.replace("1.00000000000000\n", "2.0\n")
        .replace("2.000000", "1.000000")
        .replace("1.0 1.0 0.5", ".5 .5 .25")
    )
    by_volume = HEADER.replace("1.00000000000000\n", "-8.0\n").replace("2.000000", "3.000000")
    three = HEADER.replace("1.00000000000000\n", "1.0 2.0 4.0\n").replace(
        "0.000000    2.000000    0.0", "0.0 1.0 0.0"
    )
    three = three.replace("0.000000    0.000000    2.000000", "0.0 0.0 0.5")
    for header in (cartesian, doubled, by_volume, three):
        volume = of(header + GRID)
        np.testing.assert_allclose(volume.lattice, plain.lattice, rtol=1e-15)
        np.testing.assert_allclose(volume.positions, plain.positions, rtol=1e-15)
        np.testing.assert_allclose(volume.total, plain.total, rtol=1e-14)


def test_names_of_potcars_are_cut_to_symbols() -> None:
    assert of(HEADER.replace("Hf   O", "Hf_pv/3f5a0c2 O_s") + GRID).species == ("Hf", "O")


@pytest.mark.parametrize("name", ["CHGCAR", "CHGCAR.gz"])
def test_files_are_read_and_written_plain_and_gzipped(draw, tmp_path, name: str) -> None:
    volume = draw(3)
    path = write_chgcar(tmp_path / name, volume)
    data = path.read_bytes()
    assert (gzip.decompress(data) if name.endswith("gz") else data) == chgcar_bytes(volume)
    assert read_chgcar(path).total.tobytes() == chgcar_of(chgcar_bytes(volume), name="it").total.tobytes()
    assert write_chgcar(path, volume).read_bytes() == data
    assert os.listdir(tmp_path) == [name]


# --- what must be refused ---


def test_a_file_cut_short_anywhere_is_refused() -> None:
    text = HEADER + GRID + AUGMENTATION + SPIN + AUGMENTATION
    complete = [len(HEADER + GRID), len(HEADER + GRID + AUGMENTATION), len(text)]
    for end in range(0, len(text) - 1, 7):
        if any(end - 1 <= whole <= end + 1 for whole in complete):
            continue
        assert refused(text[:end]), text[:end][-60:]


def test_a_large_file_cut_short_says_how_many_numbers_there_are(draw) -> None:
    data = chgcar_bytes(draw(0, (20, 20, 20)))
    with pytest.raises(BadInput, match=r"numbers, but 8,000 are expected|ends before"):
        chgcar_of(data[: len(data) // 2], name="it")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (
            " 0.70000000000E+01",
            " *****************",
            "line 14 cannot be read: '*****************' stands for a number that was too large",
        ),
        (" 0.70000000000E+01", "               NaN", "line 14 cannot be read: 'NaN' is not a number"),
        ("    2    3    2", "    2    0    2", "A grid of 2 x 0 x 2 points"),
        ("    2    3    2", "    2    1    2", "A grid of 2 x 1 x 2 points"),
        ("    2    3    2", "    2    3    3", "there are 12 numbers, but 18 are expected"),
        ("    2    3    2", "    2    3", "expected the grid"),
        ("    2    3    2", "    9999    9999   9999", "ends before the last of"),
        ("    2    3    2", "    2    2    2", "numbers, but 8 are expected"),
        ("     0.000000    0.000000    2.000000", "     2.0 2.0 0.0", "volume of 0"),
        ("   Hf   O\n", "", "does not name its species"),
        ("Hf   O", "Hf   Xx", "unknown species 'Xx'"),
        ("     1     1\n", "     1     1     1\n", "the counts '1 1 1' do not match 2 species (Hf O)"),
        ("     1     1\n", "     0     0\n", "no atoms"),
        (
            "0.500000  0.500000  0.250000",
            "1.000000  0.001000  0.999000",
            "Atoms 1 and 2 are 0.003 angstrom apart",
        ),
        ("0.500000  0.500000  0.250000", "0.500000  0.500000", "expected position 2 of 2"),
        ("0.500000  0.500000  0.250000", "nan 0.500000  0.250000", "position of atom 2 is NaN"),
        ("Direct", "Fractional", "expected Direct or Cartesian, but the file has 'Fractional'"),
        ("1.00000000000000\n", "0.0\n", "the scale factor 0"),
        ("     2.000000    0.0", "     two    0.0", "expected lattice vector 1"),
    ],
)
def test_a_broken_file_is_refused_with_what_and_where(old: str, new: str, what: str) -> None:
    assert old in HEADER + GRID
    assert what in refused((HEADER + GRID).replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("  0.4000000E+00\n", "", "atom 1: 6 numbers are expected, but there are 5"),
        (
            "  0.5000000E+00  0.6000000E+00\n",
            "  0.5000000E+00\n",
            "atom 2: 2 numbers are expected, but there are 1",
        ),
        ("  0.5000000E+00  0.6000000E+00\n", "  0.5000000E+00  **\n", "too large for its column"),
        ("augmentation occupancies   2   2\n", "", "for 1 of 2 atoms"),
        (
            "augmentation occupancies   2   2\n  0.5000000E+00  0.6000000E+00\n",
            "",
            "for 1 of 2 atoms",
        ),
        (
            "augmentation occupancies   1   6",
            "augmentation occupancies   1",
            "is not a valid first line of augmentation",
        ),
    ],
)
def test_broken_augmentation_is_refused(old: str, new: str, what: str) -> None:
    assert old in AUGMENTATION
    assert what in refused(HEADER + GRID + AUGMENTATION.replace(old, new))


def test_more_numbers_than_grid_points_are_refused() -> None:
    assert "are expected, but" in refused(HEADER + GRID + " 0.1E+01 0.2E+01 0.3E+01\n")


def test_two_different_grids_and_more_than_two_are_refused() -> None:
    other = SPIN.replace("    2    3    2", "    3    2    2")
    assert "they must be equal" in refused(HEADER + GRID + other)
    assert "non-collinear" in refused(HEADER + GRID + SPIN + SPIN + SPIN)


def test_what_cannot_be_written_is_refused(draw) -> None:
    volume = draw(0)
    bad = volume.total.copy()
    bad[1, 2, 3] = np.nan
    cases = {
        "(1, 2, 3) is nan": Volume(volume.structure, bad),
        "grid of 5 x 1 x 6": Volume(volume.structure, volume.total[:, :1]),
        "shape (5, 4)": Volume(volume.structure, volume.total[..., 0]),
        "The spin density has shape": Volume(volume.structure, volume.total, volume.total[1:]),
        "no atoms": Volume(Structure(volume.lattice, (), np.zeros((0, 3))), volume.total),
    }
    for what, broken in cases.items():
        with pytest.raises(BadInput) as caught:
            chgcar_bytes(broken)
        assert what in caught.value.what


def test_a_density_that_overflows_times_the_cell_volume_is_refused(draw) -> None:
    volume = draw(0)
    large = volume.total.copy()
    large[1, 2, 3] = 1e307  # finite; the cell has about 200 cubic angstrom
    for part, name in (
        (Volume(volume.structure, large), "The density"),
        (Volume(volume.structure, volume.total, -large), "The spin density"),
    ):
        with pytest.raises(BadInput, match=f"{name} is up to 1e.307 .* overflows") as caught:
            chgcar_bytes(part)
        assert caught.value.hint


@pytest.mark.parametrize("at", [0, -1])
def test_an_exponent_of_three_digits_anywhere_widens_every_field_of_the_grid(draw, at: int) -> None:
    volume = draw(0, (4, 4, 4))
    volume.total[at, at, at] = 1e-150
    lines = chgcar_bytes(volume).decode().splitlines()
    assert {len(line) for line in lines[14:26]} == {5 * 19} and len(lines[26]) == 4 * 19


def test_a_full_disk_leaves_the_old_file_and_no_other(draw, tmp_path, monkeypatch) -> None:
    path = write_chgcar(tmp_path / "CHGCAR", draw(0))
    old = path.read_bytes()
    opened = os.fdopen

    class Full:
        def __init__(self, handle: int, mode: str) -> None:
            self.file = opened(handle, mode)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def write(self, data: bytes) -> int:
            self.file.write(data[:100])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fdopen", Full)
    with pytest.raises(BadInput, match="No space left"):
        write_chgcar(path, draw(1))
    assert path.read_bytes() == old and os.listdir(tmp_path) == ["CHGCAR"]


def test_a_read_only_file_is_not_replaced(draw, tmp_path, monkeypatch) -> None:
    path = write_chgcar(tmp_path / "CHGCAR", draw(0))
    path.chmod(0o444)
    old = path.read_bytes()
    # The superuser may write anything; the permission is then asked of the mode itself.
    monkeypatch.setattr(file_io.os, "access", lambda file, mode: bool(os.stat(file).st_mode & 0o200))
    with pytest.raises(BadInput, match="read-only"):
        write_chgcar(path, draw(1))
    assert path.read_bytes() == old


def test_files_that_are_absent_folders_or_broken_gzip_are_refused(draw, tmp_path) -> None:
    with pytest.raises(BadInput, match="no file"):
        read_chgcar(tmp_path / "CHGCAR")
    with pytest.raises(BadInput, match="cannot be read"):
        read_chgcar(tmp_path)
    with pytest.raises(BadInput, match="folder"):
        write_chgcar(tmp_path, draw(0))
    with pytest.raises(BadInput, match="Cannot write"):
        write_chgcar(tmp_path / "nowhere" / "CHGCAR", draw(0))
    path = write_chgcar(tmp_path / "CHGCAR.gz", draw(0))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match="cannot be decompressed"):
        read_chgcar(path)


# --- other programs ---


def test_ase_reads_ours_and_we_read_theirs(draw, tmp_path) -> None:
    vasp = pytest.importorskip("ase.calculators.vasp", reason="ASE is not installed")
    volume = draw(5, (6, 5, 4), spin=True)
    path = write_chgcar(tmp_path / "CHGCAR", volume)
    theirs = vasp.VaspChargeDensity(str(path))
    np.testing.assert_allclose(theirs.chg[0], volume.total, rtol=1e-10)
    np.testing.assert_allclose(theirs.chgdiff[0], volume.spin, rtol=1e-10)
    np.testing.assert_allclose(theirs.atoms[0].cell[:], volume.lattice, rtol=1e-12)
    theirs.write(str(tmp_path / "CHGCAR_ase"), format="chgcar")
    back = read_chgcar(tmp_path / "CHGCAR_ase")
    assert back.spin is not None and volume.spin is not None
    np.testing.assert_allclose(back.total, volume.total, rtol=1e-9)
    np.testing.assert_allclose(back.spin, volume.spin, rtol=1e-9)


def test_pymatgen_reads_ours_and_we_read_theirs(tmp_path) -> None:
    outputs = pytest.importorskip("pymatgen.io.vasp.outputs", reason="pymatgen is not installed")
    volume = of(HEADER + GRID + AUGMENTATION + SPIN + AUGMENTATION)
    assert volume.spin is not None
    path = write_chgcar(tmp_path / "CHGCAR", volume)
    theirs = outputs.Chgcar.from_file(str(path))
    np.testing.assert_allclose(theirs.data["total"] / 8, volume.total, rtol=1e-15)
    np.testing.assert_allclose(theirs.data["diff"] / 8, volume.spin, rtol=1e-15)
    np.testing.assert_allclose(theirs.data_aug["total"][1], [0.1234567, -0.02345678, 0, 1, 3e-6, 0.4])
    theirs.write_file(str(tmp_path / "CHGCAR_pmg"))
    back = read_chgcar(tmp_path / "CHGCAR_pmg")
    assert back.spin is not None and back.total.tobytes() == volume.total.tobytes()
    assert back.spin.tobytes() == volume.spin.tobytes()


def test_a_file_that_unpacks_to_more_than_the_memory_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(file_io, "free_bytes", lambda: 2_000)
    (tmp_path / "CHGCAR.gz").write_bytes(gzip.compress(bytes(1_001)))
    with pytest.raises(BadInput, match="more than 1,000 B, half of the free memory"):
        read_chgcar(tmp_path / "CHGCAR.gz")
