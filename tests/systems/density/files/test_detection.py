"""Files as people have them: wrapped, padded, compressed, as JSON, under any name, or with absurd claims."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.files.chgcar import chgcar_bytes, chgcar_of
from pinchpoint.systems.density.files.detection import content_kind
from pinchpoint.systems.density.files.formats import read_volume, write_volume
from pinchpoint.systems.density.files.poscar import poscar_text
from pinchpoint.systems.density.files.structures import read_structure
from pinchpoint.systems.density.files.volume import Volume

PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def json_of(volume: Volume, **changes: Any) -> dict[str, Any]:
    """Return a density as pymatgen's Chgcar writes it; the density times the volume, z fastest."""
    times = volume.structure.volume
    sites = [
        {"species": [{"element": symbol, "occu": 1}], "abc": list(place), "label": symbol}
        for symbol, place in zip(volume.species, volume.positions.tolist(), strict=True)
    ]
    structure = {"@class": "Structure", "lattice": {"matrix": volume.lattice.tolist()}, "sites": sites}
    array = {"@module": "numpy", "@class": "array", "data": (volume.total * times).tolist()}
    return {
        "@class": "Chgcar",
        "poscar": {"structure": structure, "comment": "from the project"},
        "data": {"total": array},
        "data_aug": {},
        **changes,
    }


# --- CHGCAR and POSCAR ---


@pytest.mark.parametrize("grid", [(3, 7, 11), (4, 4, 4), (2, 3, 2)])
@pytest.mark.parametrize("after", ["", "augmentation occupancies   1   2\n  0.5000000E+00  0.6000000E+00\n"])
def test_a_last_line_filled_up_with_zeros_is_the_same_density(draw, grid: Any, after: str) -> None:
    volume = draw(0, grid)
    after = "".join(after.replace("   1   2", f"   {ion}   2") for ion in range(1, 5)) if after else ""
    text = chgcar_bytes(volume).decode()
    missing = -np.prod(grid) % 5
    assert missing
    padded = text.rstrip("\n") + " 0.00000000000E+00" * missing + "\n" + after
    read = chgcar_of(padded.encode(), name="CHGCAR")
    assert read.total.tobytes() == chgcar_of(text.encode(), name="CHGCAR").total.tobytes()
    assert read.augmentation == after
    other = padded.replace(" 0.00000000000E+00\n", " 0.10000000000E-10\n")
    with pytest.raises(BadInput, match="numbers, but"):
        chgcar_of(other.encode(), name="CHGCAR")
    with pytest.raises(BadInput):
        chgcar_of((text.rstrip("\n") + " 0.00000000000E+00" * (missing + 1) + "\n").encode(), name="CHGCAR")


def test_species_wrapped_over_several_lines_are_read(draw, tmp_path: Path) -> None:
    volume = draw(1)
    text = poscar_text(volume.structure, "wrapped")
    names, counts = "   Hf   O    Hf", "     2     1     1"
    assert names in text and counts in text
    for new_names, new_counts in (
        ("Hf O\nHf", "2 1\n1"),
        ("Hf_pv\nO\nHf/3f5a", "2 1 1"),
        ("Hf O Hf", "2\n1\n1"),
    ):
        (tmp_path / "POSCAR").write_text(text.replace(names, new_names).replace(counts, new_counts))
        read = read_structure(tmp_path / "POSCAR")
        assert read.species == volume.species and read.positions.tobytes() == volume.positions.tobytes()
    (tmp_path / "POSCAR").write_text(text.replace(names, "Hf O\nHf").replace(counts, "2 1"))
    with pytest.raises(BadInput, match="the counts '2 1' do not match 3 species"):
        read_structure(tmp_path / "POSCAR")


