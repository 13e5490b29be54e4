"""Distances between surfaces, from points drawn on them. Letters: N, M points."""

from __future__ import annotations

import numpy as np
import torch

from pinchpoint.systems.radiance.export.surface import Mesh

_ROWS = 2048  # points compared with all others at once


def sample_surface(mesh: Mesh, count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points (N, 3) drawn uniformly by area, and the outward unit normals (N, 3) there."""
    random = np.random.default_rng(seed)
    vectors = mesh.area_vectors()
    areas = np.linalg.norm(vectors, axis=1)
    faces = random.choice(len(areas), size=count, p=areas / areas.sum())
    one, two = np.sqrt(random.uniform(size=count)), random.uniform(size=count)
    weights = np.stack([1 - one, one * (1 - two), one * two], axis=1)
    points = (weights[..., None] * mesh.corners()[faces]).sum(axis=1)
    return points, vectors[faces] / areas[faces, None]


def nearest_distances(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Distance from each of (N, 3) to the nearest of (M, 3): (N,)."""
    own, them = torch.as_tensor(points).double(), torch.as_tensor(others).double()
    nearest = [
        torch.cdist(rows, them, compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1)
        for rows in own.split(_ROWS)
    ]
    return torch.cat(nearest).numpy()


def chamfer(points: np.ndarray, others: np.ndarray) -> float:
    """Mean distance to the nearest point of the other set, averaged over both directions."""
    there, back = nearest_distances(points, others), nearest_distances(others, points)
    return float((there.mean() + back.mean()) / 2)
