"""Surfaces of spheres and rings against their closed forms, and meshes that must be found open."""

from __future__ import annotations

import numpy as np
import pytest

from pinchpoint.systems.radiance.export.surface import (
    Mesh,
    extract_surface,
    fill_cavities,
    is_watertight,
    keep_faces,
    split_parts,
)

SIDE, SPACING, ORIGIN = 32, 0.0625, np.full(3, -0.96875)
X, Y, Z = np.meshgrid(*[ORIGIN[0] + SPACING * np.arange(SIDE)] * 3, indexing="ij")
RADIUS = np.sqrt(X**2 + Y**2 + Z**2)


def surface(values: np.ndarray, level: float = 0.0) -> Mesh:
    return extract_surface(values, level, spacing=SPACING, origin=ORIGIN)


def euler(mesh: Mesh) -> int:
    edges = np.sort(np.concatenate([mesh.faces[:, [0, 1]], mesh.faces[:, [1, 2]], mesh.faces[:, [2, 0]]]), 1)
    return len(mesh.vertices) - len(np.unique(edges, axis=0)) + len(mesh.faces)


def test_a_sphere_has_its_area_volume_and_outward_normals() -> None:
    mesh = surface(0.7 - RADIUS)
    assert is_watertight(mesh) and euler(mesh) == 2
    assert mesh.volume == pytest.approx(4 / 3 * np.pi * 0.7**3, rel=0.01)
    assert mesh.area == pytest.approx(4 * np.pi * 0.7**2, rel=0.01)
    assert np.abs(np.linalg.norm(mesh.vertices, axis=1) - 0.7).max() < 2.2e-3
    assert ((mesh.normals() * mesh.vertices).sum(axis=1) > 0.69).all()


def test_a_ring_has_one_hole_and_noise_is_closed() -> None:
    ring = surface(0.2 - np.hypot(np.hypot(X, Y) - 0.6, Z))
    assert is_watertight(ring) and euler(ring) == 0
    assert ring.volume == pytest.approx(2 * np.pi**2 * 0.6 * 0.2**2, rel=0.02)
    noise = surface(np.random.default_rng(0).normal(size=(12, 12, 12)))
    assert is_watertight(noise)


def test_a_surface_that_leaves_the_grid_is_closed_at_its_border() -> None:
    mesh = surface(0.3 - np.abs(Z))
    assert is_watertight(mesh) and mesh.vertices[:, 0].max() <= 0.97 + SPACING


def test_cavities_are_filled_but_not_what_a_corridor_leads_to() -> None:
    shell = 0.15 - np.abs(RADIUS - 0.6)
    assert surface(fill_cavities(shell, 0.0)).volume == pytest.approx(4 / 3 * np.pi * 0.75**3, rel=0.01)
    open_shell = np.where((np.hypot(X, Y) < 0.12) & (Z > 0), -0.1, shell)
    assert np.array_equal(fill_cavities(open_shell, 0.0), open_shell)


def test_parts_are_counted_from_the_largest() -> None:
    two = surface(
        np.maximum(0.3 - np.hypot(np.hypot(X - 0.5, Y), Z), 0.15 - np.hypot(np.hypot(X + 0.5, Y), Z))
    )
    parts = split_parts(two)
    assert set(parts) == {0, 1}
    large, small = (keep_faces(two, parts == at) for at in (0, 1))
    assert large.vertices[:, 0].min() > 0 > small.vertices[:, 0].max()
    assert is_watertight(large) and large.volume + small.volume == pytest.approx(two.volume)


def test_a_missing_or_turned_face_is_not_watertight() -> None:
    mesh = surface(0.7 - RADIUS)
    assert not is_watertight(Mesh(mesh.vertices, mesh.faces[1:]))
    turned = mesh.faces.copy()
    turned[0] = turned[0, ::-1]
    assert not is_watertight(Mesh(mesh.vertices, turned))
