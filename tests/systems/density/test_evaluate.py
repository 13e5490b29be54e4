"""Two densities compared: numbers done by hand, slices of what lies there, and what cannot be compared
refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.evaluate import (
    Evaluation,
    centre_of_charge,
    draw_slices,
    evaluate,
    nmae_of,
    parse_place,
    plane_of,
)
from pinchpoint.systems.density.files.formats import write_volume
from pinchpoint.systems.density.files.volume import Volume, grid_points
from pinchpoint.systems.density.grid.structure import Structure


def test_numbers_are_those_done_by_hand(draw, tmp_path: Path) -> None:
    reference = draw(0, (4, 5, 6), spin=True)
    total = reference.total.copy()
    total[1, 2, 3] += 0.5
    total[0, 0, 0] -= 0.25
    ours = replace(reference, total=total, spin=reference.spin * 1.5)
    paths = [
        write_volume(tmp_path / name, volume) for name, volume in (("a.npz", ours), ("b.npz", reference))
    ]
    made = evaluate(*paths)
    assert made.nmae == pytest.approx(0.75 / reference.total.sum(), rel=1e-12)
    assert made.worst == pytest.approx(0.5) and made.worst_at == (0.25, 0.4, 0.5)
    assert made.rms == pytest.approx(((0.5**2 + 0.25**2) / 120) ** 0.5)
    assert made.electrons - made.electrons_reference == pytest.approx(0.25 * reference.structure.volume / 120)
    assert made.spin_nmae == pytest.approx(0.5) and made.moment == pytest.approx(1.5 * made.moment_reference)
    assert made.notes == () and made.files == ()


def test_a_density_against_itself_has_no_error_in_any_format(draw, tmp_path: Path) -> None:
    volume = draw(1)
    paths = [write_volume(tmp_path / name, volume) for name in ("CHGCAR", "rho.cube", "rho.npz")]
    for path in paths:
        assert evaluate(path, paths[2]).nmae < 1e-9


def test_a_folder_gets_slices_and_a_record_that_can_be_read_again(draw, tmp_path: Path) -> None:
    paths = [write_volume(tmp_path / f"{i}.npz", replace(draw(0), total=draw(i).total)) for i in (0, 1)]
    made = evaluate(*paths, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["evaluation.json", "slices.png"]
    assert (tmp_path / "out" / "slices.png").read_bytes().startswith(b"\x89PNG")
    back = Evaluation.from_json((tmp_path / "out" / "evaluation.json").read_text())
    assert back == made and json.loads(made.to_json())["kind"] == "density-evaluation"


def test_planes_pass_through_the_centre_of_charge_round_the_edge_of_the_cell() -> None:
    points = grid_points((20, 24, 30)).reshape(20, 24, 30, 3)
    away = points - np.array([0.95, 0.25, 0.5])
    blob = np.exp(-40 * ((away - np.round(away)) ** 2).sum(axis=-1))
    centre = centre_of_charge(blob)
    np.testing.assert_allclose(centre, [0.95, 0.25, 0.5], atol=1e-6)
    for axis, (at, index) in enumerate(zip(centre, (19, 6, 15), strict=True)):
        assert np.array_equal(plane_of(blob, axis, at), np.take(blob, index, axis=axis))
    assert centre_of_charge(np.ones((4, 4, 4))) == (0.0, 0.0, 0.0)


def test_slices_say_lengths_their_colours_and_the_worst(
    draw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure_of = pytest.importorskip("matplotlib.figure", reason="pictures are matplotlib's").Figure
    kept = []
    save = figure_of.savefig
    monkeypatch.setattr(
        figure_of, "savefig", lambda self, *args, **options: (kept.append(self), save(self, *args, **options))
    )
    reference = draw(0, (4, 5, 6))
    total = reference.total.copy()
    total[2, 2, 3] += 0.5  # one point among many, on the planes
    draw_slices(tmp_path / "a.png", total, reference, at=(0.5, 0.4, 0.5), title="a")
    axes = kept[0].axes
    drawn = next(one for one in axes if one.get_title() == "difference").collections[0]
    assert drawn.norm.vmax == pytest.approx(0.5) == -drawn.norm.vmin
    labels = [text for one in axes for text in (one.get_xlabel(), one.get_ylabel())]
    assert sum("Å" in text and "along" in text for text in labels) == 9
    assert sum("square root" in text for text in labels) == 2 and any(
        "at most 0.5 e" in text for text in labels
    )


def test_other_grids_and_cells_are_refused_and_other_atoms_told(draw, tmp_path: Path) -> None:
    first = write_volume(tmp_path / "a.npz", draw(0, (4, 5, 6)))
    with pytest.raises(BadInput, match="4 x 5 x 6 points cannot be compared with one of 6 x 5 x 4") as caught:
        evaluate(first, write_volume(tmp_path / "b.npz", draw(0, (6, 5, 4))))
    assert "--grid 6,5,4" in caught.value.hint
    with pytest.raises(BadInput, match="The cells differ") as caught:
        evaluate(first, write_volume(tmp_path / "c.npz", draw(1, (4, 5, 6))))
    assert "structure of the reference" in caught.value.hint
    same = draw(0, (4, 5, 6))
    moved = Structure(same.lattice, same.species, same.positions + np.array([0.1, 1.0, 0.0]))
    notes = evaluate(first, write_volume(tmp_path / "d.npz", replace(same, structure=moved))).notes
    assert len(notes) == 1 and "angstrom apart" in notes[0]
    other = Structure(same.lattice, ("Hf", "O"), same.positions[:2])
    notes = evaluate(first, write_volume(tmp_path / "e.npz", Volume(other, same.total, same.total))).notes
    assert "the atoms differ" in notes[0] and "only the reference density has a spin part" in notes[1]


def test_a_reference_of_nothing_and_a_place_that_is_none_are_refused(draw, tmp_path: Path) -> None:
    path = write_volume(tmp_path / "a.npz", draw(0))
    with pytest.raises(BadInput, match="not a point"):
        evaluate(path, path, at=(0.5, float("nan"), 0.0))
    with pytest.raises(BadInput, match="zero everywhere"):
        nmae_of(np.ones(3), np.zeros(3))
    assert parse_place("0.5,0,0.25") == (0.5, 0.0, 0.25)
    for text in ("0.5", "a,b,c", "0,0,nan", "2,0,0", "0,0,1", "-0.1,0,0"):
        with pytest.raises(BadInput, match="not a point"):
            parse_place(text)
