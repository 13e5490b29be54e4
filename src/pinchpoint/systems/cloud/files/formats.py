"""Point clouds of users: one call reads PLY, LAS, LAZ, NPZ and folders of .npy into a checked Scene."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene, check_scene, unclassed
from pinchpoint.systems.cloud.files.las import las_scene, read_las
from pinchpoint.systems.cloud.files.npz import arrays_scene, read_arrays
from pinchpoint.systems.cloud.files.ply import ply_scene, read_ply
from pinchpoint.systems.cloud.files.pointcept import folder_scene, read_folder

READS = (".ply", ".npz", ".las", ".laz")


def read_scene(path: str | Path, *, ignore: Sequence[int] = ()) -> Scene:
    """The cloud of a file or of a scene's folder, checked. Colours are 0..1; see `columns` for what a splat gives.

    ignore: labels that mean "no class" in this file beside -1, such as 255.
    """
    path = check_cloud_path(path)
    kind = path.suffix.lower()
    if path.is_dir():
        scene = folder_scene(read_folder(path), str(path))
    elif kind == ".ply":
        scene = ply_scene(read_ply(path))
    elif kind == ".npz":
        scene = arrays_scene(read_arrays(path), str(path))
    else:
        scene = las_scene(read_las(path), path)
    return check_scene(unclassed(scene, ignore), str(path))


def check_cloud_path(path: str | Path) -> Path:
    """Refuse what is not there, may not be read or is of no known kind."""
    path = Path(path)
    if not path.exists():
        raise BadInput(f"there is no file {path}", hint="name a point cloud that exists")
    if not path.is_dir() and path.suffix.lower() not in READS:
        raise BadInput(
            f"cannot read points from {path.name!r}: its kind is not known",
            hint=f"give one of {' '.join(READS)}, or a folder with coord.npy",
        )
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} may not be read", hint="change its permissions, or copy it")
    return path
