"""A case: a user's grid with fields as a sample of the operator, and its file.

The file is an .npz with the same bytes for the same case: points (P, 3), areas (P,), features (P, K) and
target (P, T) in float32, the triangles that draw them, and `about`, a JSON text with its origin: the file it
was read from, a sha256 of that file, and the settings of the dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data import sample_file
from pinchpoint.systems.operator.data.own.cells import Array
from pinchpoint.systems.operator.data.own.layout import Layout, Places, features_of, field_at, places_of
from pinchpoint.systems.operator.data.sample import Sample, check_sample
from pinchpoint.systems.operator.files.grid import Grid


@dataclass(frozen=True)
class Picture:
    """What a picture of a case needs besides its points. vertices: (W, 3), triangles: (N, 3).

    owners: (N,) the point of each triangle; empty if the vertices are the points. focus: lower and upper
    corner (2, 3) of the bodies in the case; empty if there are none.
    """

    vertices: Array
    triangles: Array
    owners: Array
    focus: Array


@dataclass(frozen=True)
class Case:
    name: str
    origin: dict[str, Any]
    sample: Sample
    picture: Picture


def case_sample(
    name: str,
    grid: Grid,
    layout: Layout,
    parameters: dict[str, float],
    *,
    where: str,
    places: Places | None = None,
    targets: bool = True,
) -> tuple[Sample, Places]:
    """A grid as a sample, and its points. targets=False leaves the target empty, since it is unknown."""
    places = places_of(grid, layout.axes, layout.location, where) if places is None else places
    features = features_of(grid, places, layout, parameters, where)
    fields = [field_at(grid, places, layout, field, where) for field in layout.targets if targets]
    target = np.concatenate([np.zeros((len(features), 0)), *fields], axis=1)
    return (
        Sample(name, _tensor(places.points), _tensor(features), _tensor(target), _tensor(places.areas)),
        places,
    )


def picture_of(places: Places, wall: list[Array]) -> Picture:
    corners = (
        places.vertices[np.unique(np.concatenate([part.reshape(-1) for part in wall]))] if wall else None
    )
    return Picture(
        places.vertices.astype(np.float32),
        places.triangles.astype(np.int32),
        places.owners.astype(np.int32),
        np.zeros((0, 3), np.float32)
        if corners is None
        else np.stack([corners.min(axis=0), corners.max(axis=0)]).astype(np.float32),
    )


def pack_case(case: Case) -> bytes:
    """The bytes of the case's file, the same for the same case."""
    sample = case.sample
    arrays = {name: getattr(sample, name).numpy() for name in ("points", "areas", "features", "target")}
    arrays |= {f"picture_{name}": getattr(case.picture, name) for name in _PICTURE}
    return sample_file.pack_arrays(arrays, {"name": case.name, "origin": case.origin})


def unpack_case(data: bytes, *, where: str) -> Case:
    """The case in a file's bytes. Raises `BadInput` with the file's name if they are not a complete case."""
    try:
        arrays, about = sample_file.unpack_arrays(data)
        parts = {name: torch.from_numpy(arrays[name]) for name in ("points", "features", "target", "areas")}
        picture = Picture(**{name: arrays[f"picture_{name}"] for name in _PICTURE})
        return Case(
            about["name"], about["origin"], check_sample(Sample(name=about["name"], **parts)), picture
        )
    except sample_file.FAILURES as error:
        raise BadInput(
            f"{where} is not a case of a dataset: {error}.",
            hint="Name a case-*.npz created by `pinchpoint operator data --from`.",
        ) from error


_PICTURE = ("vertices", "triangles", "owners", "focus")


def _tensor(values: Array) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
