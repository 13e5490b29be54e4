"""Structures and requests that look fine and are not: refused or told before they cost anything."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.cli.main import run
from pinchpoint.core import host_memory
from pinchpoint.core.errors import BadInput, DoesNotFit, PinchpointError
from pinchpoint.core.units import parse_size, show_bytes
from pinchpoint.systems.density.data.data_settings import PRESETS
from pinchpoint.systems.density.data.dataset import make_data, unknown_species
from pinchpoint.systems.density.data.domain import charge_notes, unfamiliar_notes
from pinchpoint.systems.density.data.sources import find_files, refusal
from pinchpoint.systems.density.files.formats import read_volume
from pinchpoint.systems.density.files.structures import as_structure, read_structure
from pinchpoint.systems.density.files.volume import Volume
from pinchpoint.systems.density.grid.electron_counts import count_notes, grid_error
from pinchpoint.systems.density.grid.grids import choose_grid, skew_notes
from pinchpoint.systems.density.grid.periodic_images import images_of
from pinchpoint.systems.density.grid.structure import Structure, cell_volume, check_structure, reduced_cell
from pinchpoint.systems.density.predict import predict
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.train import loss_notes
from pinchpoint.systems.density.training.runs import read_domain
from pinchpoint.systems.density.training.weights import load_weights

SKEWED = np.array([[1000.0, 0, 0], [999.5, 0.8, 0], [0, 0, 8]])
SHARED = """data_x
_cell_length_a 4
_cell_length_b 4
_cell_length_c 4
_cell_angle_alpha 90
_cell_angle_beta 90
_cell_angle_gamma 90
_symmetry_space_group_name_H-M 'P 1'
loop_
_atom_site_label
_atom_site_type_symbol
_atom_site_occupancy
_atom_site_fract_x
_atom_site_fract_y
_atom_site_fract_z
O1 O 1.0 0.5 0.5 0.5
"""


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("C1 C 0.5 0 0 0\nN1 N 0.5 0 0 0\n", "Site 2 is occupied by C:0.5, N:0.5"),
        ("C1 C 0.8 0 0 0\n", "is occupied by C:0.8"),
    ],
)
def test_a_cif_whose_sites_are_shared_or_partly_empty_is_refused(
    rows: str, said: str, tmp_path: Path
) -> None:
    pytest.importorskip("ase")
    path = tmp_path / "mixed.cif"
    path.write_text(SHARED + rows)
    with pytest.raises(BadInput, match=said):
        read_structure(path)
    path.write_text(SHARED + "C1 C 1.0 0 0 0\n")  # occupancies that are all 1 are no disorder
    assert read_structure(path).species == ("O", "C")


@pytest.mark.parametrize("seed", range(8))
def test_the_reduced_cell_has_the_shortest_vectors_of_the_same_lattice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lattice = np.diag(rng.uniform(2, 8, 3)) + rng.normal(size=(3, 3)) * 0.7
    mixed = np.eye(3, dtype=int)
    for _ in range(5):
        to, by = rng.choice(3, 2, replace=False)
        mixed[to] += rng.integers(-6, 7) * mixed[by]
    found = reduced_cell(mixed @ lattice)
    lengths = [
        np.linalg.norm(np.array(each) @ lattice)
        for each in itertools.product(range(-7, 8), repeat=3)
        if any(each)
    ]
    assert np.linalg.norm(found[0]) == pytest.approx(min(lengths))
    whole = found @ np.linalg.inv(lattice)
    np.testing.assert_allclose(whole, np.round(whole), atol=1e-6)
    assert cell_volume(found) == pytest.approx(cell_volume(lattice))


@pytest.mark.parametrize(
    "lattice",
    [np.diag([0.01, 0.01, 8.0]), np.eye(3) * 0.1, np.array([[50.0, 0, 0], [49.98, 0.01, 0], [0, 0, 8]])],
)
def test_an_atom_on_top_of_its_own_image_is_refused(lattice: np.ndarray) -> None:
    with pytest.raises(BadInput, match=r"Atom 1 and its own image are 0\.\d+ angstrom apart"):
        check_structure(Structure(lattice, ("H",), np.zeros((1, 3))))


def test_atoms_of_a_skewed_cell_that_meet_across_its_borders_are_refused() -> None:
    # 500 lattice steps away by fractions, 0.05 angstrom in truth.
    apart = np.array([[0.0, 0, 0], [0.05, 0, 0] + 3 * SKEWED[0] - 3 * SKEWED[1]]) @ np.linalg.inv(SKEWED)
    with pytest.raises(BadInput, match=r"Atoms 1 and 2 are 0\.050 angstrom apart"):
        check_structure(Structure(SKEWED, ("H", "H"), apart))


def test_a_skewed_cell_that_does_not_fit_is_told_to_be_reduced_and_one_that_fits_is_noted(
    monkeypatch,
) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 4 * 2**30)
    with pytest.raises(BadInput, match="64,000,000 points") as error:
        choose_grid(SKEWED, spacing_a=0.5)
    assert "Reduce the cell (Niggli)" in error.value.hint
    assert "1,249 times" in skew_notes(SKEWED, (2000, 2000, 16))[0]
    assert skew_notes(np.array([[4.0, 0, 0], [1.4, 2.4, 0], [-0.7, 0.9, 3.3]]), (8, 8, 8)) == ()
    with pytest.raises(BadInput, match="images takes") as error:
        images_of(
            Structure(np.array([[1000.0, 0, 0], [333.3, 1e-3, 0], [0, 0, 8]]), ("H",) * 9, np.zeros((9, 3))),
            4.0,
        )
    assert "Reduce the cell" in error.value.hint


def test_what_the_grid_misses_does_not_depend_on_the_vectors_that_span_its_points() -> None:
    places = np.array([[0.13, 0.2, 0.37], [0.6, 0.55, 0.81]])
    plain = Structure(np.diag([5.0, 5.0, 6.0]), ("O", "C"), places)
    skew = np.array([[1, 0, 0], [7, 1, 0], [0, 0, 1]])
    other = Structure(skew @ plain.lattice, ("O", "C"), places @ np.linalg.inv(skew))
    # On a grid of 10 along both vectors the points of the skewed cell are those of the plain one.
    assert grid_error(other, (10, 10, 12)) == pytest.approx(grid_error(plain, (10, 10, 12)), abs=1e-9)
    assert abs(grid_error(plain, (10, 10, 12))) > 0.01
    assert grid_error(plain, (200, 200, 240)) == 0.0


def test_a_brick_with_more_neighbours_than_memory_holds_is_refused(monkeypatch) -> None:
    model, structure = load_weights(), Structure(np.eye(3) * 3, ("H",), np.zeros((1, 3)))
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 2**16)
    with pytest.raises(DoesNotFit, match="atoms around it"):
        predict(structure, weights=model, grid=4, device="cpu")


def ammonium(charge: float) -> Structure:
    corners = np.array([[0, 0, 0], [1, 1, 1], [-1, -1, 1], [-1, 1, -1], [1, -1, -1]]) * 0.59 + 5
    return Structure(np.eye(3) * 10, ("N", "H", "H", "H", "H"), corners / 10, charge)


def test_charges_of_other_libraries_are_kept_and_told(tmp_path: Path) -> None:
    pytest.importorskip("ase")
    core = pytest.importorskip("pymatgen.core")
    from ase import Atoms

    assert (
        as_structure(core.Molecule(["O", "H"], [[0, 0, 0], [0, 0, 0.97]], charge=-1), padding_a=4).charge
        == -1
    )
    assert as_structure(core.Structure(core.Lattice.cubic(4), ["C"], [[0, 0, 0]], charge=2)).charge == 2
    assert (
        as_structure(
            core.Structure(core.Lattice.cubic(4), ["Na+", "Cl-"], [[0, 0, 0], [0.5, 0.5, 0.5]])
        ).charge
        == 0
    )
    atoms = Atoms("OH", [[0, 0, 0], [0, 0, 0.97]], charges=[-1.1, 0.1])
    assert as_structure(atoms, padding_a=4).charge == pytest.approx(-1)
    (tmp_path / "ion.xyz").write_text("2\nProperties=species:S:1:pos:R:3 charge=-1\nO 0 0 0\nH 0 0 0.97\n")
    assert read_structure(tmp_path / "ion.xyz", padding_a=4).charge == -1


def test_a_charge_is_noted_and_counts_for_the_parity_of_the_electrons() -> None:
    seen = load_weights().domain
    assert seen is not None
    assert any("odd number of electrons, 9" in note for note in unfamiliar_notes(ammonium(0), seen))
    assert not any("odd number" in note for note in unfamiliar_notes(ammonium(1), seen))
    assert not any("odd number" in note for note in unfamiliar_notes(ammonium(0), seen, electrons=8))
    (note,) = charge_notes(ammonium(1), electrons=None)
    assert "a charge of +1" in note and "neutral atoms; --electrons 8 scales" in note
    assert charge_notes(ammonium(0), electrons=None) == ()


def test_a_slab_of_two_vectors_is_told_what_to_give_and_not_a_padding() -> None:
    atoms = pytest.importorskip("ase").Atoms("H", cell=[10, 10, 0])
    with pytest.raises(BadInput, match="2 of its vectors are not zero") as error:
        as_structure(atoms, padding_a=4.0)
    assert "three lattice vectors" in error.value.hint and "give a padding" not in error.value.hint


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.xyz", b"1\n\nQq 0 0 0\n", "unknown element 'Qq'"),
        ("a.foo", b"nothing that anyone knows\n", "its format is unknown"),
        ("a.xyz", bytes(range(256)) * 8, "it is a binary file"),
        ("POSCAR", bytes(range(256)) * 8, "POSCAR is a binary file"),
        ("a.cube", bytes(range(256)) * 8, "a.cube is a binary file"),
    ],
)
def test_files_that_cannot_be_read_are_told_in_words(
    name: str, data: bytes, said: str, tmp_path: Path
) -> None:
    pytest.importorskip("ase")
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput) as error:
        read_structure(tmp_path / name, padding_a=4.0)
    assert said in error.value.what and error.value.what.isprintable()


def flat(raw: float, structure: Structure) -> Volume:
    return Volume(structure, np.full((4, 4, 4), raw / structure.volume))


def test_a_count_that_no_atoms_have_is_told_whatever_the_weights() -> None:
    hydride = Structure(np.eye(3) * 2, ("H", "O"), np.array([[0, 0, 0], [0.5, 0.5, 0.5]]))
    for raw, said in (
        (-2956.0, "which is not above zero"),
        (99.0, "more than all 9 electrons of the atoms"),
        (0.1, "fewer than 0.1 per atom"),
    ):
        (note,) = count_notes(flat(raw, hydride), raw, neutral=None, requested=None)
        assert note.startswith(f"the model predicts {raw:.4g} electrons, {said}") and "lower --lr" in note
    assert count_notes(flat(7.0, hydride), 7.0, neutral=None, requested=None) == ()


def test_the_grid_is_blamed_only_for_the_larger_share_of_the_same_sign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Structure(np.eye(3) * 2, ("H", "H"), np.array([[0, 0, 0], [0.4, 0, 0]]))
    for by_grid, said in (
        (0.06, "unlike the training data, or charged; in addition, the grid"),
        (-0.07, "(-4.1%: grid -0.07 electrons, model -0"),
    ):
        monkeypatch.setattr(
            "pinchpoint.systems.density.grid.electron_counts.grid_error", lambda *_, found=by_grid: found
        )
        (note,) = count_notes(flat(1.9172, pair), 1.9172, neutral=2, requested=None)
        assert said in note
        assert f"grid {by_grid:+.2g} electrons, model {-0.0828 - by_grid:+.2g} electrons)" in note
    assert note.endswith(": the grid is too coarse for the peaks (0.5 angstrom): give --spacing 0.1")


def test_electrons_beyond_reason_are_refused_and_an_idle_padding_is_noted() -> None:
    model, cell = (
        load_weights(),
        Structure(np.eye(3) * 6, ("H", "H"), np.array([[0.4, 0.5, 0.5], [0.52, 0.5, 0.5]])),
    )
    for electrons in (1e300, 1e-300):
        with pytest.raises(BadInput, match="--electrons"):
            predict(cell, weights=model, grid=8, electrons=electrons, device="cpu")
    with pytest.raises(BadInput, match=r"times the .* electrons that the model predicts"):
        predict(cell, weights=model, grid=12, electrons=0.003, device="cpu")
    with pytest.raises(BadInput, match="The seed 99999999999999999999999"):
        predict(cell, weights=model, seed=99999999999999999999999)
    made = predict(cell, weights="packaged", grid=12, padding_a=3.0, device="cpu")
    assert "--padding 3 has no effect: the structure has its own cell" in made.notes


def test_a_loss_that_rose_is_told_with_a_hint_and_one_that_wavers_is_not() -> None:
    told = Settings(steps=100, lr=0.02)
    (note,) = loss_notes([0.118] * 20 + [5.0, 433.0] * 10, told, best_step=20)
    assert (
        "rose from 0.118 to 219" in note and "--lr 0.005" in note and "--set warmup (it was 5 steps)" in note
    )
    assert "of step 20" in note
    assert loss_notes([0.1, 0.15] * 20, told) == loss_notes([0.3], told) == loss_notes([], told) == ()


def test_a_run_without_checkpoints_or_with_a_damaged_file_names_what_to_restore(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="has no checkpoint") as error:
        load_weights(tmp_path)
    assert "--checkpoint" not in error.value.hint and "checkpoints" in error.value.hint
    (tmp_path / "seen.json").write_text("[1]")
    with pytest.raises(BadInput, match=r"seen\.json is damaged"):
        read_domain(tmp_path)


def test_held_out_molecules_of_other_elements_and_seeds_too_large_are_told_when_data_are_made(
    tmp_path: Path,
) -> None:
    (note,) = unknown_species(replace(PRESETS["tiny"], molecules=("water", "ammonia"), heldout=("methane",)))
    assert note.startswith("methane is held out, and no training molecule has C")
    assert unknown_species(PRESETS["default"]) == []
    with pytest.raises(BadInput, match="The seed"):
        make_data(tmp_path, preset="tiny", seed=10**22)


def test_a_missing_file_is_missing_whatever_its_name(tmp_path: Path) -> None:
    for missing in (
        lambda: read_volume(tmp_path / "nothing.txt"),
        lambda: find_files([tmp_path / "nothing.txt"]),
    ):
        with pytest.raises(BadInput, match="There is no file"):
            missing()


def test_every_refused_file_is_told_where_there_are_several() -> None:
    refused: dict[str, PinchpointError] = {
        f"{number}/CHGCAR": BadInput("it is truncated", hint="copy it again") for number in range(9)
    }
    told: list[str] = []
    error = refusal(refused, total=12, tell=told.append)
    assert told == [f"{number}/CHGCAR: it is truncated" for number in range(9)]
    assert "9 of 12 files cannot be used, each named above" in error.what
    assert "and 6 more" in refusal(refused, total=12).what


def test_sizes_and_bytes_beyond_all_reason_are_shown_in_words() -> None:
    with pytest.raises(BadInput, match="is too large"):
        parse_size("99999999999999999999")
    assert show_bytes(3 * 2**60) == "3 EiB" and show_bytes(1e33 * 112) == "1e+17 EiB"


@pytest.mark.parametrize("command", [["data", "-o", "x", "--preset", "tiny"], ["train", "x", "-o", "y"]])
def test_a_sigterm_before_the_first_sample_or_step_says_stopped(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*args: object, **options: object) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("pinchpoint.systems.density.data.dataset.make_data", stopped)
    monkeypatch.setattr("pinchpoint.systems.density.train.train", stopped)
    assert run(["density", *command]) == 143
    assert "stopped" in capsys.readouterr().err.lower()
