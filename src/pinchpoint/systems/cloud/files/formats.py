"""Reading of point clouds: PLY, LAS, LAZ, NPZ and folders of .npy files become a validated Scene."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.cloud.data.scene import Scene, check_scene, ignore_labels
from pinchpoint.systems.cloud.files.las import las_scene, read_las
from pinchpoint.systems.cloud.files.npz import arrays_scene, read_arrays
from pinchpoint.systems.cloud.files.ply import ply_scene, read_ply
from pinchpoint.systems.cloud.files.pointcept import folder_scene, read_folder
from pinchpoint.systems.cloud.files.targets import with_target, without_target

READS = (".ply", ".npz", ".las", ".laz")


def read_scene(path: str | Path, *, ignore: Sequence[int] = (), target: str = "") -> Scene:
    """Read and validate the cloud of a file or scene folder. Colours are in 0..1; see `columns` for splats.

    ignore: labels besides -1 that mean "no class" in this file, such as 255; target: the array to predict,
    which does not become an input.
    """
    path = check_cloud_path(path)
    kind = path.suffix.lower()
    if path.is_dir():
        arrays = read_folder(path, targets=False)
        scene = folder_scene(without_target(arrays, target), str(path))
        scene = with_target(scene, arrays, target, str(path), folder=path) if target else scene
    elif target and kind != ".npz":
        raise BadInput(
            f"{path} has no arrays to predict.", hint="Give --target with .npz files or folders of .npy."
        )
    elif kind == ".ply":
        scene = ply_scene(read_ply(path))
    elif kind == ".npz":
        arrays = read_arrays(path)
        scene = arrays_scene(without_target(arrays, target), str(path))
        scene = with_target(scene, arrays, target, str(path)) if target else scene
    else:
        scene = las_scene(read_las(path), path)
    return check_scene(ignore_labels(scene, ignore), str(path))


def check_cloud_path(path: str | Path) -> Path:
    """Raise an error for a path that does not exist, cannot be read, or has an unknown format."""
    path = Path(path)
    if not path.exists():
        raise BadInput(f"The file {path} does not exist.", hint="Give the path of an existing point cloud.")
    if not path.is_dir() and path.suffix.lower() not in READS:
        raise BadInput(
            f"Cannot read points from {path.name!r}: the format is unknown.",
            hint=f"Give a file that ends in {show_choices(READS)}, or a folder with coord.npy.",
        )
    if not os.access(path, os.R_OK):
        raise BadInput(f"{path} is not readable.", hint="Change its permissions, or copy it.")
    return path
