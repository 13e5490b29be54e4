"""Flows near their bodies, in one small file: meshes follow from the shapes, and fields are rounded.

Pressure and both components of velocity of a case are rounded to 1/8192 of their range, and stored as
differences between adjacent cells, which compress well. Only rings of cells within NEAR chords of the middle
of the body are stored.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from shapes import Array, Mesh, Shape, mesh_of

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes

NEAR = 2.0  # chords
LEVELS = 8192
FORMAT = "aerofoil flows 1"


@dataclass(frozen=True)
class NearFlow:
    """One case near its body. about: its shape, angle, Reynolds number, mesh and forces."""

    name: str
    about: dict[str, Any]
    fields: Array  # (3, layers, around): p, U_x, U_y

    def mesh(self) -> Mesh:
        mesh = mesh_of(Shape(**self.about["shape"]), **self.about["mesh"])
        return Mesh(mesh.corners[: self.fields.shape[1] + 1])


def read_run(path: Path) -> NearFlow:
    """Read a file that `solve` wrote, and keep the rings near the body."""
    with np.load(path) as data:
        about = json.loads(str(data["about"]))
        whole = np.stack([data["p"], *data["U"].T])
    mesh = mesh_of(Shape(**about["shape"]), **about["mesh"])
    reach = np.linalg.norm(mesh.corners - [0.5, 0.0], axis=-1).max(axis=1)
    rings = int((reach[1:] < NEAR).sum())
    fields = whole.reshape(3, mesh.layers, mesh.around)[:, :rings]
    return NearFlow(path.stem, about, fields.astype(np.float64))


def pack(flows: Sequence[NearFlow], path: Path) -> None:
    """Write the flows into one file. All must have the same number of cells along a ring."""
    steps = np.stack([np.ptp(flow.fields, axis=(1, 2)) / LEVELS for flow in flows])
    arrays = {"steps": steps.astype(np.float32)}
    abouts = {}
    for flow, step in zip(flows, arrays["steps"], strict=True):
        levels = np.rint(flow.fields / step.astype(np.float64)[:, None, None]).astype(np.int64)
        changes = np.diff(np.diff(levels, axis=2, prepend=0), axis=1, prepend=0)
        if np.abs(changes).max() > np.iinfo(np.int16).max:
            raise BadInput(f"A field of {flow.name} is too rough to pack.", hint="Solve the case again.")
        arrays[flow.name] = changes.astype(np.int16)
        abouts[flow.name] = flow.about
    arrays["about"] = np.array(json.dumps({"format": FORMAT, "cases": abouts}))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    write_bytes(path, buffer.getvalue())


def unpack(path: Path) -> list[NearFlow]:
    try:
        with np.load(path, allow_pickle=False) as data:
            about = json.loads(str(data["about"]))
            if about["format"] != FORMAT:
                raise ValueError(f"its format is {about['format']!r}")
            flows = []
            for (name, case), step in zip(about["cases"].items(), data["steps"], strict=True):
                levels = data[name].astype(np.int64).cumsum(axis=1).cumsum(axis=2)
                flows.append(NearFlow(name, case, levels * step.astype(np.float64)[:, None, None]))
            return flows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path} does not contain packed flows: {error}.", hint="Name a file that `pack` wrote."
        ) from error