@pytest.mark.parametrize("claim", ["1000000000000", "9" * 400])
def test_a_file_that_claims_a_million_million_atoms_is_refused_at_once(
    draw, tmp_path: Path, claim: str
) -> None:
    volume = draw(0)
    poscar = poscar_text(volume.structure, "").replace("     2     1     1", f" {claim} 1 1")
    chgcar = chgcar_bytes(volume).decode().replace("     2     1     1", f" {claim} 1 1")
    xyz = f"{claim}\nclaims\nH 0 0 0\n"
    for name, text in (("POSCAR", poscar), ("CHGCAR", chgcar), ("a.xyz", xyz), ("a", xyz)):
        (tmp_path / name).write_text(text)
        with pytest.raises(BadInput, match="claims"):
            read_structure(tmp_path / name)
    (tmp_path / "a.xyz.gz").write_bytes(gzip.compress(xyz.encode()))
    with pytest.raises(BadInput, match="claims more atoms"):
        read_structure(tmp_path / "a.xyz.gz")
    cube = write_volume(tmp_path / "a.cube", volume).read_text().replace("\n    4 ", f"\n {claim} ", 1)
    (tmp_path / "a.cube").write_text(cube)
    with pytest.raises(BadInput):
        read_volume(tmp_path / "a.cube")


# --- compression and contents ---


@pytest.mark.parametrize("ending", PACKERS)
def test_compressed_files_are_read_and_written(draw, tmp_path: Path, ending: str) -> None:
    volume = draw(2)
    for name in ("CHGCAR", "rho.cube"):
        plain = write_volume(tmp_path / name, volume)
        packed = write_volume(tmp_path / f"{name}{ending}", volume)
        assert packed.stat().st_size < plain.stat().st_size
        assert read_volume(packed).total.tobytes() == read_volume(plain).total.tobytes()
    theirs = tmp_path / f"POSCAR{ending}"
    theirs.write_bytes(PACKERS[ending](poscar_text(volume.structure, "").encode()))
    assert read_structure(theirs).species == volume.species
    theirs.write_bytes(theirs.read_bytes()[:-9])
    with pytest.raises(BadInput, match="cannot be decompressed"):
        read_structure(theirs)
    with pytest.raises(BadInput, match="numpy cannot read a compressed"):
        write_volume(tmp_path / f"a.npz{ending}", volume)


def test_files_are_recognised_by_what_they_hold(draw, tmp_path: Path) -> None:
    volume = draw(3)
    files = {
        kind: write_volume(tmp_path / name, volume).read_bytes()
        for kind, name in (("chgcar", "CHGCAR"), ("cube", "a.cube"), ("npz", "a.npz"))
    } | {"json": json.dumps(json_of(volume)).encode()}
    for kind, data in files.items():
        assert content_kind(data) == kind
        for name in ("density.dat", "mislabelled.cube", "CHGCAR_other", "noname", "x.json"):
            (tmp_path / name).write_bytes(data)
            np.testing.assert_allclose(read_volume(tmp_path / name).total, volume.total, rtol=1e-9)
            assert read_structure(tmp_path / name).species == volume.species
    assert content_kind(b"3\nwater\nO 0 0 0\nH 0 0 1\nH 0 1 0\n") is None
    assert content_kind(b"") is None and content_kind(b"\0" * 100) is None
    (tmp_path / "notes.dat").write_text("nothing of the kind\n" * 9)
    with pytest.raises(BadInput, match="neither from its contents nor from its name"):
        read_volume(tmp_path / "notes.dat")


# --- JSON of pymatgen and the Materials Project ---


