"""Oxides at rest have the coordination of their structure types; random cells are reproducible and sound."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.data.crystals.polymorphs import TABLE, draw_cell, polymorph
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.grid.periodic_images import images_of
from pinchpoint.systems.density.grid.structure import Structure, close_pair

# Oxygen atoms around each metal, and the largest of these distances in angstrom.
COORDINATION = {
    "hfo2-monoclinic": {"Hf": (7, 2.3)},
    "hfo2-tetragonal": {"Hf": (8, 2.5)},
    "hfo2-cubic": {"Hf": (8, 2.3)},
    "hfo2-orthorhombic": {"Hf": (7, 2.3)},
    "zro2-monoclinic": {"Zr": (7, 2.3)},
    "tio2-rutile": {"Ti": (6, 2.0)},
    "tio2-anatase": {"Ti": (6, 2.0)},
    "tio2-brookite": {"Ti": (6, 2.1)},
    "sio2-quartz": {"Si": (4, 1.63)},
    "sio2-cristobalite": {"Si": (4, 1.63)},
    "sio2-stishovite": {"Si": (6, 1.85)},
    "al2o3-corundum": {"Al": (6, 2.0)},
    "mgo-rocksalt": {"Mg": (6, 2.2)},
    "cao-rocksalt": {"Ca": (6, 2.5)},
    "zno-wurtzite": {"Zn": (4, 2.0)},
    "zno-zincblende": {"Zn": (4, 2.05)},
    "mgal2o4-spinel": {"Mg": (4, 1.95), "Al": (6, 1.95)},
    "catio3-cubic": {"Ca": (12, 2.8), "Ti": (6, 1.95)},
    "catio3-orthorhombic": {"Ca": (8, 2.7), "Ti": (6, 2.0)},
    "zrsio4-zircon": {"Zr": (8, 2.3), "Si": (4, 1.65)},
    "hfsio4-zircon": {"Hf": (8, 2.3), "Si": (4, 1.65)},
}


def neighbours(structure: Structure, symbol: str, within: float) -> set[int]:
    """The numbers of oxygen atoms around the atoms of a species."""
    images = images_of(structure, 4.0)
    oxygen = np.array(structure.species)[images.atom] == "O"
    own = [atom for atom, each in enumerate(structure.species) if each == symbol]
    apart = np.linalg.norm(images.home[own][:, None] - images.positions[oxygen], axis=2)
    return set((apart < within).sum(axis=1).tolist())


@pytest.mark.parametrize("name", sorted(COORDINATION))
def test_a_polymorph_has_the_coordination_of_its_structure_type(name):
    structure = polymorph(name)
    for symbol, (count, within) in COORDINATION[name].items():
        assert neighbours(structure, symbol, within) == {count}, symbol
    assert close_pair(structure, 1.55) is None


def test_monoclinic_hfo2_is_the_crystal_of_the_benchmarks():
    ours, theirs = polymorph("hfo2-monoclinic"), hafnia()
    assert ours.species == theirs.species and np.allclose(ours.lattice, theirs.lattice)
    away = ours.positions - theirs.positions
    assert np.allclose(away - np.round(away), 0)


def test_changes_make_a_supercell_a_vacancy_a_mixture_and_a_surface():
    rest, wide = polymorph("mgo-rocksalt"), polymorph("mgo-rocksalt+2x1x1")
    assert wide.volume == pytest.approx(2 * rest.volume) and len(wide.species) == 16
    assert polymorph("mgo-rocksalt+2x1x1+vacancy").species.count("O") == 7
    assert polymorph("hfo2-monoclinic+Zr").species.count("Zr") == 2
    slab = polymorph("mgo-rocksalt+surface")
    assert slab.lattice[2, 2] == pytest.approx(rest.lattice[2, 2] + 7)
    assert neighbours(slab, "Mg", 2.2) == {5}  # every atom of two layers is at a surface


def test_cells_follow_from_the_seed_and_their_number():
    first, again = (draw_cell("tio2-rutile", seed=3, number=2) for _ in range(2))
    assert np.array_equal(first.positions, again.positions) and np.array_equal(first.lattice, again.lattice)
    assert not np.allclose(first.lattice, draw_cell("tio2-rutile", seed=3, number=1).lattice)
    assert np.array_equal(
        draw_cell("tio2-rutile", seed=3, number=0).positions, polymorph("tio2-rutile").positions
    )


def test_an_unknown_oxide_is_refused():
    with pytest.raises(BadInput, match="no oxide 'feo'") as caught:
        polymorph("feo")
    assert all(name in caught.value.hint for name in TABLE)