def test_json_densities_have_the_numbers_of_the_chgcar(draw, tmp_path: Path) -> None:
    volume = draw(5, (3, 4, 5), spin=True)
    assert volume.spin is not None
    document = json_of(volume)
    document["data"]["diff"] = (volume.spin * volume.structure.volume).tolist()  # plain lists
    for name, text in (
        ("a.json", document),
        ("b.json", {"task_id": "mp-1", "data": document}),
        ("c.json", [document]),
    ):
        (tmp_path / name).write_text(json.dumps(text))
        read = read_volume(tmp_path / name)
        assert read.spin is not None and read.comment == "from the project"
        np.testing.assert_allclose(read.total, volume.total, rtol=1e-14)
        np.testing.assert_allclose(read.spin, volume.spin, rtol=1e-14)
    (tmp_path / "a.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    assert read_volume(tmp_path / "a.json.gz").electrons == pytest.approx(volume.electrons)


def test_pymatgens_own_json_is_read(tmp_path: Path) -> None:
    outputs = pytest.importorskip("pymatgen.io.vasp.outputs", reason="pymatgen is not installed")
    core = pytest.importorskip("pymatgen.core")
    inputs = pytest.importorskip("pymatgen.io.vasp.inputs")
    structure = core.Structure(core.Lattice.cubic(4.2), ["Mg2+", "O2-"], [[0, 0, 0], [0.5, 0.5, 0.5]])
    values = np.arange(24.0).reshape(2, 3, 4)
    chgcar = outputs.Chgcar(inputs.Poscar(structure), {"total": values, "diff": -values})
    (tmp_path / "chgcar.json").write_text(chgcar.to_json())
    read = read_volume(tmp_path / "chgcar.json")
    np.testing.assert_allclose(read.total, values / 4.2**3)
    assert read.species == ("Mg", "O") and read.moment == pytest.approx(-values.mean())
    (tmp_path / "structure.json").write_text(structure.to_json())
    (tmp_path / "doc.json").write_text(json.dumps({"material_id": "mp-1", "structure": structure.as_dict()}))
    for name in ("structure.json", "doc.json"):
        assert read_structure(tmp_path / name).species == ("Mg", "O")
    molecule = core.Molecule(["O", "H"], [[0, 0, 0], [0, 0, 1]], charge=-1)
    (tmp_path / "molecule.json").write_text(molecule.to_json())
    boxed = read_structure(tmp_path / "molecule.json", padding_a=4.0)
    assert boxed.charge == -1 and boxed.lattice[2, 2] == pytest.approx(9.0)
    with pytest.raises(BadInput, match="has no cell"):
        read_structure(tmp_path / "molecule.json")


def test_the_json_of_ase_is_still_read(tmp_path: Path) -> None:
    build = pytest.importorskip("ase.build", reason="ASE is not installed")
    build.bulk("MgO", "rocksalt", 4.2).write(tmp_path / "a.json")
    assert read_structure(tmp_path / "a.json").species == ("Mg", "O")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": {}}, "no density `total`"),
        ({"data": {"total": [[1.0, 2.0]]}}, "`total` has 2 axes, not 3"),
        ({"data": {"total": [[[1.0, 2.0], [1.0]]]}}, "not an array of numbers"),
        ({"data": {"total": [[["x"]]]}}, "not an array of numbers"),
        ({"data": {"total": [[[1.0]]]}}, "grid of 1 x 1 x 1"),
        ({"data": {"total": np.full((2, 2, 2), np.nan).tolist()}}, "is nan"),
        ({"data": {"total": np.ones((2, 2, 2)).tolist(), "diff_x": []}}, "non-collinear"),
        ({"poscar": {"structure": {"sites": []}}}, "lattice is missing"),
        (
            {"poscar": {"structure": {"lattice": {"matrix": np.eye(3).tolist()}, "sites": [{}]}}},
            "site 1 has no",
        ),
        ({"poscar": {}}, "has no density"),
    ],
)
def test_json_that_is_no_density_is_refused(draw, tmp_path: Path, change: Any, says: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps(json_of(draw(0)) | change))
    with pytest.raises(BadInput, match=says) as caught:
        read_volume(tmp_path / "a.json")
    assert caught.value.hint and "a.json" in caught.value.what


def test_shared_sites_and_broken_json_are_refused(draw, tmp_path: Path) -> None:
    document = json_of(draw(0))
    document["poscar"]["structure"]["sites"][1]["species"].append({"element": "Zr", "occu": 0.5})
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"site 2 is occupied by Hf:1, Zr:0\.5"):
        read_volume(tmp_path / "a.json")
    (tmp_path / "b.json").write_text(json.dumps(document)[:-50])
    with pytest.raises(BadInput, match="it is not JSON"):
        read_volume(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match="nested too deeply"):
        read_volume(tmp_path / "c.json")
